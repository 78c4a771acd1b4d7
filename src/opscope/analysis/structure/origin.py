"""Which PyTorch wrote a trace, which process it records, and what its devices are, as far as the file or user says."""

import json
import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.base.text import lazy_pattern
from opscope.knowledge.devices import Device, device_like
from opscope.trace.model import DeviceProperties, Trace, TraceSource

# ---------------------------------------------------------------- devices that a user names


BY_THE_OTHERS = "inferred from the other devices"
AS_GIVEN = "as --gpu says"


def with_named_devices(trace: Trace, gpu: Device | None = None) -> Trace:
    """Return the trace with the properties of every device that worked, as far as they can be told.

    Kernels may run on a device that the header does not list, and listed devices may have no name.

    Args:
        trace: the trace.
        gpu: what all devices are; None to go by the trace.
    """
    worked = [int(number) for number in trace.activities["device"].drop_nulls().unique().sort()]
    listed = {item.index: item for item in trace.devices}
    named = [_named(number, listed.get(number), trace.devices, gpu) for number in worked]
    results = {item.index: item for item in named if item is not None}
    if all(listed.get(number) == item for number, item in results.items()):
        return trace
    return replace(trace, devices=tuple((listed | results).values()))


def _has_name(device: DeviceProperties) -> bool:
    return device.name.strip() not in ("", "unknown")


def _named(
    number: int, own: DeviceProperties | None, listed: Sequence[DeviceProperties], gpu: Device | None
) -> DeviceProperties | None:
    if gpu is not None:
        return _called(gpu, own or DeviceProperties(number, ""), AS_GIVEN)
    if own is not None and _has_name(own):
        return own
    kinds = {_kind(item) for item in listed if _has_name(item)}
    if len(kinds) == 1:
        other = next(item for item in listed if _has_name(item))
        # All named devices are of one kind: so is this one, unless its own properties differ.
        if own is None or _kind(replace(own, name=other.name)) == _kind(other):
            return replace(other, index=number, uuid=None, known_by=BY_THE_OTHERS)
    # The listed devices are alike, though unnamed: an unlisted one is taken for another of them.
    if own is None and len({_kind(item) for item in listed}) == 1:
        own = replace(listed[0], index=number, uuid=None)
    if own is None:
        return None
    like = device_like(own.vendor, own.compute_capability, own.multiprocessors, own.memory_bytes)
    by_size = f"by its {own.multiprocessors} multiprocessors and its memory"
    return own if like is None else _called(like, own, by_size)


def _kind(device: DeviceProperties) -> DeviceProperties:
    """Return the properties that devices of one kind have in common."""
    return replace(device, index=0, uuid=None, memory_bytes=None)


def _called(gpu: Device, own: DeviceProperties, known_by: str) -> DeviceProperties:
    return replace(
        own,
        name=gpu.matches[0],
        compute_capability=None if gpu.vendor == "amd" else gpu.compute_capability,
        multiprocessors=gpu.multiprocessors or own.multiprocessors,
        memory_bytes=gpu.memory_bytes or own.memory_bytes,
        vendor=gpu.vendor,
        known_by=known_by,
    )


# ---------------------------------------------------------------- who wrote a trace


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
