"""Work of two measurements by kernel, module or category: what a step runs of each, before and after."""

from fractions import Fraction

import polars as pl

from opscope.analysis.difference.exact import per_step
from opscope.analysis.measured import Measured
from opscope.documents.difference import DiffBy, GroupChange

# Per grouping: the column with the name, and those with device time and calls.
_COLUMNS = {
    DiffBy.KERNEL: ("name", "total_ns", "calls"),
    DiffBy.MODULE: ("module", "total_device_ns", "calls"),
    DiffBy.CATEGORY: ("category", "self_device_ns", "calls"),
}


def group_changes(
    before: Measured, after: Measured, by: DiffBy, steps: tuple[int, int]
) -> tuple[GroupChange, ...] | None:
    """Return what a recorded step runs of each kernel, module or category, the largest change first.

    Args:
        before: the measurement to compare with.
        after: the measurement whose changes are reported.
        by: what the groups are. Modules include those inside them, so these must not be added up.
        steps: the number of steps of each side, by which times and counts are divided.

    Returns:
        None where a side recorded no modules.
    """
    tables = _table(before, by), _table(after, by)
    if tables[0] is None or tables[1] is None:
        return None
    sides = [_by_name(table, by, count) for table, count in zip(tables, steps, strict=True) if table is not None]
    nothing = (Fraction(0), 0.0)
    results = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        (first, calls), (second, later) = sides[0].get(name, nothing), sides[1].get(name, nothing)
        results.append(
            GroupChange(
                name=name,
                before_ns=float(first),
                after_ns=float(second),
                change_ns=round(second - first),
                calls_before=calls,
                calls_after=later,
            )
        )
    return tuple(sorted(results, key=lambda one: (-abs(one.change_ns), one.name)))


def _table(one: Measured, by: DiffBy) -> pl.DataFrame | None:
    analysis = one.analysis
    match by:
        case DiffBy.KERNEL:
            return analysis.kernels.with_columns(pl.col("name").cast(pl.String))
        case DiffBy.CATEGORY:
            return analysis.categories
        case DiffBy.MODULE:
            return analysis.modules


def _by_name(table: pl.DataFrame, by: DiffBy, steps: int) -> dict[str, tuple[Fraction, float]]:
    name, time, calls = _COLUMNS[by]
    sums = table.group_by(name).agg(pl.col(time).sum(), pl.col(calls).sum())
    return {one: (per_step(ns, steps), count / steps) for one, ns, count in sums.select(name, time, calls).iter_rows()}
