"""What fills a device's memory, how it came to that, and what to do: the schema ``opscope.memory/1``."""

from enum import StrEnum


class Owner(StrEnum):
    """Whose memory is. Told from where it was allocated and freed, and from how long it lived."""

    PARAMETER = "parameters"
    GRADIENT = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activations"
    INPUT = "inputs"
    TEMPORARY = "temporaries"
    WORKSPACE = "workspaces"
    GRAPH_POOL = "graph pools"
    KEPT = "kept from earlier steps"
    UNKNOWN = "unknown"
