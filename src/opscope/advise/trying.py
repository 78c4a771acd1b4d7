"""From a target to a document: what is tried, timed, proven."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.changes import BY_NAME, CHANGES, class_of, lines_of, lower_than
from opscope.advise.comparing import Comparing
from opscope.advise.input_proof import Proving
from opscope.advise.messages import Built, Job
from opscope.advise.patching import Patching
from opscope.advise.proof import Judged
from opscope.advise.search import Names, best_of, first_tries, second_tries
from opscope.advise.session import AdviseError, Session, Worker
from opscope.documents.advise import INPUT, AdviseDocument, ErrorClass, Facts, InputProof, Outcome, Tried
from opscope.record.configuration import Configuration
from opscope.workbench.benchmarking.statistics import Interval, median_interval, ratios
from opscope.workloads.catalog import is_script

_FIRST_ROUNDS: Final = 6  # the fewest whose median has an interval
_LAST_ROUNDS: Final = 13
_NOISY: Final = 1.03
_LONGEST_S: Final = 20.0  # of all rounds of the finalists
_TURN_S: Final = 0.15  # of one variant in one round
_LEAST_GAIN: Final = 1.02  # a gain that is not worth a line of code
_MOST_NEIGHBOURS: Final = 8
_MOST_ATTEMPTS: Final = 3  # to find one of each class that is as fast as it seemed, and right

Say = Callable[[str], None]


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be tried.

    Attributes:
        configuration: the target.
        device: where it runs; a script decides that itself.
        arguments: of a script, quoted as in a shell.
        steps: which steps of a script, as ``--steps`` names them; None leaves the choice open.
        only: names of changes, and `INPUT`; empty for all.
        precision: nothing of a lower class is tried.
        budget_s: no new phase begins after so many seconds.
        timeout_s: for so long one process may build.
        width: how many processes build at once.
        log: the file that gets what the target prints.
    """

    configuration: Configuration
    device: str
    arguments: str = ""
    steps: str | None = None
    only: tuple[str, ...] = ()
    precision: ErrorClass = ErrorClass.LOWER
    budget_s: float = 180.0
    timeout_s: float = 120.0
    width: int = 2
    log: str = ""


class Measured(Struct):
    """What is known of some changes.

    Attributes:
        gain: how many times as fast; None if it was not timed.
        least: up to which gain there is none: what the step as written differs from itself, in the same rounds.
        step_ns: the step.
        first_s: what the first steps took.
        memory_bytes: of the device.
        broken: why it does not run.
        no_effect: whether it runs and changes nothing.
    """

    gain: Interval | None = None
    least: float = _LEAST_GAIN
    step_ns: float | None = None
    first_s: float | None = None
    memory_bytes: int | None = None
    broken: str | None = None
    no_effect: bool = False


def advise(plan: Plan, say: Say) -> AdviseDocument:
    """Try changes on a target.

    Args:
        plan: what is tried.
        say: gets what goes on, a line each.

    Raises:
        AdviseError: the step as written does not run.
    """
    job = _job(plan)
    with Session(job, width=plan.width, timeout_s=plan.timeout_s) as session:
        return _Trying(plan, session, job, say).run()


def foreseen(plan: Plan, say: Say) -> list[str]:
    """Run the step as written, and return what would be tried and what not, a line each.

    Raises:
        AdviseError: the step as written does not run.
    """
    job = _job(plan)
    with Session(job, width=plan.width, timeout_s=plan.timeout_s) as session:
        trying = _Trying(plan, session, job, say)
        base, _ = trying.as_written()
        assert base.built is not None
        refused, possible = trying.possible(base.built.facts)
    tries = [f"would try {' + '.join(names)} ({class_of(names)})" for names in first_tries(possible)]
    return [*tries, *(f"not {' + '.join(one.changes)}: {one.reason}" for one in refused)]


def _job(plan: Plan) -> Job:
    return Job(
        configuration=plan.configuration,
        device=plan.device,
        arguments=plan.arguments,
        steps=plan.steps,
        log=plan.log,
    )


