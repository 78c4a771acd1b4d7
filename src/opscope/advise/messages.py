"""What the parent and the process of a variant say to each other. Needs no PyTorch."""

import os
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from opscope.advise.source import ScriptPlaces
from opscope.documents.advise import Facts
from opscope.record.configuration import Configuration

Values = npt.NDArray[np.float64]
AS_WRITTEN: Final = "convolutions as written"
BLOCKS: Final = " (norms of its blocks)"
FIRST_STEPS: Final = 3  # are run before anything is timed: what is compiled is compiled in them
FAILED: Final = ".failed"  # ends the name of the file that says that the process which writes the weights has failed
NO_WEIGHTS: Final = "the starting weights were not available in time"
_BURSTS: Final = 2  # of batches from all workers, in a turn


class ReplayBatches(StrEnum):
    """Where batches come from, once a few were loaded."""

    NOTHING = "loading"  # as written
    FETCHED = "made already"  # in workers, from where they are sent as written
    MEMORY = "memory"
    PINNED = "pinned memory"  # which a GPU copies from by itself
    DEVICE = "device"  # nothing is left to be copied


class VariantJob(Struct, frozen=True, kw_only=True):
    """A variant to be built.

    Attributes:
        configuration: what is run.
        device: where; a script decides that itself.
        arguments: of a script, quoted as in a shell.
        steps: which steps of a script, as ``--step-kind`` names them; None leaves the choice open.
        changes: names of changes, applied in their own order.
        proving: whether dropout is off and parameters are moved, see `opscope.advise.variant.prepare`.
        reference: whether everything is computed in float64.
        rounding: with a reference, names of changes whose arithmetic is simulated, or `AS_WRITTEN`.
        begin: the file with the weights that compared processes begin with, written by the one that runs as written;
            empty where each begins with its own.
        replay: where batches come from once a few were loaded.
        stages: the file that gets what loading each batch took; empty for none.
        sources: other source for files of the user's, by path: a patch that is tried.
        compiles: whether what is changed has the step compiled: so many processes share the cores.
        log: the file that gets what the user's code prints.
    """

    configuration: Configuration
    device: str
    arguments: str = ""
    steps: str | None = None
    changes: tuple[str, ...] = ()
    proving: bool = False
    reference: bool = False
    rounding: tuple[str, ...] = ()
    begin: str = ""
    replay: ReplayBatches = ReplayBatches.NOTHING
    stages: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    compiles: bool = False
    log: str = os.devnull

    @property
    def is_as_written(self) -> bool:
        """Whether nothing is changed, neither in what is computed nor in the source."""
        return not (self.changes or self.sources or self.reference)


class Compiling(Struct, frozen=True):
    """The step of a variant that compiles was observed: what comes next, compiling, takes the host alone, and long."""


class Built(Struct, frozen=True):
    """A variant that runs.

    Attributes:
        facts: of its step.
        device: the name of what it runs on.
        first_s: how many seconds its first steps took, with what was compiled in them.
        memory_bytes: the peak that these reserved on the device; None on a CPU.
        free_bytes: what was free on the device after them; None on a CPU.
        places: where a script does what changes concern.
        source: a digest of the user's files that were imported.
    """

    facts: Facts
    device: str
    first_s: float
    memory_bytes: int | None
    places: ScriptPlaces
    source: str
    free_bytes: int | None = None


class Broken(Struct, frozen=True):
    """A variant that does not run, or changes nothing.

    Attributes:
        reason: why, in one line.
        took_no_effect: whether it runs and changes nothing.
        is_passing: whether it may run another time: it took too long, or its process was ended.
        lacks_memory: whether the device's memory was too small, beside others that were built.
        has_ended: whether the script came to its end: run again, it goes on for as long.
    """

    reason: str
    took_no_effect: bool = False
    is_passing: bool = False
    lacks_memory: bool = False
    has_ended: bool = False


class Time(Struct, frozen=True):
    """Asks for what a step takes; answered with `Turn`.

    Attributes:
        seconds: for so long steps run; at least one, after one that does not count.
        cores: where the main thread runs meanwhile, and where those of backward passes do; None leaves that open.
    """

    seconds: float
    cores: tuple[int, int] | None = None


class Turn(Struct, frozen=True):
    """What a step took in one turn.

    Attributes:
        step_ns: in nanoseconds, the mean.
        waited: how long its threads waited for a core meanwhile, added up, as a share of the time; None where the
            system does not tell.
    """

    step_ns: float
    waited: float | None


class Profile(Struct, frozen=True):
    """Asks for a trace of some steps; answered with True. The process is slower from then on.

    Attributes:
        path: the file that it is written to.
        steps: how many, after one that is not recorded.
    """

    path: str
    steps: int


