"""Whether transfers, waits and bandwidths of collectives are what was made, by hand and against the definitions."""

from pathlib import Path

import pytest

from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import RankSummary
from opscope.documents.ranks import JobCollective
from tests.distributed.recorded import made, recorded, said_of
from tests.jobs import Job, Lateness, Shape
from tests.kineto import KinetoTrace


def rank(
    folder: Path, number: int, kernels: list[tuple[int, int]], name: str = "allreduce", elements: int = 1_000_000
) -> RankSummary:
    """Return the summary of a rank with one step and some collectives: (start, duration) of each on its device."""
    trace = KinetoTrace(distributedInfo={"rank": number, "world_size": 2})
    trace.step(1, 0, 1_000_000)
    trace.launched_kernel("compute", (1_000, 1_000), (3_000, 10_000))
    for place, run in enumerate(kernels):
        told = {
            "Collective name": name, "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
            "dtype": "Float", "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]", "In split size": "[]", "Out split size": "[]",
        }  # fmt: skip
        at = 20_000 + 10_000 * place
        trace.operator("record_param_comms", at, 5_000, **told, **{"External id": 100 + place})
        launch = trace.launch(at + 1_000, 2_000)
        trace.kernel("ncclDevKernel", *run, launch, stream=20, **told, **{"External id": 100 + place})
    return summarise_rank(trace.write(folder / f"rank{number}.json"))


def only(ranks: dict[int, RankSummary]) -> JobCollective:
    (one,) = said_of(ranks).collectives
    return one


def test_transfer_is_the_shortest_kernel_and_waiting_what_others_take_longer(tmp_path: Path) -> None:
    # Rank 1 comes 300 us later to the first collective, rank 0 100 us later to the second; each moves in 80 us.
    first = rank(tmp_path, 0, [(100_000, 380_000), (600_000, 80_000)])
    second = rank(tmp_path, 1, [(400_000, 80_000), (500_000, 180_000)])
    one = only({0: first, 1: second})
    assert (one.calls, one.whole, one.bytes) == (2, 2, 4_000_000)
    assert one.transfer_ns == 80_000
    assert one.wait_ns == 100_000  # means of (300, 0) and (0, 100), and the median of these
    assert one.worst_wait_ns == 300_000
    assert one.algorithm_bandwidth == pytest.approx(4e6 / 80e-6)
    assert one.bus_bandwidth == pytest.approx(4e6 / 80e-6)  # 2 (n - 1) / n of two ranks
    assert one.last_rank is None  # once each


@pytest.mark.parametrize(
    ("name", "ranks_of_link"),
    [("allreduce", 1.0), ("_allgather_base", 0.5), ("reduce_scatter", 0.5), ("broadcast", 1.0)],
)
def test_bus_bandwidth_counts_what_each_link_carries(tmp_path: Path, name: str, ranks_of_link: float) -> None:
    ranks = {number: rank(tmp_path, number, [(100_000, 80_000)], name) for number in (0, 1)}
    one = only(ranks)
    assert one.bus_bandwidth == pytest.approx(ranks_of_link * 4e6 / 80e-6)


def test_ranks_that_disagree_about_a_collective_are_not_matched(tmp_path: Path) -> None:
    ranks = {0: rank(tmp_path, 0, [(100_000, 80_000)]), 1: rank(tmp_path, 1, [(100_000, 80_000)], elements=7)}
    document = said_of(ranks)
    assert {one.whole for one in document.collectives} == {0}
    assert any("ranks disagree" in note for note in document.notes)


def test_the_late_rank_is_the_last_of_most_collectives(tmp_path: Path) -> None:
    late = {2: Lateness("kernels", 3_000_000)}
    (first, *_) = said_of(made(Job(Shape(4), late, jitter_ns=2_000), tmp_path)).collectives
    assert first.last_rank == 2
    assert first.worst_wait_ns == pytest.approx(3_000_000, rel=0.1)
    assert first.transfer_ns == pytest.approx(120_000, rel=0.25)


def test_groups_are_told_by_their_use(tmp_path: Path) -> None:
    document = said_of(made(Job(Shape(8, tensor=2)), tmp_path))
    groups = {one.description: one for one in document.groups}
    assert {name: (one.size, one.groups) for name, one in groups.items()} == {
        "tensor_parallel": (2, 4),
        "data_parallel": (4, 2),
    }
    assert groups["tensor_parallel"].collectives == {"allreduce": 8 * 4 * 6}
    assert groups["tensor_parallel"].exposed_ns == groups["tensor_parallel"].busy_ns  # the compute stream waits for it


def test_recorded_waits_of_a_late_backward_are_what_was_built_in() -> None:
    document = said_of(recorded("late_backward_host"))
    worst = max(one.worst_wait_ns or 0 for one in document.collectives)
    assert worst == pytest.approx(200e6, rel=0.02)
    assert {one.last_rank for one in document.collectives if one.calls > 3} == {1}
    # Links between two H100: 18 of NVLink 4, 450 GB/s each way; small messages get less.
    assert all((one.bus_bandwidth or 0) < 450e9 for one in document.collectives)


def test_no_rank_is_called_the_last_by_chance(tmp_path: Path) -> None:
    for seed in range(4):
        job = Job(Shape(8), steps=6, jitter_ns=20_000, seed=seed)
        assert [one.last_rank for one in said_of(made(job, tmp_path / str(seed))).collectives] == [None]
