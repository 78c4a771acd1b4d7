"""Whether kernels of different ranks are taken for one collective only where they are."""

from pathlib import Path

import polars as pl
import pytest

from opscope.distributed.collectives import BY_ORDER, BY_SEQUENCE, matched, members_of, rows_of
from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import RankSummary
from tests.distributed.recorded import made, recorded, said_of
from tests.jobs import Job, Shape
from tests.kineto import KinetoTrace


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("shape", [Shape(4), Shape(8, tensor=2), Shape(4, stages=2), Shape(4, sharded=True)])
def test_all_are_matched_and_end_together(tmp_path: Path, shape: Shape, sequence: bool) -> None:
    job = Job(shape, offset_ns=0, drift_ppm=0.0, noise_ns=500, bias_ns=0, sequence=sequence and shape.stages == 1)
    ranks = made(job, tmp_path)
    found = matched(rows_of(ranks))
    assert found.by == (BY_SEQUENCE if job.sequence else BY_ORDER)
    assert found.calls.height == sum(one.communications.height for one in ranks.values())
    assert (found.partial, found.ambiguous) == (0, 0)
    ends = found.calls.group_by("call").agg(spread=pl.col("end_ns").max() - pl.col("end_ns").min(), n=pl.len())
    assert ends["spread"].max() < 4_000  # type: ignore[operator]
    assert set(ends["n"]) == {2 if shape.stages > 1 or shape.tensor > 1 else 4} | ({4} if shape.tensor > 1 else set())


def test_a_lost_kernel_costs_its_step_and_shifts_no_other(tmp_path: Path) -> None:
    ranks = made(Job(Shape(4), offset_ns=0, drift_ppm=0.0, bias_ns=0), tmp_path)
    whole = ranks[1].communications
    lost = ranks[1].changed(communications=without(whole, 1))
    found = matched(rows_of({**ranks, 1: lost}))
    # Three collectives a step; the second of the first step is lost, and numbers there no longer tell which.
    assert found.ambiguous == 3 * 4 - 1
    assert found.calls["call"].n_unique() == 3 * 3
    ends = found.calls.group_by("call").agg(spread=pl.col("end_ns").max() - pl.col("end_ns").min())
    assert ends["spread"].max() < 4_000  # type: ignore[operator]
    assert any("different numbers" in note for note in said_of({**ranks, 1: lost}).notes)


def without(communications: pl.DataFrame, row: int) -> pl.DataFrame:
    """Return what a trace without one kernel has: its later collectives of that step count one less."""
    kept = communications.with_row_index("place").filter(pl.col("place") != row).drop("place")
    return kept.with_columns(ordinal=pl.int_range(pl.len()).over("row", "group", "members").cast(pl.Int32))


def test_numbers_of_collectives_survive_a_lost_kernel(tmp_path: Path) -> None:
    ranks = made(Job(Shape(4), sequence=True, lose=0.1, seed=3), tmp_path)
    found = matched(rows_of(ranks))
    calls = sum(one.communications.height for one in ranks.values())
    assert calls < 4 * 12
    assert found.ambiguous == 0
    assert found.partial > 0
    assert found.calls.height + 3 * found.partial >= calls - 3


def test_groups_of_the_same_name_with_other_ranks_are_apart(tmp_path: Path) -> None:
    ranks = made(Job(Shape(8, tensor=2)), tmp_path)
    same = {
        rank: one.changed(communications=one.communications.with_columns(group=pl.lit("0").cast(pl.Categorical)))
        for rank, one in ranks.items()
    }
    groups = matched(rows_of(same)).calls.group_by("call").agg(pl.col("rank").sort(), pl.col("size").first())
    assert set(groups["rank"].list.len()) == {2, 4}
    assert (groups["rank"].list.len() == groups["size"]).all()


def test_recorded_collectives_of_two_ranks_are_matched() -> None:
    ranks = recorded("late_backward_host")
    found = matched(rows_of(ranks))
    assert (found.calls.height, found.partial, found.ambiguous) == (30, 0, 0)
    # Three buckets of 8 MiB and the rest; NCCL's kernels of both ranks end within 100 us on one host.
    ends = found.calls.group_by("call").agg(spread=pl.col("end_ns").max() - pl.col("end_ns").min())
    assert ends["spread"].max() < 100_000  # type: ignore[operator]


def test_tokens_that_are_divided_unevenly_are_no_mismatch() -> None:
    found = matched(rows_of(recorded("experts_uneven")))
    assert found.partial == 0
    uneven = found.calls.filter(pl.col("collective") == "all_to_allv")
    assert uneven["is_uneven"].all()
    assert uneven["bytes"].null_count() == uneven.height


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("[0, 2]", [0, 2]),
        ("[]", []),
        (None, []),
        ("[0, 1, 2, ...]", [0, 1, 2]),
        ("[0, 1", [0, 1]),
        ("x", []),
        ("3", []),
    ],
)
def test_lists_of_ranks_that_pytorch_cut_are_read_as_far_as_they_go(text: str | None, members: list[int]) -> None:
    assert list(members_of(text)) == members


