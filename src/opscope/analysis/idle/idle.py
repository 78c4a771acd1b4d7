"""Why a device had nothing to do: every idle nanosecond has one cause, by what the records show."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.idle.host_time import PAUSE_NS, HostTime
from opscope.analysis.structure.arrays import Intervals
from opscope.analysis.structure.nesting import Ints
from opscope.documents.verdict import BoundKind, IdleCause, causes_of

LAUNCH_BOUND_CAUSES: Final = causes_of(BoundKind.DISPATCH)
_CAUSES: Final = tuple(IdleCause)
_CODE: Final = {cause: np.int8(code) for code, cause in enumerate(_CAUSES)}
_NONE: Final = -1
Codes = npt.NDArray[np.int8]


class IdleTime(Struct, frozen=True):
    """The idle pieces of one device, in ascending order, each with its cause.

    Attributes:
        pieces: when the device was idle.
        code: per piece the position of its cause in `IdleCause`; `cause_of` gives the cause.
        gap: per piece the number of the gap that it is a part of, ascending.
        thread: per piece the thread that the device waited for, or -1.
        call: per piece the call that the thread sat in, or that launched the activity after the gap, as a row of the
            launches; or -1.
        record: per piece the record of loading code that shows the cause, as a row of the overheads; or -1.
    """

    pieces: Intervals
    code: Codes
    gap: Ints
    thread: Ints
    call: Ints
    record: Ints

    def by_cause(self) -> dict[IdleCause, int]:
        """Return the nanoseconds per cause, for all causes."""
        length = self.pieces.end - self.pieces.start
        return {cause: int(length[self.code == code].sum()) for cause, code in _CODE.items()}

    def is_any_of(self, causes: tuple[IdleCause, ...]) -> npt.NDArray[np.bool_]:
        """Tell per piece whether its cause is one of these."""
        return np.isin(self.code, [_CODE[cause] for cause in causes])

    def cause_of(self, piece: int) -> IdleCause:
        """Return the cause of a piece."""
        return _CAUSES[int(self.code[piece])]

    def within(self, spans: Intervals) -> "IdleTime":
        """Return the parts of the pieces that lie in some intervals."""
        own, start, end = self.pieces.overlaps(spans)
        return self._part(own, start, end)

    def _part(self, own: Ints, start: Ints, end: Ints) -> "IdleTime":
        rows = (self.code[own], self.gap[own], self.thread[own], self.call[own], self.record[own])
        return IdleTime(Intervals(start, end), *rows)

    def without(self, spans: Intervals) -> "IdleTime":
        """Return the parts of the pieces that lie outside of some intervals."""
        if not len(self.pieces):
            return self
        return self.within(spans.gaps(int(self.pieces.start[0]), int(self.pieces.end[-1])))

    def with_cause(self, pieces: Ints, cause: IdleCause, calls: Ints | None = None) -> "IdleTime":
        """Return the same pieces, some of them with another cause.

        Args:
            pieces: the positions of the pieces to change.
            cause: their new cause.
            calls: per changed piece the call that shows it, as a row of the launches; None to keep the calls.
        """
        code, call = self.code.copy(), self.call.copy()
        code[pieces] = _CODE[cause]
        if calls is not None:
            call[pieces] = calls
        return replace(self, code=code, call=call)

    def chosen(self, mask: npt.NDArray[np.bool_]) -> "IdleTime":
        """Return the pieces for which the mask is true."""
        return self._part(np.flatnonzero(mask), self.pieces.start[mask], self.pieces.end[mask])


def idle_time(host: HostTime, launch: Ints, start: Ints, end: Ints, gaps: Intervals) -> IdleTime:
    """Divide the gaps of a device into pieces with one cause each.

    Args:
        host: what the threads of the trace did.
        launch: per activity of the device the row of its launch, or -1.
        start: per activity when it began.
        end: per activity when it ended.
        gaps: when the device did nothing.
    """
    if not len(gaps):
        return _joined([])
    ended_by, ended = _activity_after(start, gaps)
    row = np.where(ended, launch[ended_by], _NONE) if len(launch) else np.full(len(gaps), _NONE)
    known = row >= 0
    # The call had returned before the gap began: the host was in time, something else was not.
    queued = known & (_of_call(host.end, row) <= gaps.start)
    late = np.flatnonzero(known & ~queued)
    # Up to `division` the device waits for the thread to make the call, from there on for the call to take effect.
    division = gaps.start.copy()
    division[late] = np.clip(host.start[row[late]], gaps.start[late], gaps.end[late])
    before = _last_call_before(launch, end, gaps)
    parts = [
        _waiting_for_host(host, gaps, late, division, row, before),
        *_launching(host, gaps, late, division, row),
        _pieces(gaps, np.flatnonzero(~ended), IdleCause.TAIL, thread=_of_call(host.thread, before)),
        _pieces(gaps, np.flatnonzero(ended & ~known), IdleCause.UNKNOWN),
        _pieces(gaps, np.flatnonzero(queued), IdleCause.DEPENDENCY, thread=_of_call(host.thread, row), call=row),
    ]
    return _with_records(host, _joined(parts))


def _activity_after(start: Ints, gaps: Intervals) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return per gap the activity that ended it, and whether there is one: a gap may also end with the window."""
    order = np.argsort(start, kind="stable")
    following = np.searchsorted(start[order], gaps.end, side="left")
    ended = following < len(start)
    if not len(start):
        return following, ended
    activity = order[np.minimum(following, len(start) - 1)]
    return activity, ended & (start[activity] == gaps.end)


