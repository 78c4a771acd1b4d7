"""What was found about a script's steps, and the sentence that tells the reader."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from opscope.base.units import format_ns
from opscope.collect.script.step_events import LEVELS
from opscope.record.capture import RawTrace
from opscope.record.step_kinds import AlsoSeen, StepKind, Timed

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
