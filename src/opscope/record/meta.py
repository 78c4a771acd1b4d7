"""What the process that makes recorded calls again with empty tensors is asked, and what it answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetaCall:
    """A recorded call: the operator, and its inputs as JSON lists, as the profiler records them."""

    operator: str
    input_dims: str
    input_types: str
    input_strides: str
    concrete_inputs: str


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a call that was made again takes and gives.

    Attributes:
        flop: as ``torch.utils.flop_counter`` counts.
        read_bytes: of all tensors among its arguments.
        new_bytes: of the tensors that it returns and was not given.
        rewritten_bytes: of those among its arguments that it writes.
    """

    flop: int
    read_bytes: int
    new_bytes: int
    rewritten_bytes: int


@dataclass(frozen=True, slots=True)
class MetaAnswer:
    """One line: what became of a call; None where it was refused or failed. The first line says that it is ready."""

    rebuilt: Rebuilt | None = None
