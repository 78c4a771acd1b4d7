"""What the rows of an analysis' table can stand for. Apart from the tables, so that options know it without polars."""

from enum import StrEnum
from typing import Final

SHOWN_ROWS: Final = 20  # in a table for people, unless they want another number


class By(StrEnum):
    """What the rows of a table stand for."""

    KERNEL = "kernel"
    OPERATOR = "operator"
    SHAPE = "shape"
    MODULE = "module"
    CATEGORY = "category"
    STEP = "step"
    GAP = "gap"
    STREAM = "stream"
    GRAPH = "graph"
    CAPTURED = "captured"
    BACKWARD = "backward"
    ANNOTATION = "annotation"
    ITERATION = "iteration"
