"""From a target to a document: what is tried, timed, proven."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.batches import larger_batch, with_batch
from opscope.advise.changes.listed import BY_NAME, CHANGES, class_of, lines_of, lower_than
from opscope.advise.input_proof import Proving
from opscope.advise.measured import (
    CLEARLY,
    LEAST_GAIN,
    ChangeResult,
    Heading,
    Journal,
    Known,
    heading,
    is_faster,
    is_slower,
    least_gain,
    timed_beside,
)
from opscope.advise.measured import verdict as verdict_of
from opscope.advise.messages import Built, Load, Loaded, Profile, VariantJob, Work, Worked, least_steps
from opscope.advise.proof import Judgement
from opscope.advise.proving import FIRST_ROUNDS, LAST_ROUNDS, TURN_S, Prover, listed, running
from opscope.advise.search import (
    ChangeNames,
    best_of,
    compiles,
    first_tries,
    likeliest,
    second_tries,
    to_prove_first,
    without_broken,
)
from opscope.advise.session import AdviseError, OutOfTimeError, Session, Worker
from opscope.advise.telling import Budget, Telling
from opscope.base.errors import InconclusiveError
from opscope.base.units import NS_PER_S, format_ns
from opscope.documents.advise import (
    INPUT,
    LARGER_BATCH,
    AdviseDocument,
    Ended,
    ErrorClass,
    Facts,
    InputProof,
    LargerBatch,
    Outcome,
    Tried,
)
from opscope.record.configuration import Configuration

_ROUGH_ROUNDS: Final = 2  # enough to see whether the device waits for launches
_PROFILED: Final = 3  # steps in traces
_LARGER: Final = (2, 4)  # times the batch size
_OVERTIME: Final = 1.08  # of the time: then all of it ends, whatever is being done
_PROOF_TAKES: Final = 3.0  # times what starting the step as written takes, until a proof has shown how long one takes
_PROOF_BATCHES: Final = 2.0  # times what a batch takes: measured 1.4 to 2.4 on an H100
_BETTER: Final = 1.02  # times as fast as what is proven: worth one after it
_SEVERAL: Final = 2.0  # times what a proof takes: with less left, only the fastest is proven
_LEAST_BUILD_S: Final = 10.0
_BUILD_SHARE: Final = 0.6  # of what is left: a combination that takes longer to start is given up
_LOOKED_S: Final = 1.0  # for so long is looked whether steps wait for their data
_LOOKED_BATCHES: Final = 8
_INPUT_SHARE: Final = 0.35  # of what is left of the time, for that, where other changes are tried as well
_WAITS: Final = 0.1  # of a step, for its data: more is looked into as soon as something is proven
_WAITS_MOST: Final = 0.25  # likewise: more is looked into before anything else, as it may save most
_GPU_NODE: Final = "/dev/nvidiactl"  # exists where the driver is loaded
_MOST_NEIGHBOURS: Final = 8
_FEWEST_TOGETHER: Final = 2  # that are timed together, beside the step as written
# The first batch is small, so that the proof of what is most likely to help begins sooner.
_FIRST_TOGETHER: Final = 3
# Of a step. If the device works for a smaller share, the host sets the pace: faster kernels alone save little, and a
# captured graph may save a fifth or more. The share is a choice: it decides the order of what is tried, and no
# verdict. minGPT's device worked for 9.4 of 16.4 ms (H200): 1.16 times as fast without a graph, 3.6 times with one.
_LAUNCH_BOUND: Final = 0.8
_LIKELY_WIDTH: Final = 8  # processes that start at once: on fewer, those that are not needed yet delay those that are
_RECORDED_STEPS: Final = 3
_MOST_ATTEMPTS: Final = 3  # to find one of each class that is as fast as it seemed, and right

Say = Callable[[str], None]


class SearchPlan(Struct, frozen=True, kw_only=True):
    """What is to be tried.

    Attributes:
        configuration: the target.
        device: where it runs; a script decides that itself.
        arguments: of a script, quoted as in a shell.
        steps: which steps of a script, as ``--step-kind`` names them; None leaves the choice open.
        only: names of changes, `INPUT` and `LARGER_BATCH`; empty for all.
        precision: nothing of a lower class is tried.
        budget_s: what takes longer is not begun, and a twelfth later all of it ends, in seconds.
        timeout_s: for so long one process may build.
        width: how many processes build at once.
        log: the file that gets what the target prints.
        journal: the file that keeps what is measured, and from which a run that was ended goes on; None for none.
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
    traces: Path | None = None


