"""Whether clocks come out as they were made, and errors as large as they are said to be."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.distributed.clocks import RankClocks, clocks_of
from opscope.distributed.collectives import Matched, matched, rows_of
from tests.distributed.recorded import made, recorded
from tests.jobs import Job, Lateness, Shape


def errors(job: Job, clocks: RankClocks) -> npt.NDArray[np.float64]:
    """Return by how much each offset is off, in nanoseconds."""
    true = np.array([offset + drift * (clocks.middle_ns - offset) for offset, drift in job.clocks()])
    off: npt.NDArray[np.float64] = clocks.offset_ns - true
    return off - float(np.median(off))


def of(job: Job, folder: Path) -> tuple[Matched, RankClocks]:
    found = matched(rows_of(made(job, folder)))
    clocks = clocks_of(found.calls)
    assert clocks is not None
    return found, clocks


def test_offsets_of_hosts_are_found_to_half_a_microsecond(tmp_path: Path) -> None:
    late = {13: Lateness("kernels", 5_000_000, (2,))}
    job = Job(Shape(32), late, steps=6, jitter_ns=20_000, noise_ns=1_000)
    found, clocks = of(job, tmp_path)
    off = np.abs(errors(job, clocks))
    assert np.median(off) < 500
    assert off.max() < 1_500
    # What is said of the errors holds: they are standard deviations.
    assert (off <= 3 * clocks.error_ns).all()
    # On the common clock no one leaves before the last has entered; on the ranks' own clocks they do.
    before, after = (violations(found, one) for one in (None, clocks))
    assert before > 5
    assert after == 0


def violations(found: Matched, clocks: RankClocks | None) -> int:
    rank = found.calls["rank"].to_numpy()
    start, end = (found.calls[name].to_numpy() for name in ("start_ns", "end_ns"))
    if clocks is not None:
        start, end = clocks.true(rank, start), clocks.true(rank, end)
    call = found.calls["call"].to_numpy()
    numbers = np.unique(call)
    entered, left = ([rule(of[call == one]) for one in numbers] for rule, of in ((np.max, start), (np.min, end)))
    return int((np.array(left) < np.array(entered) - 2_000).sum())


def test_a_rank_that_is_always_last_is_said_to_be_uncertain(tmp_path: Path) -> None:
    job = Job(Shape(8), {3: Lateness("kernels", 3_000_000)}, jitter_ns=20_000)
    _, clocks = of(job, tmp_path)
    off = np.abs(errors(job, clocks))
    assert np.argmax(off) == 3
    assert off[3] <= clocks.error_ns[3]
    assert (np.delete(off, 3) <= 3 * np.delete(clocks.error_ns, 3)).all()


def test_tensor_parallel_groups_tie_their_ranks_through_others(tmp_path: Path) -> None:
    job = Job(Shape(16, tensor=4), steps=6, jitter_ns=20_000, per_host=2)
    _, clocks = of(job, tmp_path)
    assert np.abs(errors(job, clocks)).max() < 2_000


@settings(max_examples=8, deadline=None)
@given(
    offset=st.integers(1_000, 5_000_000),
    drift=st.floats(0.0, 20.0),
    noise=st.integers(0, 5_000),
    seed=st.integers(0, 1_000),
)
def test_whatever_the_clocks_are_their_median_error_is_as_large_as_said(
    tmp_path_factory: pytest.TempPathFactory, offset: int, drift: float, noise: int, seed: int
) -> None:
    job = Job(
        Shape(8), steps=5, jitter_ns=30_000, offset_ns=offset, drift_ppm=drift, noise_ns=noise, per_host=2, seed=seed
    )
    _, clocks = of(job, tmp_path_factory.mktemp("job"))
    assert np.median(np.abs(errors(job, clocks))) <= 3 * np.median(clocks.error_ns)


def test_ranks_of_one_host_agree_to_microseconds_where_that_was_recorded() -> None:
    clocks = clocks_of(matched(rows_of(recorded("healthy_ddp"))).calls)
    assert clocks is not None
    assert np.ptp(clocks.offset_ns) < 10_000


def test_messages_tie_clocks_where_their_receivers_waited_for_them() -> None:
    clocks = clocks_of(matched(rows_of(recorded("pipeline_late_kernels"))).calls)
    assert clocks is not None
    # Both ranks ran on one host: what is left is how much later than its sender a receiver ends.
    assert np.ptp(clocks.offset_ns) < 20_000
    assert (clocks.error_ns >= 10_000).all()


def test_stages_of_a_pipeline_are_tied_by_their_messages_alone(tmp_path: Path) -> None:
    job = Job(Shape(8, stages=2), steps=6, jitter_ns=20_000, offset_ns=2_000_000, per_host=2)
    _, clocks = of(job, tmp_path)
    assert len(clocks.ranks) == 8
    assert np.abs(errors(job, clocks)).max() < 20_000
    assert (clocks.error_ns > 10_000).sum() == 4  # one of the two stages


def test_ranks_that_share_nothing_have_no_common_clock(tmp_path: Path) -> None:
    found = matched(rows_of(made(Job(Shape(6, tensor=2), per_host=1), tmp_path)))
    apart = found.calls.filter(pl.col("description") == "tensor_parallel")
    clocks = clocks_of(apart)
    assert clocks is not None
    assert len(clocks.ranks) == 2
    assert len(clocks.untied) == 4
