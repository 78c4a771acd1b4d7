"""Whether steps wait for their data: batches from memory give the ceiling, and each stage is timed where it happens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from time import time_ns
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.changes.change import workers_tried
from opscope.advise.changes.listed import BY_NAME, fit_together
from opscope.advise.measured import LEAST_GAIN, least_gain, not_decidable, waited_for_others
from opscope.advise.messages import Load, Loaded, ReplayBatches, VariantJob
from opscope.advise.session import AdviseError, Session, Worker
from opscope.advise.stages import Fetched, LoadingStage, RunningFunction
from opscope.base.files import scratch
from opscope.documents.advise import ChangeName, Copies, Facts, InputProof, OtherLoading, StageCost
from opscope.measuring.rounds import Interval, median_interval, ratios

_LEAST_GAIN: Final = 1.03  # of batches from memory: less is not worth a change
_EXPLAINED: Final = 2.0  # times what loading takes: caches that it leaves cold cost time, too
_TIMED_S: Final = 1.0
_OF_LOADING: Final[dict[str, str]] = {
    ChangeName.LOADER_WORKERS: "{workers} workers that persist",
    ChangeName.PERSISTENT_WORKERS: "workers that persist",
    ChangeName.PINNED_MEMORY: "pinned memory and non-blocking copies",
}
_BATCHES: Final = 16  # a quarter of them is profiled


class Proving(Struct):
    """What the proof is made with.

    Attributes:
        session: starts processes.
        job: the step as written.
        timeout_s: how long a process may take to answer.
        time: times processes in turns.
        say: gets what goes on, a line each.
        left_out: how many ways to load were not timed, for lack of time.
    """

    session: Session
    job: VariantJob
    timeout_s: float
    time: Callable[[Sequence[Worker]], None]
    say: Callable[[str], None]
    left_out: int = 0

    def prove(self, facts: Facts, most: int, written: Sequence[Worker] = ()) -> InputProof:
        """Compare the step as written with one whose batches come from memory.

        Args:
            facts: of the step.
            most: how many processes there is time for; four are needed, others tell which stage, copies and changes of
                the loader matter.
            written: the step as written in two processes that run and were timed against each other; empty where they
                have to start. They are not ended.

        Raises:
            AdviseError: one of the processes fails.
        """
        self.say("batches from memory")
        on_gpu = facts.device == "cuda"
        kinds = [ReplayBatches.DEVICE, ReplayBatches.PINNED] if on_gpu else []
        if facts.loader_workers and not facts.iterable_loaders:
            kinds.append(ReplayBatches.FETCHED)
        with scratch() as folder:
            lines = folder / "batches.jsonl"
            jobs = [replace(self.job, stages=str(lines)), replace(self.job, replay=ReplayBatches.MEMORY)]
            more = [replace(self.job, changes=names) for names in _other_loading(facts)]
            more += [replace(self.job, replay=kind) for kind in kinds]
            taken = more[: max(1, most - len(jobs) - 2)]  # a larger number of workers, where that is possible
            self.left_out = len(more) - len(taken)
            jobs += taken
            workers = self.session.build(jobs if written else [self.job, self.job, *jobs])
            base, twin, staged, memory, *others = [*written, *workers]
            self._check([base, twin, memory, staged])
            others = [worker for worker in others if worker.broken is None]
            before = least_gain(base, twin)
            # Those that were timed before show what noise there is: one of them is enough beside the others.
            timed = len(base.blocks)
            try:
                self.time([base, memory, *others] if written else [base, twin, memory, *others])
                others = [worker for worker in others if worker.broken is None]
                loaded, since_ns = self._loaded(base), time_ns()
                self._loaded(staged)
                self._check([base, twin, memory, staged])
                fetched = _read(lines, since_ns)
                noise = before if written else least_gain(base, twin)
                waited = waited_for_others([base] if written else [base, twin], timed)
                result = _proof(facts, [base, memory, *others], max(_LEAST_GAIN, noise), loaded, fetched)
            finally:
                self.session.close(workers)
                if written:  # rounds without its twin cannot be compared with it
                    del base.blocks[timed:], base.waited[timed:]
        gain = Interval(result.ratio, result.ci_low, result.ci_high, len(memory.blocks))
        if gain.low is not None and gain.low > noise**2:
            noise = LEAST_GAIN  # as written at its fastest, from memory at its slowest: a gain even then
        reason = not_decidable(gain, noise, waited)
        if reason is not None:
            result = replace(result, blamed=False, undecided=reason, others=())
        return result

    def _loaded(self, worker: Worker) -> Loaded:
        (result,) = self.session.ask_each([(worker, Load(_TIMED_S, _BATCHES))], Loaded)
        if result is None:
            self._check([worker])
            raise AdviseError("loading could not be timed")
        return result

    def _check(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            if worker.broken is not None:
                raise AdviseError(f"loading could not be timed: {worker.broken.reason}")


def _read(lines: Path, since_ns: int) -> list[Fetched]:
    text = lines.read_bytes() if lines.exists() else b""
    results = [msgspec.json.decode(line, type=Fetched) for line in text.splitlines()]
    return [one for one in results if one.ended_ns >= since_ns]


def _other_loading(facts: Facts) -> list[tuple[str, ...]]:
    """Return what may make loading, or copying, faster: changes, and all of them together."""
    possible = [name for name in _OF_LOADING if BY_NAME[name].refuses(facts) is None]
    pairs = [(one, other) for one in possible for other in possible if one < other and fit_together((one, other))]
    return [*((name,) for name in possible[:1]), *pairs, *((name,) for name in possible[1:])]


def _proof(
    facts: Facts, workers: Sequence[Worker], least: float, loaded: Loaded, fetched: Sequence[Fetched]
) -> InputProof:
    base, memory, *others = workers
    replayed: dict[ReplayBatches, Worker] = {
        worker.job.replay: worker for worker in others if worker.job.replay is not ReplayBatches.NOTHING
    }
    more = [worker for worker in others if worker.job.replay is ReplayBatches.NOTHING]
    as_written = base.blocks[-len(memory.blocks) :]  # of the same rounds
    gain = median_interval(ratios(memory.blocks, as_written))
    step, ceiling = median(as_written), median(memory.blocks)
    sent = replayed.get(ReplayBatches.FETCHED)
    loading = _Loading(
        step_ns=step,
        ceiling_ns=ceiling,
        sent_ns=None if sent is None else median(sent.blocks),
        batches=loaded.batches,
        workers=facts.loader_workers,
        on_gpu=facts.device == "cuda",
        received_ns=median(loaded.received_ns) if facts.loader_workers and loaded.received_ns else 0.0,
        start_ns=loaded.start_ns,
        fetched=fetched,
    )
    took = loaded.wait_ns + loaded.start_ns * loaded.batches
    blamed = (gain.low if gain.low is not None else gain.median) > least and loading.explains(step - ceiling, took)
    copies = _copies(memory, replayed, least)
    stages = loading.stages()
    if copies is not None and copies.blamed:
        stages.append(loading.copying(ceiling - copies.from_device_ns))
    stages.sort(key=lambda one: -one.step_ns)
    by_copies = copies is not None and copies.blamed
    return InputProof(
        blamed=blamed,
        step_ns=step,
        from_memory_ns=ceiling,
        ratio=gain.median,
        ci_low=gain.low,
        ci_high=gain.high,
        wait_ns=loaded.wait_ns,
        workers=facts.loader_workers,
        batches=loaded.batches,
        stages=tuple(stages),
        others=tuple(_others(loading, stages, base, more)) if blamed or by_copies else (),
        copies=copies,
    )


def _copies(memory: Worker, replayed: Mapping[ReplayBatches, Worker], least: float) -> Copies | None:
    """Return what copies cost: steps with batches from memory against those with batches that are on the GPU."""
    there, pinned = replayed.get(ReplayBatches.DEVICE), replayed.get(ReplayBatches.PINNED)
    if there is None:
        return None
    gain = median_interval(ratios(there.blocks, memory.blocks[-len(there.blocks) :]))
    return Copies(
        blamed=(gain.low if gain.low is not None else gain.median) > least,
        from_device_ns=median(there.blocks),
        from_pinned_ns=None if pinned is None else median(pinned.blocks),
        ratio=gain.median,
        ci_low=gain.low,
        ci_high=gain.high,
    )


def _others(
    loading: "_Loading", stages: Sequence[StageCost], base: Worker, more: Sequence[Worker]
) -> Iterator[OtherLoading]:
    for worker in more:
        gain = median(ratios(worker.blocks, base.blocks[-len(worker.blocks) :]))
        change = " and ".join(_OF_LOADING[name].format(workers=workers_tried()) for name in worker.job.changes)
        yield OtherLoading(change=change, step_ns=median(worker.blocks), ratio=gain, measured=True)
    if (
        stages
        and stages[0].step_ns > 0
        and not any(
            worker.job.changes == (ChangeName.PERSISTENT_WORKERS,) and stages[0].stage is LoadingStage.START
            for worker in more
        )
    ):
        step = loading.without(stages[0])
        yield OtherLoading(
            change=f"{stages[0].stage} at no cost", step_ns=step, ratio=loading.step_ns / step, measured=False
        )


class _Loading(Struct):
    """What was measured, and what follows from it for other loading.

    Attributes:
        step_ns: the step as written.
        ceiling_ns: the step with batches from memory.
        sent_ns: the step with batches that workers have made already, and send; None without workers.
        batches: per step.
        workers: how many load.
        on_gpu: whether steps run on a GPU, which works while the next batch is loaded.
        received_ns: what taking a batch from a worker costs the process that trains.
        start_ns: what starting workers costs, per batch.
        fetched: single batches.
    """

    step_ns: float
    ceiling_ns: float
    sent_ns: float | None
    batches: float
    workers: int
    on_gpu: bool
    received_ns: float
    start_ns: float
    fetched: Sequence[Fetched]

    @property
    def _plain(self) -> list[Fetched]:
        return [one for one in self.fetched if not one.stages] or list(self.fetched)

    @property
    def fetch_ns(self) -> float:
        """What a batch takes, where it is made."""
        return mean(one.wall_ns for one in self._plain) if self.fetched else 0.0

    def explains(self, saved_ns: float, took_ns: float) -> bool:
        """Tell whether loading may save as much: no more, by far, than batches and starts took, and workers compute.

        One process may be faster than another by luck alone. Workers take cores from the process that trains.
        """
        computed = mean(one.cpu_ns for one in self.fetched) * self.batches if self.workers and self.fetched else 0.0
        return saved_ns <= _EXPLAINED * (took_ns + computed)

    def stages(self) -> list[StageCost]:
        """Return what each stage costs."""
        if not self.fetched:
            return []
        collate = mean(one.collate_ns for one in self._plain)
        rest = max(0.0, self.fetch_ns - collate)
        results = [self._stage(LoadingStage.COLLATE, collate, self._plain[0].collate, shared=True)]
        shares: dict[LoadingStage, dict[RunningFunction, float]] = {}
        for one in self.fetched:
            for part in one.stages:
                functions = shares.setdefault(part.stage, {})
                functions[part.function] = functions.get(part.function, 0.0) + part.seconds
        whole = sum(sum(functions.values()) for functions in shares.values())
        for stage, functions in shares.items():
            share = sum(functions.values()) / whole if whole else 0.0
            most = max(functions, key=lambda one, of=functions: of[one])  # type: ignore[misc]
            results.append(self._stage(stage, share * rest, most, shared=True))
        if self.workers:
            results.append(self._stage(LoadingStage.SEND, self.received_ns, None, shared=False))
        if self.start_ns:
            results.append(self._stage(LoadingStage.START, self.start_ns, None, shared=False))
        return results

    def copying(self, step_ns: float) -> StageCost:
        """Return what copies to the GPU cost, as a stage."""
        step = max(0.0, step_ns)
        return StageCost(
            stage=LoadingStage.COPY,
            batch_ns=step / max(1.0, self.batches),
            step_ns=step,
            function=None,
            file=None,
            line=None,
        )

    def _stage(
        self, stage: LoadingStage, batch_ns: float, function: RunningFunction | None, *, shared: bool
    ) -> StageCost:
        step = batch_ns * self.batches / (max(1, self.workers) if shared else 1)
        placed = function is not None and bool(function.file)
        return StageCost(
            stage=stage,
            batch_ns=batch_ns,
            step_ns=step,
            function=None if function is None else function.name,
            file=function.file if placed and function else None,
            line=function.line if placed and function else None,
        )

    def without(self, stage: StageCost) -> float:
        """Return the step, if a stage cost nothing.

        Training is taken to be as fast as with batches from memory: after a wait, caches are cold, which ends with it.
        """
        if stage.stage is LoadingStage.COPY:
            return max(1.0, self.step_ns - stage.step_ns)
        if self.on_gpu and not self.workers:
            # The GPU works while the host loads: only what the host does longer is waited for.
            return max(self.ceiling_ns, self.step_ns - stage.step_ns)
        rest = max(0.0, self.fetch_ns - stage.batch_ns) * self.batches
        if not self.workers:
            return self.ceiling_ns + rest
        if stage.stage is LoadingStage.START:
            return max(self.ceiling_ns, self.step_ns - stage.step_ns)
        if stage.stage is LoadingStage.SEND:  # which takes time on both sides
            return max(self.ceiling_ns, self.fetch_ns * self.batches / self.workers)
        sent = self.ceiling_ns + self.received_ns * self.batches if self.sent_ns is None else self.sent_ns
        return max(sent, rest / self.workers)
