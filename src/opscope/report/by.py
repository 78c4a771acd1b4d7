"""The groupings of an analysis' tables. Apart from the tables, so that command-line options need not import polars."""

from enum import StrEnum
from typing import Final

SHOWN_ROWS: Final = 20  # default number of rows in a table for people


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
    CRITICAL = "critical"
    QUEUE = "queue"
    QUEUE_OVER_TIME = "queue-over-time"
    CHAIN = "chain"
    TREE = "tree"