def test_kernels_that_say_nothing_are_known_by_the_call_that_launched_them(tmp_path: Path) -> None:
    """As recorded where the profiler puts what it knows of a collective on the call alone."""
    told = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,
        "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float", "External id": 9,
    }  # fmt: skip

    def rank(number: int) -> RankSummary:
        trace = KinetoTrace(distributedInfo={"rank": number, "world_size": 2})
        trace.step(1, 0, 100_000)
        trace.operator("record_param_comms", 1_000, 5_000, **told)
        launch = trace.launch(2_000, 1_000, **{"External id": 9})
        trace.kernel("ncclDevKernel_Generic_4", 10_000, 5_000, launch, stream=3, **{"External id": 9})
        trace.kernel("ncclDevKernel_Generic_4", 1_000, 500, 77, stream=3)  # from before the recording
        return summarise_rank(trace.write(tmp_path / f"rank{number}.json"))

    ranks = {number: rank(number) for number in (0, 1)}
    assert matched(rows_of(ranks)).calls.select("rank", "collective", "bytes").rows() == [
        (0, "allreduce", None),
        (1, "allreduce", None),
    ]
    assert [one.facts.unlabelled for one in ranks.values()] == [1, 1]


def unlabelled(folder: Path, rank: int, offset: int) -> RankSummary:
    """Return the summary of a trace of an old PyTorch, which says nothing of collectives but the kernels' names."""
    trace = KinetoTrace(distributedInfo={"rank": rank, "world_size": 2})
    for step in range(3):
        begin = 1_000_000 * step
        trace.step(step, begin, 900_000)
        trace.launched_kernel("busy", (begin + 1_000, 5_000), (begin + 10_000, 200_000))
        for place in range(2):
            at = begin + 300_000 + 100_000 * place
            start = at - (20_000 if rank == 0 else 0) - (offset if place else 0)
            trace.launched_kernel(
                "ncclKernel_AllReduce_RING_LL_Sum_float", (begin + 8_000 + 10_000 * place, 5_000),
                (start, at + 50_000 - start - (offset if place else 0)), stream=9,
            )  # fmt: skip
    return summarise_rank(trace.write(folder / f"rank{rank}.json"))


def test_collectives_that_only_have_a_name_are_matched_where_all_ranks_end_them_together(tmp_path: Path) -> None:
    document = said_of({rank: unlabelled(tmp_path, rank, 0) for rank in (0, 1)})
    (one,) = document.collectives
    assert (one.collective, one.calls, one.whole, one.transfer_ns, one.worst_wait_ns) == (
        "allreduce",
        6,
        6,
        50_000,
        20_000,
    )
    assert len(document.clocks) == 2


def test_collectives_that_only_have_a_name_are_not_matched_where_their_ends_differ(tmp_path: Path) -> None:
    document = said_of({0: unlabelled(tmp_path, 0, 0), 1: unlabelled(tmp_path, 1, 350_000)})
    assert [one.whole for one in document.collectives] == [0]
    assert document.clocks == []


def test_different_operations_are_not_one_collective(tmp_path: Path) -> None:
    def rank(number: int, name: str) -> RankSummary:
        told = {
            "Collective name": name, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,
            "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float", "External id": 9,
        }  # fmt: skip
        trace = KinetoTrace(distributedInfo={"rank": number, "world_size": 2})
        trace.step(1, 0, 100_000)
        trace.operator("record_param_comms", 1_000, 5_000, **told)
        trace.kernel("ncclDevKernel", 10_000, 5_000, trace.launch(2_000, 1_000), stream=3, **told)
        return summarise_rank(trace.write(tmp_path / f"rank{number}.json"))

    for names, whole in ((("allreduce", "allreduce"), 1), (("allreduce", "broadcast"), 0), (("send", "recv"), 0)):
        document = said_of({number: rank(number, name) for number, name in enumerate(names)})
        assert sum(one.whole for one in document.collectives) == whole, names


def test_ranks_without_a_common_clock_have_their_transfers_and_waits(tmp_path: Path) -> None:
    """Tensor-parallel groups alone: their ranks share nothing with those of other groups."""
    ranks = made(Job(Shape(4, tensor=2), per_host=1), tmp_path)
    apart = {
        rank: one.changed(
            communications=one.communications.filter(pl.col("description").cast(pl.String) == "tensor_parallel")
        )
        for rank, one in ranks.items()
    }
    document = said_of(apart)
    assert len(document.clocks) == 2
    (one,) = document.collectives
    assert (one.calls, one.whole) == (2 * 24, 2 * 24)
    assert one.transfer_ns == pytest.approx(30_000, rel=0.4)