def _last_call_before(launch: Ints, end: Ints, gaps: Intervals) -> Ints:
    """Return per gap the call that launched the last activity before it, or -1."""
    launched = np.flatnonzero(launch >= 0)
    if not len(launched):
        return np.full(len(gaps), _NONE)
    order = launched[np.argsort(end[launched], kind="stable")]
    position = np.searchsorted(end[order], gaps.start, side="right") - 1
    return np.where(position >= 0, launch[order[np.maximum(position, 0)]], _NONE)


def _of_call(values: Ints, row: Ints) -> Ints:
    """Return per gap the value of its call; -1 where it has no call."""
    result = np.full(len(row), _NONE)
    known = row >= 0
    result[known] = values[row[known]]
    return result


def _pieces(gaps: Intervals, which: Ints, cause: IdleCause, *, thread: Ints | None = None, call: Ints | None = None
            ) -> IdleTime:  # fmt: skip
    """Return whole gaps with one cause."""
    none = np.full(len(which), _NONE)
    return IdleTime(
        Intervals(gaps.start[which], gaps.end[which]),
        np.full(len(which), _CODE[cause]),
        which,
        none if thread is None else thread[which],
        none if call is None else call[which],
        none,
    )


def _waiting_for_host(host: HostTime, gaps: Intervals, late: Ints, division: Ints, row: Ints, before: Ints) -> IdleTime:
    """Return what the host did until it began the call that ended each gap.

    The thread that made the call may only have begun to work within the gap, as autograd's does. Until then the device
    waited for the thread that had launched what ran before the gap.
    """
    thread = host.thread[row[late]]
    earlier = np.where(before[late] >= 0, host.thread[before[late]], thread)
    begin, until = gaps.start[late], division[late]
    # When the thread that made the call first does something: up to there the earlier thread counts.
    handed = begin.copy()
    # Within one thread there is nothing to hand over.
    taken_over = np.flatnonzero(thread != earlier)
    for own in _groups(thread[taken_over]):
        rows = taken_over[own]
        covered = host.of(int(thread[rows[0]])).covered
        handed[rows] = np.minimum(_next_begun(covered, begin[rows]), until[rows])
    parts: list[IdleTime] = []
    for owner, low, high, hands_over in ((earlier, begin, handed, True), (thread, handed, until, False)):
        real = np.flatnonzero(high > low)
        for own in _groups(owner[real]):
            rows = real[own]
            waited = Intervals(low[rows], high[rows])
            parts += _of_thread(host, int(owner[rows[0]]), waited, late[rows], hands_over)
    return _joined(parts)


