"""Follows a script while it runs, times the steps of its steady state, and profiles a few.

A repetition that has settled (durations alike, nothing compiled meanwhile) is timed before any profiler is started in
the process, and then profiled. If a run ends too soon for that, or has no boundaries, another run records from the
beginning. What follows from what is decided in `opscope.collect.script.phases`; here it is done.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec.structs import replace

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
from opscope.collect.script.phases import (
    Cycle,
    Effect,
    Ending,
    Interruption,
    Phase,
    Question,
    State,
    Transition,
    Unrepeated,
    after_window,
    asked,
    clocked,
    cycle_begins,
    cycle_ends,
    first_window_s,
    interrupted,
    lacks_boundaries,
    lasts_long,
    profiler_starts,
    taken,
    what_is_kept,
)
from opscope.collect.script.step_events import PATIENCE_S, Generations, Pattern, Stream, next_run, what
from opscope.collect.script.together import RankAgreement, group_here
from opscope.collect.script.windows import EarlyWindow, OwnProfiler
from opscope.record.capture import MemoryRecording, ScriptRun, StepKind, Timed
from opscope.record.configuration import CaptureOptions

_ENDINGS: Final = 3  # how often a script is asked to end
_PATIENCE_AT_THE_END_S: Final = 30.0  # from the first time it is asked
_INTERRUPTED: Final = "Something else interrupted the steps while they were profiled"
_REPLACED: Final = (
    "The script replaced its loss, model or optimizer meanwhile; training with the new one counts as the same steps"
)
_FIRST_TOKENS: Final = (
    "They are tokens of the script's first generation: what is prepared once for each length is in them"
)

_DRIVER: Final = Path("/dev/nvidiactl")  # is there where NVIDIA's driver is


class EnoughMeasured(SystemExit):  # not an error: it ends the script as sys.exit() does
    """Ends the script at the boundary of a step, so that its ``finally`` blocks and exit functions run."""


class Watcher(StepFinder):
    """Decides by the events of the main thread.

    Attributes:
        result: what was found and measured so far.
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
        snapshot: Path | None = None,
        memory: Path | None = None,
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
            snapshot: where a snapshot of a GPU's memory goes; None for none.
            memory: where the trace of the steps goes over which that is recorded; None with ``snapshot``.
            among_ranks: whether the other ranks of the script's process group are watched too.
            run_on: whether the script then runs on to its own end, instead of being ended.
            progress: called with the name of a phase when it begins.
            ends: called with the run that makes up for this one, where the process has to be ended by force.
        """
        super().__init__(run or ScriptRun())
        self._state = State()
        self.again: ScriptRun | None = None
        self._options, self._done = options, done
        self._run_on, self._progress, self._ends = run_on, progress, ends
        self._pid = os.getpid()
        self._generations: Generations | None = None  # of module calls without an optimizer
        self._taken_at = 0.0
        self._typical_ns = 0.0  # of cycles, once they have settled
        self._clock: CycleClock | None = None
        self._waits = HostWaits()
        self._waited: int | None = None  # how long threads had waited for a core when timing began
        self._timing_began = 0
        self._snapshot = snapshot
        self._passes = Passes(options, trace, light, memory)
        # What is recorded from the beginning is recorded once: with memory, where that is asked for.
        with_memory = options.profile_memory or snapshot is not None
        self._early = EarlyWindow(replace(options, profile_memory=with_memory), trace)
        self._window_s = first_window_s(self._run.ended_after_s)
        self._allocations = 0  # of device memory, when it was asked last
        self._has_model = False
        self._end_was_lost = False
        self._own = OwnProfiler(trace)
        self._raised = 0  # how often the script was asked to end
        self._effects: dict[Effect, Callable[[int], None]] = {
            Effect.STEADY: self._steady,
            Effect.TIME: self._begin_timing,
            Effect.START_CLOCK: self._start_clock,
            Effect.CLOCK_CYCLE: self._clock_cycle,
            Effect.KEEP_TIMES: lambda _: self._keep_times(),
            Effect.PROFILE: lambda _: self._start_together(),
            Effect.RECORD_CYCLE: self._record_cycle,
            Effect.KEEP_PASSES: lambda _: self._keep_passes(_INTERRUPTED),
            Effect.ABANDON: lambda _: self._passes.abandon(),
            Effect.SKIP_CYCLE: lambda _: self._skip_cycle(),
            Effect.FORGET_EVENTS: lambda _: self._forget_events(),
            Effect.LOOK_AGAIN: lambda _: self._look_again(),
            Effect.OPEN_WINDOW: lambda _: self._start_early(),
            Effect.CLOSE_WINDOW: lambda _: self._window_over(),
            Effect.KEEP_WINDOW: lambda _: self._keep_recording(),
            Effect.RUN_AGAIN: lambda _: self._leave_to(next_run(self._run, self._streams, Timed())),
        }  # KEEP_OWN comes only where the script ends
        self._ranks = RankAgreement(group_here if among_ranks else lambda: None, soon=self._run.reason is not None)

    @property
    def phase(self) -> Phase:
        """Where the watcher stands."""
        return self._state.phase

    def _go_to(self, phase: Phase) -> None:
        self._state = replace(self._state, phase=phase)

    def _follow_up(self, step: Transition, now: int = 0) -> None:
        """Take the new state, and do what follows; ``now`` is by ``time.perf_counter_ns``."""
        self._state, actions = step
        for action in actions:
            self._effects[action](now)

    @property
    def _unseen(self) -> bool:
        """Whether steps of one kind were asked for, and fewer than two were seen; False in a run that makes up."""
        asked = None if self._run.reason is not None else self._streams.get(self._run.wanted.kind)  # type: ignore[arg-type]
        return asked is not None and asked.events.count < 2

    @property
    def has_refused(self) -> bool:
        """Whether there is a snapshot of a refused request, and no steps were measured."""
        history = self._passes.history
        return history is not None and history.has_refused and self.result.trace is None

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
        if self._snapshot is not None:
            from opscope.collect.memory_history import MemoryHistory

            self._passes.history = MemoryHistory(self._snapshot)
            self._passes.history.begin()
        if self._run.records and (torch.version.cuda is None or not _DRIVER.exists()):
            self._start_early()

    def profiler_prepares(self, profiler: Any) -> None:
        """Make way for a profiler of the script's own that is about to start: PyTorch can run one at a time."""
        if self._passes.owns(profiler) or self._early.starting or not self.active:
            return
        self._own.started(profiler)
        if self._passes.running or self._early.running:
            self.result.notes.append("The script started a profiler of its own, and this one gave way")
        self._early.stop()
        self._follow_up(profiler_starts(self._state))

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
        self._taken_at = time.monotonic()
        self._early.stop()
        self._state = taken(compiled_graphs())
        self._progress("settling")

    def _follows(self, keys: tuple[Hashable, ...]) -> None:
        if self._generations is not None:
            self._generations.call(keys[0])

    def _leave_out(self, since: int) -> None:
        if self._clock is not None:
            self._clock.leave_out(since)

    def _heard(self) -> None:
        self._end_script()

    def _begin_cycle(self, now: int) -> None:
        self._follow_up(cycle_begins(self._state), now)

    def _end_cycle(self, now: int) -> None:
        cycle = Cycle(now - self._cycle_began if self._cycle_began else 0)
        if self.phase is Phase.SETTLE:
            is_prelude, hindered = self._waits_for_generation(), profiler_running()
            cycle = Cycle(cycle.duration_ns, compiled_graphs(), is_prelude=is_prelude, hindered=hindered)
        self._follow_up(cycle_ends(self._state, cycle), now)

    def _steady(self, now: int) -> None:
        self.result.settled, self._typical_ns = bool(self._state.settled), median(self._state.settling)
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
        self._go_to(Phase.TIME)
        self._progress("timing")
        if self._passes.history is not None:
            self._passes.history.pause()
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

    def _start_clock(self, now: int) -> None:
        if self._clock is not None:
            self._clock.start(now, *self._boundaries())

    def _clock_cycle(self, now: int) -> None:
        clock = self._clock
        assert clock is not None
        clock.cycle(now, *self._boundaries())
        # Ranks time the same steps.
        enough = clock.enough and (self._ranks.is_one_of_several or not clock.goes_on())
        self._follow_up(clocked(self._state, graphs=compiled_graphs(), enough=enough), now)

    def _keep_times(self) -> None:
        clock = self._clock
        assert clock is not None
        assert self._stream is not None
        self.result.before = clock.began_at or self.result.before
        self.result.timed = self._stream.events.count - self.result.before
        self.result.times = clock.times(self.result.events, elapsed_ns=time.perf_counter_ns() - self._timing_began)
        waited = waited_for_cpu_ns()
        if waited is not None and self._waited is not None:
            self.result.waited_for_cpu_ns = max(0, waited - self._waited)

    def _lost(self) -> None:
        assert self._follower is not None
        if self._passes.is_whole and self._ranks.is_one_of_several:  # the others may have all that they need
            self._keep_whole()
            return
        event = Interruption(time.monotonic(), self._passes.usable, self._follower.may_resume, self._astray)
        step = interrupted(self._state, event)
        if Effect.ABANDON in step[1] and not self._passes.is_whole:
            self._ranks.give_up("something interrupted them on one rank while they were profiled")
        self._follow_up(step)

    def _forget_events(self) -> None:
        assert self._stream is not None
        self._stream.events.broke(self._level)

    def _skip_cycle(self) -> None:
        # The repetition may resume: keep it, but drop the interrupted cycle.
        self._cycle_began = 0
        if self._clock is not None:
            self._clock.skip()

    def _may_go_on(self, before: Follower, after: Follower) -> bool:
        # Two models may be trained in turns, thousands of steps each: the first may come back. But not what is gone; of
        # folds, models are often kept, and optimizers are not.
        optimizers = before.optimizers - after.optimizers
        lost = self._state.lost_for_long(time.monotonic())
        if not (lost or self._names.are_gone(optimizers or before.objects - after.objects)):
            return False
        self._state = replace(self._state, lost_at=0.0)
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
        if self._passes.is_whole and self.phase is not Phase.DONE:
            self._keep_whole()
            return
        super()._look_again()
        if self._passes.history is not None and not self._passes.history.recording:
            self._passes.history.resume()
        self._state, self._clock, self._generations = State(), None, None
        self.result.times, self.result.profiled_ns, self.result.untimed = Timed(), [], None

    # ---------------------------------------------------------------- profiling

    def _start_together(self) -> None:
        self._go_to(Phase.READY)
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
        if self._passes.begin():
            self._profiled()
            return
        self._go_to(Phase.RECORD)
        self._progress("profiling")

    def _record_cycle(self, now: int) -> None:
        if self._passes.cycle(now - self._cycle_began):
            self._profiled()

    def _keep_passes(self, why: str) -> None:
        if not self._passes.is_whole:
            self.result.notes.append(why)
        self._passes.stop(is_last=True)
        self._profiled()

    def _keep_whole(self) -> None:
        """Keep a whole profile, without the memory that was to be recorded after it."""
        self._passes.without_memory()
        self._profiled()

    def _profiled(self) -> None:
        """Keep what the passes wrote."""
        self.result.profiled_ns = self._passes.durations_ns
        self.result.trace, self.result.light = self._passes.trace, self._passes.light
        self.result.memory = self._passes.memory
        self._finished()

    def _keep_memory(self) -> None:
        """Keep a snapshot of what was recorded from the beginning, without a pass of its own."""
        history = self._passes.history
        if history is None:
            return
        if self.result.memory is None:
            # Off while steps were timed: then nothing of the recorded ones is known.
            kept = history.recording and history.keep()
            trace = None if self.result.own or self.result.trace is None else self.result.trace.file
            reason = history.reason or "steps were timed, and then no more of them came"
            self.result.memory = MemoryRecording("", trace) if kept else MemoryRecording(reason=reason)
        history.end()

    def _finished(self) -> None:
        self._go_to(Phase.DONE)
        self._keep_memory()
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
            self._follow_up(asked(self._state, self._question()))
        except Exception:  # this runs in the midst of the script, which must not fail because it is watched
            traceback.print_exc()
        finally:
            self._busy = False
        self._end_script()

    def _question(self) -> Question:
        records = self._run.records or self._early.began
        return Question(
            records,
            self._window_s,
            is_open=self._early.running,
            seconds=self._early.seconds,
            marked=self._run.wanted.kind in self._streams,
            awaits=self._awaits,
            no_boundaries=not records and self._has_no_boundaries(),
            may_repeat=self._run.may_repeat,
        )

    @property
    def _awaits(self) -> bool:
        """Whether an optimizer's steps will be boundaries."""
        return bool(self._expected.optimizers) and not self._by_operators_alone

    def _window_over(self) -> None:
        self._early.stop()
        self._by_operators(5, going_on=True)
        if self.phase is Phase.DONE:
            return
        since = self._early.since
        at_work_s = None if since is None else time.monotonic() - since
        recorded = Unrepeated(
            at_work_s=at_work_s,
            # To look for a model walks over all objects: only where that decides.
            may_step=self._by_operators_alone or self.has_events or (lasts_long(at_work_s) and has_model()),
            awaits=self._awaits,
            operators_per_s=self._early.operators_per_s,
            ended_after_s=self._run.ended_after_s,
        )
        self._window_s, actions = after_window(self._window_s, recorded)
        self._follow_up((self._state, actions))

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
        allocations = None
        if on_device():
            allocations = self._allocations, _allocations()
            self._allocations = allocations[1]
        waited_s = time.monotonic() - self._expected.began
        if not lacks_boundaries(waited_s, allocations, has_model=self._has_model):
            return False
        self._has_model = has_model()
        return lacks_boundaries(waited_s, allocations, has_model=self._has_model)

    def _leave_to(self, again: ScriptRun) -> None:
        self.again = again

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

    def finish(self, failure: str | None = None, *, may_repeat: bool = True) -> None:
        """Keep what there is when the script has ended; of a script that failed, only whole steps.

        Args:
            failure: what went wrong in the script, in a sentence without its full stop; None if nothing did.
            may_repeat: whether another run could end otherwise.
        """
        if os.getpid() != self._pid or not self.active:
            return
        self._busy, self.active = True, False
        if self.phase is Phase.DONE:
            return
        if failure is not None:
            self.result.notes.append(failure)
        if self.phase is Phase.RECORD and self._passes.usable:
            self._keep_passes("The script ended while it was profiled")
            return
        if self._passes.is_whole:
            self._keep_whole()
            return
        self._passes.abandon()
        # Read before _look_again, which drops the clock: another run takes these times over.
        timed = Timed() if self._clock is None else self._clock.times(self.result.events)
        self._look_again()
        self._close_open_calls()
        self._early.stop()
        seen = any(stream.events.count for stream in self._streams.values())
        for action in what_is_kept(
            Ending(
                failed=failure is not None,
                own=self._own.was_used,
                recorded=self._run.records or self._early.began,
                may_repeat=may_repeat and self._run.may_repeat and "torch" in sys.modules and not self._unseen,
                seen=seen,
            )
        ):
            if self._keep(action, timed, failed=failure is not None):
                return

    def _keep(self, action: Effect, timed: Timed, *, failed: bool) -> bool:
        """Keep something of a script that has ended; return whether there was anything."""
        if action is Effect.KEEP_OWN:
            kept = self._own.kept()
            if kept is None:
                return False
            self.result.notes.clear()
            self.result.own, self.result.trace = True, kept
            self._finished()
        elif action is Effect.KEEP_WINDOW:
            if self._early.write():
                self._keep_early(whole=not failed)
        else:
            ended_after_s = None if failed else time.monotonic() - self._expected.began
            self._leave_to(next_run(self._run, self._streams, timed, ended_after_s))
        return True

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


def _end_later(end_process: Callable[[], None]) -> None:
    """End the process if it is still there after a while: threads of the script may keep it from ending."""

    def end() -> None:
        time.sleep(_PATIENCE_AT_THE_END_S)
        end_process()

    threading.Thread(target=end, daemon=True, name="opscope-exit").start()