def try_changes(plan: SearchPlan, say: Say) -> AdviseDocument:
    """Try changes on a target.

    Args:
        plan: what is tried.
        say: gets what goes on, a line each.

    Raises:
        AdviseError: the step as written does not run.
        InconclusiveError: the time was over before that was known.
    """
    job, ends_at = _job(plan), time.monotonic() + _OVERTIME * plan.budget_s
    with Session(job, width=plan.width, timeout_s=plan.timeout_s, ends_at=ends_at) as session:
        return _Trying(plan, session, job, say).run()


def foreseen(plan: SearchPlan, say: Say) -> list[str]:
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


def _job(plan: SearchPlan) -> VariantJob:
    return VariantJob(
        configuration=plan.configuration,
        device=plan.device,
        arguments=plan.arguments,
        steps=plan.steps,
        log=plan.log,
    )


class _Trying:
    def __init__(self, plan: SearchPlan, session: Session, job: VariantJob, say: Say) -> None:
        self._plan, self._session, self._job = plan, session, job
        self._known = Known()
        self._telling = Telling(say, self._known.best_so_far)
        self._say = self._telling.say
        self._budget = Budget(plan.budget_s)
        self._prover = Prover(session, job, self._known, self._budget, self._say)
        self._proves_early = True
        self._journal = Journal(None, Heading())
        self._batch_s = 0.0  # how long a batch of combinations has taken
        self._found: InputProof | None = None
        self._larger: tuple[LargerBatch, ...] = ()
        self._started_s = 0.0  # how long starting the step as written took
        self._device_ns: float | None = None  # how long the device works in a step as written
        self._wait_ns: float | None = None  # how long a step as written waits for its data
        self._has_loading_left = False  # steps wait for data, which is looked into as soon as something is proven

    def run(self) -> AdviseDocument:
        base: Worker | None = None
        refused: list[Tried] = []
        ended: Ended | None = None
        try:
            with self._telling:
                self._say("the step as written")
                written = self._first_written()
                base = written[0]
                assert base.built is not None
                self._prover.takes_s = _PROOF_TAKES * self._budget.spent_s
                refused, possible = self.possible(base.built.facts)
                self._try(written, base.built, possible)
        except OutOfTimeError:
            ended = Ended.BUDGET
            self._budget.unfinished.append(f"{self._plan.budget_s:.0f} s ran out during: {self._telling.doing}")
        except AdviseError as error:
            if self._known.baseline is None or not (self._known.gains() or self._found):
                raise
            self._budget.unfinished.append(str(error))  # what was measured before is not lost
        except KeyboardInterrupt:
            self._session.stop()
            ended = Ended.INTERRUPT
            self._budget.unfinished.append(f"interrupted during: {self._telling.doing}")
            if self._known.baseline is None:
                raise
        if self._known.baseline is None or base is None or base.built is None:
            raise InconclusiveError(
                f"nothing was measured of {self._plan.configuration.target} in {self._plan.budget_s:.0f} s: starting "
                "the step as written took that long. Give it a larger --budget"
            )
        if ended is None and self._budget.lacked_time:
            ended = Ended.BUDGET
        return self._document(base.built, refused, ended)

    def _try(self, written: list[Worker], built: Built, possible: Sequence[str]) -> None:
        facts, self._prover.built = built.facts, built
        self._refuse_impossible(facts)
        tries = not self._plan.only or bool(set(self._plan.only) - {INPUT, LARGER_BATCH})
        if tries:
            if self._plan.journal is not None:
                self._journal = Journal(self._plan.journal, heading(self._job, built))
            kept = self._journal.known.items()
            self._known.measured |= {names: one for names, one in kept if set(names) <= set(possible)}
        self._time_written(written, [], _ROUGH_ROUNDS)
        self._known.note_written(written)
        self._look_at_waiting(written[0])
        likely = self._likely(possible) if tries else None
        if likely is None:
            self._time_written(written, [], FIRST_ROUNDS - _ROUGH_ROUNDS)
        else:
            self._prove_likely(written, likely, facts)
        self._known.note_written(written)
        self._has_loading_left = _WAITS < self._waiting_share <= _WAITS_MOST
        if self._waiting_share > _WAITS_MOST:
            self._budget.phase("loading", lambda: self._input(facts, _INPUT_SHARE if tries else 1.0, written))
        if tries:
            self._search(written, possible, facts)
            self._session.close(written)
            self._budget.phase("the last round", lambda: self._finals(facts))
        else:
            self._session.close(written)
        folder = self._plan.traces
        if folder is not None:
            self._budget.phase("traces", lambda: self._write_traces(folder))
        if self._found is None:
            self._budget.phase("loading", lambda: self._input(facts, 1.0))
        self._budget.phase("larger batches", self._larger_batches)

    def _refuse_impossible(self, facts: Facts) -> None:
        target = self._plan.configuration.target
        if INPUT in self._plan.only and not facts.loaders:
            raise AdviseError(f"{target} takes no batches from a DataLoader in its steps")
        if LARGER_BATCH in self._plan.only and not isinstance(self._plan.configuration.get("batch_size"), int):
            raise AdviseError(f"{target} takes no --batch-size")

    def _look_at_waiting(self, worker: Worker) -> None:
        """Find out how long a step as written waits for its batches."""
        if worker.built is None or not worker.built.facts.loaders or (self._plan.only and INPUT not in self._plan.only):
            return
        (loaded,) = self._session.ask_each([(worker, Load(_LOOKED_S, _LOOKED_BATCHES))], Loaded)
        if loaded is not None and loaded.steps:  # otherwise the next that it is asked for says why
            self._wait_ns = loaded.wait_ns

    @property
    def _waiting_share(self) -> float:
        """How much of a step as written is waiting for its batches, as far as is known."""
        return self._wait_ns / self._known.baseline.step_ns if self._wait_ns and self._known.baseline else 0.0

    def _unknown_loading(self) -> str | None:
        """Say what is known of loading where the time was too short to find out what it costs."""
        share = self._waiting_share
        if self._wait_ns is None or self._found is not None or share <= _WAITS:
            return None
        return (
            f"a step waits {format_ns(self._wait_ns)} for its data, {min(share, 1.0):.0%} of the time it takes; "
            "whether loading in another way is faster was not measured"
        )

    def _write_traces(self, folder: Path) -> None:
        """Record some steps as written, and some of the fastest that is proven, for ``opscope diff``."""
        proven = self._known.proven()
        if not proven:
            self._say(f"{folder} gets no traces: nothing is proven")
            return
        fastest = max(proven, key=lambda one: proven[one])
        jobs = {"before.json": self._job, "after.json": self._known.jobs[fastest]}
        workers = self._session.build(list(jobs.values()))
        for name, worker in zip(jobs, workers, strict=True):
            if self._session.ask_each([(worker, Profile(str(folder / name), _PROFILED))], bool) == [None]:
                reason = "it gave no answer" if worker.broken is None else worker.broken.reason
                raise AdviseError(f"{name} could not be recorded: {reason}")
        self._session.close(workers)
        self._say(f"opscope diff {folder / 'before.json'} {folder / 'after.json'} compares them")

    # ---------------------------------------------------------------- the search

    def _search(self, written: list[Worker], possible: Sequence[str], facts: Facts) -> None:
        tries = first_tries(possible, launch_bound=self._is_launch_bound)
        self._measure(written, tries, "alone and in known combinations", facts)
        # What may help is measured again, with more rounds, so here a gain need not exceed what noise there is.
        best = best_of(self._known.gains(), LEAST_GAIN)
        around = second_tries(best.values(), possible, self._known.gains(), LEAST_GAIN, _MOST_NEIGHBOURS)
        if around:
            self._measure(written, around, "around the best", facts)
        self._budget.phase("what seems slower", lambda: self._check_losses(written))

    @property
    def _is_launch_bound(self) -> bool:
        """Whether the device is known to wait for launches, and not for batches, for a good part of a step."""
        if self._device_ns is None or self._known.baseline is None:
            return False
        step_ns = self._known.baseline.step_ns - (self._wait_ns or 0.0)
        return self._device_ns < _LAUNCH_BOUND * step_ns

    def _check_losses(self, written: list[Worker]) -> None:
        """Start the step as written again before reporting a loss: some of its processes are faster than others."""
        slower = [names for names, known in self._known.measured.items() if is_slower(known)]
        if not slower:
            return
        if not self._budget.has_time("what seems slower was not compared with other processes", self._kept_free_s):
            self._known.measured |= {names: replace(self._known.measured[names], is_checked=False) for names in slower}
            return
        self._say("the step as written again, beside what seems slower")
        again = self.as_written()
        self._time_written([*written, *again], [], FIRST_ROUNDS)
        least = max(least_gain(one, other) for one in written for other in again)
        for names in slower:
            known = self._known.measured[names]
            self._known.measured[names] = replace(known, least=max(known.least, least))
        self._session.close(again)

    @property
    def _kept_free_s(self) -> float:
        """The seconds that the search leaves for what comes after it: to prove the best."""
        seen = max(self._known.unproven().values(), default=0.0)
        proven = max(self._known.proven().values(), default=1.0)
        return self._prover.takes_s if seen > max(LEAST_GAIN, _BETTER * proven) else 0.0

    def _prove_early(self, facts: Facts) -> None:
        """Prove the best as soon as it is clearly the best: then it stands, whatever becomes of the rest."""
        proven = max(self._known.proven().values(), default=1.0)
        # Only what is clearly faster itself: then a more precise one is not a step back. What may be noise waits for
        # the last round: with few cores, a proof takes time in which better changes could be tried.
        gains = {
            names: gain
            for names, gain in self._known.unproven().items()
            if gain >= CLEARLY * proven and is_faster(self._known.measured[names])
        }
        best = to_prove_first(gains, CLEARLY)
        if best is None:
            return
        if not self._proves_early or self._prover.takes_s >= self._budget.left_s:
            return
        finalists = self._together_with(best, proven)
        known = {names: self._known.measured[names] for names in finalists}
        try:
            failed = self._prover.prove(finalists, facts)
        except AdviseError:
            failed = {names for names in finalists if names not in self._known.proven()}
        if failed:  # beside the processes of the search there may be too little memory: they have their turn after them
            self._prover.forget({names: known[names] for names in failed})
            self._proves_early = False

    def _together_with(self, best: ChangeNames, proven: float) -> list[ChangeNames]:
        """Return what is proven at once: where nothing has to be compiled, the best of more precise classes, too.

        A lower precision may be undecidable, and one more process of those that start in seconds costs little.
        """
        if compiles(best):
            return [best]
        gains = {
            names: gain
            for names, gain in self._known.unproven().items()
            if not compiles(names) and gain >= CLEARLY * proven
        }
        others = best_of(gains, LEAST_GAIN).items()
        return [best, *(names for kind, names in others if lower_than(class_of(best), kind))]

    def _input(self, facts: Facts, share: float, written: Sequence[Worker] = ()) -> None:
        """Find out whether steps wait for their data: where it is asked for, and where they may.

        Args:
            facts: of the step.
            share: how much of the time that is left it may take.
            written: the step as written, where its processes run.
        """
        if not facts.loaders or (self._plan.only and INPUT not in self._plan.only):
            return
        # As long as a batch of combinations, or longer: loaders are started several times.
        if not self._budget.has_time("whether steps wait for their data was not tried", self._batch_s):
            return
        left_s = share * self._budget.left_s
        most = self._may_be_timed(facts, left_s)

        def timed(workers: Sequence[Worker]) -> None:
            self._time_for(workers, left_s / 2, LAST_ROUNDS)

        proving = Proving(self._session, self._job, self._plan.timeout_s, timed, self._say)
        self._found = proving.prove(facts, most, written)
        if proving.left_out:
            others = "1 other way" if proving.left_out == 1 else f"{proving.left_out} other ways"
            self._budget.unfinished.append(f"too little time: {others} to load not timed")

    def _may_be_timed(self, facts: Facts, within_s: float) -> int:
        """Return how many processes can be started and timed in so many seconds, by how long that took before."""
        assert self._known.baseline is not None
        steps = 1 + facts.prefetched + least_steps(facts.loader_workers)
        rounds_s = FIRST_ROUNDS * (TURN_S + steps * self._known.baseline.step_ns / NS_PER_S)
        # So many start at once, and the first of them take as long as the step as written did.
        return int(max(0.0, within_s - self._started_s) / (rounds_s + self._started_s / self._plan.width))

    def _time_for(self, workers: Sequence[Worker], seconds: float, most: int) -> None:
        """Time processes in turns: for some seconds, but at least as often as an interval needs."""
        began = time.monotonic()
        self._time(workers, FIRST_ROUNDS)
        for _ in range(most - FIRST_ROUNDS):
            if time.monotonic() - began > seconds:
                break
            self._time(workers, 1)

    def _larger_batches(self) -> None:
        """Time the step as written with larger batches: where it is asked for, and where the batch size is known."""
        known = self._plan.configuration.get("batch_size")
        if not isinstance(known, int) or (self._plan.only and LARGER_BATCH not in self._plan.only):
            return
        if not self._budget.has_time("larger batches were not tried", self._batch_s):
            return
        self._say("larger batches")
        sizes = [known * factor for factor in _LARGER]
        base, twin = self.as_written()
        workers = self._session.build([with_batch(self._job, size) for size in sizes])
        self._time_written([base, twin], [worker for worker in workers if worker.broken is None], LAST_ROUNDS)
        self._larger = tuple(
            larger_batch(size, size / known, base, worker) for size, worker in zip(sizes, workers, strict=True)
        )
        self._session.close([base, twin, *workers])

    def as_written(self) -> list[Worker]:
        """Start the step as written in two processes."""
        began = time.monotonic()
        written = self._session.build([self._job, self._job])
        self._started_s = self._started_s or time.monotonic() - began
        return self._running_as_written(written)

    def _running_as_written(self, written: list[Worker]) -> list[Worker]:
        for worker in written:
            if worker.broken is not None:
                target, reason = self._plan.configuration.target, worker.broken.reason
                says_it = reason.startswith(f"{target} ")
                raise AdviseError(reason if says_it else f"{target} does not run as written: {reason}")
        return written

    def _first_written(self) -> list[Worker]:
        """Start the step as written, and on a GPU a third process that records how long the device works in a step."""
        if self._plan.device == "cpu" or not Path(_GPU_NODE).exists():
            return self.as_written()
        began = time.monotonic()
        *written, scout = self._session.build([self._job] * 3)
        self._started_s = time.monotonic() - began
        (worked,) = self._session.ask_each([(scout, Work(_RECORDED_STEPS))], Worked)
        self._device_ns = None if worked is None else worked.device_ns
        self._session.close([scout])
        if any(worker.broken is not None and worker.broken.lacks_memory for worker in written):
            self._session.close(written)  # there is no memory for three
            return self.as_written()
        return self._running_as_written(written)

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

    def _measure(self, written: list[Worker], tries: Sequence[ChangeNames], what: str, facts: Facts) -> None:
        """Build and time combinations beside the step as written; as many as there is time for."""
        left = [names for names in tries if names not in self._known.measured]
        first = self._plan.width if self._known.proofs else min(_FIRST_TOGETHER, self._plan.width)
        together = self._fit(first)
        while left and self._budget.has_time(
            f"{len(left)} of {len(tries)} {what} were not tried ({listed(left)})", self._batch_s + self._kept_free_s
        ):
            began = time.monotonic()
            now, left = left[:together], left[together:]
            self._say(f"{what}: {len(now)} now, {len(left)} left")
            for names in self._measure_together(written, now):
                self._measure_together(written, [names])
            self._batch_s = max(self._batch_s, time.monotonic() - began)
            if not self._known.proofs:
                self._prover.takes_s = min(self._prover.takes_s, _PROOF_BATCHES * self._batch_s)
            together = self._fit(self._plan.width)
            self._prove_early(facts)
            if self._has_loading_left and self._known.proven():
                self._has_loading_left = False
                self._budget.phase("loading", lambda: self._input(facts, _INPUT_SHARE, written))
            left = [names for names in without_broken(tries, self._broken()) if names not in self._known.measured]

    def _fit(self, together: int) -> int:
        """Return how many of so many processes the device has memory for."""
        room = self._session.room()
        return max(_FEWEST_TOGETHER, together if room is None else min(together, room))

    def _likely(self, possible: Sequence[str]) -> ChangeNames | None:
        """Return what helps so likely that it is proven before anything else is tried; None where nothing does."""
        # Its proof starts as many processes as there are cores for: on fewer, they would only delay each other.
        if self._known.measured or self._device_ns is None or self._session.width < _LIKELY_WIDTH:
            return None
        if self._waiting_share > _WAITS_MOST or self._prover.takes_s >= self._budget.left_s:
            return None
        return likeliest(possible, launch_bound=self._is_launch_bound)

    def _prove_likely(self, written: list[Worker], names: ChangeNames, facts: Facts) -> None:
        """Prove a combination before anything else is tried; where that fails, the search takes it up in its turn."""
        self._say(f"what most likely helps: {' + '.join(names)}")
        within_s = self._may_build_s
        try:
            self._budget.phase(
                "what most likely helps", lambda: self._prover.prove_at_once(names, written, facts, within_s)
            )
        finally:  # what was timed is kept, whatever becomes of the rest
            if names in self._known.measured:
                self._journal.keep(names, self._known.measured[names])
        if self._begin_again_if_ended(written):
            self._time_written(written, [], FIRST_ROUNDS)

    def _begin_again_if_ended(self, written: list[Worker]) -> bool:
        """Run a script again that has come to its end after many turns; tell whether that was so."""
        if not any(worker.broken is not None and worker.broken.has_ended for worker in written):
            self._prover.check_written(written)
            return False
        self._session.close(written)
        written[:] = self.as_written()
        return True

    def _broken(self) -> set[str]:
        """Return the changes that fail alone, or change nothing."""
        return {
            names[0]
            for names, one in self._known.measured.items()
            if len(names) == 1 and one.gain is None and not (one.is_passing or one.lacks_memory)
        }

    def _measure_together(self, written: list[Worker], tries: Sequence[ChangeNames]) -> list[ChangeNames]:
        """Build and time combinations at once; return those that may do better alone, or not as a patch."""
        workers = self._built_to_search(tries)
        self._time([*written, *running(workers)], FIRST_ROUNDS)
        if self._begin_again_if_ended(written):
            self._session.close(workers)
            workers = self._built_to_search(tries)
            self._time_written(written, running(workers), FIRST_ROUNDS)
        least = least_gain(written[0], written[1])
        for names, worker in zip(tries, workers, strict=True):
            self._known.measured[names] = timed_beside(written, worker, least)
            self._journal.keep(names, self._known.measured[names])
        self._session.close(workers)
        # Others that were built beside it held the rest of the memory.
        alone = [names for names in tries if len(tries) > 1 and self._known.measured[names].lacks_memory]
        return [
            *alone,
            *(names for names, worker in zip(tries, workers, strict=True) if self._prover.is_unwritten(names, worker)),
        ]

    def _built_to_search(self, tries: Sequence[ChangeNames]) -> list[Worker]:
        """Start combinations; those that compile as they are proven: what was compiled before is compiled fast."""
        sources = self._prover.sources_of([names for names in tries if compiles(names)])
        jobs = [self._prover.job_of(names, sources) for names in tries]
        return self._session.build(jobs, self._may_build_s)

    @property
    def _may_build_s(self) -> float:
        """How long a combination may take to start: one that is compiled for minutes must not cost all others."""
        left_s = self._budget.left_s - self._kept_free_s
        return max(_LEAST_BUILD_S, _BUILD_SHARE * left_s)

    def _time_written(self, written: Sequence[Worker], others: Sequence[Worker], rounds: int) -> None:
        self._time([*written, *others], rounds)
        self._prover.check_written(written)

    def _time(self, workers: Sequence[Worker], rounds: int) -> None:
        self._session.time(workers, rounds, TURN_S)

    # ---------------------------------------------------------------- the last round, and the proof

    def _finals(self, facts: Facts) -> None:
        """Prove the best of each class; where it was only lucky, or is wrong, the next best."""
        for attempt in range(_MOST_ATTEMPTS):
            finalists = self._finalists()
            if not finalists:
                break
            takes_s, is_first = self._prover.takes_s, attempt == 0 and not self._known.proven()
            if not is_first and not self._budget.has_time("the next best were not proven", takes_s):
                break
            if self._budget.left_s < _SEVERAL * takes_s:  # then one alone
                first = to_prove_first({names: self._known.gains()[names] for names in finalists}, CLEARLY)
                finalists = [names for names in finalists if names == first]
            self._prover.prove(finalists, facts)

    def _finalists(self) -> list[ChangeNames]:
        """Return the best of each class that was not measured again yet, the fastest first."""
        proven: dict[ErrorClass, float] = {}
        for names, gain in self._known.proven().items():
            proven[class_of(names)] = max(gain, proven.get(class_of(names), 0.0))
        gains = self._known.unproven()
        best = [
            names
            for kind, names in best_of(gains, LEAST_GAIN).items()
            if kind not in proven or gains[names] > _BETTER * proven[kind]
        ]
        return sorted(best, key=lambda names: -gains[names])

    # ---------------------------------------------------------------- what is said

    def _tried(
        self, names: ChangeNames, known: ChangeResult, proof: Judgement | None, facts: Facts, *, is_best_known: bool
    ) -> Tried:
        verdict, reason = verdict_of(known, proof, is_best_known=is_best_known)
        if verdict is Outcome.TIMED and names in self._prover.comparing.right:
            reason = "its results match float64, but time ran out before its longer training run ended"
        assert self._known.baseline is not None
        extra = None if known.first_s is None else known.first_s - self._known.baseline.first_s
        # By the ratio: rounds in which other combinations were timed may have been slower ones.
        step_ns = None if known.gain is None else self._known.baseline.step_ns / known.gain.median
        saved = None if step_ns is None else (self._known.baseline.step_ns - step_ns) / 1e9
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
            reference="float64" if proof is None or proof.is_float64 else "as written",
            compared_tensors=proof.tensors if proof is not None and verdict is Outcome.PROVEN else None,
            compared_elements=proof.elements if proof is not None and verdict is Outcome.PROVEN else None,
            memory_bytes=known.memory_bytes,
            compile_s=None if extra is None else max(extra, 0.0),
            pays_after_steps=pays,
            lines=tuple(lines_of(names, facts)),
            caveats=tuple(BY_NAME[name].caveat for name in names if BY_NAME[name].caveat),
            patch=self._known.patches.get(names),
        )

    def _document(self, built: Built, refused: list[Tried], ended: Ended | None) -> AdviseDocument:
        assert self._known.baseline is not None
        proven, proofs = {class_of(names) for names in self._known.proven()}, self._known.proofs
        results = [
            self._tried(names, known, proofs.get(names), built.facts, is_best_known=class_of(names) in proven)
            for names, known in self._known.measured.items()
        ]
        order = list(Outcome)
        results.sort(key=lambda one: (order.index(one.verdict), -(one.ratio or 0.0)))
        results += refused
        unfinished = dict.fromkeys([*self._budget.unfinished, *filter(None, [self._unknown_loading()])])
        classes = [one for one in ErrorClass if any(tried.error_class is one for tried in results)]
        return AdviseDocument(
            target=self._plan.configuration.target,
            device=built.device,
            facts=built.facts,
            baseline_ns=self._known.baseline.step_ns,
            of_itself=self._known.baseline.of_itself,
            classes=tuple(classes),
            results=tuple(results),
            best=_best(results),
            processes=self._session.started,
            seconds=self._budget.spent_s,
            unfinished="; ".join(unfinished) or None,
            ended=ended,
            input=self._found,
            larger_batches=self._larger,
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
