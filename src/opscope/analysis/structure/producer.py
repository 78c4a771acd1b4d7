"""Which PyTorch wrote a trace, and which process it records, as far as the file says."""

import json
import re
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern
from opscope.trace.model import TraceSource

MOST_RANKS: Final = 1 << 17  # of a job: the largest clusters have about a hundred thousand GPUs
_LONGEST: Final = 20  # digits of a number that cannot be true
_VERSION_KEY = lazy_pattern(r"(py)?torch[ _.-]?version", re.IGNORECASE)


class Producer(Struct, frozen=True):
    """The PyTorch that ran, and its commit; None where the trace does not tell (Kineto itself records neither)."""

    torch: str | None
    git: str | None


class RankTold(Struct, frozen=True):
    """Which rank of how many a trace says that it is of; None where it does not say it.

    Attributes:
        rank: the rank.
        world: how many ranks there are.
        untrue: what it says that cannot be, such as "rank 7 of 2": then neither number is taken.
    """

    rank: int | None = None
    world: int | None = None
    untrue: str | None = None


def producer_of(source: TraceSource) -> Producer:
    """Return the producer by the metadata of opscope's own captures, or by what a user added (``torch_version``)."""
    try:
        own = json.loads(source.metadata.get("opscope", "null"))
    except ValueError:
        own = None
    if isinstance(own, dict) and isinstance(own.get("torch"), str):
        git = own.get("torch_git")
        return Producer(own["torch"], git if isinstance(git, str) else None)
    for key, text in source.metadata.items():
        if _VERSION_KEY.fullmatch(key):
            return Producer(text.strip().strip('"'), None)
    return Producer(None, None)


def process_name(source: TraceSource) -> str:
    """Return a name for a process: its rank, program and number, as far as the file says; else the file's path."""
    metadata = source.metadata
    rank = _rank_of_world(rank_told(source))
    program = [metadata.get("program", ""), f"(process {metadata['process']})" if "process" in metadata else ""]
    return ": ".join(filter(None, [rank or "", " ".join(filter(None, program))])) or source.path


def _rank_of_world(named: RankTold) -> str | None:
    if named.rank is None:
        return None
    return f"rank {named.rank}{'' if named.world is None else f' of {named.world}'}"


def rank_told(source: TraceSource) -> RankTold:
    """Return which rank a trace's header says that it is of."""
    try:
        result = json.loads(source.metadata.get("distributedInfo", "null"))
    except (ValueError, RecursionError):
        return RankTold()
    if not isinstance(result, dict):
        return RankTold()
    rank, world = (_number(result.get(name)) for name in ("rank", "world_size"))
    if can_be_rank(rank, world):
        return RankTold(rank, world)
    shown = ["unknown" if one is None else str(one)[:_LONGEST] for one in (rank, world)]
    return RankTold(untrue=f"rank {shown[0]} of {shown[1]}")


def can_be_rank(rank: int | None, world: int | None) -> bool:
    """Tell whether there can be a rank of that number in a job of so many ranks; None stands for any."""
    most = MOST_RANKS if world is None else world
    return 1 <= most <= MOST_RANKS and (rank is None or 0 <= rank < most)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
