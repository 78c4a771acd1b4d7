"""What a step is: where it begins and ends, and what else of a script repeated."""

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class AlsoSeen:
    """What else of a script repeated, and was not taken for its steps.

    Attributes:
        kind: what it was.
        count: how often it was seen.
        median_ns: how long one took by the host's clock, until the next one.
    """

    kind: StepKind
    count: int
    median_ns: int


@dataclass(frozen=True, slots=True)
class StepsFound:
    """Which steps were measured.

    Attributes:
        kind: of the steps.
        boundary: what ends one, in the plural; None for functions, and where nothing repeated.
        also: what else repeated.
        events: how many boundaries a step has: two, where two optimizers step in turn.
        before: how many boundaries came before the steps that were timed.
        timed: how many came while these were timed; more than they have, where something came between them.
    """

    kind: StepKind
    boundary: str | None = None
    also: tuple[AlsoSeen, ...] = ()
    events: int = 1
    before: int = 0
    timed: int = 0


@dataclass(frozen=True, slots=True)
class OwnClock:
    """What the same steps took in a run of the script with nothing of opscope but a clock at their boundaries.

    Attributes:
        mean_ns: by the host's clock, from the first boundary to the last.
        median_ns: of single steps; None where something came between them.
        count: how many steps.
    """

    mean_ns: int
    median_ns: int | None
    count: int


@dataclass(frozen=True, slots=True)
class WantedSteps:
    """Which steps of a script are to be measured.

    Attributes:
        kind: of the steps; None chooses by rank.
        annotation: the name of the ranges, where ``kind`` is ``ANNOTATION``.
    """

    kind: StepKind | None = None
    annotation: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """One run of a script: the first one times its steps and then profiles them, another makes up what that lacked.

    Attributes:
        wanted: which steps.
        records: whether all is recorded from the beginning, for programs that end soon or have no boundaries.
        may_repeat: whether the script may be run once more.
        patience_s: after so long, steps of a lower rank are taken; None waits for the script's end.
        wall_ns: durations of steps that an earlier run has timed.
        by_device: whether these are between marks on the device.
        most_timed: how many steps are timed at most, where an earlier run showed how many there are; None for no limit.
        reason: why this run is needed; None for the first.
        clock: whether nothing is done but to note the time at the boundaries of the steps that the record names.
    """

    wanted: WantedSteps = WantedSteps()
    records: bool = False
    may_repeat: bool = True
    patience_s: float | None = None
    wall_ns: tuple[int, ...] = ()
    by_device: bool = False
    most_timed: int | None = None
    reason: str | None = None
    clock: bool = False
