"""Writes the longest idle gap of a device as a sentence, for people who read only the first lines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opscope.analysis.structure.streams import NO_DEVICE
from opscope.base.units import format_ns, format_share
from opscope.documents.bound import IdleCause
from opscope.documents.trace import GapRow
from opscope.render.blocks import Inline, Name

_WORTH_TELLING: Final = 0.01  # of the window
_STACKS: Final = "the line of Python was not recorded: record stacks (with_stack=True, opscope profile --with-stack)"

# Causes for which the host sits in a call.
_IN_CALLS: Final = (IdleCause.BLOCKING, IdleCause.ALLOCATION, IdleCause.COLD_START)


def longest_gap(
    gaps: Sequence[GapRow], windows_ns: Mapping[int, int], *, with_names: bool, may_have_stacks: bool
) -> Inline | None:
    """Return a sentence on the longest gap and its cause; None if all gaps are too short to matter.

    Args:
        gaps: the longest first.
        windows_ns: length of each device's window by device number, in the pass that the gaps are from.
        with_names: whether the gaps are from the pass with names while the figures around them are from a light pass.
        may_have_stacks: whether the profiler could have recorded lines of Python.
    """
    own = ((gap, windows_ns.get(NO_DEVICE if gap.device is None else gap.device, 0)) for gap in gaps)
    result = next(((gap, window) for gap, window in own if gap.duration_ns >= _WORTH_TELLING * window), None)
    if result is None:
        return None
    gap, window_ns = result
    device = "" if gap.device is None else f" of device {gap.device}"
    step = "" if gap.step is None else f" in step {gap.step}"
    time, share = format_ns(gap.duration_ns), format_share(gap.duration_ns, window_ns)
    mostly = f"{format_ns(gap.causes[gap.cause])} of it {gap.cause}"
    window = f"the {format_ns(window_ns)} of the pass with names" if with_names else "the window"
    sentence = f"Longest gap{device}: {time} ({share} of {window}){step}, {gap.position}; {mostly}"
    return (sentence, *_where(gap, may_have_stacks=may_have_stacks), ".")


def _where(gap: GapRow, *, may_have_stacks: bool) -> Iterator[str]:
    """Yield in which call and where in the program the host was, as far as it was recorded."""
    if gap.call and gap.cause in _IN_CALLS:
        yield from (" (", Name(gap.call), ")")
    if gap.cause == IdleCause.DEPENDENCY:
        if gap.stream is not None:
            yield f", on stream {gap.stream}"
        if gap.waited_for is not None:
            yield from (", for ", Name(gap.waited_for))
    if gap.cause in (IdleCause.DEPENDENCY, IdleCause.QUEUED, IdleCause.UNKNOWN, IdleCause.PROFILER):
        return
    for place in filter(None, (gap.operator, gap.annotation, gap.module, gap.python)):
        yield from (", in ", Name(place))
    if may_have_stacks and gap.cause in (*_IN_CALLS, IdleCause.HOST_WORK, IdleCause.INPUT) and gap.python is None:
        yield f"; {_STACKS}"
