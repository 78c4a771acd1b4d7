"""Writes what changed between two jobs."""

from collections.abc import Iterator, Sequence
from typing import Final

from opscope.base.units import format_bytes, format_count, format_ns
from opscope.documents.ranks_difference import (
    CollectiveChange,
    JobSide,
    JobStepChange,
    LateChange,
    PartOfStep,
    ProcessGroupChange,
    RanksDifference,
    RankWorkChange,
)
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, field_values, table_of

_FIELDS: Final = ("part", "before_ns", "after_ns")


def ranks_difference_section(document: RanksDifference, top: int | None) -> Section:
    """Build what people read: whether steps changed, what of them did, then late ranks, groups, collectives, work.

    Args:
        document: what changed.
        top: the most rows of collectives and of work; None for all.
    """
    blocks: list[Block] = [Bullets(tuple(_first(document)))]
    for title, table in (
        ("A step is made of (mean over ranks and steps):", _parts(document.parts)),
        ("Late ranks:", _late(document.late)),
        ("Process groups, exposed in a step:", _groups(document.groups)),
        ("Collectives that both have:", _collectives(document.collectives[:top])),
        ("Kernels, per rank and step:", _work(document.work[:top])),
    ):
        if table.rows:
            blocks += [Paragraph.of(title), table]
    lacking = (*document.incomplete, *document.notes)
    blocks += [Paragraph.of("What these figures lack:"), Bullets(tuple((Name(note),) for note in lacking))]
    return Section(("Two jobs",), tuple(blocks))


def ranks_difference_values(document: RanksDifference) -> Table:
    """Build the table of CSV: the parts of a step, in nanoseconds."""
    return Table(columns=_FIELDS, rows=tuple(field_values(one, _FIELDS) for one in document.parts))


def _first(document: RanksDifference) -> Iterator[Inline]:
    before, after = document.before, document.after
    yield ("Before: ", Name(_told(before)))
    yield ("After: ", Name(_told(after)))
    if before.step_ns is None or after.step_ns is None:
        yield ("Steps are not compared: the ranks of a job have none in common, or nothing ran on their devices",)
        return
    change, ratio = after.step_ns - before.step_ns, f"{after.step_ns / max(before.step_ns, 1):.3g}"
    match document.step:
        case JobStepChange.LONGER:
            yield (
                f"Steps are longer: by {format_ns(change)}, {ratio} times as long; no step is as short as one before",
            )
        case JobStepChange.SHORTER:
            yield (
                f"Steps are shorter: by {format_ns(-change)}, {ratio} times as long; all are shorter than any before",
            )
        case JobStepChange.UNDECIDED:
            yield (_undecided(document),)


def _undecided(document: RanksDifference) -> str:
    if document.ratio_low is None or document.ratio_high is None:
        return f"Whether steps changed is not decided: {document.undecided}"
    span = f"{_percent(document.ratio_low)} to {_percent(document.ratio_high)}"
    return f"No change of steps is seen: with what they vary, they may have changed by {span}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _told(side: JobSide) -> str:
    ranks = f"{side.ranks} of {side.world or 'an unknown number of'} ranks"
    if side.step_ns is None or side.shortest_ns is None or side.longest_ns is None:
        return f"{side.name}, {ranks}"
    spread = f"{format_ns(side.shortest_ns)} to {format_ns(side.longest_ns)}"
    return f"{side.name}, {ranks}, {side.steps} steps of {format_ns(side.step_ns)} ({spread})"


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "new" if before is None else "gone"
    sign = "+" if after > before else "-" if after < before else ""
    return f"{sign}{format_ns(abs(after - before))}"


def _parts(rows: Sequence[PartOfStep]) -> Table:
    return table_of(
        [
            Column[PartOfStep]("Part", lambda one: one.part),
            Column[PartOfStep]("Before", lambda one: format_ns(one.before_ns), numeric=True),
            Column[PartOfStep]("After", lambda one: format_ns(one.after_ns), numeric=True),
            Column[PartOfStep]("Change", lambda one: _change(one.before_ns, one.after_ns), numeric=True),
        ],
        rows,
    )


def _optional(value: int | None) -> str:
    return "" if value is None else format_ns(value)


def _late(rows: Sequence[LateChange]) -> Table:
    return table_of(
        [
            Column[LateChange]("Rank", lambda one: str(one.rank), numeric=True),
            Column[LateChange]("Cause", lambda one: str(one.cause)),
            Column[LateChange]("Late by, before", lambda one: _optional(one.before_ns), numeric=True),
            Column[LateChange]("After", lambda one: _optional(one.after_ns), numeric=True),
            Column[LateChange]("Change", lambda one: _change(one.before_ns, one.after_ns), numeric=True),
        ],
        rows,
    )


def _groups(rows: Sequence[ProcessGroupChange]) -> Table:
    return table_of(
        [
            Column[ProcessGroupChange]("Group", lambda one: Name(one.description)),
            Column[ProcessGroupChange]("Before", lambda one: _optional(one.before_ns), numeric=True),
            Column[ProcessGroupChange]("After", lambda one: _optional(one.after_ns), numeric=True),
            Column[ProcessGroupChange]("Change", lambda one: _change(one.before_ns, one.after_ns), numeric=True),
        ],
        rows,
    )


def _collectives(rows: Sequence[CollectiveChange]) -> Table:
    return table_of(
        [
            Column[CollectiveChange]("Collective", lambda one: Name(one.collective)),
            Column[CollectiveChange]("Group", lambda one: Name(one.group)),
            Column[CollectiveChange]("Size", lambda one: format_bytes(one.bytes), numeric=True),
            Column[CollectiveChange]("Transfer, before", lambda one: _optional(one.before_transfer_ns), numeric=True),
            Column[CollectiveChange]("After", lambda one: _optional(one.after_transfer_ns), numeric=True),
            Column[CollectiveChange]("Wait, before", lambda one: _optional(one.before_wait_ns), numeric=True),
            Column[CollectiveChange]("Wait, after", lambda one: _optional(one.after_wait_ns), numeric=True),
        ],
        rows,
    )


def _calls(one: RankWorkChange) -> str:
    return f"{format_count(one.before_calls)} -> {format_count(one.after_calls)}"


def _work(rows: Sequence[RankWorkChange]) -> Table:
    return table_of(
        [
            Column[RankWorkChange]("Operator", lambda one: Name(one.operator)),
            Column[RankWorkChange]("Kernel", lambda one: Name(one.kernel)),
            Column[RankWorkChange]("Calls", _calls, numeric=True),
            Column[RankWorkChange]("Before", lambda one: format_ns(one.before_ns), numeric=True),
            Column[RankWorkChange]("After", lambda one: format_ns(one.after_ns), numeric=True),
            Column[RankWorkChange]("Change", lambda one: _change(one.before_ns, one.after_ns), numeric=True),
        ],
        rows,
    )
