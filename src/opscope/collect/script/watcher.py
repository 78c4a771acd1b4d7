"""Decides, while a script runs, which of its steps are its steady state, times them, and profiles a few.

A repetition that has settled (durations alike, nothing compiled meanwhile) is timed before any profiler is started in
the process, and then profiled. If a run ends too soon for that, or has no boundaries, another run records from the
beginning.
"""

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, Final

from opscope.base.processes import waited_for_cpu_ns
from opscope.collect.script.clock import CycleClock, HostWaits
from opscope.collect.script.finder import CYCLES_OF_OTHERS, Follower, StepFinder
from opscope.collect.script.found import (
    Found,
    capturing,
    compiled_graphs,
    compiling,
    has_model,
    on_device,
    profiler_running,
)
from opscope.collect.script.passes import Passes
from opscope.collect.script.step_events import PATIENCE_S, Generations, Pattern, Stream, next_run, settled, what
from opscope.collect.script.together import RankAgreement, group_here
from opscope.collect.script.windows import EarlyWindow, OwnProfiler
from opscope.record.capture import ScriptRun, StepKind, Timed
from opscope.record.configuration import CaptureOptions

_ATTEMPTS: Final = 3  # how often profiling is tried when something interrupts it
_ENDINGS: Final = 3  # how often a script is asked to end
_PATIENCE_AT_THE_END_S: Final = 30.0  # from the first time it is asked
# A program is taken for one without boundaries where none came for so long since it imported PyTorch. Choices: to
# prepare data takes minutes, and leaves a GPU alone; what has a model may load it for long, and will call it.
_NO_BOUNDARY_S: Final = 300.0
_NO_BOUNDARY_ON_DEVICE_S: Final = 15.0  # without a model, and with many allocations of device memory
_AT_WORK_ON_DEVICE_S: Final = 60.0  # without a model, and with any allocation since the question was asked before
_ALLOCATIONS: Final = 1_000
# Recordings of programs without boundaries. Choices, but for the operators: PyTorch takes 14 s to prepare 200,000 of
# them, and it takes 13 s to write and read them (two cores of 2.5 GHz, PyTorch 2.13).
_FIRST_WINDOW_S: Final = 1.0
_LONGEST_WINDOW_S: Final = 8.0
_OPERATORS_OF_A_WINDOW: Final = 300_000
_LOOKS_FOR_S: Final = 60.0  # from the first operator on: then no repetition is found, and what there is has to do
_WHOLE_S: Final = 2.0  # a script that ends by itself within that is recorded in one window
_SLOWED: Final = 3.0  # by which factor recording may make a script longer
_FASTER: Final = 2.0  # by which factor operators may come faster than in the window before

# A choice: what takes the place of steps for longer, such as another part of the training, is measured instead of them.
_LOST_S: Final = 20.0
_REPLACED: Final = (
    "The script replaced its loss, model or optimizer meanwhile; training with the new one counts as the same steps"
)
_FIRST_TOKENS: Final = (
    "They are tokens of the script's first generation: what is prepared once for each length is in them"
)

_DRIVER: Final = Path("/dev/nvidiactl")  # is there where NVIDIA's driver is


class Phase(Enum):
    """Where the watcher stands."""

    WATCH = "no repetition yet"
    SETTLE = "a repetition was found, and settles"
    TIME = "unprofiled cycles are timed"
    READY = "to be profiled as soon as a cycle begins"
    RECORD = "profiling"
    DONE = "done"


class EnoughMeasured(SystemExit):  # not an error: it ends the script as sys.exit() does
    """Ends the script at the boundary of a step, so that its ``finally`` blocks and exit functions run."""


