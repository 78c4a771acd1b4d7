"""The steps that variants are made of: a function's, which can be called, and a script's, which runs as it is."""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from msgspec import Struct

from opscope.advise.changes.compiling import compiled_frames
from opscope.advise.found import Reached, python_state, reached_from, tensors_held, uncompiled
from opscope.advise.loaders import Loaders
from opscope.advise.routine import Ran, Routine, T, drive, seed
from opscope.advise.source import Stack, here
from opscope.advise.variant import Variant
from opscope.base.errors import OpscopeError
from opscope.base.units import NS_PER_S
from opscope.collect.script.children import Children, WorkElsewhereError
from opscope.collect.script.finder import StepFinder
from opscope.collect.script.running import run_script
from opscope.collect.script.signals import install
from opscope.collect.script.step_events import Pattern, Stream, what
from opscope.record.capture import ScriptRun, WantedSteps
from opscope.record.configuration import Configuration
from opscope.workloads.models import build_workload

# ---------------------------------------------------------------- a function's step


_BEFORE_CAPTURE: Final = 3  # steps on another stream, in which libraries set up what a capture must not


class FunctionVariant(Variant):
    """The step of a function, or of a built-in workload.

    Args:
        configuration: what is built.
        device: where.
        loaders: hears of what it loads data with.

    Raises:
        Exception: whatever the function raises.
    """

    def __init__(self, configuration: Configuration, device: torch.device, loaders: Loaders) -> None:
        seed(0)
        workload = build_workload(configuration, device)
        super().__init__(workload.device, loaders)
        self._step: Callable[[], object] = workload.step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._returned: object = None

    def drive(self, routine: Routine[T]) -> T:
        """Call the step as often as the routine waits for one."""
        return drive(routine, self._run)

    def reached(self) -> Reached:
        """Return what the step refers to."""
        return reached_from(self._step)

    def python_state(self) -> dict[str, object]:
        """Return the values other than tensors that the step reaches, by the way to them."""
        return python_state(self._step)

    def held_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the step reaches, by the way to them, without those of modules."""
        return tensors_held(self._step)

    def capture(self) -> None:
        """Have the step replayed as one CUDA graph from now on; what it returns is overwritten by the next replay.

        No step is taken: what those change that run before the capture is put back.
        """
        for optimizer in self.optimizers:  # counts of steps must be on the device
            state = optimizer.state_dict()
            for group in state["param_groups"]:
                if "capturable" in group:
                    group["capturable"] = True
            optimizer.load_state_dict(state)
        with self._unchanged():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_BEFORE_CAPTURE):
                    self._run_as_it_is()
            torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.capturing = True
        try:
            with torch.cuda.graph(graph):
                self._returned = self._run_as_it_is()
        except RuntimeError as error:
            # What ends the capture complains, too, and about nothing that helps.
            raise error.__context__ or error from None
        finally:
            self.capturing = False
        self._graph = graph

    def capture_again(self) -> None:
        """Capture a step that is one graph anew, with what listens to it by now."""
        if self._graph is not None:
            self.capture()

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put back what steps that run inside change: parameters, buffers, gradients, optimizers, generators."""
        of_optimizers = [
            one for optimizer in self.optimizers for group in optimizer.param_groups for one in group["params"]
        ]
        held = [tensor for top in self.tops for tensor in (*top.parameters(), *top.buffers())] + of_optimizers
        held += [one.grad for one in (*self.parameters, *of_optimizers) if one.grad is not None]
        held += [
            value
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
        held = list({id(tensor): tensor for tensor in held}.values())
        copies = [tensor.detach().clone() for tensor in held]
        self.preparing = True
        try:
            with torch.random.fork_rng(devices=[self.device]), torch.no_grad():
                with torch.enable_grad():
                    yield
                for tensor, copy in zip(held, copies, strict=True):
                    tensor.copy_(copy)
        finally:
            self.preparing = False

    def _run(self) -> object:
        if self._graph is None:
            return self._run_as_it_is()
        self._graph.replay()
        return self._returned

    def _run_as_it_is(self) -> object:
        with self.changed():
            return self._step()


# ---------------------------------------------------------------- a script's step


_MOST_MISSED: Final = 500  # for each event of a step; an evaluation in between may have as many
_NOT_OF_THE_SCRIPT: Final = ("opscope", "torch")  # packages whose frames hold nothing that the script made


_CLOCKS: Final = ("time", "monotonic", "perf_counter")  # of the module `time`, each with one in nanoseconds
# A step that compiles takes a minute, which a script that trains for a minute has not foreseen: of what such a step
# takes beyond a second, its clock shows a hundredth. None at all would hang a script that waits by it.
_LONG_S: Final = 1
# Packages that time what they compile, or wait by the clock: they see it as it is.
_AS_IT_IS: Final = frozenset(("torch", "triton", "filelock", "multiprocessing", "concurrent", "threading", "queue"))
_SLOWER: Final = 100
_WORTH_NS: Final = 1_000_000  # of opscope's own work between two steps: shorter is not left out


class ScriptError(OpscopeError):
    """The script ended, or has no steps."""


class ScriptEndedError(ScriptError):
    """The script ended while its steps were asked for."""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


class _State(Struct, frozen=True):
    """Where one clock stands; replaced as a whole, as other threads read it.

    Attributes:
        behind: by how much it is behind.
        step_began: when the running step began, if it is one that may compile.
        stands: what it shows while it stands still; None while it goes on.
    """

    behind: float = 0
    step_began: float | None = None
    stands: float | None = None


class _Clock:
    """One clock of the module ``time``, in seconds or, as whole numbers, in nanoseconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._real: Callable[[], float] = getattr(time, name)
        self._is_ns = name.endswith("_ns")
        self._state = _State()

    def install(self) -> None:
        def shown() -> float:
            if _package(sys._getframe(1)) in _AS_IT_IS:
                return self._real()
            state = self._state
            return self._at(state, self._real()) if state.stands is None else state.stands

        # Found by its name, as the function that it stands for, by what copies or pickles it.
        shown.__module__, shown.__name__, shown.__qualname__ = "time", self.name, self.name
        setattr(time, self.name, shown)

    def step_begins(self, *, may_compile: bool) -> None:
        now = self._real()
        self._state = _State(now - self._at(self._state, now), now if may_compile else None)

    def stand(self) -> None:
        stands = self._state.stands
        self._state = _State(stands=self._at(self._state, self._real()) if stands is None else stands)

    def go_on(self) -> None:
        if self._state.stands is not None:
            self._state = _State(self._real() - self._state.stands)

    def leave_out(self, ns: int) -> None:
        state = self._state
        self._state = _State(state.behind + (ns if self._is_ns else ns / NS_PER_S), state.step_began)

    def forked(self) -> None:
        self.go_on()
        self.step_begins(may_compile=False)

    def _at(self, state: _State, now: float) -> float:
        """Return what is shown at a time, by the clock itself, while it goes on."""
        long = _LONG_S * (NS_PER_S if self._is_ns else 1)
        beyond = 0 if state.step_began is None else max(0, now - state.step_began - long)
        return now - state.behind - beyond + (beyond // _SLOWER if self._is_ns else beyond / _SLOWER)


class ScriptClock:
    """The clocks of the module ``time`` as a script sees them.

    They stand still while no one asks for its steps, and go slowly in a step that compiles: a script that trains for a
    minute by its own clock would else end meanwhile. What was imported before `install`, and ``datetime``, see the
    clocks as they are.
    """

    def __init__(self) -> None:
        self._clocks = [_Clock(name) for name in (*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS))]
        self._real_ns, self._stood_ns = time.monotonic_ns, 0

    def install(self) -> None:
        """Begin; for the rest of the process."""
        for clock in self._clocks:
            clock.install()

    def step_begins(self, *, may_compile: bool) -> None:
        """Note that a step begins, and that the one before has ended."""
        for clock in self._clocks:
            clock.step_begins(may_compile=may_compile)

    def forked(self) -> None:
        """Have them go on as usual, in a process that was forked."""
        for clock in self._clocks:
            clock.forked()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Have them stand still."""
        began_ns = self._real_ns()
        for clock in self._clocks:
            clock.stand()
        try:
            yield
        finally:
            for clock in self._clocks:
                clock.go_on()
            self._stood_ns += self._real_ns() - began_ns

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave out the time spent inside if it is long: leaving out short times would cost more than they take."""
        began_ns, stood_ns = self._real_ns(), self._stood_ns
        yield
        passed_ns = self._real_ns() - began_ns - (self._stood_ns - stood_ns)
        if passed_ns > _WORTH_NS:
            for clock in self._clocks:
                clock.leave_out(passed_ns)


class ScriptVariant(Variant):
    """The steps of a script, which is run once, from its beginning.

    Args:
        script: its path.
        arguments: what it finds behind its name.
        wanted: which of its steps.
        loaders: hears of what it loads data with.
        end: called, once, when the routine has ended or the script has: with what went wrong, or None. It ends the
            process, as whatever is raised in the script might be caught there, and what the script does in the end,
            such as saving, is not to be done by each variant.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str],
        wanted: WantedSteps,
        loaders: Loaders,
        end: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__(torch.device("cpu"), loaders)  # where its modules are is known once they are called
        self._script, self._arguments, self._wanted, self._end = script, arguments, wanted, end
        self._running, self._eager, self._clock = ExitStack(), ExitStack(), ScriptClock()
        self._compiled_before: int | None = None  # frames, once what the script compiles may be compiled
        self._made: weakref.WeakKeyDictionary[torch.optim.Optimizer, Stack] = weakref.WeakKeyDictionary()

    def drive(self, routine: Routine[T]) -> T:
        """Run the script, and resume the routine at each boundary of its steps. Does not return."""
        steps = _Steps(self, routine, self._wanted)
        # Processes that the script forks inherit the finder, and are none of its steps.
        os.register_at_fork(after_in_child=lambda: setattr(steps, "active", False))
        install(steps, ranges=self._wanted.annotation is not None)
        seed(0)
        self._clock.install()
        os.register_at_fork(after_in_child=self._clock.forked)
        self._eager.enter_context(uncompiled())
        is_patient = self._wanted.kind is not None
        seen, worked = lambda: steps.has_events, lambda: steps.has_worked
        children = Children(self._script, seen, worked, None, is_patient=is_patient)
        children.torch_imported()
        children.listen()
        error = run_script(self._script, self._arguments, lambda: None)
        error = children.ended(error, is_early=error is not None)
        steps.active = False
        if error is None and children.sentence is not None and not steps.has_events:
            error = WorkElsewhereError(f"{self._script} itself takes no steps; {children.sentence}")
        if isinstance(error, SystemExit) and error.code not in (None, 0):
            error = ScriptError(f"the script exited with {error.code!r}, before what was asked of it was done")
        failed = error is not None and not isinstance(error, SystemExit)
        self._end(error if failed else steps.missed)
        raise AssertionError("the process goes on after its end")

    def observe(self) -> Routine[None]:
        """Find out, over two whole steps, what the step calls; what the script compiles is compiled afterwards, once.

        By then changes are made and dropout is off where it is to be: compiled before, it would be compiled twice.
        """
        yield from super().observe()
        self._eager.close()
        self._compiled_before = compiled_frames()

    @property
    def may_sound_different(self) -> bool:
        """Whether something was compiled since the step was observed: calls inside it may not be heard now."""
        return self._compiled_before is not None and compiled_frames() > self._compiled_before

    def step_ended(self) -> None:
        """Note that a whole step has ended: its calls are those that are heard from now on."""
        self._compiled_before = None

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which no one asks for steps: the script's clocks stand still."""
        return self._clock.standing()

    def reached(self) -> Reached:
        """Return what the script's running functions and its globals refer to."""
        return reached_from([*_locals_of_script(), vars(sys.modules["__main__"])])

    def within(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Have steps run inside a context; of steps that are calls, the calls: what comes between is not heard."""
        if self.training:
            super().within(context)
        else:
            self.around_calls(context)

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """Note where an optimizer is made; this is called there."""
        self._made[optimizer] = here(optimizer)

    def made_at(self, optimizer: torch.optim.Optimizer) -> Stack:
        """Return where an optimizer was made."""
        return self._made.get(optimizer, ())

    def resume(self, routine: Routine[T], sent: object) -> None:
        """Let the routine go on at a boundary, as far as to the next step."""
        self._leave()
        if self.warming_up:  # the step has ended
            self._clock.step_begins(may_compile=False)
        try:
            with self._clock.left_out():
                routine.send(sent)
            self._enter()
            if self.warming_up:
                self._clock.step_begins(may_compile=True)
        except StopIteration:
            self._end(None)
        except BaseException as error:  # not the script's, which may catch whatever is raised in it
            self._end(error)

    def end(self, error: BaseException | None) -> None:
        """End the process, and say what went wrong, if anything did."""
        self._end(error)

    def interrupt(self) -> None:
        """Note that what runs now is not part of a step."""
        self._leave()
        self.interrupted = True

    def _enter(self) -> None:
        self.interrupted = False
        self._running = ExitStack()
        self._running.enter_context(self.changed())

    def _leave(self) -> None:
        self._running.close()


class _Steps(StepFinder):
    """Resumes a routine at each boundary, once enough steps in a row have shown that they repeat.

    That is decided by counts alone, never by times: all variants of a script begin at the same of its steps.
    """

    def __init__(self, variant: ScriptVariant, routine: Routine[Any], wanted: WantedSteps) -> None:
        super().__init__(ScriptRun(wanted))
        self._variant, self._routine = variant, routine
        self._began = False
        self._missed = 0  # events in a row that are none of the steps

    def optimizer_made(self, optimizer: Any) -> None:
        """Note that an optimizer was set up, and where."""
        super().optimizer_made(optimizer)
        if self.active:
            self._variant.optimizer_made(optimizer)

    @property
    def missed(self) -> ScriptError:
        """Why the script has ended too soon."""
        count = sum(stream.events.count for stream in self._streams.values())
        if self._began and self._stream is not None:
            events = self._stream.events.count + (self._stream.open is not None)
            steps = events // max(1, self.result.events)
            return ScriptEndedError(f"the script ended after {steps:,} steps, too soon: have it run for about a minute")
        if self._began:
            return ScriptEndedError("the script ended too soon: have it run for about a minute")
        if not count:
            return ScriptError(
                "the script ended, and nothing in it bounds steps: no optimizer stepped and no module was called"
            )
        seen = ", ".join(
            f"{stream.events.count:,} {what(kind)}" for kind, stream in self._streams.items() if stream.events.count
        )
        choose = "" if self._run.wanted.kind else ", or choose others (--step-kind)"
        return ScriptError(
            f"the script ended before its steps had repeated often enough; have it run longer{choose}. Seen: {seen}"
        )

    @property
    def _has_chosen(self) -> bool:
        return self._began

    def _taken(self, stream: Stream, pattern: Pattern) -> None:  # noqa: ARG002 (the finder tells more than is needed)
        if self._follower is not None and self._follower.at_start:
            if self._began:  # found anew, after something was compiled
                self._begin_cycle(0)
            else:
                self._end_cycle(0)

    def _begin_cycle(self, now: int) -> None:  # noqa: ARG002 (the finder tells more than is needed)
        self._missed = 0
        if self._began:
            self._variant.resume(self._routine, Ran.INTERRUPTED)

    def _end_cycle(self, now: int) -> None:  # noqa: ARG002 (the finder tells more than is needed)
        if self._began:
            if self._follower is not None and self._follower.may_resume:
                self._variant.step_ended()
            self._variant.resume(self._routine, None)
        elif self._follower is not None and self._follower.may_resume:
            self._began = True
            self._variant.resume(self._routine, None)

    def _lost(self) -> None:
        self._missed += 1
        if self._began:
            self._variant.interrupt()
            if self._variant.may_sound_different and self._stream is not None:
                self._look_again()
            elif self._missed > _MOST_MISSED * self.result.events:
                text = "its steps do not go on: after some of them, the optimizer, the model or the loss is made anew"
                self._variant.end(ScriptError(text))
        elif self._stream is not None:
            self._stream.events.broke(self._level)
            self._look_again()


def _locals_of_script() -> Iterator[object]:
    """Yield what the local variables of the main thread's functions hold, of those that are the script's."""
    assert threading.current_thread() is threading.main_thread()
    frame = sys._getframe()
    while frame is not None:
        if _package(frame) not in _NOT_OF_THE_SCRIPT:
            yield from list(frame.f_locals.values())
        frame = frame.f_back  # type: ignore[assignment]
