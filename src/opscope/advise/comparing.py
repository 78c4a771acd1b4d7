"""Compares finalists with float64, and over a longer run: whole variants, and what of them is exact."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from opscope.advise.changes.listed import BY_NAME
from opscope.advise.messages import AS_WRITTEN, NO_WEIGHTS, AskLosses, LongRun, Record, VariantJob, VariantRecording
from opscope.advise.proof import Judgement, judged, runs_agree
from opscope.advise.search import ChangeNames
from opscope.advise.session import AdviseError, Session, Worker
from opscope.documents.advise import UNDECIDED, ErrorClass, Facts

T = TypeVar("T")
Finalist = tuple[VariantJob, VariantJob | None]  # a combination, and what is exact of it where that is less
_RECORDED: Final = 4
_LONG_RUN: Final = 30
_SEEDS: Final = (0, 1, 2)
_WIDE: Final = 4  # processes that start at once: on fewer, what starts early only delays what is needed first


class Comparing:
    """Starts the processes that a comparison needs.

    Args:
        session: starts them.
        job: the step as written.
        say: gets what goes on, a line each.

    Attributes:
        right: what was right beside float64, whether or not the longer run has ended.
        lacked_memory: whether a process of the last comparison lacked the device's memory.
    """

    def __init__(self, session: Session, job: VariantJob, say: Callable[[str], None]) -> None:
        self._session, self._job, self._say = session, job, say
        self._written: list[LongRun] = []  # the step as written, from several seeds
        self.lacked_memory = False
        self.right: set[ChangeNames] = set()
        self._twin: VariantRecording | str | None = None  # the step as written, in another process
        self._known: dict[
            tuple[bool, tuple[str, ...]], VariantRecording
        ] = {}  # of the step as written, by how it is computed
        self._early: list[
            tuple[VariantJob, Worker]
        ] = []  # processes for longer runs, which started beside those that record

    @property
    def has_early(self) -> bool:
        """Whether processes run that nothing has asked for yet."""
        return bool(self._early)

    @property
    def starts_early(self) -> bool:
        """Whether processes that are needed later start beside those that are needed first."""
        return self._session.width >= _WIDE

    def proofs(self, finalists: Mapping[ChangeNames, Finalist], facts: Facts) -> dict[ChangeNames, Judgement]:
        """Compare finalists with float64: as a whole, and what is exact of them at the precision as written.

        Args:
            finalists: what is compared, by the changes that it stands for.
            facts: of the step.

        Raises:
            AdviseError: what the step as written computes cannot be recorded.
        """
        if not finalists:
            return {}
        self.lacked_memory = False
        self._say("comparing with float64")
        later = [whole for whole, _ in finalists.values()] if facts.training else []
        result = self._proofs(finalists, self.compared(_parts(finalists), self._long_runs(later)), facts)
        self.drop_early()
        return result

    def needed(self, finalists: Mapping[ChangeNames, Finalist], facts: Facts) -> list[VariantJob]:
        """Return the processes that `proofs` will need.

        First the step as written, as the others wait for its weights; then those that take longest to start.
        """
        if not finalists:
            return []
        later = [whole for whole, _ in finalists.values()] if facts.training else []
        first, *others = self._compared_jobs(_parts(finalists))
        recorded = [job for job in (first, *reversed(others)) if self._kept(job) is None]
        others = [*recorded[1:], *self._long_runs(later)]
        return [*recorded[:1], *sorted(others, key=lambda job: not job.compiles)]

    def _proofs(
        self, finalists: Mapping[ChangeNames, Finalist], judged: Mapping[ChangeNames, Judgement], facts: Facts
    ) -> dict[ChangeNames, Judgement]:
        results: dict[ChangeNames, Judgement] = {}
        for names, (_, part) in finalists.items():
            exact = judged[exact_part(names) if part is not None else names]
            results[names] = exact if exact.right is False else judged[names]
        self.right |= {names for names in finalists if results[names].right}
        right_ones = [names for names in finalists if results[names].right] if facts.training else []
        if right_ones:
            self._say(f"{_LONG_RUN} steps of training each")
            longer = self.longer([finalists[names][0] for names in right_ones])
            for names, why in zip(right_ones, longer, strict=True):
                if why is not None:
                    results[names] = replace(results[names], right=False, reason=why)
        return results

    def proving(self, job: VariantJob) -> VariantJob:
        """Return the job whose process is compared: with the same weights to begin with, and without dropout."""
        return replace(job, proving=True, begin=str(self._session.folder / "begin.pt"))

    def compared(
        self, jobs: Mapping[ChangeNames, VariantJob], later: Sequence[VariantJob] = ()
    ) -> dict[ChangeNames, Judgement]:
        """Compare jobs with float64, as a whole.

        Args:
            jobs: by the changes that they stand for.
            later: what `longer` will be asked for: these processes start beside the others.

        Raises:
            AdviseError: what the step as written computes cannot be recorded.
        """
        proving, simulated = self.proving(self._job), _simulated(jobs)
        written, reference, *others = self._recorded(self._compared_jobs(jobs), later)
        if isinstance(written, str):
            raise AdviseError(f"what the step as written computes cannot be recorded: {written}")
        right, plain = reference, written
        if isinstance(right, str):  # then what the step as written differs from itself, in another process, explains
            right = written
            if self._twin is None:
                (self._twin,) = self._record([proving])
            plain = written if isinstance(self._twin, str) else self._twin
        rounded, own = dict(zip(simulated, others, strict=False)), others[len(simulated) :]

        def judge(always: Sequence[VariantRecording | str]) -> dict[ChangeNames, Judgement]:
            results = {}
            for names, one in zip(jobs, own, strict=True):
                if isinstance(reference, str) and not all(map(_is_exact, names)):
                    text = f"{UNDECIDED}: the step does not run in float64: {reference}"
                    results[names] = Judgement(None, text, 0.0, 0.0, is_float64=False)
                    continue
                explains = [*(rounded.get(name, "") for name in names), *always]
                known = [explaining for explaining in explains if isinstance(explaining, VariantRecording)]
                results[names] = _judged(one, plain, right, known, names, is_float64=right is reference)
            return results

        result = judge(())
        if right is reference and written.may_round and any(one.right is False for one in result.values()):
            result = judge(self._recorded([replace(proving, reference=True, rounding=(AS_WRITTEN,))]))
        return result

    def _compared_jobs(self, jobs: Mapping[ChangeNames, VariantJob]) -> list[VariantJob]:
        """Return what is recorded to compare some jobs: the step as written, in float64, and the jobs."""
        proving = self.proving(self._job)
        rounded = [replace(proving, reference=True, rounding=(name,)) for name in _simulated(jobs)]
        return [proving, replace(proving, reference=True), *rounded, *map(self.proving, jobs.values())]

    def _recorded(self, jobs: Sequence[VariantJob], later: Sequence[VariantJob] = ()) -> list[VariantRecording | str]:
        """Return what each job computes, or why that is not known."""
        recorded = iter(self._record([job for job in jobs if self._kept(job) is None], later))
        results = [kept if (kept := self._kept(job)) is not None else next(recorded) for job in jobs]
        for job, one in zip(jobs, results, strict=True):
            if isinstance(one, VariantRecording) and not (job.changes or job.sources):
                self._known[job.reference, job.rounding] = one
        return results

    def _record(self, jobs: Sequence[VariantJob], later: Sequence[VariantJob] = ()) -> list[VariantRecording | str]:
        workers, result = self._asked_in_turns(jobs, [Record(_RECORDED)] * len(jobs), VariantRecording, later)
        return [_why(worker) if one is None else one for one, worker in zip(result, workers, strict=True)]

    def _kept(self, job: VariantJob) -> VariantRecording | None:
        return None if job.changes or job.sources else self._known.get((job.reference, job.rounding))

    def longer(self, jobs: Sequence[VariantJob]) -> list[str | None]:
        """Return for each of some jobs why its losses over a longer run are others than as written; None if not."""
        written = [] if self._written else [(self._job, number) for number in _SEEDS]
        runs = self._runs(jobs)
        asked = [AskLosses(_LONG_RUN, number) for _, number in runs]
        workers, result = self._asked_in_turns([job for job, _ in runs], asked, LongRun)
        kept = [one for one in result[: len(written)] if one is not None]
        if len(kept) == len(written):  # of fewer, the spread would be too narrow
            self._written += kept
        return [
            f"it fails in a longer run: {_why(worker)}" if one is None else self._differs(one)
            for one, worker in list(zip(result, workers, strict=True))[len(written) :]
        ]

    def _runs(self, jobs: Sequence[VariantJob]) -> list[tuple[VariantJob, int]]:
        """Return which longer runs some jobs need, each with its seed: as written from several, once."""
        written = [] if self._written or not jobs else [(self._job, number) for number in _SEEDS]
        return [*written, *((job, _SEEDS[0]) for job in jobs)]

    def _long_runs(self, jobs: Sequence[VariantJob]) -> list[VariantJob]:
        return [job for job, _ in self._runs(jobs)]

    def started(
        self, jobs: Sequence[VariantJob], later: Sequence[VariantJob] = (), within_s: float | None = None
    ) -> list[Worker]:
        """Return a process for each job: one that has started already, or a new one.

        Args:
            jobs: the jobs.
            later: what will be asked for next: where there are the cores, its processes start beside the others. They
                are ended by `drop_early`.
            within_s: for so many seconds each may take to start; None for as long as the session allows.
        """
        wanted = [*jobs, *(self._fitting(jobs, later) if self.starts_early else ())]
        lacking = self._lacking(wanted)
        built = self._session.build(lacking, within_s)
        self._early += zip(lacking, built, strict=True)
        workers = [self._take(job) for job in jobs]
        self._drop_broken()
        if len(wanted) > len(jobs) and _lack_memory(built):
            self.drop_early()  # there is no memory for so many at once
            self._session.close(workers)
            workers = self._session.build(jobs, within_s)
        return workers

    def _fitting(self, jobs: Sequence[VariantJob], later: Sequence[VariantJob]) -> list[VariantJob]:
        """Return those of the later jobs for which the device has memory beside the others."""
        room = self._session.room()
        if room is None:
            return list(later)
        fitting: list[VariantJob] = []
        for job in later:
            if sum(map(_takes, self._lacking([*jobs, *fitting, job]))) <= room:
                fitting.append(job)
        return fitting

    def _asked_in_turns(
        self, jobs: Sequence[VariantJob], asked: Sequence[object], kind: type[T], later: Sequence[VariantJob] = ()
    ) -> tuple[list[Worker], list[T | None]]:
        """Start processes and ask them: all at once, or as many at a time as the device has memory for."""
        workers: dict[int, Worker] = {}
        results: dict[int, T | None] = {}
        groups = self._groups(jobs)
        for group in groups:
            some = [jobs[place] for place in group]
            together = self.started(some, later if group is groups[-1] else ())
            together, answers = self._asked(together, some, [asked[place] for place in group], kind)
            self._note_memory(together)
            if len(groups) == 1:
                self._session.leave(together)
            else:  # the next group needs the memory
                self._session.close(together)
            workers |= dict(zip(group, together, strict=True))
            results |= dict(zip(group, answers, strict=True))
        places = range(len(jobs))
        return [workers[place] for place in places], [results[place] for place in places]

    def _groups(self, jobs: Sequence[VariantJob]) -> list[list[int]]:
        """Return the places of jobs that run at once: first those that have started, then others as memory allows."""
        places, lacking = list(range(len(jobs))), self._lacking_places(jobs)
        room = self._session.room()
        if room is None or sum(_takes(jobs[place]) for place in lacking) <= room:
            return [places] if places else []
        groups = [ready] if (ready := [place for place in places if place not in lacking]) else []
        room += sum(_takes(jobs[place]) for place in ready)
        taken = room  # the first one begins a group
        for place in lacking:
            takes = _takes(jobs[place])
            if taken + takes > room:
                groups.append([])
                taken = 0
            groups[-1].append(place)
            taken += takes
        return groups

    def _take(self, job: VariantJob) -> Worker:
        place = next(place for place, (own, _) in enumerate(self._early) if own == job)
        return self._early.pop(place)[1]

    def _lacking(self, jobs: Sequence[VariantJob]) -> list[VariantJob]:
        """Return those of some jobs for which no process has started, each as often as one is lacking."""
        return [jobs[place] for place in self._lacking_places(jobs)]

    def _lacking_places(self, jobs: Sequence[VariantJob]) -> list[int]:
        ready, lacking = [job for job, _ in self._early], []
        for place, job in enumerate(jobs):
            if job in ready:
                ready.remove(job)
            else:
                lacking.append(place)
        return lacking

    def drop_early(self) -> None:
        """End the processes that started early and were not needed."""
        self._session.close([worker for _, worker in self._early])
        self._early = []

    def _asked(
        self, workers: list[Worker], jobs: Sequence[VariantJob], asked: Sequence[object], kind: type[T]
    ) -> tuple[list[Worker], list[T | None]]:
        """Ask processes; where memory is too small for that beside those that started early, again without these."""
        result = self._session.ask_each(list(zip(workers, asked, strict=True)), kind)
        if not self._early or not _lack_memory(workers):
            return workers, result
        self.drop_early()
        self._session.close(workers)
        workers = self._session.build(jobs)
        return workers, self._session.ask_each(list(zip(workers, asked, strict=True)), kind)

    def _drop_broken(self) -> None:
        """End those that started early and failed, perhaps as so many did at once: they start anew when needed."""
        self._session.close([worker for _, worker in self._early if worker.broken is not None])
        self._early = [(job, worker) for job, worker in self._early if worker.broken is None]

    def _note_memory(self, workers: Sequence[Worker]) -> None:
        if _lack_memory(workers):
            self.lacked_memory = True

    def _differs(self, result: LongRun) -> str | None:
        return runs_agree(result, self._written) if self._written else None


def _takes(job: VariantJob) -> int:
    """Return how many processes as written take as much memory as a job, about: float64 is twice as long as float32."""
    return 2 if job.reference else 1


def _lack_memory(workers: Sequence[Worker]) -> bool:
    return any(worker.broken is not None and worker.broken.lacks_memory for worker in workers)


def _is_exact(name: str) -> bool:
    return BY_NAME[name].error_class is ErrorClass.EXACT


def exact_part(names: ChangeNames) -> ChangeNames:
    """Return those of some changes that leave the precision as it is."""
    return tuple(name for name in names if _is_exact(name))


def _simulated(jobs: Iterable[ChangeNames]) -> list[str]:
    """Return the changes whose arithmetic is simulated in float64, to know how far it is off at most."""
    return list(dict.fromkeys(name for names in jobs for name in names if not _is_exact(name)))


def _parts(finalists: Mapping[ChangeNames, Finalist]) -> dict[ChangeNames, VariantJob]:
    """Return all that is compared of some finalists: each as a whole, and what is exact of it."""
    exact = {exact_part(names): part for names, (_, part) in finalists.items() if part is not None}
    return exact | {names: whole for names, (whole, _) in finalists.items()}


def _judged(
    result: VariantRecording | str,
    written: VariantRecording,
    right: VariantRecording,
    explains: Sequence[VariantRecording],
    names: ChangeNames,
    *,
    is_float64: bool,
) -> Judgement:
    if isinstance(result, str):
        if NO_WEIGHTS in result:
            return Judgement(None, f"{UNDECIDED}: {result}", 0.0, 0.0, is_float64=is_float64)
        return Judgement(False, f"it fails when its results are recorded: {result}", 0.0, 0.0)
    verdict = judged(result, written, right, explains, " + ".join(names), is_float64=is_float64)
    return replace(verdict, is_float64=is_float64)


def _why(worker: Worker) -> str:
    return "it gave no answer" if worker.broken is None else worker.broken.reason
