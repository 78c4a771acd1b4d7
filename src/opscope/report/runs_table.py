"""Renders the list of runs as a table."""

from collections.abc import Sequence
from datetime import datetime

from opscope.documents.comparison import RunRow
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, table_of
from opscope.report.step_parts import step_cell


def runs_table(runs: Sequence[RunRow]) -> Table:
    """Build a table with a row per run; dates are in this machine's time zone."""
    columns: tuple[Column[RunRow], ...] = (
        Column("Run", lambda run: Name(run.folder)),
        Column("Target", lambda run: Name(run.target)),
        Column("Date", lambda run: _date(run.created)),
        Column("Configuration", lambda run: run.configuration or "-"),
        Column("Outcome", lambda run: Name(run.outcome)),
        Column("Step", lambda run: step_cell(run.step_ns, run.step_basis), numeric=True),
    )
    return table_of(columns, runs)


def _date(created: str) -> str:
    try:
        return f"{datetime.fromisoformat(created).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "-"
