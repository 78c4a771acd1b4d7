"""Makes the traces of jobs with many ranks, in which it is known who is late, why and by how much.

Each rank runs a program: its host works, fetches batches and launches; its device computes on one stream and
communicates on another. A collective begins on a rank when its stream gets there, and ends when the last rank has begun
it and the data has moved. Nothing is copied from recordings. All times are nanoseconds of the true clock; each rank
writes its trace by its own clock, with an offset and a drift.
"""

import gzip
import json
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kineto import KinetoTrace

LAUNCH_NS = 5_000  # of the host, per launch
PAUSE_NS = 50_000  # of the host, after each wait that makes a rank late
BEGIN_NS = 50_000_000
COMPUTE, COMMUNICATE = 7, 20  # streams
DTYPE = "BFloat16"


@dataclass
class Lateness:
    """What makes a rank late: each field adds to one thing that it does, in the named steps.

    Attributes:
        cause: what opscope should say: host, input, blocking, kernels, work, clock.
        ns: by how much, in a step.
        steps: in which of them; None for all.
        pieces: in how many pauses a host spends it, before layers forth and back; one is at the step's beginning.
        place: where kernels run longer: forward, backward, optimizer.
    """

    cause: str
    ns: int
    steps: tuple[int, ...] | None = None
    pieces: int = 1
    place: str = "forward"

    def at(self, step: int, place: str) -> int:
        """Return by how much longer kernels run somewhere."""
        return self.of(step, "kernels") if self.place == place else 0

    def of(self, step: int, cause: str) -> int:
        return self.ns if cause == self.cause and (self.steps is None or step in self.steps) else 0


@dataclass
class Shape:
    """How a job divides its work.

    Attributes:
        ranks: how many there are.
        tensor: ranks that compute one layer together (neighbours).
        stages: parts of the model, one after the other; ranks / stages / tensor are the replicas.
        experts: whether tokens go to the experts of other ranks and back.
        sharded: whether parameters are gathered before use, as FSDP does.
    """

    ranks: int
    tensor: int = 1
    stages: int = 1
    experts: bool = False
    sharded: bool = False

    @property
    def replicas(self) -> int:
        return self.ranks // self.tensor // self.stages

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return a rank's stage, replica and place among those that compute a layer together."""
        inner = rank % self.tensor
        replica = rank // self.tensor % self.replicas
        return rank // self.tensor // self.replicas, replica, inner

    def rank(self, stage: int, replica: int, inner: int) -> int:
        return (stage * self.replicas + replica) * self.tensor + inner

    def group(self, rank: int, kind: str) -> tuple[int, ...]:
        stage, replica, inner = self.place(rank)
        match kind:
            case "tensor":
                return tuple(self.rank(stage, replica, one) for one in range(self.tensor))
            case "data":
                return tuple(self.rank(stage, one, inner) for one in range(self.replicas))
            case _:
                return tuple(range(self.ranks))


