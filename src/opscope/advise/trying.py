"""From a target to a document: what is tried, timed, proven."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.batches import larger_batch, with_batch
from opscope.advise.changes import BY_NAME, CHANGES, class_of, lines_of, lower_than
from opscope.advise.comparing import Comparing
from opscope.advise.input_proof import Proving
from opscope.advise.journal import Heading, Journal, heading
from opscope.advise.measured import LEAST_GAIN, Measured, is_faster, is_slower, least_gain, measured, of_itself
from opscope.advise.measured import verdict as verdict_of
from opscope.advise.messages import Built, Job, Profile
from opscope.advise.patching import Patching
from opscope.advise.proof import Judged
from opscope.advise.search import Names, best_of, first_tries, second_tries, without_broken
from opscope.advise.session import AdviseError, Session, Worker
from opscope.documents.advise import AdviseDocument, ErrorClass, Facts, InputProof, LargerBatch, Outcome, Tried
from opscope.documents.change_names import INPUT, LARGER_BATCH
from opscope.record.configuration import Configuration
from opscope.workbench.benchmarking.statistics import median_interval
from opscope.workloads.catalog import is_script

_FIRST_ROUNDS: Final = 6  # the fewest whose median has an interval
_LAST_ROUNDS: Final = 13
_PROFILED: Final = 3  # steps in traces
_LARGER: Final = (2, 4)  # times the batch size
_SEARCHING: Final = 0.5  # of the time: measuring the best again, and proving it, takes about as long
_SEARCHING_ON: Final = 0.85  # while nothing was found
_NOISY: Final = 1.03
_LONGEST_S: Final = 20.0  # of all rounds of the finalists
_ROUNDS_SHARE: Final = 0.07  # of the whole time, for the same: building and comparing them need several times as long
_TURN_S: Final = 0.15  # of one variant in one round
_MOST_NEIGHBOURS: Final = 8
_FEWEST_TOGETHER: Final = 2  # that are timed together, beside the step as written
_MOST_ATTEMPTS: Final = 3  # to find one of each class that is as fast as it seemed, and right

Say = Callable[[str], None]
T = TypeVar("T")


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be tried.

    Attributes:
        configuration: the target.
        device: where it runs; a script decides that itself.
        arguments: of a script, quoted as in a shell.
        steps: which steps of a script, as ``--steps`` names them; None leaves the choice open.
        only: names of changes, `INPUT` and `LARGER_BATCH`; empty for all.
        precision: nothing of a lower class is tried.
        budget_s: nothing new is tried after half of it, and no new phase begins after all of it, in seconds.
        timeout_s: for so long one process may build.
        width: how many processes build at once.
        log: the file that gets what the target prints.
        journal: the file that keeps what is measured, and from which a run that was ended goes on; None for none.
        wants_patch: whether a patch is written even if the time is up.
        traces: the folder that gets a trace of some steps as written, and one of the fastest that is proven; None for
            none.
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
    journal: Path | None = None
    wants_patch: bool = False
    traces: Path | None = None


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


def time_finalists(
    session: Session, written: Sequence[Worker], others: Sequence[Worker], longest_s: float = _LONGEST_S
) -> None:
    """Time variants in turns with the step as written and its twin; with more rounds on a noisy machine.

    Args:
        session: the session.
        written: the step as written, in two processes: what it differs from itself is what a gain must exceed.
        others: the variants.
        longest_s: no further round begins after so many seconds.
    """
    began, rounds = time.monotonic(), _FIRST_ROUNDS
    session.time([*written, *others], rounds, _TURN_S)
    base, twin = written
    while base.broken is None and twin.broken is None and time.monotonic() - began < longest_s:
        if rounds >= _LAST_ROUNDS and (not others or least_gain(base, twin) <= _NOISY):
            break
        session.time([*written, *others], 1, _TURN_S)
        rounds += 1


def _job(plan: Plan) -> Job:
    return Job(
        configuration=plan.configuration,
        device=plan.device,
        arguments=plan.arguments,
        steps=plan.steps,
        log=plan.log,
    )


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


class _Trying:
    def __init__(self, plan: Plan, session: Session, job: Job, say: Say) -> None:
        self._plan, self._session, self._job, self._say = plan, session, job, say
        self._began = time.monotonic()
        self._known: dict[Names, Measured] = {}
        self._journal = Journal(None, Heading())
        self._comparing = Comparing(session, job, say)
        self._unfinished: list[str] = []
        self._batch_s = self._finals_s = 0.0  # how long a batch of combinations, and measuring the best, has taken
        self._baseline: Baseline | None = None

    def run(self) -> AdviseDocument:
        self._say("the step as written")
        base, twin = self.as_written()
        assert base.built is not None
        facts = base.built.facts
        refused, possible = self.possible(facts)
        results: list[Tried] = []
        if not self._plan.only or set(self._plan.only) - {INPUT, LARGER_BATCH}:
            if self._plan.journal is not None:
                self._journal = Journal(self._plan.journal, heading(self._job, base.built))
            kept = self._journal.known.items()
            self._known |= {names: one for names, one in kept if set(names) <= set(possible)}
            self._search([base, twin], possible)
            self._session.close([base, twin])
            results = self._finals(facts)
            if is_script(self._plan.configuration.target):
                built, tried = base.built, results
                results = self._phase("patches", lambda: self._with_patches(tried, built), results)
        else:
            self._session.close([base, twin])
        folder = self._plan.traces
        if folder is not None:
            self._phase("traces", lambda: self._write_traces(folder, results), None)
        found = self._phase("loading", lambda: self._input(facts), None)
        none: tuple[LargerBatch, ...] = ()
        larger = self._phase("larger batches", self._larger_batches, none)
        return self._document(base.built, refused, results, found, larger)

    def _phase(self, what: str, phase: Callable[[], T], otherwise: T) -> T:
        """Run a phase. If it fails, what was found before is not lost."""
        try:
            return phase()
        except AdviseError as error:
            if self._baseline is None:
                raise
            self._unfinished.append(f"{what}: {error}")
            return otherwise

    def _write_traces(self, folder: Path, results: list[Tried]) -> None:
        """Record some steps as written, and some of the fastest that is proven, for ``opscope diff``."""
        proven = [results[place] for place in _best(results).values()]
        if not proven:
            self._say(f"{folder} gets no traces: nothing is proven")
            return
        fastest = max(proven, key=lambda one: one.ratio or 0.0)
        jobs = {"before.json": self._job, "after.json": replace(self._job, changes=fastest.changes)}
        workers = self._session.build(list(jobs.values()))
        for name, worker in zip(jobs, workers, strict=True):
            if worker.ask(Profile(str(folder / name), _PROFILED), bool, self._plan.timeout_s) is None:
                reason = "it gave no answer" if worker.broken is None else worker.broken.reason
                raise AdviseError(f"{name} could not be recorded: {reason}")
        self._session.close(workers)
        self._say(f"opscope diff {folder / 'before.json'} {folder / 'after.json'} compares them")

    def _search(self, written: Sequence[Worker], possible: Sequence[str]) -> None:
        self._measure(written, first_tries(possible), "alone and in known combinations")
        # What may help is measured again, with more rounds, so here a gain need not exceed what noise there is.
        best = best_of(self._gains(), LEAST_GAIN)
        around = second_tries(best.values(), possible, self._gains(), LEAST_GAIN, _MOST_NEIGHBOURS)
        if around and self._has_time("what lies around the best was not tried", self._batch_s, _SEARCHING):
            self._measure(written, around, "around the best")
        self._check_losses(written)

    def _check_losses(self, written: Sequence[Worker]) -> None:
        """Start the step as written again before a loss is told: some processes are faster than others of the same."""
        slower = [names for names, known in self._known.items() if is_slower(known)]
        if not slower:
            return
        if not self._has_time("what seems slower was not compared with other processes", self._finals_share_s):
            self._known |= {names: replace(self._known[names], is_checked=False) for names in slower}
            return
        again = self.as_written()
        self._time_written([*written, *again], [], _FIRST_ROUNDS)
        least = max(least_gain(one, other) for one in written for other in again)
        for names in slower:
            known = self._known[names]
            self._known[names] = replace(known, least=max(known.least, least))
        self._session.close(again)

    @property
    def _finals_share_s(self) -> float:
        """What measuring the best again, and proving it, is kept free for, in seconds."""
        return (1 - _SEARCHING) * self._plan.budget_s if best_of(self._gains(), LEAST_GAIN) else 0.0

    def _input(self, facts: Facts) -> InputProof | None:
        """Find out whether steps wait for their data: where it is asked for, and where they may."""
        if INPUT in self._plan.only and not facts.loaders:
            raise AdviseError(f"{self._plan.configuration.target} takes no batches from a DataLoader in its steps")
        if not facts.loaders or (self._plan.only and INPUT not in self._plan.only):
            return None
        # As long as a batch of combinations, or longer: loaders are started several times.
        if not self._has_time("whether steps wait for their data was not tried", self._batch_s):
            return None
        proving = Proving(
            self._session,
            self._job,
            self._plan.timeout_s,
            lambda workers: self._time(workers, _LAST_ROUNDS),
            self._say,
        )
        found, itself = proving.prove(facts)
        self._baseline = self._baseline or Baseline(found.step_ns, 0.0, itself)
        return found

    def _larger_batches(self) -> tuple[LargerBatch, ...]:
        """Time the step as written with larger batches: where it is asked for, and where the batch size is known."""
        known = self._plan.configuration.get("batch_size")
        asked = LARGER_BATCH in self._plan.only
        if asked and not isinstance(known, int):
            raise AdviseError(f"{self._plan.configuration.target} takes no --batch-size")
        if not isinstance(known, int) or (self._plan.only and not asked):
            return ()
        if not self._has_time("larger batches were not tried", self._batch_s):
            return ()
        self._say("larger batches")
        sizes = [known * factor for factor in _LARGER]
        base, twin = self.as_written()
        workers = self._session.build([with_batch(self._job, size) for size in sizes])
        self._time_written([base, twin], [worker for worker in workers if worker.broken is None], _LAST_ROUNDS)
        found = tuple(
            larger_batch(size, size / known, base, worker) for size, worker in zip(sizes, workers, strict=True)
        )
        self._baseline = self._baseline or Baseline(median_interval(base.blocks).median, 0.0, of_itself(base, twin))
        self._session.close([base, twin, *workers])
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
        left = [names for names in tries if names not in self._known]
        takes_s, together = 0.0, max(_FEWEST_TOGETHER, self._plan.width)
        while left and (
            not self._known
            or self._has_time(f"{len(left)} of {len(tries)} {what} were not tried", takes_s, self._share)
        ):
            began = time.monotonic()
            now, left = left[:together], left[together:]
            self._say(f"{what}: {len(now)} now, {len(left)} left")
            without_memory = self._measure_together(written, now)
            for names in without_memory if len(now) > 1 else ():  # others that were built beside it held the rest
                self._measure_together(written, [names])
            takes_s = time.monotonic() - began
            self._batch_s = max(self._batch_s, takes_s)
            left = [names for names in without_broken(tries, self._broken()) if names not in self._known]

    @property
    def _share(self) -> float:
        """The share of the time for trying: as long as nothing is faster, there is nothing to measure again."""
        return _SEARCHING if best_of(self._gains(), LEAST_GAIN) else _SEARCHING_ON

    def _broken(self) -> set[str]:
        """Return the changes that fail alone, or change nothing."""
        return {
            names[0]
            for names, one in self._known.items()
            if len(names) == 1 and one.gain is None and not (one.is_passing or one.lacks_memory)
        }

    def _measure_together(self, written: Sequence[Worker], tries: Sequence[Names]) -> list[Names]:
        """Build and time combinations at once; return those for which the device's memory was too small."""
        workers = self._session.build([replace(self._job, changes=names) for names in tries])
        running = [worker for worker in workers if worker.broken is None]
        self._time_written(written, running, _FIRST_ROUNDS)
        least = least_gain(written[0], written[1])
        for worker in workers:
            self._known[worker.job.changes] = measured(written, worker, least)
            self._journal.keep(worker.job.changes, self._known[worker.job.changes])
        self._session.close(workers)
        return [worker.job.changes for worker in workers if worker.broken is not None and worker.broken.lacks_memory]

    def _time_written(self, written: Sequence[Worker], others: Sequence[Worker], rounds: int) -> None:
        self._time([*written, *others], rounds)
        self._check(written)

    def _check(self, written: Sequence[Worker]) -> None:
        for worker in written:
            if worker.broken is not None:
                said = f"as written fails while it is timed: {worker.broken.reason}"
                raise AdviseError(f"{self._plan.configuration.target} {said}")

    def _time(self, workers: Sequence[Worker], rounds: int) -> None:
        self._session.time(workers, rounds, _TURN_S)

    def _gains(self) -> dict[Names, float]:
        return {names: known.gain.median for names, known in self._known.items() if known.gain is not None}

    def _has_time(self, otherwise: str, takes_s: float = 0.0, share: float = 1.0) -> bool:
        """Tell whether something can be done in time, and if not, note what is not done for that.

        Args:
            otherwise: what is not done.
            takes_s: how long it takes, as far as is known.
            share: of the whole time, for it and what was done before.
        """
        if time.monotonic() - self._began + takes_s < share * self._plan.budget_s:
            return True
        self._unfinished.append(f"{self._plan.budget_s:.0f} s were too few: {otherwise}")
        return False

    # ---------------------------------------------------------------- the last round, and the proof

    def _finals(self, facts: Facts) -> list[Tried]:
        """Measure the best of each class again and prove it; where it was only lucky, or is wrong, the next best."""
        proofs: dict[Names, Judged] = {}
        again: set[Names] = set()
        takes_s = 0.0
        for attempt in range(_MOST_ATTEMPTS):
            proven = {class_of(names) for names, proof in proofs.items() if proof.right}
            gains = {names: gain for names, gain in self._gains().items() if names not in again}
            finalists = [names for kind, names in best_of(gains, LEAST_GAIN).items() if kind not in proven]
            if attempt and not (finalists and self._has_time("the next best were not proven", takes_s)):
                break
            began = time.monotonic()
            self._measure_again(finalists)
            again |= set(finalists)
            faster = [names for names in finalists if is_faster(self._known[names])]
            compare: Callable[[], dict[Names, Judged]] = partial(self._comparing.proofs, faster, facts)
            nothing: dict[Names, Judged] = {}
            proofs |= self._phase("comparison", compare, nothing)
            takes_s = self._finals_s = time.monotonic() - began
        proven = {class_of(names) for names, proof in proofs.items() if proof.right}
        return [
            self._tried(names, known, proofs.get(names), facts, is_best_known=class_of(names) in proven)
            for names, known in self._known.items()
        ]

    def _with_patches(self, results: list[Tried], built: Built) -> list[Tried]:
        """Add to the best of each class what it is in the script's own source."""
        best = [results[place] for place in _best(results).values()]
        if not best or not (self._plan.wants_patch or self._has_time("no patch was written", self._finals_s)):
            return results
        patching = Patching(
            self._session,
            self._job,
            self._comparing,
            lambda written, others: time_finalists(self._session, written, others),
            self._say,
        )
        patches = patching.patches([one.changes for one in best], built)
        return [replace(one, patch=patches.get(one.changes)) for one in results]

    def _measure_again(self, finalists: Sequence[Names]) -> None:
        """Measure in new processes: those that came first were lucky, too."""
        self._say("the best again, in new processes")
        base, twin = self.as_written()
        workers = self._session.build([replace(self._job, changes=names) for names in finalists])
        running = [worker for worker in workers if worker.broken is None]
        time_finalists(self._session, [base, twin], running, min(_LONGEST_S, _ROUNDS_SHARE * self._plan.budget_s))
        self._check([base, twin])
        least, first_s = least_gain(base, twin), base.built.first_s if base.built else 0.0
        self._baseline = Baseline(median_interval(base.blocks).median, first_s, of_itself(base, twin))
        for worker in workers:
            self._known[worker.job.changes] = measured([base, twin], worker, least)
        self._session.close([base, twin, *workers])

    # ---------------------------------------------------------------- what is said

    def _tried(
        self, names: Names, known: Measured, proof: Judged | None, facts: Facts, *, is_best_known: bool
    ) -> Tried:
        verdict, reason = verdict_of(known, proof, is_best_known=is_best_known)
        assert self._baseline is not None
        extra = None if known.first_s is None else known.first_s - self._baseline.first_s
        # By the ratio: rounds in which other combinations were timed may have been slower ones.
        step_ns = None if known.gain is None else self._baseline.step_ns / known.gain.median
        saved = None if step_ns is None else (self._baseline.step_ns - step_ns) / 1e9
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
            step_ns=step_ns,
            error=None if proof is None else proof.error,
            own_error=None if proof is None else proof.own_error,
            compared_tensors=proof.tensors if proof is not None and verdict is Outcome.PROVEN else None,
            compared_elements=proof.elements if proof is not None and verdict is Outcome.PROVEN else None,
            memory_bytes=known.memory_bytes,
            compile_s=None if extra is None else max(extra, 0.0),
            pays_after_steps=pays,
            lines=tuple(lines_of(names, facts)),
            caveats=tuple(BY_NAME[name].caveat for name in names if BY_NAME[name].caveat),
        )

    def _document(
        self,
        built: Built,
        refused: list[Tried],
        results: list[Tried],
        found: InputProof | None,
        larger: tuple[LargerBatch, ...],
    ) -> AdviseDocument:
        assert self._baseline is not None
        order = list(Outcome)
        results.sort(key=lambda one: (order.index(one.verdict), -(one.ratio or 0.0)))
        results += refused
        classes = [one for one in ErrorClass if any(tried.error_class is one for tried in results)]
        return AdviseDocument(
            target=self._plan.configuration.target,
            device=built.device,
            facts=built.facts,
            baseline_ns=self._baseline.step_ns,
            of_itself=self._baseline.of_itself,
            classes=tuple(classes),
            results=tuple(results),
            best=_best(results),
            processes=self._session.started,
            seconds=time.monotonic() - self._began,
            unfinished="; ".join(dict.fromkeys(self._unfinished)) or None,
            input=found,
            larger_batches=larger,
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