class Work(Struct, frozen=True):
    """Asks for how long the device works in a step; answered with `Worked`. The process is slower from then on.

    Attributes:
        steps: how many are recorded.
    """

    steps: int


class Worked(Struct, frozen=True):
    """How long the device works in a step.

    Attributes:
        device_ns: nanoseconds in which kernels or copies run, each moment counted once; None where none was recorded.
    """

    device_ns: float | None


class Load(Struct, frozen=True):
    """Asks for what loading takes in some steps; answered with `Loaded`.

    Attributes:
        seconds: for so long.
        batches: but until so many batches were taken, or ten times as long.
    """

    seconds: float
    batches: int


class Loaded(Struct, frozen=True):
    """What loading took in some steps.

    Attributes:
        steps: how many whole ones there were; those in which something else happened, such as an evaluation, are left
            out with their batches.
        waits_ns: how long each batch was waited for, without the start of workers.
        received_ns: for how much of that the waiting thread worked: batches of workers are unpacked there.
        starts_ns: how long workers took to start, each time they did.
        epoch: how many batches the loader has that was read most, as its workers start once for so many; None where it
            does not tell.
    """

    steps: int
    waits_ns: list[int]
    received_ns: list[int]
    starts_ns: list[int]
    epoch: int | None

    @property
    def batches(self) -> float:
        """How many batches a step takes."""
        return len(self.waits_ns) / max(1, self.steps)

    @property
    def wait_ns(self) -> float:
        """How long a step waits for its batches, in nanoseconds."""
        return sum(self.waits_ns) / max(1, self.steps)

    @property
    def start_ns(self) -> float:
        """What starting workers costs per batch, in nanoseconds."""
        if not self.starts_ns:
            return 0.0
        # A loop may leave an epoch early: the starts that were seen tell how many batches lie between two.
        seen = len(self.waits_ns) / max(1, len(self.starts_ns) - 1)
        batches = seen if self.epoch is None else self.epoch
        if len(self.starts_ns) > 1:
            batches = min(batches, seen)
        return sum(self.starts_ns) / len(self.starts_ns) / max(1.0, batches)


class Record(Struct, frozen=True):
    """Asks for what some steps compute.

    Attributes:
        steps: how many.
    """

    steps: int


class AskLosses(Struct, frozen=True):
    """Asks for the loss of each of some steps; answered with `LongRun`.

    Attributes:
        steps: how many.
        seed: of random numbers, set once.
    """

    steps: int
    seed: int


class ComputedStep(Struct):
    """What one step computed, or one call with other inputs.

    Arrays are in float64. A tensor of more than 65,536 elements is kept by as many of them, and by the norms of its
    blocks under its name with `BLOCKS` behind it, so that no part of it is left out.

    Attributes:
        outputs: by name, of the modules that it called, and what it returned.
        arguments: by name, what these modules have changed in place of what they were given.
        gradients: by parameter, as the optimizer found them.
        constants: by name, what was returned that is not a number.
        unknown: what was returned and cannot be looked into, such as generators.
    """

    outputs: dict[str, Values] = field(default_factory=dict)
    arguments: dict[str, Values] = field(default_factory=dict)
    gradients: dict[str, Values] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


class VariantRecording(Struct):
    """What a variant computed.

    Attributes:
        steps: one after the other.
        others: by the kind of other inputs, what the modules returned for them.
        state: by name, after the steps: parameters and buffers, and what else has changed: other tensors of modules,
            and those that the step holds.
        updates: how often each optimizer has stepped in them.
        updated: parameters that an optimizer updates: by name in `state`, the name in `gradients`.
        moved: by the same names, how far the steps moved an element at most.
        travelled: by the same names, the norm of how far the steps moved all elements.
        held: which outputs of a step, by their place among all, were still there a step later.
        overwritten: which of them had changed by then.
        may_round: whether convolutions may compute in TF32, as far as the step itself is concerned.
    """

    steps: list[ComputedStep]
    others: dict[str, ComputedStep]
    state: dict[str, Values]
    updates: list[int]
    updated: dict[str, str] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    travelled: dict[str, float] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    overwritten: frozenset[int] = frozenset()
    may_round: bool = False


class LongRun(Struct):
    """A longer run of training.

    Attributes:
        losses: the loss of each step; NaN where a step has none.
        draws: whether random numbers were drawn.
    """

    losses: list[float]
    draws: bool


def least_steps(workers: int) -> int:
    """Return how many steps tell what one takes: several for each worker of its loaders, which deliver in bursts."""
    return max(1, _BURSTS * workers)