class _Trying:
    def __init__(self, plan: Plan, session: Session, job: Job, say: Say) -> None:
        self._plan, self._session, self._job, self._say = plan, session, job, say
        self._began = time.monotonic()
        self._known: dict[Names, Measured] = {}
        self._comparing = Comparing(session, job, plan.timeout_s, say)
        self._unfinished: str | None = None

    def run(self) -> AdviseDocument:
        self._say("the step as written")
        base, twin = self.as_written()
        assert base.built is not None
        facts = base.built.facts
        refused, possible = self.possible(facts)
        results: list[Tried] = []
        if self._plan.only != (INPUT,):
            self._search([base, twin], possible)
            self._session.close([base, twin])
            results = self._finals(facts)
            if is_script(self._plan.configuration.target):
                results = self._with_patches(results, base.built)
        else:
            self._session.close([base, twin])
        return self._document(base.built.device, facts, refused, results, self._input(facts))

    def _search(self, written: Sequence[Worker], possible: Sequence[str]) -> None:
        self._measure(written, first_tries(possible), "alone and in known combinations")
        # What may help is measured again, with more rounds, so here a gain need not exceed what noise there is.
        best = best_of(self._gains(), _LEAST_GAIN)
        around = second_tries(best.values(), possible, self._gains(), _LEAST_GAIN, _MOST_NEIGHBOURS)
        if around and self._has_time("what lies around the best was not tried"):
            self._measure(written, around, "around the best")

    def _input(self, facts: Facts) -> InputProof | None:
        """Find out whether steps wait for their data: where it is asked for, and where they may."""
        if INPUT in self._plan.only and not facts.loaders:
            raise AdviseError(f"{self._plan.configuration.target} takes no batches from a DataLoader in its steps")
        if not facts.loaders or (self._plan.only and INPUT not in self._plan.only):
            return None
        if not self._has_time("whether steps wait for their data was not tried"):
            return None
        proving = Proving(
            self._session,
            self._job,
            self._plan.timeout_s,
            lambda workers: self._time(workers, _LAST_ROUNDS),
            self._least_gain,
            self._say,
        )
        found = proving.prove(facts)
        if self._plan.only == (INPUT,):
            self.base_ns = found.step_ns
        return found

    def as_written(self) -> tuple[Worker, Worker]:
        base, twin = self._session.build([self._job, self._job])
        for worker in (base, twin):
            if worker.broken is not None:
                raise AdviseError(f"{self._plan.configuration.target} does not run as written: {worker.broken.reason}")
        return base, twin

    def possible(self, facts: Facts) -> tuple[list[Tried], list[str]]:
        refused: list[Tried] = []
        possible: list[str] = []
        for change in CHANGES:
            reason = change.refuses(facts)
            if self._plan.only and change.name not in self._plan.only:
                continue
            if lower_than(change.error_class, self._plan.precision):
                continue
            if reason is None:
                possible.append(change.name)
            else:
                refused.append(
                    Tried(
                        changes=(change.name,), error_class=change.error_class, verdict=Outcome.REFUSED, reason=reason
                    )
                )
        return refused, possible

    def _measure(self, written: Sequence[Worker], tries: Sequence[Names], what: str) -> None:
        """Build and time combinations beside the step as written; as many as there is time for."""
        left = list(tries)
        while left and (not self._known or self._has_time(f"{len(left)} of {len(tries)} {what} were not tried")):
            now, left = left[: 2 * self._plan.width], left[2 * self._plan.width :]
            self._say(f"{what}: {len(tries) - len(left) - len(now)} of {len(tries)}")
            workers = self._session.build([replace(self._job, changes=names) for names in now])
            running = [worker for worker in workers if worker.broken is None]
            self._time_written(written, running, _FIRST_ROUNDS)
            least = self._least_gain(written[0], written[1])
            for worker in workers:
                self._known[worker.job.changes] = _measured(written[0], worker, least)
            self._session.close(workers)

    def _time_written(self, written: Sequence[Worker], others: Sequence[Worker], rounds: int) -> None:
        self._time([*written, *others], rounds)
        for worker in written:
            if worker.broken is not None:
                said = f"as written fails while it is timed: {worker.broken.reason}"
                raise AdviseError(f"{self._plan.configuration.target} {said}")

    def _time(self, workers: Sequence[Worker], rounds: int) -> None:
        self._session.time(workers, rounds, _TURN_S)

    def _gains(self) -> dict[Names, float]:
        return {names: known.gain.median for names, known in self._known.items() if known.gain is not None}

    def _least_gain(self, base: Worker, twin: Worker) -> float:
        """Return up to which gain there is none: the step as written differs from itself by as much."""
        if not base.blocks or not twin.blocks:
            return _LEAST_GAIN
        self.of_itself = median_interval(ratios(twin.blocks, base.blocks))
        low, high = self.of_itself.low or self.of_itself.median, self.of_itself.high or self.of_itself.median
        return max(_LEAST_GAIN, high, 1 / low)

    def _has_time(self, otherwise: str) -> bool:
        if time.monotonic() - self._began < self._plan.budget_s:
            return True
        self._unfinished = f"the time was up after {self._plan.budget_s:.0f} s: {otherwise}"
        return False

    # ---------------------------------------------------------------- the last round, and the proof

    def _finals(self, facts: Facts) -> list[Tried]:
        """Measure the best of each class again and prove it; where it was only lucky, or is wrong, the next best."""
        proofs: dict[Names, Judged] = {}
        again: set[Names] = set()
        for attempt in range(_MOST_ATTEMPTS):
            proven = {class_of(names) for names, proof in proofs.items() if proof.right}
            gains = {names: gain for names, gain in self._gains().items() if names not in again}
            finalists = [names for kind, names in best_of(gains, _LEAST_GAIN).items() if kind not in proven]
            if attempt and not (finalists and self._has_time("the next best were not proven")):
                break
            self._measure_again(finalists)
            again |= set(finalists)
            faster = [names for names in finalists if _is_faster(self._known[names])]
            proofs |= self._comparing.proofs(faster, facts)
        return [self._tried(names, known, proofs.get(names), facts) for names, known in self._known.items()]

    def _with_patches(self, results: list[Tried], built: Built) -> list[Tried]:
        """Add to the best of each class what it is in the script's own source."""
        best = [results[place] for place in _best(results).values()]
        if not best or not self._has_time("no patch was written"):
            return results
        patching = Patching(
            self._session, self._job, self._comparing, lambda workers: self._time(workers, _LAST_ROUNDS), self._say
        )
        patches = patching.patches([one.changes for one in best], built)
        return [replace(one, patch=patches.get(one.changes)) for one in results]

    def _measure_again(self, finalists: Sequence[Names]) -> None:
        """Measure in new processes: those that came first were lucky, too."""
        self._say("the best again, in new processes")
        base, twin = self.as_written()
        workers = self._session.build([replace(self._job, changes=names) for names in finalists])
        running = [worker for worker in workers if worker.broken is None]
        began = time.monotonic()
        self._time_written([base, twin], running, _LAST_ROUNDS)
        # A noisy machine gets more rounds: what the step differs from itself is what a gain must exceed.
        while running and self._least_gain(base, twin) > _NOISY and time.monotonic() - began < _LONGEST_S:
            self._time_written([base, twin], running, _FIRST_ROUNDS)
        least = self._least_gain(base, twin)
        self.base_ns, self.base_first_s = median_interval(base.blocks).median, base.built.first_s if base.built else 0.0
        for worker in workers:
            self._known[worker.job.changes] = _measured(base, worker, least)
        self._session.close([base, twin, *workers])

    # ---------------------------------------------------------------- what is said

    def _tried(self, names: Names, known: Measured, proof: Judged | None, facts: Facts) -> Tried:
        verdict, reason = _verdict(known, proof)
        extra = None if known.first_s is None else known.first_s - self.base_first_s
        saved = None if known.step_ns is None else (self.base_ns - known.step_ns) / 1e9
        pays = None
        if verdict is Outcome.PROVEN and extra is not None and saved is not None and saved > 0:
            pays = max(0, round(max(extra, 0.0) / saved))
        return Tried(
            changes=names,
            error_class=class_of(names),
            verdict=verdict,
            reason=reason,
            ratio=None if known.gain is None else known.gain.median,
            ci_low=None if known.gain is None else known.gain.low,
            ci_high=None if known.gain is None else known.gain.high,
            step_ns=known.step_ns,
            error=None if proof is None else proof.error,
            own_error=None if proof is None else proof.own_error,
            memory_bytes=known.memory_bytes,
            compile_s=None if extra is None else max(extra, 0.0),
            pays_after_steps=pays,
            lines=tuple(lines_of(names, facts)),
            caveats=tuple(BY_NAME[name].caveat for name in names if BY_NAME[name].caveat),
        )

    def _document(
        self, device: str, facts: Facts, refused: list[Tried], results: list[Tried], input_proof: InputProof | None
    ) -> AdviseDocument:
        order = list(Outcome)
        results.sort(key=lambda one: (order.index(one.verdict), -(one.ratio or 0.0)))
        results += refused
        classes = [one for one in ErrorClass if any(tried.error_class is one for tried in results)]
        low, high = self.of_itself.low, self.of_itself.high
        return AdviseDocument(
            target=self._plan.configuration.target,
            device=device,
            facts=facts,
            baseline_ns=self.base_ns,
            of_itself=(low or self.of_itself.median, high or self.of_itself.median),
            classes=tuple(classes),
            results=tuple(results),
            best=_best(results),
            processes=self._session.started,
            seconds=time.monotonic() - self._began,
            unfinished=self._unfinished,
            input=input_proof,
        )


