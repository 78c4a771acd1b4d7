"""What well-chosen kernels reach of their limit, as measured; the tables are written by tools/build_reach.py."""

import tomllib
from enum import IntEnum
from functools import cache
from importlib import resources
from typing import Any, Final

from msgspec import Struct

# All of the following: benchmarks/results/h100-reach.json and h200-reach.json; low, likely, high.
# Between two nodes of a CUDA graph: 0.35 to 0.57 us of simple kernels there, 0.9 to 2 us of others recorded elsewhere.
GRAPH_GAP_NS: Final = (2_000, 1_000, 400)
GRAPH_LAUNCH_NS: Final = (30_000, 15_000, 8_000)
# What copies of pinned memory reach from 8 MB on; PCIe 4 instead of 5 for low.
PINNED_BYTES_PER_NS: Final = (20.0, 50.0, 55.0)
# The host's time of a step of a fused optimizer: for all, and for each tensor.
FUSED_ADAM_NS: Final = (500_000, 3_000)
FUSED_SGD_NS: Final = (350_000, 1_000)
FUSED_HOST: Final = (2.0, 1.0, 0.6)  # it varied by as much


class Assumed(IntEnum):
    """How favourable the assumptions of a replay are."""

    LOW = 0
    LIKELY = 1
    HIGH = 2


class Reach(Struct, frozen=True):
    """How long a kind of work takes: its limit over a share, and an overhead.

    Attributes:
        share: of the limit, for work that is long.
        overhead_ns: what every call takes beside, in nanoseconds.
    """

    share: float
    overhead_ns: float

    def time_ns(self, ideal_ns: float) -> float:
        """Return how long a call takes whose limit is a time in nanoseconds."""
        return ideal_ns / self.share + self.overhead_ns


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(resources.files("opscope.knowledge").joinpath("data", "reach.toml").read_text("utf-8"))


@cache
def reach_of(kind: str, assumed: Assumed) -> Reach:
    """Return what a kind of work reaches.

    Args:
        kind: a table of reach.toml: ``product_16``, ``product_tf32``, ``convolution_16``, ``convolution_tf32``,
            ``attention``, ``attention_training``, ``one_pass``, ``fused_optimizer``.
        assumed: one in ten measurements was slower than LOW, half of them slower than LIKELY, nine in ten than HIGH.
    """
    return Reach(**_tables()[kind][assumed.name.lower()])


@cache
def reach_origin() -> str:
    """Return on what the tables were measured."""
    return str(_tables()["origin"])
