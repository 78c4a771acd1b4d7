"""Who waited for whom: hand-computed jobs, and that the parts of exposed communication add up."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import RankSummary
from opscope.documents.ranks import RanksDocument
from tests.distributed.recorded import made, recorded, said_of
from tests.jobs import Job, Lateness, Shape
from tests.kineto import KinetoTrace

US, MS = 1_000, 1_000_000
STEP_NS = 10 * MS


def said(folder: Path, ranks: list[list[tuple[str, str, int, int]]], world: int | None = None) -> RanksDocument:
    """Return what is said of ranks whose devices run some kernels in one step.

    Args:
        folder: where traces are written.
        ranks: per rank its kernels: the group of a collective or "" for work, the members, begin and length in us.
        world: how many ranks there are.
    """
    summaries: dict[int, RankSummary] = {}
    for rank, kernels in enumerate(ranks):
        trace = KinetoTrace(distributedInfo={"rank": rank, "world_size": world or len(ranks)})
        for step in (1, 2, 3):
            base = step * STEP_NS
            trace.step(step, base, STEP_NS - 1)
            for place, (group, members, begin, length) in enumerate(kernels):
                host = (base + place * US, US // 2)
                times = (base + begin * US, length * US)
                if not group:
                    trace.launched_kernel("work", host, times)
                    continue
                told = {
                    "Collective name": "allreduce", "Process Group Name": group, "Process Group Ranks": members,
                    "Group size": len(members.split(",")), "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float",
                }  # fmt: skip
                trace.kernel("ncclDevKernel", *times, trace.launch(*host), stream=20, **told)
            trace.launch(base + 20 * US, STEP_NS - 30 * US, name="cudaDeviceSynchronize")
        summaries[rank] = summarise_rank(trace.write(folder / f"rank{rank}.json"))
    return said_of(summaries, world)


def test_transfer_and_waiting_of_three_ranks(tmp_path: Path) -> None:
    """Rank 2 comes 3 ms after rank 0 and 2 ms after rank 1; the transfer takes 500 us, beside 0 of work."""
    all_ = "[0, 1, 2]"
    document = said(
        tmp_path,
        [
            [("", "", 100, 900), ("a", all_, 1_000, 3_500)],
            [("", "", 100, 1_900), ("a", all_, 2_000, 2_500)],
            [("", "", 100, 3_900), ("a", all_, 4_000, 500)],
        ],
    )
    waiting = document.waiting
    assert waiting is not None
    assert waiting.exposed_ns == pytest.approx((3_500 + 2_500 + 500) * US / 3, abs=2)
    assert waiting.transfer_ns == 500 * US
    (of_rank,) = waiting.ranks
    # On average 0, 2 and 3 ms wait for it; of the other two the one that waits less stands for both.
    assert (of_rank.rank, of_rank.waiting_ns, of_rank.others_ns) == (
        2,
        pytest.approx(5_000 * US / 3, abs=2),
        2_000 * US,
    )
    assert "500.0 us is transfer" in waiting.sentence
    assert "1.667 ms is waiting for rank 2" in waiting.sentence
    (late,) = document.late
    assert (late.rank, late.late_ns) == (2, 2_000 * US)


def test_only_exposed_waiting_counts(tmp_path: Path) -> None:
    """Rank 0 waits 2 ms, of which it computes 1.5."""
    both = "[0, 1]"
    document = said(
        tmp_path,
        [
            [("", "", 100, 900), ("a", both, 1_000, 2_500), ("", "", 1_000, 1_500)],
            [("", "", 100, 2_900), ("a", both, 3_000, 500)],
        ],
    )
    assert document.waiting is not None
    assert [(one.rank, one.others_ns) for one in document.waiting.ranks] == [(1, 500 * US)]


def test_waiting_is_passed_on_to_the_rank_that_was_waited_for_first(tmp_path: Path) -> None:
    """Rank 1 is late to all, as it waited 2 ms for rank 0 in their pair: so rank 0 was waited for by all."""
    pair, other, all_ = "[0, 1]", "[2, 3]", "[0, 1, 2, 3]"
    document = said(
        tmp_path,
        [
            [("", "", 100, 2_900), ("p", pair, 3_000, 100), ("", "", 3_100, 800), ("a", all_, 3_900, 300)],
            [("", "", 100, 900), ("p", pair, 1_000, 2_100), ("", "", 3_100, 900), ("a", all_, 4_000, 200)],
            [("", "", 100, 900), ("q", other, 1_000, 100), ("", "", 1_100, 900), ("a", all_, 2_000, 2_200)],
            [("", "", 100, 900), ("q", other, 1_000, 100), ("", "", 1_100, 900), ("a", all_, 2_000, 2_200)],
        ],
    )
    assert document.waiting is not None
    by_rank = {one.rank: one.others_ns for one in document.waiting.ranks}
    assert by_rank[0] == 2_000 * US
    assert by_rank.get(1, 0) <= 100 * US


def test_the_headline_names_who_is_last_even_where_nobody_is_late(tmp_path: Path) -> None:
    both = "[0, 1]"
    document = said(
        tmp_path,
        [
            [("", "", 100, 900), ("a", both, 1_000, 400)],
            [("", "", 100, 1_000), ("a", both, 1_100, 300)],
        ],
    )
    assert document.late == []
    assert (
        document.verdict == "No rank is late: others wait longest for rank 1, 100.0 us of a step of 10.000 ms (1.0 %)."
    )


@pytest.mark.parametrize(
    "name", ["tensor_parallel_uneven", "alternating", "fsdp_slow_shard", "ddp_gemms", "healthy_ddp", "experts_uneven"]
)
def test_parts_of_recorded_exposed_communication_add_up(name: str) -> None:
    waiting = said_of(recorded(name)).waiting
    assert waiting is not None
    parts = waiting.transfer_ns + waiting.unknown_ns + sum(one.waiting_ns for one in waiting.ranks)
    assert parts == pytest.approx(waiting.exposed_ns, abs=len(waiting.ranks) + 2)
    assert min(waiting.transfer_ns, waiting.unknown_ns) >= 0


def test_the_rank_that_a_job_waits_for_is_the_one_that_its_collectives_name_last() -> None:
    document = said_of(recorded("tensor_parallel_uneven"))
    assert document.waiting is not None
    assert document.collectives[0].last_rank == document.waiting.ranks[0].rank == document.late[0].rank == 0


@settings(max_examples=12, deadline=None)
@given(
    shape=st.sampled_from([Shape(2), Shape(4), Shape(4, tensor=2), Shape(4, sharded=True), Shape(4, stages=2)]),
    cause=st.sampled_from(["host", "kernels", "work", "input"]),
    late=st.integers(0, 6 * MS),
    rank=st.integers(0, 1),
    seed=st.integers(1, 1_000),
)
def test_parts_add_up_in_any_job(
    tmp_path_factory: pytest.TempPathFactory, shape: Shape, cause: str, late: int, rank: int, seed: int
) -> None:
    job = Job(shape, {rank: Lateness(cause, late)}, steps=3, jitter_ns=20_000, seed=seed)
    document = said_of(made(job, tmp_path_factory.mktemp("job")))
    waiting = document.waiting
    assert waiting is not None
    parts = waiting.transfer_ns + waiting.unknown_ns + sum(one.waiting_ns for one in waiting.ranks)
    assert parts == pytest.approx(waiting.exposed_ns, abs=len(waiting.ranks) + 2)
    assert waiting.exposed_ns <= waiting.of_step_ns
    assert not document.late or re.match(r"Late: rank \d", document.verdict)
