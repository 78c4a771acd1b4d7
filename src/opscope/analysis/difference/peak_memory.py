"""How peak memory changed: the allocator's figure and, where allocations were recorded, what was alive by operator."""

from collections import Counter
from typing import Final

from opscope.analysis.measured import Measured
from opscope.analysis.pictures.live_memory import LiveMemory, live_memory
from opscope.documents.difference import MemoryChange, MemoryPart

BEFORE_RECORDING: Final = "allocated before the recording"
_OUTSIDE: Final = "outside any operator"


def memory_change(before: Measured, after: Measured) -> MemoryChange | None:
    """Compare the peak memory of both sides, on the device that holds most; None where neither side knows any."""
    allocated = [one.record.memory.allocated_bytes if one.record else None for one in (before, after)]
    peaks = [_largest(one) for one in (before, after)]
    if not any(value is not None for value in (*allocated, *peaks)):
        return None
    return MemoryChange(
        before_bytes=allocated[0],
        after_bytes=allocated[1],
        recorded_before_bytes=None if peaks[0] is None else peaks[0].peak_bytes,
        recorded_after_bytes=None if peaks[1] is None else peaks[1].peak_bytes,
        parts=_parts(peaks[0], peaks[1]),
    )


def _largest(one: Measured) -> LiveMemory | None:
    analysis = one.analysis
    if not analysis.trace.allocations.height:
        return None
    result = live_memory(analysis.trace, analysis.links, analysis.origins)
    # A device counts before the host, however much that holds.
    return max(result, key=lambda memory: (memory.device is not None, memory.peak_bytes), default=None)


def _parts(before: LiveMemory | None, after: LiveMemory | None) -> tuple[MemoryPart, ...]:
    # Without addresses it is not known what was alive at a peak.
    if before is None or after is None or before.before_bytes is None or after.before_bytes is None:
        return ()
    sides = [_by_operator(memory) for memory in (before, after)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    parts = (
        MemoryPart(
            name=name, before_bytes=sides[0][name], after_bytes=sides[1][name],
            change_bytes=sides[1][name] - sides[0][name],
        )
        for name in names
    )  # fmt: skip
    return tuple(sorted(parts, key=lambda part: (-abs(part.change_bytes), part.name)))


def _by_operator(memory: LiveMemory) -> Counter[str]:
    results = Counter({BEFORE_RECORDING: memory.before_bytes or 0})
    for operator, size in memory.alive.select("operator", "bytes").iter_rows():
        results[operator or _OUTSIDE] += size
    return results
