"""The rule on sweeps: batches that are too small for the device."""

from collections.abc import Iterator, Sequence
from typing import Final

from opscope.analysis.advice.remedies import saving_text
from opscope.analysis.advice.rule import measured, nanoseconds, share_of
from opscope.documents.comparison import ComparisonRow
from opscope.documents.findings import Finding, Rule, SavingRange, Source, StepBasis, Where
from opscope.record.configuration import Value

_BATCH: Final = "batch_size"
_LEAST_SHARE: Final = 0.2  # of the smallest batch's step: the least saving that is worth a finding
_NEARLY_ALL: Final = 0.9  # of the best throughput


def small_batches(rows: Sequence[ComparisonRow], target: str) -> Iterator[Finding]:
    """Yield a finding per series of batch sizes whose smallest batch is too small for the device.

    A series is configurations that differ only in their batch size.

    Args:
        rows: configurations of one sweep that were not measured on a busy machine.
        target: what was measured.
    """
    series: dict[tuple[tuple[str, Value], ...], dict[int, ComparisonRow]] = {}
    for row in rows:
        size = row.axes.get(_BATCH)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0 and row.wall_ns:
            others = tuple((name, value) for name, value in row.axes.items() if name != _BATCH)
            series.setdefault(others, {})[size] = row
    count = 0
    for result in series.values():
        finding = _of_series(dict(sorted(result.items())), target, count)
        if finding is not None:
            count += 1
            yield finding


def _of_series(rows: dict[int, ComparisonRow], target: str, count: int) -> Finding | None:
    smallest = next(iter(rows))
    per_item = {size: (row.wall_ns or 0.0) / size for size, row in rows.items()}
    best = min(per_item.values())
    # The smallest batch whose time per item is nearly the best.
    turn = next(size for size, time in per_item.items() if best >= _NEARLY_ALL * time)
    small, large = rows[smallest], rows[turn]
    wall, share = (small.wall_ns or 0.0), smallest / turn
    high = wall - (large.wall_ns or 0.0) * share
    if turn == smallest or high < _LEAST_SHARE * wall:
        return None
    low = (small.wall_low_ns or 0.0) - (large.wall_high_ns or large.wall_ns or 0.0) * share
    saving = SavingRange(round(max(min(low, high), 0.0)), round(high))
    return Finding(
        id=str(Rule.SMALL_BATCH) if not count else f"{Rule.SMALL_BATCH}-{count + 1}",
        rule=str(Rule.SMALL_BATCH),
        title=f"A batch of {smallest} is too small for the device: throughput grows up to {turn} ({small.id})",
        where=Where(),
        saving_ns=saving,
        saving=f"{saving_text(saving, wall, StepBasis.UNPROFILED)}, for the same work in batches of {turn}",
        likely_ns=(saving.low + saving.high) / 2,
        is_first=True,
        of_step_ns=wall,
        of_step=StepBasis.UNPROFILED,
        derivation=f"the step less its share ({share:.2g}) of a step with batches of {turn}, by medians (high) and by "
        "the ends of their 95 % intervals (low)",
        evidence=(
            measured(
                "a step takes ",
                nanoseconds(wall),
                f" with batches of {smallest}, and ",
                nanoseconds(large.wall_ns),
                f" with {turn}: {turn / smallest:g} times the work",
                source=Source.UNPROFILED,
            ),
            measured(
                f"with {smallest} the device is busy ",
                share_of(small.device_share, 1),
                f" of the step, with {turn} ",
                share_of(large.device_share, 1),
                source=Source.STEP,
            ),
        ),
        action=f"{_BATCH} = {turn}",
        prove=f"opscope profile {target} --batch-sizes {smallest} {turn}",
        wrong_if="a result is needed before more inputs are there, or memory does not allow it",
    )
