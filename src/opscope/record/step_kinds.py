"""What a step is: where it begins and ends, and what else repeated in a script."""

from enum import StrEnum

from msgspec import Struct


class StepKind(StrEnum):
    """What lies between two boundaries. Steps of two kinds are never compared."""

    TRAINING = "training"
    """Ends with the step of an optimizer, or with an update of parameters that is seen at the next call."""
    CALLS = "calls"
    """From one module call that records gradients to the next."""
    REPLAYS = "replays"
    """From one replay of a CUDA graph to the next."""
    EVALUATION = "evaluation"
    """From one module call without gradients, or of a module in ``eval`` mode, to the next."""
    ANNOTATION = "annotation"
    """From one beginning of a named range to the next."""
    OPERATORS = "operators"
    """A repetition of operators, found in a recording."""
    FUNCTION = "function"
    """One call of a function."""
    RUN = "run"
    """All that was recorded of a program in which nothing repeated."""


class AlsoSeen(Struct, frozen=True):
    """Something that repeated in a script and was not chosen as its steps.

    Attributes:
        kind: what it was.
        count: how often it was seen.
        median_ns: median time on the host's clock from one to the next.
    """

    kind: StepKind
    count: int
    median_ns: int


class StepsFound(Struct, frozen=True):
    """Which steps were measured.

    Attributes:
        kind: of the steps.
        boundary: what ends a step, in the plural; None for functions, and if nothing repeated.
        also: what else repeated.
        events: boundaries per step: two if two optimizers step in turn.
        before: boundaries before the timed steps.
        timed: boundaries while the steps were timed; more than the steps have if something else came between them.
        ranks: how many ranks of a job measured the same steps, chosen together; None where there is one rank, or where
            each chose by itself.
        part: which part of a run was recorded in which nothing repeated, in words; None where it is the whole run, or
            steps.
    """

    kind: StepKind
    boundary: str | None = None
    also: tuple[AlsoSeen, ...] = ()
    events: int = 1
    before: int = 0
    timed: int = 0
    ranks: int | None = None
    part: str | None = None


class OwnClock(Struct, frozen=True):
    """Times of the same steps in another run of the script, with only a clock at their boundaries.

    Attributes:
        mean_ns: time per step on the host's clock, from the first boundary to the last.
        median_ns: of single steps; None if something came between them.
        count: number of steps.
    """

    mean_ns: int
    median_ns: int | None
    count: int


class WantedSteps(Struct, frozen=True):
    """Which steps of a script to measure.

    Attributes:
        kind: of the steps; None lets the watcher choose by rank.
        annotation: the name of the ranges if ``kind`` is ``ANNOTATION``, else None.
    """

    kind: StepKind | None = None
    annotation: str | None = None

    @classmethod
    def named(cls, name: str | None) -> "WantedSteps":
        """Return the steps that ``--step-kind`` names: a kind, or ``annotation:NAME``; None leaves the choice open."""
        kind, _, annotation = (name or "").partition(":")
        return cls(StepKind(kind) if kind else None, annotation or None)


class Between(Struct, frozen=True):
    """A stretch between timed steps in which something else came, such as an evaluation.

    Attributes:
        ns: how long it took, by the host's clock, with the steps that it interrupted.
        steps: how many steps lie in it.
        evaluates: whether modules were called in it without gradients, or in ``eval`` mode.
        evaluating_ns: how long it took from the first of these calls to the last one's beginning.
    """

    ns: int
    steps: float
    evaluates: bool = False
    evaluating_ns: int = 0


class Timed(Struct, frozen=True):
    """Times of a script's steps without a profiler, in the order in which they came.

    Attributes:
        wall_ns: durations from boundary to boundary; where steps are short, means of a few each.
        steps_each: how many steps each of these is the mean of.
        by_device: whether they were measured between CUDA events on the device; else by the host's clock.
        data_ns: how long the main thread waited for a DataLoader in a step, for each of ``wall_ns``.
        collecting_ns: how long Python collected garbage in a step, for each of ``wall_ns``.
        between: what came between these steps.
        elapsed_ns: how long it took to time them, with what was dropped; 0 if unknown.
    """

    wall_ns: tuple[int, ...] = ()
    steps_each: int = 1
    by_device: bool = False
    data_ns: tuple[int, ...] = ()
    collecting_ns: tuple[int, ...] = ()
    between: tuple[Between, ...] = ()
    elapsed_ns: int = 0


class ScriptRun(Struct, frozen=True):
    """What to do in one run of a script. The first run times and profiles; a second makes up for what that lacked.

    Attributes:
        wanted: which steps.
        records: whether to record from the beginning, for programs that end soon or have no boundaries.
        ended_after_s: if it records because an earlier run ended by itself: how long after it imported PyTorch; else
            None.
        may_repeat: whether the script may be run once more.
        patience_s: seconds after which steps of a lower rank are taken; None waits for the script's end.
        times: of steps that an earlier run timed.
        most_timed: the most steps to time, if an earlier run showed how many there are; None for no limit.
        reason: why this run is needed; None for the first.
        clock: whether to do nothing but note the time at the boundaries of the recorded steps.
    """

    wanted: WantedSteps = WantedSteps()
    records: bool = False
    ended_after_s: float | None = None
    may_repeat: bool = True
    patience_s: float | None = None
    times: Timed = Timed()
    most_timed: int | None = None
    reason: str | None = None
    clock: bool = False
