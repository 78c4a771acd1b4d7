"""Reads a part of a trace: some of its steps, or a range of its time.

A long file is read twice: once for its steps and its length, then for the part alone, so that memory holds little more
than that.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.structure.arrays import extent_of
from opscope.analysis.structure.selection import chosen_steps, select_steps, select_time
from opscope.base.errors import UsageError
from opscope.base.units import format_ns
from opscope.readers import read, read_outline
from opscope.readers.unpacked import MAX_UNPACKED_BYTES
from opscope.readers.wanted import Wanted
from opscope.trace.columns import TABLES

if TYPE_CHECKING:
    from opscope.trace.model import Trace


class Part(Struct, frozen=True):
    """Which part of a trace is wanted; one of the two.

    Attributes:
        steps: the profiler's numbers of the first and the last step.
        time_ns: from when to when, counted from the beginning of the trace's first slice.
    """

    steps: tuple[int, int] | None = None
    time_ns: tuple[int, int] | None = None


def read_part(path: Path, part: Part, *, max_bytes: int = MAX_UNPACKED_BYTES) -> "Trace":
    """Read a part of a trace: what began on the host within it, and all work that was launched there.

    What the result is a part of stands in `TraceSource.not_recorded`.

    Args:
        path: as for `opscope.read`.
        part: which part.
        max_bytes: as for `opscope.read`.

    Raises:
        UsageError: the trace has no such step, or ends before the range begins.
        BadInputError: as `opscope.read`.
        EnvironmentLacksError: as `opscope.read`.
    """
    outline = read_outline(path, max_bytes=max_bytes)
    whole = read(path, max_bytes=max_bytes) if outline is None else outline.trace
    tables = [table for name in TABLES if "duration_ns" in (table := getattr(whole, name)).columns]
    left_out = None if outline is None else outline.extent
    extents = [extent for extent in (extent_of(tables), left_out) if extent is not None]
    begin, end = min((low for low, _ in extents), default=0), max((high for _, high in extents), default=0)
    low, high = _range(whole, part, begin)
    if low >= end:
        raise UsageError(f"--window: the trace is {format_ns(end - begin)} long, and ends before the range begins")
    trace = whole if outline is None else read(path, max_bytes=max_bytes, wanted=Wanted(begin_ns=low, end_ns=high))
    trace = select_steps(trace, *part.steps) if part.steps is not None else select_time(trace, low, high)
    told = _sentence(part, low - begin, min(high, end) - low, end - begin)
    return replace(trace, source=replace(trace.source, not_recorded=(*trace.source.not_recorded, told)))


def _range(trace: "Trace", part: Part, begin: int) -> tuple[int, int]:
    """Return when the part begins and ends on the trace's clock."""
    if part.steps is None:
        low, high = part.time_ns or (0, 0)
        return begin + low, begin + high
    chosen = chosen_steps(trace, *part.steps)
    return int(chosen["start_ns"].min()), int(chosen["end_ns"].max())  # type: ignore[arg-type]  # it has rows


def _sentence(part: Part, begins_ns: int, length_ns: int, whole_ns: int) -> str:
    if part.steps is None:
        what = "a part of the trace was"
    elif part.steps[0] == part.steps[1]:
        what = f"step {part.steps[0]} was"
    else:
        what = f"steps {part.steps[0]} to {part.steps[1]} were"
    return (
        f"Only {what} read, as asked: {format_ns(length_ns)} from {format_ns(begins_ns)} on, of {format_ns(whole_ns)}, "
        "and all work that was launched in it."
    )
