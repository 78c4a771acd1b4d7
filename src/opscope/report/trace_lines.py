"""Many traces at a glance: a line for each, and what they share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from msgspec import Struct

from opscope.analysis.measured import Measured
from opscope.analysis.verdict.step_evidence import busiest
from opscope.base.errors import UsageError
from opscope.base.units import format_share
from opscope.documents.verdict import Verdict
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, field_values, table_of
from opscope.report.brief import first_screen
from opscope.report.step_parts import of_trust, step_cell


class TraceLine(Struct, frozen=True):
    """One trace in a line.

    Attributes:
        trace: its path.
        steps: how many it marks.
        bound: what bounds a step.
        step_ns: how long a step takes; None if no steps are known.
        step_basis: whether that is an unprofiled step or a recorded one.
        busy_share: the share of the window in which the busiest device works; None where nothing ran on one.
        finding: the rule of what to do first; None if there is nothing.
        title: the same in one line.
        saving_ns: the likely saving of it, per step.
        saving_share: the same as a share of the step without the profiler, where that is known or estimated.
        trust: the verdict of the trust checks.
    """

    trace: str
    steps: int
    bound: str
    step_ns: float | None
    step_basis: str | None
    busy_share: float | None
    finding: str | None
    title: str | None
    saving_ns: float | None
    saving_share: float | None
    trust: str


_FIELDS: Final = TraceLine.__struct_fields__
# What --sort takes: the heading as in the table, or the field as in CSV.
_HEADINGS: Final[Mapping[str, str]] = {
    "Trace": "trace", "Steps": "steps", "Bound": "bound", "Step": "step_ns", "Busy": "busy_share",
    "First finding": "finding", "Likely saving": "saving_share", "Trust": "trust",
}  # fmt: skip


def line_of(path: str, measured: Measured) -> TraceLine:
    """Return what is said of a trace in one line: what its first screen says, shorter."""
    screen, share = first_screen(measured), None
    chosen = screen.findings[0].id if screen.findings else None
    first = next((one for one in measured.findings if one.id == chosen), None)
    if measured.timed.devices:
        device = busiest(measured.timed.devices)
        share = device.busy_in_window_ns / device.window.duration_ns if device.window.duration_ns else None
    return TraceLine(
        trace=path,
        steps=measured.step_count,
        bound=screen.bound,
        step_ns=None if screen.step is None else screen.step.ns,
        step_basis=None if screen.step is None else str(screen.step.basis),
        busy_share=share,
        finding=None if first is None else str(first.rule),
        title=None if first is None else first.title,
        saving_ns=None if first is None else first.likely_ns,
        saving_share=None if first is None else first.likely_ns / first.of_step_ns,
        trust=screen.trust,
    )


def sorted_lines(lines: Sequence[TraceLine], column: str | None) -> list[TraceLine]:
    """Return lines in order: as they came, or by a column, numbers from the largest on and text from A on.

    Raises:
        UsageError: there is no such column.
    """
    if column is None:
        return list(lines)
    folded = {name.casefold(): field for name, field in _HEADINGS.items()}
    field = folded.get(column.casefold(), column)
    if field not in _FIELDS:
        raise UsageError(f"there is no column {column!r}; there are {', '.join((*_HEADINGS, *_FIELDS))}")
    known = [line for line in lines if getattr(line, field) is not None]
    are_numbers = all(isinstance(getattr(line, field), int | float) for line in known)
    known.sort(key=attrgetter(field), reverse=are_numbers)
    return known + [line for line in lines if getattr(line, field) is None]


def lines_table(lines: Sequence[TraceLine]) -> Table:
    """Build the table for people."""
    return table_of(
        [
            Column[TraceLine]("Trace", lambda one: Name(one.trace)),
            Column[TraceLine]("Steps", lambda one: str(one.steps), numeric=True, optional=True),
            Column[TraceLine]("Bound", lambda one: one.bound),
            Column[TraceLine]("Step", lambda one: step_cell(one.step_ns, one.step_basis), numeric=True),
            Column[TraceLine]("Busy", lambda one: format_share(one.busy_share, 1.0), numeric=True),
            Column[TraceLine]("First finding", lambda one: one.finding or "-"),
            Column[TraceLine]("Likely saving", lambda one: format_share(one.saving_share, 1.0), numeric=True),
            Column[TraceLine]("Trust", lambda one: of_trust(one.trust, Verdict(one.trust))),
        ],
        lines,
    )


def lines_values(lines: Sequence[TraceLine]) -> Table:
    """Build the table for programs, with bare figures."""
    return Table(_FIELDS, tuple(field_values(one, _FIELDS) for one in lines))


def shared(lines: Sequence[TraceLine]) -> list[str]:
    """Return sentences on what the traces have in common: what bounds them, and what is found first."""
    bounds = Counter(one.bound for one in lines).most_common()
    sentences = [f"What bounds {len(lines)} traces: {_counted(bounds)}."]
    findings = Counter(one.finding for one in lines if one.finding is not None).most_common()
    if findings:
        sentences.append(f"Top finding: {_counted(findings)}.")
    doubted = [one for one in lines if one.trust == "fail"]
    if doubted:
        sentences.append(
            f"{len(doubted)} of them fail a trust check: read the failed checks before relying on their figures."
        )
    return sentences


def _counted(counts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} in {count}" for name, count in counts)
