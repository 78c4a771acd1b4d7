"""What is known of some changes, and the file that keeps it, from which a search that was ended goes on."""

import contextlib
import importlib.metadata
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Final

import msgspec
from msgspec import Struct, field

from opscope._version import __version__
from opscope.advise.messages import Built, VariantJob
from opscope.advise.proof import Judgement
from opscope.advise.search import ChangeNames
from opscope.advise.session import Worker
from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.documents.advise import UNDECIDED, Outcome, Patch
from opscope.measuring.rounds import Interval, median_interval, ratios

LEAST_GAIN: Final = 1.02  # a smaller gain is not worth a line of code
CLEARLY: Final = 1.1  # times as fast as what is proven: worth a proof before the search goes on
# Where the same code differs from itself by more, other programs use the machine, and what is fast then is not what is
# fast without them: on two cores under four loads, half as many threads took a ninth of the time.
_TOO_NOISY: Final = 1.5
# Of the time. Threads of three programs alone on two cores waited for 0 to 3 % of it; beside two busy loops two threads
# waited for 90 to 150 %, and one of the programs took four hundred times as long.
_BUSY: Final = 0.25


class ChangeResult(Struct):
    """What is known of some changes.

    Attributes:
        gain: how many times as fast; None if it was not timed.
        least: up to which gain there is none: what the step as written differs from itself, in the same rounds.
        waited: how long threads of the step as written waited for a core, as a share of the time, where none of its
            own workers take cores from it.
        step_ns: the step.
        first_s: what the first steps took.
        memory_bytes: of the device.
        broken: why it does not run.
        no_effect: whether it runs and changes nothing.
        is_passing: whether it may run another time: it took too long, or its process was ended.
        lacks_memory: whether the device's memory was too small.
        is_checked: whether a loss is one beside other processes of the step as written, too.
    """

    gain: Interval | None = None
    least: float = LEAST_GAIN
    waited: float = 0.0
    step_ns: float | None = None
    first_s: float | None = None
    memory_bytes: int | None = None
    broken: str | None = None
    no_effect: bool = False
    is_passing: bool = False
    lacks_memory: bool = False
    is_checked: bool = True


class Baseline(Struct, frozen=True):
    """The step as written.

    Attributes:
        step_ns: how long it takes, in nanoseconds.
        first_s: how long its first steps took, in seconds.
        of_itself: how many times as fast it was as itself, in two processes: low and high end.
    """

    step_ns: float
    first_s: float
    of_itself: tuple[float, float]


class Known:
    """What is known of all combinations.

    Attributes:
        baseline: the step as written; None before it was timed.
        measured: what is known of each that was timed, or does not run.
        again: those whose time is no longer the luckiest of several: they were timed in new processes, or first of all.
        proofs: what comparison says of those that were compared.
        patches: what became of each as a patch.
        jobs: what was compared of each.
    """

    def __init__(self) -> None:
        self.baseline: Baseline | None = None
        self.measured: dict[ChangeNames, ChangeResult] = {}
        self.again: set[ChangeNames] = set()
        self.proofs: dict[ChangeNames, Judgement] = {}
        self.patches: dict[ChangeNames, Patch] = {}
        self.jobs: dict[ChangeNames, VariantJob] = {}

    def note_written(self, written: Sequence[Worker]) -> None:
        """Note how long the step as written takes, by two processes that were timed beside each other."""
        base, twin = written
        first_s = base.built.first_s if base.built else 0.0
        self.baseline = Baseline(median_interval(base.blocks).median, first_s, of_itself(base, twin))

    def gains(self) -> dict[ChangeNames, float]:
        """Return how many times as fast the step is with each combination that was timed."""
        return {names: one.gain.median for names, one in self.measured.items() if one.gain is not None}

    def unproven(self) -> dict[ChangeNames, float]:
        """Return the same of those whose gain is only that of the search."""
        return {names: gain for names, gain in self.gains().items() if names not in self.again}

    def proven(self) -> dict[ChangeNames, float]:
        """Return the same of those that are proven."""
        return {names: gain for names, gain in self.gains().items() if names in self.proofs and self.is_right(names)}

    def is_right(self, names: ChangeNames) -> bool:
        """Tell whether a combination that was compared is right, and faster."""
        return self.proofs[names].right is True and is_faster(self.measured[names])

    def best_so_far(self) -> str:
        """Say what is the best so far, and how far that is known; another thread may ask."""
        proofs, known, again = dict(self.proofs), dict(self.measured), set(self.again)
        gains = {names: one.gain.median for names, one in known.items() if one.gain is not None}
        proven = {names: gains[names] for names, proof in proofs.items() if proof.right and names in gains}
        seen = {names: gain for names, gain in gains.items() if names not in again and gain > LEAST_GAIN}
        parts = []
        for what, some in (("proven", proven), ("measured, not yet compared", seen)):
            if some:
                names = max(some, key=lambda one: some[one])
                parts.append(f"{' + '.join(names)} {some[names]:.2f} times as fast ({what})")
        return f"best so far: {'; '.join(parts)}" if parts else "nothing faster so far"


