"""The list of runs as a table."""

from collections.abc import Sequence
from datetime import datetime

from opscope.base.units import format_ns
from opscope.documents.runs import RunRow
from opscope.render.blocks import Name, Table


def runs_table(runs: Sequence[RunRow]) -> Table:
    """Return one row per run; dates are in the time of this machine."""
    return Table(
        ("Run", "Target", "Date", "Configuration", "Outcome", "Step"),
        tuple(
            (
                Name(run.folder),
                Name(run.target),
                _date(run.created),
                run.configuration or "-",
                Name(run.outcome),
                "-" if run.step_ns is None else format_ns(run.step_ns),
            )
            for run in runs
        ),
        numeric=frozenset({5}),
    )


def _date(created: str) -> str:
    try:
        return f"{datetime.fromisoformat(created).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "-"