def _groups(keys: Ints) -> list[Ints]:
    """Return the positions of equal keys, group by group, each in order."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def _next_begun(covered: Intervals, time: Ints) -> Ints:
    """Return per moment the moment itself if a thread was at work then, else when it next began something."""
    position = np.searchsorted(covered.end, time, side="right")
    # A thread that begins nothing any more never takes over.
    start = np.append(covered.start, np.iinfo(np.int64).max)
    begun: Ints = np.maximum(start[position], time)
    return begun


def _of_thread(host: HostTime, thread: int, waited: Intervals, gap: Ints, hands_over: bool) -> Iterator[IdleTime]:
    """Yield what a thread did while a device waited for it.

    Args:
        host: what the threads of the trace did.
        thread: the thread's number.
        waited: when the device waited for it.
        gap: the number of the gap of each of these intervals.
        hands_over: whether another thread goes on after them: this one's pause then only counts up to there.
    """
    did, rest = host.of(thread), waited
    if len(did.blocked):
        blocked, call, start, end = waited.overlapping(did.blocked)
        yield _made(Intervals(start, end), IdleCause.BLOCKING, gap[blocked], thread, did.call[call])
    if len(did.works):
        worked, work, start, end = waited.overlapping(did.works)
        # A pause counts as other work only if it is long; the part of it within the gap may be short.
        real = (end if hands_over else did.works.end[work]) - did.works.start[work] > PAUSE_NS
        for cause, kept in ((IdleCause.HOST_WORK, real), (IdleCause.DISPATCH, ~real)):
            yield _made(Intervals(start[kept], end[kept]), cause, gap[worked[kept]], thread)
    if len(did.blocked) or len(did.works):
        other = Intervals.union_of(
            np.concatenate([did.blocked.start, did.works.start]), np.concatenate([did.blocked.end, did.works.end])
        )
        part, start, end = waited.overlaps(other.gaps(int(waited.start[0]), int(waited.end[-1])))
        rest, gap = Intervals(start, end), gap[part]
    yield _made(rest, IdleCause.DISPATCH, gap, thread)


def _made(when: Intervals, cause: IdleCause, gap: Ints, thread: int, call: Ints | None = None) -> IdleTime:
    none = np.full(len(when), _NONE)
    code = np.full(len(when), _CODE[cause])
    return IdleTime(when, code, gap, np.full(len(when), thread), none if call is None else call, none)


def _launching(host: HostTime, gaps: Intervals, late: Ints, division: Ints, row: Ints) -> list[IdleTime]:
    """Return the time from the beginning of the call on: blocking inside a call that waits or is long, else latency."""
    call = row[late]
    start, end = division[late], gaps.end[late]
    returned = np.clip(host.end[call], start, end)
    # A call that waits, such as a copy of pageable memory made piece by piece, prepares its activity until that begins.
    inside = np.where(host.waits[call], end, np.where(host.end[call] - host.start[call] > PAUSE_NS, returned, start))
    thread = host.thread[call]
    parts = []
    for cause, low, high in ((IdleCause.BLOCKING, start, inside), (IdleCause.LATENCY, inside, end)):
        own = np.flatnonzero(high > low)
        code, none = np.full(len(own), _CODE[cause]), np.full(len(own), _NONE)
        parts.append(IdleTime(Intervals(low[own], high[own]), code, late[own], thread[own], call[own], none))
    return parts


def _with_records(host: HostTime, idle: IdleTime) -> IdleTime:
    """Let records of loading code and of the profiler's own work decide, where the host did not wait on purpose."""
    if not len(host.loading) and not len(host.profiler):
        return idle
    open_ = idle.is_any_of((IdleCause.HOST_WORK, IdleCause.LATENCY, IdleCause.BLOCKING))
    if len(host.thread):
        # Every blocking piece has a call here, so the flag that a -1 elsewhere reads does not matter.
        open_ &= ~((idle.code == _CODE[IdleCause.BLOCKING]) & host.waits[idle.call])
    asked, parts = idle.chosen(open_), [idle.chosen(~open_)]
    own, record, *when = asked.pieces.overlapping(host.loading)
    loaded = asked._part(own, *when)
    code = np.full(len(own), _CODE[IdleCause.BLOCKING])
    parts.append(IdleTime(loaded.pieces, code, loaded.gap, loaded.thread, loaded.call, host.loading_record[record]))
    asked = asked.without(host.loading)
    held = asked.within(host.profiler)
    code = np.full(len(held.pieces), _CODE[IdleCause.PROFILER])
    parts.append(IdleTime(held.pieces, code, held.gap, held.thread, held.call, held.record))
    return _joined([*parts, asked.without(host.profiler)])


def _joined(parts: list[IdleTime]) -> IdleTime:
    """Join pieces in order of time, without empty ones."""
    parts = [part for part in parts if len(part.pieces)]
    start = np.concatenate([np.empty(0, np.int64), *(part.pieces.start for part in parts)])
    end = np.concatenate([np.empty(0, np.int64), *(part.pieces.end for part in parts)])
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    code = np.concatenate([np.empty(0, np.int8), *(part.code for part in parts)])[order]
    rows = (
        np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])[order]
        for name in ("gap", "thread", "call", "record")
    )
    return IdleTime(Intervals(start[order], end[order]), code, *rows)