def timed_beside(written: Sequence[Worker], worker: Worker, least: float) -> ChangeResult:
    """Return what is known of a variant that was timed beside the step as written.

    Args:
        written: the step as written, in several processes: what one of them differs from the others, no change did.
        worker: the variant.
        least: up to which gain there is none.
    """
    if worker.built is None or worker.broken is not None or not worker.blocks:
        broken = worker.broken
        return ChangeResult(
            broken="it was not timed" if broken is None else broken.reason,
            no_effect=broken is not None and broken.took_no_effect,
            is_passing=broken is not None and broken.is_passing,
            lacks_memory=broken is not None and broken.lacks_memory,
        )
    rounds = zip(*(one.blocks[-len(worker.blocks) :] for one in written), strict=True)  # in which all ran
    beside = [mean(blocks) for blocks in rounds]
    return ChangeResult(
        gain=median_interval(ratios(worker.blocks, beside)),
        step_ns=median_interval(worker.blocks).median,
        least=least,
        waited=waited_for_others(written),
        first_s=worker.built.first_s,
        memory_bytes=worker.built.memory_bytes,
    )


def of_itself(base: Worker, twin: Worker) -> tuple[float, float]:
    """Return how many times as fast the step as written is as itself, in two processes: low and high end."""
    both = min(len(base.blocks), len(twin.blocks))  # one of them may have been started later
    result = median_interval(ratios(twin.blocks[-both:], base.blocks[-both:]))
    return result.low or result.median, result.high or result.median


def least_gain(base: Worker, twin: Worker) -> float:
    """Return up to which gain there is none: the step as written differs from itself by as much."""
    if not base.blocks or not twin.blocks:
        return LEAST_GAIN
    low, high = of_itself(base, twin)
    return max(LEAST_GAIN, high, 1 / low)


def waited_for_others(written: Sequence[Worker], since: int = 0) -> float:
    """Return how long threads of the step as written waited for a core, as a share of the time; 0 if it has workers.

    Args:
        written: its processes.
        since: rounds before this one do not count.
    """
    own_workers = any(one.built is not None and one.built.facts.prefetched for one in written)
    waited = [share for one in written for share in one.waited[since:]]
    return 0.0 if own_workers or not waited else median(waited)


def is_faster(known: ChangeResult) -> bool:
    """Tell whether steps are faster, beyond what the step as written differs from itself."""
    if known.gain is None or known.least > _TOO_NOISY or known.waited > _BUSY:
        return False
    return (known.gain.low if known.gain.low is not None else known.gain.median) > known.least


def is_noisy(known: ChangeResult) -> bool:
    """Tell whether noise alone leaves open that steps are faster."""
    if known.gain is None or is_faster(known) or is_slower(known):
        return False
    return not_decidable(known.gain, known.least, known.waited) is not None


def is_slower(known: ChangeResult) -> bool:
    """Tell whether steps are slower, beyond what the step as written differs from itself."""
    return known.gain is not None and known.gain.high is not None and known.gain.high < 1 / known.least


def verdict(known: ChangeResult, proof: Judgement | None, *, is_best_known: bool = True) -> tuple[Outcome, str]:
    """Return what became of some changes, and why.

    Args:
        known: their times.
        proof: what comparison says; None where they were not compared.
        is_best_known: whether others of their class are proven.
    """
    if known.no_effect:
        return Outcome.NO_DIFFERENCE, f"{known.broken}"
    if known.gain is None:  # what took too long, or whose process was ended, may run another time
        return (Outcome.UNDECIDED if known.is_passing else Outcome.REJECTED), f"{known.broken}"
    if not is_faster(known):
        return _not_faster(known.gain, known)
    if proof is None:
        others = "others of its class are proven, which are faster, or as fast with fewer changes"
        return Outcome.TIMED, others if is_best_known else "it was not compared with float64"
    if proof.right is None:
        return Outcome.UNDECIDED, proof.reason.removeprefix(f"{UNDECIDED}: ")
    return (Outcome.PROVEN if proof.right else Outcome.REJECTED), proof.reason