class Watcher(StepFinder):
    """Decides by the events of the main thread.

    Attributes:
        result: what was found and measured so far.
        phase: where the watcher stands.
        active: False in forked children, and after the script's end.
        again: another run of the script that makes up for this one; None if none is needed.
    """

    def __init__(
        self,
        options: CaptureOptions,
        trace: Path,
        done: Callable[[Found], None],
        *,
        run: ScriptRun | None = None,
        light: Path | None = None,
        run_on: bool = False,
        among_ranks: bool = False,
        progress: Callable[[str], None] = lambda _: None,
        ends: Callable[[ScriptRun], None] = lambda _: None,
    ) -> None:
        """Begin to watch.

        Args:
            options: what is collected, and how many steps.
            trace: where the trace goes.
            done: called with what was found, once there is a trace.
            run: which run of the script this is; None for the first one, of any steps.
            light: where the trace of device activities only goes; None for no such pass.
            among_ranks: whether the other ranks of the script's process group are watched too.
            run_on: whether the script then runs on to its own end, instead of being ended.
            progress: called with the name of a phase when it begins.
            ends: called with the run that makes up for this one, where the process has to be ended by force.
        """
        super().__init__(run or ScriptRun())
        self.phase = Phase.WATCH
        self.again: ScriptRun | None = None
        self._options, self._done = options, done
        self._run_on, self._progress, self._ends = run_on, progress, ends
        self._pid = os.getpid()
        self._generations: Generations | None = None  # of module calls without an optimizer
        self._taken_at = 0.0
        self._graphs, self._attempts = 0, 0  # _graphs counts compiled graphs
        self._settling: list[int] = []  # durations of cycles since the last interruption or compilation
        self._typical_ns = 0.0  # of cycles, once they have settled
        self._clock: CycleClock | None = None
        self._waits = HostWaits()
        self._waited: int | None = None  # how long threads had waited for a core when timing began
        self._timing_began = 0
        self._passes = Passes(options, trace, light)
        self._early = EarlyWindow(options, trace)
        self._window_s = _first_window_s(self._run)
        self._allocations = 0  # of device memory, when it was asked last
        self._has_model = False
        self._end_was_lost = False
        self._own = OwnProfiler(trace)
        self._lost_at = 0.0  # when the first event since the last whole cycle came that is none of the repetition's
        self._raised = 0  # how often the script was asked to end
        self._ranks = RankAgreement(group_here if among_ranks else lambda: None, soon=self._run.reason is not None)

    @property
    def _unseen(self) -> bool:
        """Whether steps of one kind were asked for, and fewer than two were seen; False in a run that makes up."""
        asked = None if self._run.reason is not None else self._streams.get(self._run.wanted.kind)  # type: ignore[arg-type]
        return asked is not None and asked.events.count < 2

    @property
    def saw_something(self) -> bool:
        """Whether anything was seen that may be a step, or was recorded; an optimizer may still step."""
        return self.has_events or self.result.trace is not None or self._own.was_used

    @property
    def missed(self) -> str:
        """Why nothing was measured, as the end of a sentence."""
        nothing = "PyTorch did nothing in it that could be recorded"
        if self._own.was_used:
            return (
                f"{nothing}: it has a profiler of its own, which left no results. PyTorch has one at a time: take it "
                "out, or let it write its trace and see that (opscope analyze TRACE)"
            )
        if "torch" not in sys.modules:
            return nothing
        if self._unseen:
            counts = {kind: stream.events.count for kind, stream in self._streams.items() if stream.events.count}
            seen = ", ".join(f"{count:,} {what(kind)}" for kind, count in counts.items())
            return (
                f"it has no steps as --step-kind {self._options.steps} asks for; seen were {seen or 'none of any kind'}"
            )
        if not self._run.may_repeat and not self._run.records and self._run.reason is None:
            return "its steps could not be measured before that. Without --once it is run again, and recorded"
        return nothing if self._early.began else "it did so before its steps could be profiled"

    # ---------------------------------------------------------------- signals

    def torch_imported(self) -> None:
        """Note that PyTorch was imported; a run that records begins to do so here.

        Nothing may touch CUDA before the script first uses it: the script may still fork, or choose devices, and a
        profiler that starts within that first use has crashed programs. So if there is a driver, recording begins at
        the first boundary after the first use, or when the watchdog asks.
        """
        import torch

        self._waits.listen()
        self._expected.began = time.monotonic()
        if self._run.records and (torch.version.cuda is None or not _DRIVER.exists()):
            self._start_early()

    def profiler_prepares(self, profiler: Any) -> None:
        """Make way for a profiler of the script's own that is about to start: PyTorch can run one at a time."""
        if self._passes.owns(profiler) or self._early.starting or not self.active:
            return
        self._own.started(profiler)
        if self.phase is Phase.TIME:  # steps under a profiler are slower
            self._look_again()
        if not self._passes.running and not self._early.running:
            return
        self.result.notes.append("The script started a profiler of its own, and this one gave way")
        self._early.stop()
        if self.phase is Phase.RECORD:
            self._passes.abandon()
            self._look_again()

    def trace_exported(self, profiler: Any, path: Any) -> None:
        """Note that a profiler has written its trace."""
        if self.active and self.phase is not Phase.DONE:
            self._own.exported(profiler, path)

    # ---------------------------------------------------------------- following

    @property
    def _is_over(self) -> bool:
        return self.phase is Phase.DONE and not self._stays

    @property
    def _only_counts(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def _stays(self) -> bool:
        """Whether a script that was profiled goes on until all ranks of its job were."""
        return self._ranks.is_one_of_several and not self._run_on and not self._raised

    @property
    def _has_chosen(self) -> bool:
        return self.phase in (Phase.READY, Phase.RECORD, Phase.DONE)  # profiling is about to begin, or has begun

    def _is_hindered(self) -> bool:
        # While a profiler of the script's own runs, nothing could be timed or profiled.
        return profiler_running() and not self._early.running

    def _first_begins(self) -> None:
        if self._run.records and not self._early.began and on_device():
            self._start_early()

    def _looks(self, stream: Stream) -> None:
        self._ranks.arrive(stream.events.count)
        if stream.kind is self._run.wanted.kind:
            self._early.mark(stream.kind)

    def _taken(self, stream: Stream, pattern: Pattern) -> None:
        """Let the steps settle."""
        if stream.kind in (StepKind.CALLS, StepKind.EVALUATION):  # calls may be those of a loop of tokens
            self._generations = Generations(stream.events.keys[0], pattern.first)
        self._lost_at = 0.0
        self._taken_at = time.monotonic()
        self._early.stop()
        self.phase, self._graphs = Phase.SETTLE, compiled_graphs()
        self._progress("settling")
        self._settling.clear()

    def _follows(self, keys: tuple[Hashable, ...]) -> None:
        if self._generations is not None:
            self._generations.call(keys[0])

    def _leave_out(self, since: int) -> None:
        if self._clock is not None:
            self._clock.leave_out(since)

    def _heard(self) -> None:
        self._end_script()

    def _begin_cycle(self, now: int) -> None:
        if self.phase is Phase.READY:
            self._start_together()
        elif self.phase is Phase.TIME and self._clock is not None:
            self._clock.start(now, *self._boundaries())

    def _end_cycle(self, now: int) -> None:
        self._lost_at = 0.0
        if self.phase is Phase.SETTLE:
            self._settle(now)
        elif self.phase is Phase.TIME:
            self._time(now)
        elif self.phase is Phase.READY:
            self._start_together()
        elif self._passes.cycle(now - self._cycle_began):
            self._profiled()

    def _settle(self, now: int) -> None:
        graphs = compiled_graphs()
        if graphs != self._graphs:  # something was compiled in this cycle: settle anew
            self._graphs = graphs
            self._settling.clear()
            return
        if self._waits_for_generation():
            self._settling.clear()
            return
        if self._cycle_began:
            self._settling.append(now - self._cycle_began)
        state = settled(self._settling)
        if state is None or profiler_running():
            return
        self.result.settled, self._typical_ns = state, median(self._settling)
        if self._generations is not None and self._generations.is_first and _FIRST_TOKENS not in self.result.notes:
            self.result.notes.append(_FIRST_TOKENS)
        if not self._may_time():
            self._start_together()
        elif self._agreed("timing"):
            self._begin_timing(now)

    def _waits_for_generation(self) -> bool:
        """Tell whether the steps are tokens of a first generation, and another generation may come soon."""
        if self._generations is None or not self._generations.is_first or not self._run.may_repeat:
            return False
        return time.monotonic() - self._taken_at < PATIENCE_S

    def _may_time(self) -> bool:
        """Tell whether steps are to be timed; not after any profiler has run in this process.

        Times that an earlier run has measured are taken over; otherwise ``result.untimed`` says why there are none.
        """
        if not self._options.benchmark:
            return False
        if self._run.times.wall_ns:
            self.result.times = self._run.times
            return False
        if self._own.was_used:
            self.result.untimed = "the script had started a profiler of its own, and what runs after one is slower"
            return False
        if self._early.began or self._passes.began:
            self.result.untimed = "a profiler had run in the process before, and what runs after one is slower"
            return False
        return True

    def _begin_timing(self, now: int) -> None:
        self.phase = Phase.TIME
        self._progress("timing")
        self._waited, self._timing_began = waited_for_cpu_ns(), time.perf_counter_ns()
        assert self._stream is not None
        self.result.before = self._stream.events.count
        self._clock = CycleClock(
            on_device=on_device(),
            typical_ns=self._typical_ns,
            most=self._run.most_timed,
            quick=self._options.quick,
            waited=self._waits.so_far,
        )
        self._clock.start(now, *self._boundaries())

    def _time(self, now: int) -> None:
        clock = self._clock
        assert clock is not None
        clock.cycle(now, *self._boundaries())
        if compiled_graphs() != self._graphs:  # a step in which something was compiled is not steady: time anew
            self._graphs = compiled_graphs()
            self._begin_timing(now)
        elif clock.enough and (self._ranks.is_one_of_several or not clock.goes_on()):  # ranks time the same steps
            self._keep_times(clock)
            self._start_together()

    def _keep_times(self, clock: CycleClock) -> None:
        assert self._stream is not None
        self.result.before = clock.began_at or self.result.before
        self.result.timed = self._stream.events.count - self.result.before
        self.result.times = clock.times(self.result.events, elapsed_ns=time.perf_counter_ns() - self._timing_began)
        waited = waited_for_cpu_ns()
        if waited is not None and self._waited is not None:
            self.result.waited_for_cpu_ns = max(0, waited - self._waited)

    def _lost(self) -> None:
        assert self._stream is not None
        assert self._follower is not None
        self._lost_at = self._lost_at or time.monotonic()
        # No further attempt will follow: what was recorded is better than nothing.
        last = self._attempts + 1 >= _ATTEMPTS or not self._follower.may_resume
        if self.phase is Phase.RECORD and self._passes.usable and last:
            self.result.notes.append("Something else interrupted the steps while they were profiled")
            self._passes.stop()
            self._profiled()
            return
        if self.phase is Phase.RECORD:
            self._passes.abandon()
            self._ranks.give_up("something interrupted them on one rank while they were profiled")
            self._attempts += 1
            self.phase = Phase.READY
        is_over = self._astray >= CYCLES_OF_OTHERS and self._is_lost_for_long
        if is_over or not self._follower.may_resume or self._attempts >= _ATTEMPTS:
            if not is_over:  # what went on for long may do so again
                self._stream.events.broke(self._level)
            self._look_again()
            return
        # The repetition may resume: keep it, but drop the interrupted cycle.
        self._cycle_began = 0
        self._settling.clear()
        if self._clock is not None:
            self._clock.skip()

    @property
    def _is_lost_for_long(self) -> bool:
        return bool(self._lost_at) and time.monotonic() - self._lost_at > _LOST_S

    def _may_go_on(self, before: Follower, after: Follower) -> bool:
        # Two models may be trained in turns, thousands of steps each: the first may come back. But not what is gone; of
        # folds, models are often kept, and optimizers are not.
        optimizers = before.optimizers - after.optimizers
        if not (self._is_lost_for_long or self._names.are_gone(optimizers or before.objects - after.objects)):
            return False
        self._lost_at = 0.0
        if _REPLACED not in self.result.notes:
            self.result.notes.append(_REPLACED)
        if self._clock is not None and not optimizers:  # to make a fold's model belongs to its steps
            self._clock.forget_skipped()
        return True

    def _boundaries(self) -> tuple[int, int, int]:
        """Return how many boundaries of the steps and how many evaluations have come, and how long these took."""
        count = 0 if self._stream is None else self._stream.events.count
        return count, self._evaluations, self._evaluating_ns

    def _look_again(self) -> None:
        super()._look_again()
        self.phase, self._clock, self._attempts, self._generations = Phase.WATCH, None, 0, None
        self.result.times, self.result.profiled_ns, self.result.untimed = Timed(), [], None

    # ---------------------------------------------------------------- profiling

    def _start_together(self) -> None:
        self.phase = Phase.READY
        # Ranks that record from the beginning, as their script is short, have what they need by now.
        if self._run.records and self._ranks.is_one_of_several:
            return
        if self._agreed("profiling"):
            self._start()

    def _agreed(self, stage: str) -> bool:
        """Tell whether a stage begins at this boundary on all ranks of the script's job."""
        assert self._stream is not None
        kind, count = self._stream.kind, self._stream.events.count
        every = self.result.events
        return self._ranks.agree(stage, kind, count, self._typical_ns / every, every=1 if stage == "end" else every)

    def _start(self) -> None:
        self._passes.begin()
        self.phase = Phase.RECORD
        self._progress("profiling")

    def _profiled(self) -> None:
        """Keep what the passes wrote."""
        self.result.profiled_ns = self._passes.durations_ns
        self.result.trace, self.result.light = self._passes.trace, self._passes.light
        self._finished()

    def _finished(self) -> None:
        self.phase = Phase.DONE
        if self._steps_elsewhere > CYCLES_OF_OTHERS:
            self.result.notes.append(
                f"Optimizers have stepped {self._steps_elsewhere:,} times on other threads than the main one: those "
                "steps are not followed. Train on the main thread to have them measured"
            )
        if self._run.reason is not None:
            self.result.notes.append(self._run.reason)
        self.result.ranks = self._ranks.size if self._passes.trace is not None else None
        if (reason := self._ranks.apart or self._ranks.differs) is not None:
            self.result.notes.append(f"The ranks of the job did not choose the same steps: {reason}")
        chosen = {self.result.kind, None if self._stream is None else self._stream.kind}
        if self.result.kind is StepKind.TRAINING:
            chosen.add(StepKind.CALLS)  # a step of training is made of module calls
        seen = [stream.seen() for kind, stream in self._streams.items() if kind not in chosen]
        self.result.also = tuple(one for one in seen if one is not None and one.count >= CYCLES_OF_OTHERS)
        self._done(self.result)

    # ---------------------------------------------------------------- programs without boundaries

    def _start_early(self) -> None:
        if not self.active or profiler_running() or threading.get_ident() != self._main:
            return
        try:
            self._early.start()
        except Exception:  # a script must not fail because it is watched
            traceback.print_exc()

    def asked_by_watchdog(self) -> None:
        """Look for steps among the operators, or check whether there are boundaries.

        The watchdog has this called in the main thread, now and then.
        """
        if self.phase is Phase.DONE and self.active and self._end_was_lost:
            self._end_was_lost = False
            self._end_script()
            return
        if self._busy or not self.active or self.phase is not Phase.WATCH or self._early.starting:
            return
        if capturing() or compiling():
            return
        self._busy = True
        try:
            if self._run.records or self._early.began:
                self._window_over()
            elif self._has_no_boundaries():
                self._without_boundaries()
        except Exception:  # this runs in the midst of the script, which must not fail because it is watched
            traceback.print_exc()
        finally:
            self._busy = False
        self._end_script()

    def _window_over(self) -> None:
        if self._run.wanted.kind in self._streams:
            return  # boundaries of that kind are marked, until they repeat or the script ends
        if self._early.running:
            if self._early.seconds < self._window_s:
                return
            self._early.stop()
            self._by_operators(5, going_on=True)
            if self.phase is Phase.DONE:
                return
            if self._has_looked_for_long():
                self._keep_recording()
                return
            self._window_s = self._next_window_s()
        if not self._expected.optimizers or self._by_operators_alone:  # an optimizer's steps will be boundaries
            self._start_early()

    def _has_looked_for_long(self) -> bool:
        """Tell whether a program has been at work for a minute without a repetition, and nothing else is to come."""
        since = self._early.since
        if since is None or time.monotonic() - since < _LOOKS_FOR_S or self._by_operators_alone:
            return False
        return not (self.has_events or self._expected.optimizers or has_model())

    def _next_window_s(self) -> float:
        most = _OPERATORS_OF_A_WINDOW / (_FASTER * max(self._early.operators_per_s, 1.0))
        if self._run.ended_after_s is not None and _SLOWED * self._run.ended_after_s < most:
            return math.inf  # to the script's end
        return min(2 * self._window_s, _LONGEST_WINDOW_S, most)

    def _keep_recording(self) -> None:
        """Keep the window that was written last, of a program in which nothing repeats."""
        self.result.trace, self.result.part = self._early.trace, self._recorded_part
        self._finished()

    @property
    def _recorded_part(self) -> str | None:
        """Which part of the run was recorded, in words; None for all of it."""
        return self._early.part(self._expected.began, from_beginning=self._run.records)

    @property
    def _by_operators_alone(self) -> bool:
        return self._run.wanted.kind is StepKind.OPERATORS

    def _has_no_boundaries(self) -> bool:
        if self.has_events:
            return False
        waited = time.monotonic() - self._expected.began
        if waited > _NO_BOUNDARY_S or not on_device():
            return waited > _NO_BOUNDARY_S
        before, self._allocations = self._allocations, _allocations()
        many = waited > _NO_BOUNDARY_ON_DEVICE_S and self._allocations > _ALLOCATIONS
        more = waited > _AT_WORK_ON_DEVICE_S and 0 < before < self._allocations
        if self._has_model or not (many or more):
            return False
        self._has_model = has_model()
        return not self._has_model

    def _without_boundaries(self) -> None:
        """Leave the script to another run, which records; if none is allowed, record now."""
        if not self._run.may_repeat:
            self._start_early()
            return
        self.again = next_run(self._run, self._streams, Timed())
        self.phase = Phase.DONE

    def _by_operators(self, minimum: int, *, going_on: bool) -> None:
        """Take steps from the operators of the early window, if hardly any boundary was seen.

        Args:
            minimum: how often a cycle must be seen.
            going_on: whether the script still runs.
        """
        seen = sum(stream.events.count for stream in self._streams.values())
        if not self._by_operators_alone and (seen > 2 or (going_on and self._expected.optimizers)):
            return
        steps = self._early.steps_by_operators(minimum, self._passes.active, going_on=going_on)
        self.result.at_work = self._early.at_work
        if steps is None:
            return
        self.result.kind, self.result.source, self.result.pattern = StepKind.OPERATORS, "operators", steps.pattern
        self.result.seen, self.result.first = steps.seen, steps.first
        self.result.profiled_ns = steps.durations_ns
        self.result.untimed = "its steps were found in the recording, so none ran without a profiler"
        self.result.trace = self._early.trace
        self._finished()

    # ---------------------------------------------------------------- the end

    def _end_script(self) -> None:
        if self.phase is not Phase.DONE or (self._run_on and self.again is None):
            return
        if self._stays and not (self._agreed("end") if self._ranks.met else self._ranks.all_done()):
            return
        self._raised += 1
        if self._raised > _ENDINGS:  # the script caught the request each time
            self._end_by_force()
        if self._raised == 1:
            _end_later(self._end_by_force)
            self._notice_lost_ends()
        raise EnoughMeasured(0)

    def _notice_lost_ends(self) -> None:
        """Have the watchdog ask again where Python ignores what was raised, as in ``__del__``.

        It must not ask while the script ends, in its ``finally`` blocks.
        """
        before = sys.unraisablehook

        def notice(unraisable: "sys.UnraisableHookArgs") -> None:
            if issubclass(unraisable.exc_type, EnoughMeasured):
                self._end_was_lost = True
            else:
                before(unraisable)

        sys.unraisablehook = notice

    def _end_by_force(self) -> None:
        """End this process at once; what was measured is on disk."""
        if self.again is not None:
            self._ends(self.again)
        end_process()

    def finish(self, failure: str | None = None) -> None:
        """Keep what there is when the script has ended; of a script that failed, only whole steps.

        Args:
            failure: what went wrong in the script, in a sentence without its full stop; None if nothing did.
        """
        if os.getpid() != self._pid or not self.active:
            return
        self._busy, self.active = True, False
        if self.phase is Phase.DONE:
            return
        if failure is not None:
            self.result.notes.append(failure)
        if self.phase is Phase.RECORD and self._passes.usable:
            self.result.notes.append("The script ended while it was profiled")
            self._passes.stop()
            self._profiled()
            return
        self._passes.abandon()
        # Read before _look_again, which drops the clock: another run takes these times over.
        timed = Timed() if self._clock is None else self._clock.times(self.result.events)
        self._look_again()
        self._close_open_calls()
        self._early.stop()
        if self._own.was_used and failure is None and (taken := self._own.kept()) is not None:
            self.result.notes.clear()
            self.result.own, self.result.trace = True, taken
            self._finished()
        elif self._run.records or self._early.began:
            if self._early.write():
                self._keep_early(whole=failure is None)
        elif self._run.may_repeat and "torch" in sys.modules:
            seen = sum(stream.events.count for stream in self._streams.values())
            if (failure is None or seen) and not self._unseen:
                ended = time.monotonic() - self._expected.began
                self.again = next_run(self._run, self._streams, timed, None if failure is not None else ended)

    def _close_open_calls(self) -> None:
        for stream in self._streams.values():
            if stream.open is not None:
                stream.events.add(stream.open[0], time.perf_counter_ns())

    def _keep_early(self, *, whole: bool) -> None:
        self._by_operators(4, going_on=False)
        if self.phase is Phase.DONE:
            return
        kind = self._run.wanted.kind
        steps = None if kind is None else self._early.marked_steps(kind, self._passes.active)
        if kind is not None and steps is not None:
            self.result.kind, self.result.source = kind, what(kind)
            self.result.pattern, self.result.seen = steps.pattern, steps.seen
            self.result.profiled_ns = steps.durations_ns
            self.result.times = self._run.times
            count = self._streams[kind].events.count
            self.result.notes.append(
                f"The script ended after {count} of them, so the profile is of its first ones, with warm-up"
            )
        elif not whole:
            return
        else:
            self.result.part = self._recorded_part
        self.result.trace = self._early.trace
        self._finished()


def _allocations() -> int:
    import torch

    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def end_process() -> None:
    """End this process at once; everything that was measured must be on disk."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _first_window_s(run: ScriptRun) -> float:
    """Return how long the first window is that a run records."""
    whole = run.ended_after_s is not None and run.ended_after_s < _WHOLE_S
    return _SLOWED * _WHOLE_S if whole else _FIRST_WINDOW_S


def _end_later(end_process: Callable[[], None]) -> None:
    """End the process if it is still there after a while: threads of the script may keep it from ending."""

    def end() -> None:
        time.sleep(_PATIENCE_AT_THE_END_S)
        end_process()

    threading.Thread(target=end, daemon=True, name="opscope-exit").start()
