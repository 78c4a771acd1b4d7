"""A window that is recorded from a script's beginning: for scripts that end soon or have no boundaries of steps.

PyTorch can run one profiler at a time: where the script starts its own, only what that one recorded is available.
"""

import contextlib
import json
import shutil
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from opscope.base.units import NS_PER_S
from opscope.collect.script.found import current_device, synchronize_if_used
from opscope.collect.script.step_events import Pattern, candidate_periods, find_pattern
from opscope.record.capture import RawTrace
from opscope.record.configuration import CaptureOptions

_MARK: Final = "opscope: after "  # begins the names of the ranges between boundaries
_MOST_CALLS: Final = 200_000  # the last ones, which are searched for a repetition
_AT_WORK: Final = 0.05  # of a window: with less, the program prepares something
Slice = tuple[str, float, float]  # name, start and end in microseconds


class OwnProfiler:
    """Follows the profilers that a script starts, and keeps the recording of the last one.

    Args:
        trace: where that recording is kept.
    """

    def __init__(self, trace: Path) -> None:
        self._path = trace
        self._last: Any = None
        self._copied: Any = None

    @property
    def was_used(self) -> bool:
        """Whether the script started a profiler."""
        return self._last is not None

    def started(self, profiler: Any) -> None:
        """Note a ``torch.autograd.profiler.profile`` that the script starts."""
        self._last = profiler

    def exported(self, profiler: Any, path: Any) -> None:
        """Copy a trace that the script wrote, because PyTorch exports a trace only once."""
        if profiler is not self._last:
            return
        try:
            shutil.copyfile(path, self._path)
            self._copied = profiler
        except OSError:  # a script must not fail because it is watched
            traceback.print_exc()

    def kept(self) -> RawTrace | None:
        """Return the trace of the last profiler; None if it never ended, or left nothing that can be written."""
        if self._last is None:
            return None
        if self._copied is self._last:
            return RawTrace(self._path.name)
        if getattr(self._last, "kineto_results", None) is None:
            return None
        from opscope.collect.torch_profiler import write_trace  # imports PyTorch, which the script does first

        try:
            return RawTrace(self._path.name, write_trace(self._last, self._path))
        except Exception:  # the profiler is in a state that PyTorch cannot export
            traceback.print_exc()
            return None


class WindowSteps(Struct, frozen=True):
    """Steps that were found in a window.

    Attributes:
        pattern: the names of the events of one cycle.
        seen: how many cycles came before the steps.
        first: how many events came before the first cycle.
        durations_ns: of the steps, with the profiler.
    """

    pattern: list[str]
    seen: int
    first: int
    durations_ns: list[int]