def not_decidable(gain: Interval, least: float, waited: float) -> str | None:
    """Return why a gain cannot be told from noise, nor its absence; None where it can.

    Args:
        gain: how many times as fast something is.
        least: up to which gain there is none.
        waited: how long threads waited for a core, as a share of the time.
    """
    if waited > _BUSY:
        return f"{UNDECIDED}: its threads waited for a core {waited:.0%} of the time, which others use"
    if least > _TOO_NOISY:
        return f"{UNDECIDED}: the machine is busy, and the same code differs from itself by up to {least:.2f} times"
    # Where even the low end is a gain, that is decided, however wide the interval is.
    if (
        gain.low is not None
        and gain.high is not None
        and gain.low <= least
        and gain.high > _TOO_NOISY * max(gain.low, 1)
    ):
        return f"{UNDECIDED}: {gain.low:.2f} to {gain.high:.2f} times as fast"
    return None


def _not_faster(gain: Interval, known: ChangeResult) -> tuple[Outcome, str]:
    least = known.least
    noise = f"what the step differs from itself, up to {least:.2f}"
    if is_slower(known):
        return Outcome.SLOWER, f"beyond {noise}" if known.is_checked else "than one process of the step as written"
    if (reason := not_decidable(gain, least, known.waited)) is not None:
        return Outcome.UNDECIDED, reason.removeprefix(f"{UNDECIDED}: ")
    is_within = 1 / least <= gain.median <= least
    return Outcome.NO_DIFFERENCE, f"it is within {noise}" if is_within else f"its interval reaches into {noise}"


class Heading(Struct, frozen=True):
    """What a file's measurements are of: they are taken over only where all of it is the same.

    Attributes:
        target: what was run, with its settings and arguments.
        source: a digest of the user's files that it imports.
        device: its name.
        torch: the version of PyTorch.
        opscope: that of opscope.
    """

    target: str = ""
    source: str = ""
    device: str = ""
    torch: str = ""
    opscope: str = ""


class _Line(Struct, frozen=True):
    changes: ChangeNames
    measured: ChangeResult = field(default_factory=ChangeResult)


def heading(job: VariantJob, built: Built) -> Heading:
    """Return what a job's measurements are of."""
    settings = " ".join(f"{name}={value}" for name, value in job.configuration.settings.items())
    return Heading(
        target=" ".join(filter(None, (job.configuration.target, settings, job.arguments, job.steps))),
        source=built.source,
        device=built.device,
        torch=importlib.metadata.version("torch"),
        opscope=__version__,
    )


class Journal:
    """The file.

    Args:
        path: where it is, or will be; None keeps nothing.
        of: what is measured.

    Attributes:
        known: what the file holds.

    Raises:
        UsageError: it holds measurements of something else, or something else altogether.
        EnvironmentLacksError: it cannot be read or written.
    """

    def __init__(self, path: Path | None, of: Heading) -> None:
        self._path = path
        self.known: dict[ChangeNames, ChangeResult] = {}
        if path is None:
            return
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            raise EnvironmentLacksError(f"cannot read {path}: {error.strerror or error}") from error
        if not lines:
            self._write(msgspec.json.encode(of))
            return
        try:
            before = msgspec.json.decode(lines[0], type=Heading)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path} holds no measurements of opscope advise: name another file") from error
        if before != of:
            names = [name for name in Heading.__struct_fields__ if getattr(before, name) != getattr(of, name)]
            raise UsageError(f"{path} holds measurements of another {', '.join(names)}: name another file")
        if not lines[-1].endswith(b"\n"):
            self._write(b"")  # the run was ended while it wrote this line
        for line in lines[1:]:
            with contextlib.suppress(msgspec.MsgspecError):  # such a line is not whole
                one = msgspec.json.decode(line, type=_Line)
                self.known[one.changes] = one.measured

    def keep(self, changes: ChangeNames, measured: ChangeResult) -> None:
        """Add what was measured; what may go otherwise another time is not kept."""
        if self._path is not None and not measured.is_passing:
            self._write(msgspec.json.encode(_Line(changes, measured)))

    def _write(self, line: bytes) -> None:
        assert self._path is not None
        try:
            with self._path.open("ab") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EnvironmentLacksError(f"cannot write {self._path}: {error.strerror or error}") from error
