"""Decides, while a script runs, which of its steps are its steady state, and profiles a few of them.

A step is what lies between two boundaries: ends of an optimizer's outermost ``step()``, or, in programs without an
optimizer, beginnings of outermost module calls and replays of CUDA graphs. A repetition of them that has settled
(durations alike, nothing compiled meanwhile) is profiled. For scripts that end before, and for those without such
boundaries, a window from the beginning is recorded too; in it, repetitions of operators are looked for.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from opscope.collect.script.events import ANCHOR, LEVELS, Identities, StepEvents
from opscope.collect.script.found import Found
from opscope.collect.script.own_profiler import OwnProfiler
from opscope.collect.script.passes import Passes
from opscope.collect.script.period import Pattern, settled
from opscope.collect.script.questions import (
    capturing,
    compiled_graphs,
    compiling,
    grad_enabled,
    on_device,
    profiler_running,
    synchronize,
)
from opscope.collect.script.windows import EarlyWindow
from opscope.record.configuration import CaptureOptions

_OPTIMIZER_CYCLES: Final = 3  # seen before a repetition is believed
_CALL_CYCLES: Final = 6
_PATIENCE_S: Final = 20.0  # in which a program that has an optimizer is expected to use it
_INFERS: Final = 12  # module calls that record gradients tell that no optimizer will follow
_MOST_CALLS: Final = 256  # module calls within a step that are compared
_BLOCKS: Final = 6  # as many samples as a confidence interval of their median takes
_BLOCK_NS: Final = 50_000_000
_LEAST_CYCLES_OF_BLOCK: Final = 2
_MOST_CYCLES_OF_BLOCK: Final = 100
_ENDINGS: Final = 3  # how often a script is asked to end
_PATIENCE_AT_THE_END_S: Final = 30.0


_DRIVER: Final = Path("/dev/nvidiactl")


class Phase(Enum):
    """Where the watcher stands."""

    WATCH = "no repetition yet"
    SETTLE = "repetition found; unprofiled cycles are timed"
    RECORD = "profiling"
    DONE = "done"


@dataclass(slots=True)
class _Block:
    """Cycles that are timed together, between two waits for the device."""

    cycles: int
    left: int
    began: int


class EnoughMeasured(SystemExit):  # it is no error: it ends the script as sys.exit() does
    """Ends the script at the boundary of a step, so that its ``finally`` blocks and exit functions run."""


class Watcher:
    """Gets the events of the main thread; `opscope.collect.script.signals.Listener`."""

    def __init__(
        self,
        options: CaptureOptions,
        trace: Path,
        done: Callable[[Found], None],
        *,
        light: Path | None = None,
        run_on: bool = False,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin to watch.

        Args:
            options: what is collected, and how many steps.
            trace: where the trace goes.
            light: where the trace of device activities only goes; None for no such pass.
            done: called once there is a trace; it keeps what was found.
            run_on: whether the script goes on after that, to its own end.
            progress: called with the phase.
        """
        self.found, self.phase = Found(), Phase.WATCH
        self.active = True  # False in forked children and after the end
        self._options, self._done = options, done
        self._run_on, self._progress = run_on, progress
        self._pid, self._main = os.getpid(), threading.main_thread().ident
        self._labels: dict[tuple[str, Hashable], str] = {}
        self._names = Identities()
        self._optimizer, self._call = StepEvents(), StepEvents()
        self._calls: list[int] = []
        self._current_call: tuple[str, int, str] | None = None
        self._optimizers_made, self._grad_calls = 0, 0
        self._began = time.monotonic()
        self._source, self._level = "", 0
        self._pattern: Pattern | None = None
        self._place, self._partial, self._upcoming = 0, False, 0
        self._cycle_began, self._graphs = 0, 0
        self._block: _Block | None = None
        self._passes = Passes(options, trace, light)
        self._early = EarlyWindow(options, trace)
        self._own = OwnProfiler(trace)
        self._raised, self._busy = 0, False

    @property
    def missed(self) -> str:
        """What a reader may have expected to be recorded, where CUDA could be used and was not."""
        if self._own.was_used:
            return (
                ": it has a profiler of its own, which left no results. PyTorch has one at a time: take it out, or let "
                "it write its trace and see that (opscope analyze TRACE)"
            )
        if self._early.began or "torch" not in sys.modules:
            return ""
        return ": it ended before steps were found, or within the first seconds, in which nothing is recorded on a GPU"

    # ---------------------------------------------------------------- signals

    def torch_imported(self) -> None:
        """PyTorch is there: record from here on, for scripts that end soon.

        Before the script's own first use of CUDA nothing may touch it: it may fork, or choose devices; and a profiler
        that starts within that first use has crashed programs. So where there is a driver, the first window is the
        watchdog's, after some seconds.
        """
        import torch

        self._began = time.monotonic()
        if torch.version.cuda is None or not _DRIVER.exists():
            self._start_early()

    def optimizer_made(self) -> None:
        """An optimizer's class was set up."""
        self._optimizers_made += 1

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An outermost ``step()`` has ended."""
        if not self._wanted():
            return
        number, name = self._names.of(optimizer)
        keys = ((number, tuple(self._calls)), number, name)
        self._calls.clear()
        self._close("optimizer steps", self._optimizer, keys, f"{name}.step")

    def call_begins(self, kind: str, thing: Any) -> None:
        """An outermost call of a module begins, or a replay of a CUDA graph."""
        if not self._wanted():
            return
        number, name = self._names.of(thing)
        if len(self._calls) < _MOST_CALLS:
            self._calls.append(number)
        self._close_call(number)
        self._current_call = (kind, number, name)

    def profiler_prepares(self, profiler: Any) -> None:
        """A profiler is about to start. PyTorch has one at a time; the script's own goes first."""
        if self._passes.owns(profiler) or self._early.starting or not self.active:
            return
        self._own.started(profiler)
        if not self._passes.running and not self._early.running:
            return
        self.found.notes.append("The script started a profiler of its own, and this one gave way")
        self._early.stop()
        if self.phase is Phase.RECORD:
            self._passes.abandon()
            self._watch_again()

    def trace_exported(self, profiler: Any, path: Any) -> None:
        """A profiler has written its trace."""
        if self.active and self.phase is not Phase.DONE:
            self._own.exported(profiler, path)

    # ---------------------------------------------------------------- boundaries

    def _wanted(self) -> bool:
        if not self.active or self._busy or (self.phase is Phase.DONE and self._run_on):
            return False
        return threading.get_ident() == self._main and not capturing()

    def _close_call(self, upcoming: int = 0) -> None:
        self._upcoming = upcoming
        if self._current_call is None:
            return
        kind, number, name = self._current_call
        self._grad_calls += grad_enabled()
        self._current_call = None
        self._close(f"{kind} calls" if kind == "module" else "graph replays", self._call, (number, number, name), name)

    def _close(self, source: str, events: StepEvents, keys: tuple[Hashable, ...], name: str) -> None:
        now = time.perf_counter_ns()
        kind = "optimizer" if events is self._optimizer else "call"
        for key in keys:
            self._labels.setdefault((kind, key), name)
        self._busy = True
        try:
            if self.phase is not Phase.DONE:
                events.add(keys, now)
            if self.phase is Phase.WATCH:
                self._look(kind, source, events)
            elif kind == self._source and self.phase in (Phase.SETTLE, Phase.RECORD):
                self._follow(keys, now)
        finally:
            self._busy = False
        self._end_script()

    # ---------------------------------------------------------------- finding

    def _look(self, kind: str, source: str, events: StepEvents) -> None:
        if kind == "optimizer" or not self._optimizers_made:
            self._early.mark(kind)
        if kind == "call" and not self._calls_are_steps():
            return
        repetition = events.repetition(_OPTIMIZER_CYCLES if kind == "optimizer" else _CALL_CYCLES)
        if repetition is None or (profiler_running() and not self._early.running):
            return
        self._level, self._pattern = repetition
        self._source, pattern = kind, self._pattern
        self.found.source, self.found.level = source, LEVELS[self._level]
        self.found.pattern = [self._labels[kind, key] for key in pattern.keys]
        self.found.first, self.found.seen = pattern.first, pattern.count
        self._early.stop()
        self.phase, self._graphs = Phase.SETTLE, compiled_graphs()
        self._progress("settling")
        self._place = (pattern.end - pattern.first) % pattern.period
        self._partial = bool(self._place) or self._level == ANCHOR  # found within a cycle: that one is not timed
        self.found.wall_ns.clear()
        self._cycle_began = time.perf_counter_ns()

    def _calls_are_steps(self) -> bool:
        """Module calls are steps unless an optimizer is about to step: one exists, and calls record gradients."""
        if self._optimizer.ends:
            return False
        waited = time.monotonic() - self._began > _PATIENCE_S
        return not self._optimizers_made or waited or self._grad_calls > _INFERS

    def _follow(self, keys: tuple[Hashable, ...], now: int) -> None:
        """Compare an event with the one that the repetition predicts."""
        assert self._pattern is not None
        if self._level == ANCHOR:
            if self._pattern.keys[0] != (self._upcoming if self._source == "call" else keys[1]):
                return
        elif keys[self._level] != self._pattern.keys[self._place]:
            self._broken()
            return
        self._place = (self._place + 1) % self._pattern.period
        if self._place:
            return
        if self._partial:
            self._partial = False
        elif self.phase is Phase.SETTLE:
            self._settle(now)
        elif self._passes.cycle(now - self._cycle_began):
            self._profiled()
        self._cycle_began = time.perf_counter_ns()

    def _settle(self, now: int) -> None:
        graphs = compiled_graphs()
        if graphs != self._graphs:  # something was compiled meanwhile: begin again
            self._graphs = graphs
            self.found.wall_ns.clear()
            self._block = None
            return
        if self._block is not None:
            self._timed(self._block)
            return
        self.found.wall_ns.append(now - self._cycle_began)
        state = settled(self.found.wall_ns)
        if state is not None and not profiler_running():
            self.found.settled = state
            if on_device():
                self._begin_timing()
            else:
                self._start()

    def _begin_timing(self) -> None:
        """Where a device works on after the host, times of single cycles are of the host: time blocks, and wait."""
        typical = max(1, sorted(self.found.wall_ns)[len(self.found.wall_ns) // 2])
        self.found.wall_ns.clear()
        cycles = min(_MOST_CYCLES_OF_BLOCK, max(_LEAST_CYCLES_OF_BLOCK, _BLOCK_NS // typical))
        synchronize()
        self._block = _Block(cycles, cycles, time.perf_counter_ns())

    def _timed(self, block: "_Block") -> None:
        block.left -= 1
        if block.left:
            return
        synchronize()
        self.found.wall_ns.append((time.perf_counter_ns() - block.began) // block.cycles)
        if len(self.found.wall_ns) < _BLOCKS:
            self._block = _Block(block.cycles, block.cycles, time.perf_counter_ns())
        else:
            self._block, self.found.synchronised = None, True
            self._start()

    def _broken(self) -> None:
        """An event is not the one predicted: keep what was profiled, or look again."""
        if self.phase is Phase.RECORD and self._passes.usable:
            self.found.notes.append("The repetition broke off while it was profiled")
            self._passes.stop()
            self._profiled()
            return
        self._passes.abandon()
        self._watch_again()

    def _watch_again(self) -> None:
        self.phase, self._pattern, self._block = Phase.WATCH, None, None
        self.found.wall_ns.clear()
        self.found.source, self.found.pattern, self.found.profiled_ns = None, [], []

    # ---------------------------------------------------------------- profiling

    def _start(self) -> None:
        self._passes.begin()
        self.phase = Phase.RECORD
        self._progress("profiling")

    def _profiled(self) -> None:
        """Keep what the passes wrote."""
        self.found.profiled_ns = self._passes.durations_ns
        self.found.trace, self.found.light = self._passes.trace, self._passes.light
        self._finished()

    def _finished(self) -> None:
        self.phase = Phase.DONE
        self._done(self.found)

    # ---------------------------------------------------------------- the early window

    def _start_early(self) -> None:
        if not self.active or profiler_running() or threading.get_ident() != self._main:
            return
        try:
            self._early.start()
        except Exception:  # a script must not fail because it is watched
            traceback.print_exc()

    def window_over(self) -> None:
        """In the main thread, asked for by the watchdog: look for steps among the operators."""
        if self._busy or not self.active or self.phase is not Phase.WATCH or self._early.starting:
            return
        if capturing() or compiling():
            return
        self._busy = True
        try:
            if not self._early.running:
                if not self._optimizers_made:  # its steps will tell
                    self._start_early()
                return
            self._early.stop()
            self._by_operators(5, going_on=True)
        except Exception:  # this is called in the midst of the script, which must not fail because it is watched
            traceback.print_exc()
        finally:
            self._busy = False
        self._end_script()

    def _by_operators(self, minimum: int, *, going_on: bool) -> None:
        """Take steps from the operators of the early window, where hardly any boundary was seen."""
        if len(self._optimizer.ends) + len(self._call.ends) > 2 or (going_on and self._optimizers_made):
            return
        steps = self._early.steps_by_operators(minimum, self._passes.active, going_on=going_on)
        if steps is None:
            return
        self.found.source, self.found.pattern = "operators", steps.pattern
        self.found.seen, self.found.first = steps.seen, steps.first
        self.found.profiled_ns = steps.durations_ns
        self.found.notes.append("The steps were marked afterwards, so there are no unprofiled ones")
        self.found.trace = self._early.trace
        self._finished()

    # ---------------------------------------------------------------- the end

    def _end_script(self) -> None:
        if self._run_on or self.phase is not Phase.DONE:
            return
        self._raised += 1
        if self._raised > _ENDINGS:  # it caught the request each time; what was measured is on disk
            end_process()
        if self._raised == 1:
            _end_later()
        raise EnoughMeasured(0)

    def finish(self, failure: str | None = None) -> None:
        """The script has ended: keep what there is; of one that failed, only whole steps.

        Args:
            failure: what went wrong in it, in a sentence without its full stop.
        """
        if os.getpid() != self._pid or not self.active:
            return
        self._busy, self.active = True, False
        if self.phase is Phase.DONE:
            return
        if failure is not None:
            self.found.notes.append(failure)
        if self.phase is Phase.RECORD and self._passes.usable:
            self.found.notes.append("The script ended while it was profiled")
            self._passes.stop()
            self._profiled()
            return
        self._passes.abandon()
        self._watch_again()
        if self._current_call is not None:
            _, number, name = self._current_call
            self._call.add((number, number, name), time.perf_counter_ns())
        self._early.stop()
        if self._own.was_used and failure is None and (taken := self._own.kept()) is not None:
            self.found.notes.clear()
            self.found.own, self.found.trace = True, taken
            self._finished()
        elif self._early.write():
            self._keep_early(whole=failure is None)

    def _keep_early(self, *, whole: bool) -> None:
        self._by_operators(4, going_on=False)
        if self.phase is Phase.DONE:
            return
        kind = "optimizer" if self._optimizer.ends else "call"
        steps = self._early.marked_steps(kind, self._passes.active)
        count = len(self._optimizer.ends) or len(self._call.ends)
        if steps is not None:
            self.found.source = "optimizer steps" if kind == "optimizer" else "module calls"
            self.found.pattern, self.found.seen = steps.pattern, steps.seen
            self.found.profiled_ns = steps.durations_ns
            self.found.notes.append(
                f"The script ended after {count} of them, so the profile is of its first ones, with warm-up"
            )
        elif not whole:
            return
        self.found.trace = self._early.trace
        self._finished()


def end_process() -> None:
    """End this process at once: everything that was measured is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_later() -> None:
    """End the process if it has not ended by then: threads of the script may be waiting for its main thread."""

    def end() -> None:
        time.sleep(_PATIENCE_AT_THE_END_S)
        end_process()

    threading.Thread(target=end, daemon=True, name="opscope-exit").start()