class EarlyWindow:
    """Records until it is stopped; its trace is then searched for steps.

    Attributes:
        starting: whether its profiler is being started right now.
        began: whether it has ever recorded.
        since: when the first window began in which the program was at work, by ``time.monotonic``; None before that.
        operators_per_s: how many operators ran in a second of the last window.
        at_work: the share of all windows in which the busiest thread ran operators, or devices worked; or of the last
            one that the steps cover which were found in it, if that is more.
    """

    def __init__(self, options: CaptureOptions, trace: Path) -> None:
        self.starting = False
        self.began = False
        self.since: float | None = None
        self.operators_per_s, self.at_work = 0.0, 0.0
        self._worked_us, self._recorded_us, self._counted = 0.0, 0.0, 0  # of the windows up to number _counted
        self._replaced_bytes = 0
        self._options, self._path = options, trace
        self._profiler: Any = None
        self._held: Any = None  # a stopped profiler; its trace is written only if nothing better comes
        self._written = False
        self._mark: Any = None
        self._marks = 0
        self._started, self._ended = 0, 0
        self._windows = 0
        self._kept: tuple[int, int, int] | None = None  # beginning, end and number of the window that was written

    @property
    def trace(self) -> RawTrace:
        """The trace that was written."""
        return RawTrace(self._path.name, self._replaced_bytes)

    @property
    def running(self) -> bool:
        """Whether it records."""
        return self._profiler is not None

    @property
    def seconds(self) -> float:
        """How long the window is: so far, if it records."""
        return ((time.perf_counter_ns() if self.running else self._ended) - self._started) / NS_PER_S

    def part(self, began: float, *, from_beginning: bool) -> str | None:
        """Say which part of a run was written; None where it is all of it, or none was written.

        Args:
            began: when the run began, by ``time.monotonic``.
            from_beginning: whether the first window began with the run.
        """
        if self._kept is None or (self._windows == 1 and from_beginning):
            return None
        start, end, _ = self._kept
        after = time.monotonic() - began - (time.perf_counter_ns() - start) / NS_PER_S
        return f"{(end - start) / NS_PER_S:.1f} s of the run, starting {after:.0f} s after it imported PyTorch"

    def start(self) -> None:
        """Begin to record; what an earlier window holds is dropped."""
        from opscope.collect.torch_profiler import TorchProfiler

        collector = TorchProfiler(self._options, current_device())
        self.starting = True
        try:
            profiler = collector.profiler()
            profiler.start()
        finally:
            self.starting = False
        collector.describe(profiler)
        self._profiler, self._held, self.began = profiler, None, True
        self._started = time.perf_counter_ns()
        self._windows += 1
        self._marks = 0

    def mark(self, kind: str) -> None:
        """Mark a boundary, so that steps can be found in the trace of a script that ends soon."""
        if self._profiler is None:
            return
        from torch.autograd.profiler import record_function

        self._close_mark()
        self._mark = record_function(f"{_MARK}{kind} {self._marks}")
        self._mark.__enter__()
        self._marks += 1

    def _close_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def stop(self) -> None:
        """Stop recording and hold what was recorded."""
        if self._profiler is None:
            return
        self._held, self._profiler = self._profiler, None
        self._close_mark()
        self._ended = time.perf_counter_ns()
        with contextlib.suppress(RuntimeError):  # the script may have brought the device into an error
            synchronize_if_used()  # or what the device has not done yet is lost
        self._held.stop()

    @property
    def _is_cut_short(self) -> bool:
        assert self._kept is not None
        start, end, number = self._kept
        return number < self._windows and 2 * (self._ended - self._started) < end - start

    def write(self, *, going_on: bool = False) -> bool:
        """Write what was recorded; return whether there is a trace.

        Args:
            going_on: whether the script still runs. A window that its end has cut short, to less than half of the one
                before, does not replace that, nor does one in which nothing ran.
        """
        if not going_on and self._held is not None and self._kept is not None and self._is_cut_short:
            self._held = None
        if self._held is None:
            return self._written
        from opscope.collect.torch_profiler import write_trace

        held, self._held = self._held, None
        path = self._path if going_on or self._kept is None else self._path.with_name(f"last-{self._path.name}")
        replaced_bytes = write_trace(held, path)
        if path != self._path and not any(work_in(path.read_bytes())):
            path.unlink()
            self._recorded_us += (self._ended - self._started) / 1_000
            return self._written
        path.replace(self._path)
        self._replaced_bytes = replaced_bytes
        self._written, self._kept = True, (self._started, self._ended, self._windows)
        return self._written

    def steps_by_operators(self, minimum: int, active: int, *, going_on: bool) -> WindowSteps | None:
        """Find a repetition of operators and mark typical ones of its last cycles as steps.

        Args:
            minimum: how often a cycle must be seen.
            active: how many steps to mark at most.
            going_on: whether the script still runs: only a repetition that goes on, and lasts half of the window,
                counts then.

        Returns:
            The steps; None if nothing was recorded, or nothing repeats.
        """
        if not self.write(going_on=going_on):
            return None
        assert self._kept is not None
        began, ended, number = self._kept
        operators, device_us = work_in(self._path.read_bytes())
        calls, us = busiest_thread(operators), max(ended - began, 1_000_000) / 1_000
        self.operators_per_s = len(operators) / us * 1e6
        worked_us = max(sum(end - start for _, start, end in calls), device_us)
        if number != self._counted:
            self._worked_us, self._recorded_us = self._worked_us + worked_us, self._recorded_us + us
            self._counted = number
        self.at_work = self._worked_us / self._recorded_us
        if worked_us >= _AT_WORK * us and self.since is None:
            self.since = time.monotonic() - (time.perf_counter_ns() - began) / NS_PER_S
        searched = calls[-_MOST_CALLS:]
        # Of more calls than are searched, the last ones are a part of the window.
        least_us = (us if len(searched) == len(calls) else searched[-1][2] - searched[0][1]) / 2
        result = steps_by_operators(searched, minimum, at_end=going_on, least_us=least_us if going_on else None)
        if result is None:
            return None
        pattern, spans = result
        self.at_work = max(self.at_work, pattern.covered / us)
        trace = json.loads(self._path.read_bytes())
        before = _typical(spans, active)
        typical = spans[before : before + active]
        self._write_steps(trace, typical)
        names = [str(key) for key in pattern.keys]
        return WindowSteps(names, before, pattern.first, _durations(typical))

    def marked_steps(self, kind: str, active: int) -> WindowSteps | None:
        """Turn the ranges between marked boundaries into steps.

        Args:
            kind: of the boundaries.
            active: how many steps to keep: the last ones, the least cold.

        Returns:
            The steps; None if no range is complete.
        """
        trace = json.loads(self._path.read_bytes())
        prefix = f"{_MARK}{kind}"
        marks = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation" and e["name"].startswith(prefix)]
        marks.sort(key=lambda event: event["ts"])
        complete = marks[:-1][-active:]  # the last one was open when the window closed
        if not complete:
            return None
        spans = [(event["ts"], event["ts"] + event["dur"]) for event in complete]
        self._write_steps(trace, spans)
        return WindowSteps([f"{kind} boundary"], len(marks) - 1 - len(complete), 0, _durations(spans))

    def _write_steps(self, trace: dict[str, Any], spans: Sequence[tuple[float, float]]) -> None:
        """Write the steps and the part of the trace that belongs to them; earlier work would be charged to them."""
        # Steps are laid on the thread of the first host event.
        host = next(e for e in trace["traceEvents"] if e.get("cat") in ("cpu_op", "user_annotation"))
        trace["traceEvents"] = within(trace["traceEvents"], spans[0][0], spans[-1][1])
        for number, (begin, end) in enumerate(spans, 1):
            step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}"}
            place = {"pid": host["pid"], "tid": host["tid"], "ts": begin, "dur": end - begin}
            trace["traceEvents"].append({**step, **place, "args": {"opscope": "found afterwards"}})
        self._path.write_text(json.dumps(trace))


