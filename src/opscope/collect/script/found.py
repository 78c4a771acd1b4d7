"""What was found about a script's steps, and the sentence that tells the reader."""

import gc
import sys
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct, field

from opscope.base.units import format_ns
from opscope.collect.script.step_events import LEVELS
from opscope.record.capture import AlsoSeen, MemoryRecording, RawTrace, StepKind, Timed

# ---------------------------------------------------------------- questions


def grad_enabled() -> bool:
    """Tell whether gradients are recorded."""
    return bool(sys.modules["torch"].is_grad_enabled())


def capturing() -> bool:
    """Tell whether a CUDA graph is being captured, during which nothing may be synchronised or profiled."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def synchronize_if_used() -> None:
    """Wait for the current device if the program has used CUDA; never set CUDA up."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def profiler_running() -> bool:
    """Tell whether any profiler runs."""
    import torch

    return bool(torch.autograd._profiler_enabled())


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has made; a step in which it made one is not steady."""
    # Looked up, not imported: a program that has not imported Dynamo has compiled nothing.
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def compiling() -> bool:
    """Tell whether torch.compile is at work in this thread."""
    guards = sys.modules.get("torch._guards")
    return guards is not None and guards.CompileContext.try_get() is not None


def on_device() -> bool:
    """Tell whether the script works on a CUDA device."""
    import torch

    return bool(torch.cuda.is_initialized())


def has_model() -> bool:
    """Tell whether the script has made a module with parameters; it looks at every object that Python knows."""
    import torch

    modules = (one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module))
    return any(vars(one).get("_parameters") for one in modules)


def torch_is_idle() -> bool:
    """Tell whether there is a GPU for the script's PyTorch, which it has not used; False without PyTorch or a GPU."""
    if "torch" not in sys.modules:
        return False
    import torch

    return torch.cuda.is_available() and not torch.cuda.is_initialized()


def current_device() -> Any:
    """Return the CUDA device that is current, or the CPU if the script has not used CUDA."""
    import torch

    if torch.cuda.is_initialized():
        return torch.device("cuda", torch._C._cuda_getDevice())
    return torch.device("cpu")


_MOST_ARGUMENTS = 4


def shapes_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[object, ...]:
    """Return the shapes of a call's first arguments, None for those without one.

    Shapes tell calls apart: the first call of a generation has the whole prompt, the others have one token each.
    """
    values = (*arguments, *named.values()) if named else arguments
    return tuple(getattr(value, "shape", None) for value in values[:_MOST_ARGUMENTS])


# ---------------------------------------------------------------- what was found


_PLURALS: Final = {
    StepKind.TRAINING: "steps of training",
    StepKind.CALLS: "calls of modules",
    StepKind.EVALUATION: "evaluations",
}


class Found(Struct):
    """What was found and measured.

    Attributes:
        kind: the kind of the steps.
        source: what bounds the steps, in the plural; None if nothing repeated and the whole run was recorded.
        pattern: the names of the events of one cycle.
        seen: how many complete cycles were seen when the repetition was found.
        first: how many events came before the first cycle.
        level: how much of the events repeated (``opscope.collect.script.step_events.LEVELS``).
        settled: whether the steps before took about the same time; None if too few were seen.
        times: of unprofiled steps, from boundary to boundary.
        waited_for_cpu_ns: how long threads waited for a core meanwhile; None if the system does not tell.
        events: how many boundaries a step has.
        before: how many boundaries came before the timed steps.
        timed: how many boundaries came while steps were timed.
        untimed: why there are no times; None if there are, or if no times were asked for.
        also: what else repeated.
        profiled_ns: durations of the profiled steps, by the host's clock.
        trace: the trace that was written; None if there is none.
        light: the trace of a pass over as many steps that recorded device activities only; None without one.
        memory: the history of a GPU's memory; None if that was not asked for.
        ranks: how many ranks of a job chose these steps together; None where it has one, or where they did not.
        own: whether the trace is that of the script's own profiler.
        at_work: the share of the recording in which the program was at work (`EarlyWindow.at_work`), where steps were
            looked for among its operators; else None.
        part: which part of the run was recorded, in words, where nothing repeated; None for all of it.
        notes: further sentences for the reader, without full stops.
    """

    kind: StepKind = StepKind.RUN
    source: str | None = None
    pattern: list[str] = field(default_factory=list)
    seen: int = 0
    first: int = 0
    level: str = LEVELS[0]
    settled: bool | None = None
    times: Timed = Timed()
    waited_for_cpu_ns: int | None = None
    events: int = 1
    before: int = 0
    timed: int = 0
    untimed: str | None = None
    also: tuple[AlsoSeen, ...] = ()
    profiled_ns: list[int] = field(default_factory=list)
    trace: RawTrace | None = None
    light: RawTrace | None = None
    memory: MemoryRecording | None = None
    ranks: int | None = None
    own: bool = False
    at_work: float | None = None
    part: str | None = None
    notes: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """Say which steps were profiled, and how they were found."""
        if self.own:
            result = (
                "The script has a profiler of its own, and PyTorch one at a time: the recording is what that one took, "
                "of the part of the script that it was started for"
            )
        elif self.source is None and self.part is not None:
            result = (
                f"No repetition of steps was found: the recording covers {self.part}. --step-kind operators keeps "
                "looking until the script ends"
            )
        elif self.source is None:
            result = (
                "No repetition of steps was found: the recording is of the run from its beginning, first uses included"
            )
        else:
            shown = ", ".join(self.pattern[:4]) + (", ..." if len(self.pattern) > 4 else "")
            seen = f"seen {self.seen} times before; " if self.seen else ""
            of = "" if len(self.pattern) < 2 else f" of {len(self.pattern)} events"
            result = (
                f"Steps were found automatically: a repeating cycle{of} ({self.source}: {shown}), "
                f"{seen}{_steps(len(self.profiled_ns))} profiled"
            )
            if self.ranks is not None:
                result += f", the same on all {self.ranks} ranks"
            if self.settled is False:
                result += "; their durations had not settled"
        return ". ".join([result, *self.notes, *self._also()]) + "."

    def _also(self) -> Iterator[str]:
        for one in self.also:
            times = f"{one.count:,} {_PLURALS.get(one.kind, str(one.kind))} of {format_ns(one.median_ns)}"
            yield f"Also seen: {times} (--step-kind {one.kind} takes them)"


def _steps(count: int) -> str:
    return "1 step was" if count == 1 else f"{count} steps were"
