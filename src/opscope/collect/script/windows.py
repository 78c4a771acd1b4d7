"""A window of recording from a script's beginning on: for scripts that end soon, and for those without boundaries."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opscope.collect.script.period import Pattern, candidate_periods, find_pattern
from opscope.collect.script.questions import current_device
from opscope.record.capture import RawTrace
from opscope.record.configuration import CaptureOptions

_MARK: Final = "opscope: after "
_MOST_CALLS: Final = 200_000
Slice = tuple[str, float, float]  # name, start and end in microseconds


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """Steps that were found in a window: the events of a cycle, how often it was seen, what came before."""

    pattern: list[str]
    seen: int
    first: int
    durations_ns: list[int]


class EarlyWindow:
    """Records until it is stopped; its trace is then looked at for steps."""

    def __init__(self, options: CaptureOptions, trace: Path) -> None:
        self.starting = False
        self.began = False
        self._replaced_bytes = 0
        self._options, self._path = options, trace
        self._profiler: Any = None
        self._held: Any = None  # what a stopped profiler recorded: written only if nothing better comes
        self._written = False
        self._mark: Any = None
        self._marks = 0
        self._started, self._recorded_us = 0, 0.0

    @property
    def trace(self) -> RawTrace:
        """The trace that was written."""
        return RawTrace(self._path.name, self._replaced_bytes)

    @property
    def running(self) -> bool:
        """Whether it records."""
        return self._profiler is not None

    def start(self) -> None:
        """Begin to record."""
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
        self._marks = 0

    def mark(self, kind: str) -> None:
        """Mark a boundary: the trace of a script that ends soon then has steps."""
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
        """Stop recording, and hold what was recorded."""
        if self._profiler is None:
            return
        self._held, self._profiler = self._profiler, None
        self._close_mark()
        self._recorded_us = (time.perf_counter_ns() - self._started) / 1000
        self._held.stop()

    def write(self) -> bool:
        """Write what was recorded; False if nothing was."""
        if self._held is not None:
            from opscope.collect.torch_profiler import write_trace

            held, self._held = self._held, None
            self._replaced_bytes = write_trace(held, self._path)
            self._written = True
        return self._written

    def steps_by_operators(self, minimum: int, active: int, *, going_on: bool) -> WindowSteps | None:
        """Find a repetition of operators, and mark its last cycles as steps; None if there is none."""
        if not self.write():
            return None
        trace = json.loads(self._path.read_bytes())
        found = steps_by_operators(
            trace, minimum, at_end=going_on, least_us=self._recorded_us / 2 if going_on else None
        )
        if found is None:
            return None
        pattern, spans = found
        last = spans[-active:]
        self._write_steps(trace, last)
        names = [str(key) for key in pattern.keys]
        return WindowSteps(names, pattern.count - len(last), pattern.first, _durations(last))

    def marked_steps(self, kind: str, active: int) -> WindowSteps | None:
        """Turn what lies between marked boundaries into steps, the first (cold) left out; None if none is whole."""
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
        """Write the steps, and of the trace what belongs to them: what came before would be charged to them."""
        host = next(e for e in trace["traceEvents"] if e.get("cat") in ("cpu_op", "user_annotation"))
        trace["traceEvents"] = within(trace["traceEvents"], spans[0][0], spans[-1][1])
        for number, (begin, end) in enumerate(spans, 1):
            step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}"}
            place = {"pid": host["pid"], "tid": host["tid"], "ts": begin, "dur": end - begin}
            trace["traceEvents"].append({**step, **place, "args": {"opscope": "found afterwards"}})
        self._path.write_text(json.dumps(trace))


def within(events: Sequence[dict[str, Any]], begin: float, end: float) -> list[dict[str, Any]]:
    """Return the events of a stretch of the host's time, and the activities that were launched in it."""
    kept = [e for e in events if e.get("ph") not in _TIMED or (not _on_device(e) and begin <= e["ts"] < end)]
    launched = {_correlation(e) for e in kept} - {None}
    return [e for e in events if e.get("ph") in _TIMED and _on_device(e) and _correlation(e) in launched] + kept


_TIMED: Final = frozenset("XiIsftBE")
_OF_DEVICES: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})


def _on_device(event: dict[str, Any]) -> bool:
    return event.get("cat") in _OF_DEVICES


def _correlation(event: dict[str, Any]) -> Any:
    return (event.get("args") or {}).get("correlation")


def _durations(spans: Sequence[tuple[float, float]]) -> list[int]:
    return [round((end - begin) * 1000) for begin, end in spans]


def outermost(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices of one thread that lie in no other one."""
    found: list[Slice] = []
    for one in sorted(slices, key=lambda item: (item[1], -item[2])):
        if not found or one[1] >= found[-1][2]:
            found.append(one)
    return found


def steps_by_operators(
    trace: dict[str, Any], minimum: int = 4, *, at_end: bool = False, least_us: float | None = None
) -> tuple[Pattern, list[tuple[float, float]]] | None:
    """Find a repetition in the outermost operators of the busiest thread, and the times of its complete cycles.

    Args:
        trace: as Kineto writes it.
        minimum: how often a cycle must be seen.
        at_end: only a repetition that goes on at the end.
        least_us: how long it must last; half of the time from the first operator to the last one if left out. What
            lasts less is a loop of the program's beginning, such as moving parameters to a device.
    """
    threads: dict[Any, list[Slice]] = {}
    for event in trace.get("traceEvents", ()):
        if event.get("ph") == "X" and event.get("cat") == "cpu_op":
            place = (event["pid"], event["tid"])
            threads.setdefault(place, []).append((event["name"], event["ts"], event["ts"] + event["dur"]))
    if not threads:
        return None
    calls = outermost(max(threads.values(), key=len))[-_MOST_CALLS:]
    keys = [name for name, _, _ in calls]
    periods = candidate_periods(keys, repeats=minimum)
    pattern = find_pattern(keys, [end for _, _, end in calls], repeats=minimum, periods=periods, at_end=at_end)
    if pattern is None or pattern.covered < ((calls[-1][2] - calls[0][1]) / 2 if least_us is None else least_us):
        return None
    starts = [pattern.first + cycle * pattern.period for cycle in range(pattern.count)]
    following = [*starts[1:], starts[-1] + pattern.period]
    return pattern, [
        (calls[begin][1], calls[after][1] if after < len(calls) else calls[after - 1][2])
        for begin, after in zip(starts, following, strict=True)
    ]