def within(events: Sequence[dict[str, Any]], begin: float, end: float) -> list[dict[str, Any]]:
    """Return the host events that begin in [begin, end), the activities that they launched, and all metadata."""
    # Activities run later than the host: the launch that they are correlated with decides, not their own time.
    kept = [e for e in events if e.get("ph") not in _TIMED or (not _on_device(e) and begin <= e["ts"] < end)]
    launched = {_correlation(e) for e in kept} - {None}
    return [e for e in events if e.get("ph") in _TIMED and _on_device(e) and _correlation(e) in launched] + kept


_TIMED: Final = frozenset("XiIsftBE")  # phases of events with a time; others, such as M, are metadata
_OF_DEVICES: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})


def _on_device(event: dict[str, Any]) -> bool:
    return event.get("cat") in _OF_DEVICES


def _correlation(event: dict[str, Any]) -> Any:
    return (event.get("args") or {}).get("correlation")


def _durations(spans: Sequence[tuple[float, float]]) -> list[int]:
    return [round((end - begin) * 1000) for begin, end in spans]


def _typical(spans: Sequence[tuple[float, float]], count: int) -> int:
    """Return where so many consecutive cycles begin that take as long as the median group of the second half does.

    Of single cycles, some wait for a core: three of these are not what a cycle takes.
    """
    if len(spans) <= count:
        return 0
    last = len(spans) - count
    begins = range(min(len(spans) // 2, last), last + 1)
    totals = [spans[begin + count - 1][1] - spans[begin][0] for begin in begins]
    middle = median(totals)
    return min(zip(begins, totals, strict=True), key=lambda one: (abs(one[1] - middle), -one[0]))[0]


def outermost(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices of one thread that lie in no other slice."""
    results: list[Slice] = []
    # Of slices that start together the longest comes first: it encloses the others.
    for one in sorted(slices, key=lambda item: (item[1], -item[2])):
        if not results or one[1] >= results[-1][2]:
            results.append(one)
    return results


class _Event(Struct, gc=False):
    """What matters of an event here; the rest of it is skipped, which takes a tenth of the time."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = 0
    tid: Any = 0
    ts: float = 0.0
    dur: float = 0.0


class _Events(Struct):
    trace_events: list[_Event] = field(name="traceEvents", default_factory=list)


def work_in(content: bytes) -> tuple[list[tuple[Any, Slice]], float]:
    """Return the operators in a trace as Kineto writes it, with their threads, and how long devices worked.

    Args:
        content: the file's.

    Returns:
        The thread of each operator and the operator; and the microseconds of all work of devices, added up.
    """
    events = [one for one in msgspec.json.decode(content, type=_Events, strict=False).trace_events if one.ph == "X"]
    operators = [((one.pid, one.tid), (one.name, one.ts, one.ts + one.dur)) for one in events if one.cat == "cpu_op"]
    # Ranges that are shown on a device cover its pauses, too.
    work = _OF_DEVICES - {"gpu_user_annotation"}
    return operators, sum(one.dur for one in events if one.cat in work)


def busiest_thread(operators: Sequence[tuple[Any, Slice]]) -> list[Slice]:
    """Return the outermost operators of the thread that has most operators."""
    threads: dict[Any, list[Slice]] = {}
    for thread, operator in operators:
        threads.setdefault(thread, []).append(operator)
    return outermost(max(threads.values(), key=len, default=[]))


def steps_by_operators(
    calls: Sequence[Slice], minimum: int = 4, *, at_end: bool = False, least_us: float | None = None
) -> tuple[Pattern, list[tuple[float, float]]] | None:
    """Find a repetition in the outermost operators of a thread, and the times of its complete cycles.

    Args:
        calls: those operators, in order.
        minimum: how often a cycle must be seen.
        at_end: whether only a repetition counts that goes on at the end.
        least_us: how long the repetition must last, in microseconds; None for half of the time from the first operator
            to the last. A shorter one is a loop of the program's beginning, such as moving parameters to a device.

    Returns:
        The repetition, and the start and end of each complete cycle in microseconds; None if there is no repetition.
    """
    if not calls:
        return None
    keys = [name for name, _, _ in calls]
    periods = candidate_periods(keys, repeats=minimum)
    pattern = find_pattern(keys, [end for _, _, end in calls], repeats=minimum, periods=periods, at_end=at_end)
    if pattern is None or pattern.covered < ((calls[-1][2] - calls[0][1]) / 2 if least_us is None else least_us):
        return None
    # A cycle ends where the next one starts, so that gaps between operators belong to a step; the last one of the
    # recording ends with its last operator.
    starts = [pattern.first + cycle * pattern.period for cycle in range(pattern.count)]
    following = [*starts[1:], starts[-1] + pattern.period]
    return pattern, [
        (calls[begin][1], calls[after][1] if after < len(calls) else calls[after - 1][2])
        for begin, after in zip(starts, following, strict=True)
    ]
