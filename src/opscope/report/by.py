"""What the rows of an analysis' table can stand for. Apart from the tables, so that options know it without polars."""

from enum import StrEnum


class By(StrEnum):
    """What the rows of a table stand for."""

    KERNEL = "kernel"
    OPERATOR = "operator"
    SHAPE = "shape"
    MODULE = "module"
    CATEGORY = "category"
    STEP = "step"
    STREAM = "stream"
    GRAPH = "graph"
    BACKWARD = "backward"