@dataclass
class Job:
    """A job.

    Attributes:
        shape: how it divides its work.
        late: per rank what makes it late.
        steps: how many are recorded.
        layers: per stage.
        bucket: of how many layers gradients are reduced together.
        jitter_ns: how much the host's and device's work differs by chance (standard deviation per piece).
        offset_ns: standard deviation of the clocks of hosts.
        drift_ppm: that of their drifts.
        per_host: ranks of one host share a clock.
        noise_ns: how much later than together a rank leaves a collective.
        bias_ns: how much later the rank leaves that came last, if it came so much later.
        sequence: whether traces have sequence numbers.
        lose: the share of kernels that the profiler loses.
        slow: how many times as long transfers take between some ranks.
        launch_ns: what the host needs for an operator.
        host_slow: how many times as long it is on some ranks.
        begins: by how much later than others the recordings of some ranks begin.
        sizes: whether traces tell how much collectives move.
        leftovers: collectives from before the recording, which say nothing of themselves.
        seed: of everything that is random.
    """

    shape: Shape
    late: dict[int, Lateness] = field(default_factory=dict)
    steps: int = 4
    layers: int = 3
    bucket: int = 1
    jitter_ns: int = 500
    offset_ns: int = 300_000
    drift_ppm: float = 5.0
    per_host: int = 8
    noise_ns: int = 500
    bias_ns: int = 20_000
    sequence: bool = False
    lose: float = 0.0
    slow: dict[tuple[int, ...], float] = field(default_factory=dict)
    launch_ns: int = LAUNCH_NS
    host_slow: dict[int, float] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    sizes: bool = True
    leftovers: int = 0
    seed: int = 1

    def clocks(self) -> list[tuple[int, float]]:
        """Return the offset in nanoseconds and the drift of each rank's clock."""
        chance = random.Random(self.seed)
        hosts = -(-self.shape.ranks // self.per_host)
        of_host = [
            (round(chance.gauss(0, self.offset_ns)), chance.gauss(0, self.drift_ppm) * 1e-6) for _ in range(hosts)
        ]
        return [of_host[rank // self.per_host] for rank in range(self.shape.ranks)]


@dataclass
class Meeting:
    """A collective of which some ranks have not come yet."""

    starts: dict[int, int] = field(default_factory=dict)
    transfer: int = 0


class Rank:
    """One rank's times, and the events that its profiler writes."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number = job, number
        self.late = job.late.get(number, Lateness("none", 0))
        self.chance = random.Random(job.seed * 1_000 + number)
        self.launch = round(job.launch_ns * job.host_slow.get(number, 1.0))
        self.host = BEGIN_NS + job.begins.get(number, 0)
        self.streams = {COMPUTE: self.host, COMMUNICATE: self.host}
        self.events: list[tuple[str, str, int, int, int, dict[str, Any]]] = []  # category, name, track, start, length
        self.counts: dict[Any, int] = {}
        self.numbers = number * 1_000_000
        self.step = 0

    def next(self) -> int:
        self.numbers += 1
        return self.numbers

    def about(self, ns: float) -> int:
        return max(1_000, round(ns + self.chance.gauss(0, self.job.jitter_ns)))

    def works(self, ns: int) -> None:
        """The host does something that issues nothing."""
        self.host += ns

    def pauses(self, step: int, pieces: int) -> None:
        """The host does some of what makes its rank late, where it does that in many pieces."""
        if self.late.pieces > 1:
            for _ in range(max(self.late.pieces // pieces, 1)):
                self.works(self.late.of(step, "host") // max(self.late.pieces // pieces, 1) // pieces)
                usual, self.launch = self.launch, LAUNCH_NS
                self.kernel("aten::add_", 2_000)
                self.launch = usual

    def loads(self, ns: int) -> None:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.events.append(("user_annotation", name, 0, self.host, ns, {}))
        self.host += ns

    def kernel(self, operator: str, ns: int, rows: int = 4096) -> None:
        """The host launches a kernel of an operator, which the compute stream runs."""
        number, began = self.next(), self.host
        self.host += self.launch
        start = max(self.host + 2_000, self.streams[COMPUTE])
        clock = self.late.ns / 100 if self.late.cause == "clock" else 0.0  # in percent
        took = round(ns * (1 + clock / 100))
        dims = [[rows, 1024], [1024, 1024]]
        self.events += [
            ("cpu_op", operator, 0, began, self.launch, {"External id": number, "Input Dims": dims}),
            ("cuda_runtime", "cudaLaunchKernel", 0, self.host - 4_000, 4_000, {"correlation": number}),
            ("kernel", f"{operator.rsplit(':', maxsplit=1)[-1]}_kernel", COMPUTE, start, took,
             {"correlation": number, "grid": [rows // 8, 1, 1], "External id": number}),
        ]  # fmt: skip
        self.streams[COMPUTE] = start + took

    def waits(self, operator: str = "aten::_local_scalar_dense") -> None:
        """The host fetches a number: it waits for the compute stream."""
        began, number = self.host, self.next()
        self.host = max(self.host, self.streams[COMPUTE]) + 8_000
        self.events += [
            ("cpu_op", operator, 0, began, self.host - began, {"External id": number}),
            ("cuda_runtime", "cudaStreamSynchronize", 0, began, self.host - began, {"correlation": number}),
        ]

    def joins(self) -> None:
        """The compute stream waits for the communication."""
        self.streams[COMPUTE] = max(self.streams.values())

    def communicates(
        self, name: str, kind: str, elements: int, transfer: int, *, peer: int | None = None, splits: Sequence[int] = ()
    ) -> Generator[tuple[Any, int, int, int], int, None]:
        """The host issues a collective; its stream begins it once the work before is done."""
        members = tuple(sorted((self.number, peer))) if peer is not None else self.job.shape.group(self.number, kind)
        if len(members) < 2:
            return
        channel = (name, peer) if peer is None else ("send" if name == "send" else "recv", peer)
        count = self.counts[kind, channel] = self.counts.get((kind, channel), -1) + 1
        began, number = self.host, self.next()
        self.host += 2 * LAUNCH_NS
        start = max(self.host, *self.streams.values())
        ends = ("message", self.number, peer) if name == "send" else ("message", peer, self.number)
        key = (*(ends if peer is not None else (kind, members, name)), count)
        end = yield key, len(members), start, round(transfer * self.job.slow.get(members, 1))
        # Names of groups count over the whole job.
        group = (
            f"{sorted({self.job.shape.group(one, kind) for one in range(self.job.shape.ranks)}).index(members)}-{kind}"
            if peer is None
            else "0"
        )
        listed = members if peer is None else tuple(range(self.job.shape.ranks))
        told: dict[str, Any] = {
            "Collective name": name, "Process Group Name": group, "Process Group Description": f"{kind}_parallel",
            "Process Group Ranks": json.dumps(list(listed)), "Group size": len(listed), "dtype": DTYPE,
            "In msg nelems": elements, "Out msg nelems": elements, "External id": number,
            "In split size": json.dumps(list(splits)), "Out split size": "[]",
        }  # fmt: skip
        if not self.job.sizes:
            told = {key: value for key, value in told.items() if "nelems" not in key and "split" not in key}
        if peer is not None:
            told |= {"Dst Rank" if name == "send" else "Src Rank": peer}
        if self.job.sequence:
            told["Seq"] = self.counts["seq", kind] = self.counts.get(("seq", kind), -1) + 1
        self.events += [
            ("cpu_op", "record_param_comms", 0, began, LAUNCH_NS, told),
            (
                "cuda_runtime",
                "cudaLaunchKernelExC",
                0,
                began + LAUNCH_NS,
                LAUNCH_NS,
                {"correlation": number, "External id": number},
            ),
        ]
        if self.chance.random() >= self.job.lose:
            kernel = (
                "ncclDevKernel_SendRecv"
                if peer is not None or "all_to_all" in name
                else "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
            )
            self.events.append(("kernel", kernel, COMMUNICATE, start, end - start, {**told, "correlation": number}))
        self.streams[COMMUNICATE] = end

    def write(self, path: Path, offset: int, drift: float) -> None:
        shape = self.job.shape
        trace = KinetoTrace(
            distributedInfo={"backend": "nccl", "rank": self.number, "world_size": shape.ranks},
            deviceProperties=[{"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}],
        )
        for category, name, track, start, length, args in self.events:
            begin, end = (round(time + offset + drift * time) for time in (start, start + length))
            if track:
                trace.slice(category, name, begin, end - begin, pid=0, tid=track, device=0, stream=track, **args)
            else:
                trace.slice(category, name, begin, end - begin, **args)
        content = trace.text().encode()
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


Program = Generator[tuple[Any, int, int, int], int, None]


def program(rank: Rank) -> Program:
    """What a rank does."""
    job, shape, late = rank.job, rank.job.shape, rank.late
    stage, replica, inner = shape.place(rank.number)
    for _ in range(job.leftovers if rank.number == 0 else 0):
        start = rank.streams[COMMUNICATE]
        rank.events.append(
            ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", COMMUNICATE, start - 900_000, 50_000, {})
        )
    for step in range(job.steps):
        rank.step, began = step, rank.host
        rank.loads(rank.about(200_000) + late.of(step, "input"))
        rank.works(late.of(step, "host") if late.pieces == 1 else 0)
        micro = 2 if shape.stages > 1 else 1
        for _ in range(micro):
            if stage > 0:
                yield from rank.communicates(
                    "recv", "world", 1 << 20, 30_000, peer=shape.rank(stage - 1, replica, inner)
                )
                rank.joins()
            yield from forward(rank, step, micro)
            if stage < shape.stages - 1:
                yield from rank.communicates(
                    "send", "world", 1 << 20, 30_000, peer=shape.rank(stage + 1, replica, inner)
                )
        for _ in range(micro):
            if stage < shape.stages - 1:
                yield from rank.communicates(
                    "recv", "world", 1 << 20, 30_000, peer=shape.rank(stage + 1, replica, inner)
                )
                rank.joins()
            yield from backward(rank, step, micro)
            if stage > 0:
                yield from rank.communicates(
                    "send", "world", 1 << 20, 30_000, peer=shape.rank(stage - 1, replica, inner)
                )
        rank.joins()
        rank.kernel("Optimizer::step", rank.about(300_000) + late.at(step, "optimizer"))
        rank.waits("aten::item")
        rank.events.append(("user_annotation", f"ProfilerStep#{step + 1}", 0, began, rank.host - began, {}))
        rank.host += 3_000


def forward(rank: Rank, step: int, micro: int) -> Program:
    job, shape, late = rank.job, rank.job.shape, rank.late
    work = late.of(step, "work") // (2 * job.layers * micro)
    rows = 8192 if work else 4096
    for layer in range(job.layers):
        if shape.sharded:
            yield from rank.communicates("_allgather_base", "data", 1 << 20, 60_000)
            rank.joins()
        rank.kernel("aten::addmm", rank.about(400_000) + work, rows)
        rank.kernel("aten::gelu", rank.about(100_000) + work, rows)
        if layer == 0 and late.of(step, "blocking"):
            for _ in range(late.of(step, "blocking") // micro // PAUSE_NS):
                rank.waits()
                rank.works(PAUSE_NS - 8_000)  # the device stands still until the host launches again
        rank.pauses(step, 2 * job.layers * micro)
        if layer == 1 and (extra := late.at(step, "forward")):
            rank.kernel("aten::sort", extra // micro + 50_000)
        elif layer == 1:
            rank.kernel("aten::sort", 50_000)
        if shape.tensor > 1:
            yield from rank.communicates("allreduce", "tensor", 1 << 18, 30_000)
            rank.joins()
        if shape.experts:
            yield from rank.communicates("all_to_allv", "world", 1 << 20, 50_000)
            rank.joins()
            rank.kernel("aten::bmm", rank.about(200_000))


def backward(rank: Rank, step: int, micro: int) -> Program:
    shape = rank.job.shape
    for layer in range(rank.job.layers):
        if shape.sharded:
            yield from rank.communicates("_allgather_base", "data", 1 << 20, 60_000)
            rank.joins()
        rank.pauses(step, 2 * rank.job.layers * micro)
        rank.kernel("aten::mm", rank.about(700_000))
        if layer == 1 and (extra := rank.late.at(step, "backward")):
            rank.kernel("aten::cumsum", extra // micro)
        if shape.tensor > 1:
            yield from rank.communicates("allreduce", "tensor", 1 << 18, 30_000)
            rank.joins()
        if shape.sharded:
            yield from rank.communicates("_reduce_scatter_base", "data", 1 << 20, 60_000)
        elif layer % rank.job.bucket == rank.job.bucket - 1:
            yield from rank.communicates("allreduce", "data", 1 << 22, 120_000)


def ran(job: Job, of_rank: Callable[[Rank], Program] = program) -> list[Rank]:
    """Run a job: each rank goes on until it meets others that have not come."""
    ranks = [Rank(job, number) for number in range(job.shape.ranks)]
    programs = [of_rank(rank) for rank in ranks]
    meetings: dict[Any, Meeting] = {}
    chance = random.Random(job.seed + 77)
    answers: list[tuple[int, int | None]] = [(number, None) for number in range(len(ranks))]
    while answers:
        number, answer = answers.pop()
        try:
            asked = programs[number].send(answer)  # type: ignore[arg-type]
        except StopIteration:
            continue
        key, size, start, transfer = asked
        meeting = meetings.setdefault(key, Meeting(transfer=transfer))
        meeting.starts[number] = start
        if len(meeting.starts) == size:
            *_, before, last = sorted(meeting.starts.values())
            moved = last + max(2_000, round(meeting.transfer * chance.gauss(1, 0.02)))
            for one, begun in meeting.starts.items():
                late = min(job.bias_ns, begun - before) if begun == last else 0
                answers.append((one, moved + late + abs(round(chance.gauss(0, job.noise_ns)))))
            del meetings[key]
    assert not meetings, f"ranks wait for each other: {list(meetings)[:3]}"
    return ranks


def write_job(job: Job, folder: Path, ending: str = ".json.gz") -> list[Path]:
    """Write the traces of a job, and return them by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, (offset, drift) in zip(ran(job), job.clocks(), strict=True):
        paths.append(folder / f"rank{rank.number}{ending}")
        rank.write(paths[-1], offset, drift)
    return paths
