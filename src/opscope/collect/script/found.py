"""What was found of a script's steps, and how a reader is told."""

from dataclasses import dataclass, field

from opscope.collect.script.events import LEVELS
from opscope.record.capture import RawTrace


@dataclass(slots=True)
class Found:
    """What was found and measured.

    Attributes:
        source: what the steps are made of; None for the whole run, where nothing repeated.
        pattern: the events of one cycle, by name.
        seen: complete cycles before the profiled ones.
        first: events before the first cycle.
        level: how much of the events repeated (``opscope.collect.script.events.LEVELS``).
        settled: whether the steps before took alike; None where too few were seen.
        wall_ns: times of unprofiled steps, from boundary to boundary; where a device works, means of blocks of steps.
        synchronised: whether each of them ends with a wait for the device.
        profiled_ns: of the profiled ones.
        trace: the trace that was written.
        light: that of a pass over as many steps that recorded device activities only; None without one.
        own: whether the trace is that of the script's own profiler.
        notes: what a reader must know.
    """

    source: str | None = None
    pattern: list[str] = field(default_factory=list)
    seen: int = 0
    first: int = 0
    level: str = LEVELS[0]
    settled: bool | None = None
    wall_ns: list[int] = field(default_factory=list)
    synchronised: bool = False
    profiled_ns: list[int] = field(default_factory=list)
    trace: RawTrace | None = None
    light: RawTrace | None = None
    own: bool = False
    notes: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """Say which steps were profiled, and how they were found."""
        if self.own:
            found = (
                "The script has a profiler of its own, and PyTorch one at a time: the recording is what that one took, "
                "of the part of the script that it was started for"
            )
        elif self.source is None:
            found = (
                "No repetition of steps was found: the recording is of the run from its beginning, first uses included"
            )
        else:
            shown = ", ".join(self.pattern[:4]) + (", ..." if len(self.pattern) > 4 else "")
            seen = f"seen {self.seen} times before; " if self.seen else ""
            of = "" if len(self.pattern) < 2 else f" of {len(self.pattern)} events"
            found = (
                f"Steps were found by themselves: a repeating cycle{of} ({self.source}: {shown}), "
                f"{seen}{_steps(len(self.profiled_ns))} profiled"
            )
            if self.settled is False:
                found += "; their durations had not settled"
        return ". ".join([found, *self.notes]) + "."


def _steps(count: int) -> str:
    return "1 step was" if count == 1 else f"{count} steps were"