def _best(results: Sequence[Tried]) -> dict[ErrorClass, int]:
    """Return per class the place of the fastest that is proven."""
    best: dict[ErrorClass, int] = {}
    for place, one in enumerate(results):
        if one.verdict is Outcome.PROVEN:
            before = best.get(one.error_class)
            if before is None or (results[before].ratio or 0.0) < (one.ratio or 0.0):
                best[one.error_class] = place
    return best


def _measured(base: Worker, worker: Worker, least: float) -> Measured:
    if worker.built is None or worker.broken is not None or not worker.blocks:
        broken = worker.broken
        return Measured(
            broken="it was not timed" if broken is None else broken.reason,
            no_effect=broken is not None and broken.took_no_effect,
        )
    beside = base.blocks[-len(worker.blocks) :]  # of the rounds in which both ran
    return Measured(
        gain=median_interval(ratios(worker.blocks, beside)),
        step_ns=median_interval(worker.blocks).median,
        least=least,
        first_s=worker.built.first_s,
        memory_bytes=worker.built.memory_bytes,
    )


def _is_faster(known: Measured) -> bool:
    """Tell whether steps are faster, beyond what the step as written differs from itself."""
    if known.gain is None:
        return False
    return (known.gain.low if known.gain.low is not None else known.gain.median) > known.least


def _verdict(known: Measured, proof: Judged | None) -> tuple[Outcome, str]:
    if known.no_effect:
        return Outcome.NO_DIFFERENCE, f"{known.broken}"
    if known.gain is None:
        return Outcome.REJECTED, f"{known.broken}"
    if not _is_faster(known):
        slower = known.gain.high is not None and known.gain.high < 1 / known.least
        reason = (
            "it is slower" if slower else f"gains up to {known.least:.2f} are within what the step differs from itself"
        )
        return Outcome.NO_DIFFERENCE, reason
    if proof is None:
        return Outcome.TIMED, "others of its class are faster, or as fast with fewer changes"
    if proof.right is None:
        return Outcome.REJECTED, proof.reason
    return (Outcome.PROVEN if proof.right else Outcome.REJECTED), proof.reason
