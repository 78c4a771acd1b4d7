"""Whether the late rank is named, why and by how much: in made jobs, where it is known, and in recorded ones."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from opscope.distributed.engines import InThisProcess
from opscope.distributed.inputs import files_of
from opscope.distributed.job import read_job
from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import RankSummary
from opscope.documents.ranks import LateCause
from tests.distributed.recorded import made, recorded, said_of
from tests.jobs import Job, Lateness, Shape, write_job
from tests.kineto import KinetoTrace

MS = 1_000_000
DATA_PARALLEL, TENSOR_PARALLEL = Shape(4), Shape(8, tensor=2)
PIPELINE, EXPERTS, SHARDED = Shape(4, stages=2), Shape(4, experts=True), Shape(4, sharded=True)


@pytest.mark.parametrize("cause", ["host", "input", "blocking", "kernels", "work"])
@pytest.mark.parametrize(
    "shape", [DATA_PARALLEL, TENSOR_PARALLEL, EXPERTS, SHARDED], ids=["data", "tensor", "experts", "sharded"]
)
def test_the_late_rank_its_cause_and_by_how_much_are_right(tmp_path: Path, shape: Shape, cause: str) -> None:
    document = said_of(made(Job(shape, {2: Lateness(cause, 3 * MS)}, seed=5), tmp_path))
    (late,) = document.late
    assert (late.rank, late.cause, late.steps) == (2, cause, [1, 2, 3, 4])
    # Waits make a rank late by what follows each of them; their own cost on the host is not what was built in.
    assert late.late_ns == pytest.approx(3 * MS, abs=5_000 if cause != "blocking" else 600_000)
    (finding,) = document.findings
    assert finding.ranks == (2,)
    # Work that is divided evenly is not gone: the other ranks have more of it then.
    share = 1 - 1 / shape.ranks if cause == "work" else 1
    assert finding.likely_ns == pytest.approx(share * late.late_ns, rel=0.05)


@pytest.mark.parametrize("cause", ["kernels", "work"])
def test_a_late_stage_of_a_pipeline_is_named_and_not_the_stages_that_wait_for_it(tmp_path: Path, cause: str) -> None:
    (late,) = said_of(made(Job(PIPELINE, {3: Lateness(cause, 4 * MS)}), tmp_path)).late
    assert (late.rank, late.cause) == (3, cause)
    assert late.late_ns == pytest.approx(4 * MS, abs=20_000)


def test_a_slower_clock_is_one_where_all_kernels_take_longer(tmp_path: Path) -> None:
    document = said_of(made(Job(DATA_PARALLEL, {1: Lateness("clock", 2_000)}), tmp_path))  # 20 %
    (late,) = document.late
    assert (late.rank, late.cause, late.where) == (1, LateCause.CLOCK, "NVIDIA H200")
    assert "1.20 times" in late.evidence[0]


def test_a_rank_that_is_late_once_is_named_with_its_step(tmp_path: Path) -> None:
    (late,) = said_of(made(Job(DATA_PARALLEL, {2: Lateness("kernels", 3 * MS, (1,))}, steps=6), tmp_path)).late
    assert (late.rank, late.steps) == (2, [2])
    assert late.late_ns == pytest.approx(3 * MS, abs=5_000)


def test_two_late_ranks_are_both_named_the_dearest_first(tmp_path: Path) -> None:
    late = {1: Lateness("kernels", 2 * MS), 3: Lateness("host", 4 * MS)}
    document = said_of(made(Job(Shape(8), late), tmp_path))
    assert [(one.rank, one.cause) for one in document.late] == [(3, LateCause.HOST), (1, LateCause.KERNELS)]
    # Without the dearest, a step still takes as long as the other is late.
    saved = {one.ranks: one.likely_ns for one in document.findings}
    assert saved[3,] == pytest.approx(2 * MS, rel=0.05)
    assert saved[1,] == 0
    assert saved[1, 3] == pytest.approx(4 * MS, rel=0.05)  # both together


@pytest.mark.parametrize("shape", [DATA_PARALLEL, TENSOR_PARALLEL, PIPELINE, EXPERTS, SHARDED])
def test_nobody_is_late_in_a_healthy_job(tmp_path: Path, shape: Shape) -> None:
    document = said_of(made(Job(shape, jitter_ns=20_000), tmp_path))
    assert document.late == []
    assert document.findings == []


RECORDED = [
    # folder, cause, at least and at most so many milliseconds late, what `where` holds
    ("late_backward_host", LateCause.HOST, 198, 208, "BackwardHook"),
    ("late_backward_kernels", LateCause.KERNELS, 18, 23, "BackwardHook"),
    ("late_loader", LateCause.INPUT, 60, 72, "DataLoader"),
    ("smaller_batch", LateCause.WORK, 5, 9, "aten::"),
    ("reads", LateCause.BLOCKING, 3, 6, "aten::_local_scalar_dense"),
    ("busy_device", LateCause.KERNELS, 6, 10, "aten::"),
    ("experts_uneven", LateCause.WORK, 36, 42, "aten::mm"),
    ("fsdp_late_host", LateCause.HOST, 100, 110, "BackwardHook"),
    ("pipeline_late_kernels", LateCause.KERNELS, 74, 84, "spin_kernel"),
]


@pytest.mark.parametrize(("name", "cause", "least", "most", "where"), RECORDED, ids=[row[0] for row in RECORDED])
def test_recorded_late_ranks_are_named_with_their_causes(
    name: str, cause: LateCause, least: float, most: float, where: str
) -> None:
    document = said_of(recorded(name))
    (late,) = document.late
    assert (late.rank, late.cause) == (1, cause)
    assert least * MS <= late.late_ns <= most * MS
    assert late.where is not None
    assert where in late.where


OTHERS = [
    # folder, rank, cause, at least and at most so many milliseconds late, what `where` holds
    ("tensor_parallel_uneven", 0, LateCause.WORK, 1.56, 1.90, "aten::mm"),
    ("fsdp_slow_shard", 0, LateCause.KERNELS, 4.9, 5.1, "SpinBackward"),
    ("ddp_gemms", 1, LateCause.KERNELS, 52, 66, "aten::mm"),
]


@pytest.mark.parametrize(("name", "rank", "cause", "least", "most", "where"), OTHERS, ids=[row[0] for row in OTHERS])
def test_late_ranks_are_named_where_work_is_divided_unevenly_hidden_or_launched_a_step_before(
    name: str, rank: int, cause: LateCause, least: float, most: float, where: str
) -> None:
    (late,) = said_of(recorded(name)).late
    assert (late.rank, late.cause) == (rank, cause)
    assert least * MS <= late.late_ns <= most * MS
    assert where in str(late.where)


def test_work_that_runs_a_step_after_its_launch_makes_that_step_late() -> None:
    (late,) = said_of(recorded("ddp_gemms")).late
    assert {2, 4} <= set(late.steps)
    assert 1 not in late.steps
    assert "[[6000, 6000], [6000, 6000]] runs on no other rank" in late.evidence[0]


def test_a_rank_that_others_wait_for_is_named_beside_another_one_that_is_late() -> None:
    """The profiler slows rank 1's host, behind which rank 0's kernel hides."""
    document = said_of(recorded("fsdp_slow_shard"))
    assert [one.rank for one in document.late] == [0]
    assert document.verdict.startswith("Late: rank 0 by 5.000 ms of")
    assert "others wait 24.15 ms of a step" in document.verdict
    assert "for rank 1" in document.verdict


def test_ranks_that_pause_in_turn_are_both_named_though_one_hides_behind_the_other() -> None:
    document = said_of(recorded("alternating"))
    named = {one.rank: one for one in document.late}
    assert {rank: one.steps for rank, one in named.items()} == {0: [4, 6, 8], 1: [3, 5, 7]}
    assert all(5 * MS <= one.late_ns <= 7 * MS and one.cause == LateCause.HOST for one in named.values())
    assert any("others are later still" in text for text in named[1].evidence)
    first = document.findings[0]
    assert (first.rule, first.ranks) == ("late_in_turn", (0, 1))


@pytest.mark.parametrize("place", ["backward", "optimizer"])
@pytest.mark.parametrize("shape", [DATA_PARALLEL, SHARDED, Shape(2)], ids=["data", "sharded", "two"])
def test_kernels_that_run_longer_are_found_wherever_they_are(tmp_path: Path, shape: Shape, place: str) -> None:
    job = Job(shape, {1: Lateness("kernels", 3 * MS, place=place)}, host_slow={0: 1.3})
    (late,) = said_of(made(job, tmp_path)).late
    assert (late.rank, late.cause) == (1, LateCause.KERNELS)
    assert late.late_ns == pytest.approx(3 * MS, rel=0.1)


@pytest.mark.parametrize("pieces", [6, 24])
@pytest.mark.parametrize("shape", [Shape(8), SHARDED, Shape(2)], ids=["data", "sharded", "two"])
def test_lateness_in_many_small_pauses_is_named(tmp_path: Path, shape: Shape, pieces: int) -> None:
    job = Job(shape, {1: Lateness("host", 5 * MS, pieces=pieces)}, launch_ns=250_000)
    (late,) = said_of(made(job, tmp_path / "late")).late
    healthy = said_of(made(replace(job, late={}), tmp_path / "healthy"))
    longer = statistics.median(
        one.duration_ns - other.duration_ns
        for one, other in zip(said_of(made(job, tmp_path / "again")).steps, healthy.steps, strict=True)
    )
    assert (late.rank, late.cause) == (1, LateCause.HOST)
    assert late.late_ns == pytest.approx(longer, abs=max(0.1 * longer, MS))
    assert healthy.late == []


def test_of_two_ranks_a_host_that_is_slower_throughout_is_not_blamed_and_waiting_for_it_is_said(tmp_path: Path) -> None:
    document = said_of(made(Job(Shape(2), launch_ns=300_000, host_slow={1: 1.4}), tmp_path))
    assert document.late == []
    assert "others wait" in document.verdict
    assert "for rank 1" in document.verdict
    assert "called late" in document.verdict


def test_a_recording_that_begins_later_on_a_rank_makes_it_not_late(tmp_path: Path) -> None:
    """The others wait in their first step for what happened before it."""
    document = said_of(made(Job(Shape(4), steps=4, begins={2: 9 * MS}), tmp_path))
    assert document.late == []


def test_a_rank_with_more_tokens_is_late_where_all_to_alls_tell_no_size(tmp_path: Path) -> None:
    job = Job(Shape(4, experts=True), {3: Lateness("work", 4 * MS)}, begins={1: 2 * MS}, sizes=False)
    (late,) = said_of(made(job, tmp_path)).late
    assert (late.rank, late.cause) == (3, LateCause.WORK)
    assert late.late_ns == pytest.approx(4 * MS, rel=0.1)


@pytest.mark.parametrize("name", ["healthy_ddp", "healthy_fsdp", "healthy_pipeline", "healthy_tensor_parallel"])
def test_recorded_healthy_jobs_have_no_late_rank(name: str) -> None:
    assert said_of(recorded(name)).late == []


def test_a_job_of_one_rank_is_read_and_nobody_is_late(tmp_path: Path) -> None:
    document = said_of(made(Job(Shape(1)), tmp_path))
    assert [(one.rank, one.state) for one in document.ranks] == [(0, "whole")]
    assert document.late == []
    assert document.clocks == []


def test_traces_without_steps_count_as_one_step(tmp_path: Path) -> None:
    def trace(rank: int, work: int) -> RankSummary:
        made = KinetoTrace(distributedInfo={"rank": rank, "world_size": 2})
        made.launched_kernel("busy", (0, 5_000), (10_000, work))
        end = max(work, 900_000) + 10_000
        made.launched_kernel("ncclDevKernel_AllReduce", (6_000, 5_000), (10_000 + work, end - work), stream=20)
        return summarise_rank(made.write(tmp_path / f"rank{rank}.json"))

    document = said_of({0: trace(0, 100_000), 1: trace(1, 900_000)})
    (late,) = document.late
    assert (late.rank, late.late_ns, late.steps) == (1, 800_000, [None])
    assert any("no steps are marked" in note for note in document.notes)


def test_a_full_queue_of_launches_is_waiting_and_no_work_of_the_host(tmp_path: Path) -> None:
    made = KinetoTrace(distributedInfo={"rank": 0, "world_size": 2})
    made.step(1, 0, 1_000_000)
    made.launched_kernel("busy", (1_000, 5_000), (10_000, 900_000))
    made.launched_kernel("busy", (10_000, 800_000), (910_000, 50_000))  # the launch takes until a place is free
    (steps,) = summarise_rank(made.write(tmp_path / "rank0.json")).steps.select("host_ns", "host_waits_ns").rows()
    assert steps == (1_000_000, 800_000)


def test_lost_kernels_and_leftovers_change_no_late_rank(tmp_path: Path) -> None:
    job = Job(Shape(8), {5: Lateness("kernels", 3 * MS)}, lose=0.03, leftovers=4)
    document = said_of(made(job, tmp_path))
    assert [(one.rank, one.cause) for one in document.late] == [(5, LateCause.KERNELS)]
    assert any("say nothing of the collective" in note for note in document.notes)


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    paths = write_job(Job(Shape(8), {5: Lateness("host", 3 * MS)}), tmp_path)
    ranks = {rank: summarise_rank(path) for rank, path in enumerate(paths) if rank not in (2, 7)}
    document = said_of(ranks, world=8)
    assert [one.rank for one in document.ranks if one.state == "missing"] == [2, 7]
    assert [one.rank for one in document.late] == [5]
    assert any("2 of 8 ranks" in note for note in document.notes)


def test_recordings_of_different_lengths_without_steps_call_nobody_late(tmp_path: Path) -> None:
    def trace(rank: int, kernels: int) -> RankSummary:
        made = KinetoTrace(distributedInfo={"rank": rank, "world_size": 2}, host_name=f"node{rank}")
        for place in range(kernels):
            made.launched_kernel("busy", (20_000 * place, 5_000), (10_000 + 20_000 * place, 19_000))
        return summarise_rank(made.write(tmp_path / f"rank{rank}.json"))

    document = said_of({0: trace(0, 10), 1: trace(1, 20)})
    assert document.late == []
    assert any("differ in length" in note for note in document.notes)
    assert [one.host for one in document.ranks] == ["node0", "node1"]


def test_times_count_from_what_the_header_says(tmp_path: Path) -> None:
    """Kineto writes when its times begin, in nanoseconds since 1970: of two hosts that differ by seconds."""
    begins = []
    for rank, base in enumerate((1_790_857_026_000_000_000, 1_790_857_036_000_000_000)):
        made = KinetoTrace(distributedInfo={"rank": rank, "world_size": 2}, baseTimeNanoseconds=base)
        made.step(1, 5_000, 100_000)
        made.launched_kernel("busy", (6_000, 5_000), (12_000, 20_000))
        begins.append(summarise_rank(made.write(tmp_path / f"rank{rank}.json")).steps["begin_ns"].item())
    assert begins == [1_790_857_026_000_005_000, 1_790_857_036_000_005_000]


@pytest.mark.parametrize(
    ("info", "members"),
    [
        ({"rank": 10**12, "world_size": 2}, "[0, 1]"), ({"rank": -1, "world_size": 2}, "[0, 1]"),
        ({"rank": 0, "world_size": 2_000_000_000}, "[0, 1]"), ({"rank": "0", "world_size": "2"}, "[" * 100_000),
        ({"rank": 0, "world_size": 2}, "[0, 99999999999999999999, ...]"), ([], "null"),
    ],
)  # fmt: skip
def test_headers_that_cannot_be_true_are_unknown(tmp_path: Path, info: object, members: str) -> None:
    ranks = {}
    for rank in (0, 1):
        made = KinetoTrace(distributedInfo=info)
        made.step(1, 0, 100_000)
        huge = [[10**30, 10**300], "x", None]
        made.operator("aten::mm", 1_000, 4_000, **{"Input Dims": huge, "External id": 3})
        made.kernel("busy", 12_000, 20_000, made.launch(2_000, 1_000, **{"External id": 3}), **{"External id": 3})
        told = {"Collective name": "send", "Process Group Ranks": members, "Group size": 2, "Dst Rank": 1}
        made.kernel("ncclDevKernel", 40_000, 20_000 * (rank + 1), made.launch(6_000, 1_000), stream=3, **told)
        ranks[rank] = summarise_rank(made.write(tmp_path / f"rank{rank}.json"))
        assert ranks[rank].facts.number in (0, rank)  # by the header where that can be true, else by the name
    document = said_of(ranks)
    assert len(document.ranks) == 2


def in_turn(ranks: int, steps: int) -> dict[int, Lateness]:
    return {rank: Lateness("work", 3 * MS, tuple(range(rank, steps, ranks))) for rank in range(ranks)}


def test_ranks_that_are_late_in_turn_are_said_together(tmp_path: Path) -> None:
    document = said_of(made(Job(Shape(4), in_turn(4, 8), steps=8, jitter_ns=50_000), tmp_path))
    named = [one.rule for one in document.findings]
    # Each is late in two steps of eight: either each is named with its steps, or all of them together.
    assert named == ["late_in_turn"] or len(document.late) == 4
    assert max(one.likely_ns for one in document.findings) == pytest.approx(3 * MS, rel=0.3)


def test_half_of_the_ranks_that_are_slower_are_said_together(tmp_path: Path) -> None:
    slow = {rank: Lateness("clock", 3_000) for rank in (4, 5, 6, 7)}
    document = said_of(made(Job(Shape(8), slow), tmp_path))
    (finding,) = [one for one in document.findings if len(one.ranks) != 1]
    assert finding.rule in ("slow_ranks", "late_ranks")
    assert "4, 5, 6, 7" in finding.title
    assert finding.likely_ns > MS


def test_what_hides_behind_transfers_makes_nobody_late(tmp_path: Path) -> None:
    """One stream communicates all the time: a rank that computes longer beside it makes no one wait."""

    def rank(number: int, compute: int) -> RankSummary:
        trace = KinetoTrace(distributedInfo={"rank": number, "world_size": 4})
        told = {
            "Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]",
            "Group size": 4, "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float",
        }  # fmt: skip
        for step in range(4):
            begin = 10 * MS * step
            trace.step(step, begin, 10 * MS - 1_000)
            trace.launched_kernel("busy", (begin + 10_000, 5_000), (begin + 20_000, compute))
            launch = trace.launch(begin + 20_000, 5_000)
            trace.kernel("ncclDevKernel", begin + 30_000, 9 * MS, launch, stream=3, **told)
            trace.launch(begin + 40_000, 9 * MS + 900_000, name="cudaStreamSynchronize")
        return summarise_rank(trace.write(tmp_path / f"rank{number}.json"))

    document = said_of({number: rank(number, 6 * MS if number == 2 else 3 * MS) for number in range(4)})
    assert document.late == []
    assert document.findings == []


def test_noise_of_steps_makes_nobody_late(tmp_path: Path) -> None:
    named = 0
    for seed in range(12):
        job = Job(Shape(4 if seed % 2 else 8), steps=2 + seed % 4, jitter_ns=60_000, seed=seed)
        named += len(said_of(made(job, tmp_path / str(seed))).late)
    assert named <= 1


def test_a_rank_of_another_job_and_one_that_was_cut_off_spoil_nothing(tmp_path: Path) -> None:
    late = {1: Lateness("kernels", 3 * MS)}
    paths = write_job(Job(Shape(4), late, steps=6), tmp_path / "one")
    short = write_job(Job(Shape(4), steps=1), tmp_path / "short")
    ranks = {rank: summarise_rank(path) for rank, path in enumerate([*paths[:3], short[3]])}
    document = said_of(ranks)
    assert [(one.rank, one.cause) for one in document.late] == [(1, LateCause.KERNELS)]
    assert any("are not compared: 3" in note for note in document.notes)
    other = write_job(Job(Shape(8)), tmp_path / "other")
    for number in (0, 5):
        other[number].rename(tmp_path / "one" / f"other{number}.json.gz")
    read = read_job(files_of([str(tmp_path / "one")]), InThisProcess())
    assert (sorted(read.ranks), read.world) == ([0, 1, 2, 3], 4)
    assert {Path(path).name for path in read.unread} == {"other0.json.gz", "other5.json.gz"}
