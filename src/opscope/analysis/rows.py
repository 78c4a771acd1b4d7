"""The rows of an analysis as tables with fixed columns and types: steps, the longest gaps, iterations."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.documents.trace import GapRow, IterationRow, Step

_STEPS: Final[Mapping[str, Any]] = {"cold": pl.Boolean}
_GAPS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("device", "start_ns", "duration_ns", "step", "stream"), pl.Int64),
}
_ITERATIONS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("kind", "detail", "bound"), pl.String),
    **dict.fromkeys(("median_ns", "host_ns"), pl.Float64),
}


def steps_table(analysis: Analysis) -> pl.DataFrame:
    """Return the recorded steps in order, one row per step and device."""
    names = [name for name in Step.__struct_fields__ if name != "launch_bound_share"]
    return _frame(analysis.steps, names, _STEPS, pl.Int64)


def gaps_table(analysis: Analysis) -> pl.DataFrame:
    """Return the longest gaps, the longest first, with where the host was in one column (``where``)."""
    names = [name for name in GapRow.__struct_fields__ if name != "causes"]
    places = pl.coalesce("python", "operator", "module", "annotation")
    of_cause = pl.Series([gap.causes[gap.cause] for gap in analysis.gaps], dtype=pl.Int64)
    return _frame(analysis.gaps, names, _GAPS, pl.String).with_columns(where=places, cause_ns=of_cause)


def iterations_table(analysis: Analysis) -> pl.DataFrame:
    """Return the iterations of a server, one row per kind and size."""
    return _frame(analysis.iterations, list(IterationRow.__struct_fields__), _ITERATIONS, pl.Int64)


def _frame(rows: Sequence[object], names: Sequence[str], types: Mapping[str, Any], other: Any) -> pl.DataFrame:
    """Return attributes of rows as columns.

    Args:
        rows: the rows.
        names: the attributes, which name the columns.
        types: the types of some columns.
        other: the type of all other columns.
    """
    values = {name: [getattr(row, name) for row in rows] for name in names}
    return pl.DataFrame(values, schema={name: types.get(name, other) for name in names})
