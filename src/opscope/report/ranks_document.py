"""Writes what the traces of a job say together: as a section, and as a table per kind of row."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from opscope.base.units import format_bytes, format_count, format_ns, format_rate, format_share
from opscope.documents.findings import Rule
from opscope.documents.ranks import (
    Bubble,
    CollectiveChange,
    JobCollective,
    JobSide,
    JobStep,
    JobStepChange,
    LateChange,
    LateRank,
    PartOfStep,
    ProcessGroupChange,
    RankClock,
    RankEntry,
    RankGroup,
    RanksDifference,
    RanksDocument,
    RankState,
    RankWorkChange,
)
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, field_values, table_of

# ---------------------------------------------------------------- two jobs


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


# ---------------------------------------------------------------- one job


_SHOWN: Final = 10  # collectives, and ranks that are not whole
_BUBBLES: Final = 32  # ranks of a pipeline
_LISTED: Final = 6  # numbers of steps
_NOTHING_SAVED: Final = "Without that a step would be not shorter: something else holds it up as long"


def ranks_section(document: RanksDocument, *, on_page: bool = False) -> Section:
    """Build what people read: what was read, who is late and why, then groups and collectives.

    Args:
        document: what it shows.
        on_page: whether it stands on the page, which has a table of all collectives, and room for each rank's bubbles.
    """
    blocks: list[Block] = [Bullets(tuple(_read(document)))]
    if document.verdict:
        blocks.append(Paragraph.of(document.verdict))
    if document.findings:
        blocks.append(Paragraph.of("What costs most:"))
        blocks.append(Bullets(tuple(_finding(document))))
    shown = document.collectives and not on_page
    for title, table in (
        ("Late ranks:", late_table(document.late) if document.late else None),
        ("Idle devices of the pipeline:", bubble_table(document.bubbles) if on_page and document.bubbles else None),
        ("Process groups:", group_table(document.groups) if document.groups else None),
        ("Collectives:", collective_table(document.collectives[:_SHOWN]) if shown else None),
    ):
        if table is not None:
            blocks += [Paragraph.of(title), table]
    if document.notes:
        blocks += [Paragraph.of("What these figures lack:"), Bullets(tuple((note,) for note in document.notes))]
    world = "an unknown number of" if document.world is None else str(document.world)
    return Section((f"A job of {world} ranks",), tuple(blocks))


def _read(document: RanksDocument) -> Iterator[Inline]:
    states = {state: [one for one in document.ranks if one.state is state] for state in RankState}
    text = ", ".join(f"{len(ones)} {state}" for state, ones in states.items() if ones)
    yield (f"Ranks: {text or 'none'}",)
    for one in states[RankState.DAMAGED][:_SHOWN]:
        yield (f"Rank {one.rank} is damaged: ", Name(one.reason or "unknown"))
    for why, ranks in _by_reason(states[RankState.MISSING]).items():
        more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
        yield (f"Missing: rank {', '.join(ranks[:_SHOWN])}{more}: ", Name(why))
    for path, why in list(document.unread.items())[:_SHOWN]:
        yield ("Not read: ", Name(why)) if path in why else ("Not read: ", Name(path), ": ", Name(why))
    if len(document.unread) > _SHOWN:
        yield (f"Not read: {len(document.unread) - _SHOWN} more files",)
    for path in document.duplicates[:_SHOWN]:
        yield ("Left out, as another file has the same rank: ", Name(path))
    if len(document.duplicates) > _SHOWN:
        yield (f"Left out, as other files have the same ranks: {len(document.duplicates) - _SHOWN} more",)
    if document.steps:
        spans = [step.duration_ns for step in document.steps]
        how_many = f"{len(spans)} {'step' if len(spans) == 1 else 'steps'}"
        waiting = "" if document.waiting is None else f"; {document.waiting.sentence}"
        yield (f"{how_many} of {format_ns(statistics.median(spans))}{waiting}",)
    if document.bubbles:
        yield (_bubbles(document.bubbles),)
    if len(document.ranks) > 1:
        yield (f"Clocks: {document.clock_note}",)
    if document.matched_by:
        yield (f"Collectives of different ranks are matched by {document.matched_by}",)


def _bubbles(rows: Sequence[Bubble]) -> str:
    most = rows[0]
    share = sum(one.bubble_ns / one.of_step_ns for one in rows) / len(rows)
    messages = sum(one.messages_ns for one in rows) / max(sum(one.bubble_ns for one in rows), 1)
    return (
        f"Pipeline: devices have nothing to do for {format_share(share, 1.0)} of a step (mean of {len(rows)} ranks), "
        f"{format_share(messages, 1.0)} of that in messages; most on rank {most.rank}, "
        f"{format_ns(most.bubble_ns)} of {format_ns(most.of_step_ns)}"
    )


def _by_reason(entries: Sequence[RankEntry]) -> dict[str, list[str]]:
    """Group ranks by what is wrong with them."""
    results: dict[str, list[str]] = {}
    for one in entries:
        results.setdefault(one.reason or "unknown", []).append(str(one.rank))
    return results


def _finding(document: RanksDocument) -> Iterator[Inline]:
    for one in document.findings:
        if not one.is_small:
            saves = f"Without that a step would take {one.saving}" if one.saving else _NOTHING_SAVED
            yield (Name(f"{one.title}; {one.action}"), f". {saves}")
    small = [str(one.ranks[0]) for one in document.findings if one.is_small and one.rule == Rule.LATE_RANK]
    if small:
        more = f" and {len(small) - _SHOWN} more" if len(small) > _SHOWN else ""
        plural = "s" if len(small) > 1 else ""
        yield (
            f"Late, but without that a step would hardly be shorter: rank{plural} {', '.join(small[:_SHOWN])}{more}",
        )


def _steps(numbers: Sequence[int | None]) -> str:
    listed = [str(one) for one in numbers if one is not None]
    more = ", ..." if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more if listed else "the whole recording"


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


def late_table(rows: Sequence[LateRank]) -> Table:
    """Build the table of late ranks."""
    return table_of(
        [
            Column[LateRank]("Rank", lambda one: str(one.rank), numeric=True),
            Column[LateRank]("Cause", lambda one: str(one.cause)),
            Column[LateRank]("Late by", lambda one: format_ns(one.late_ns), numeric=True),
            Column[LateRank]("Of a step", lambda one: format_share(one.late_ns, one.of_step_ns), numeric=True),
            Column[LateRank]("Steps", lambda one: _steps(one.steps)),
            Column[LateRank]("Where", lambda one: Name(one.where or "unknown")),
            Column[LateRank]("Because", lambda one: Name("; ".join(one.evidence))),
        ],
        rows,
    )


def bubble_table(rows: Sequence[Bubble]) -> Table:
    """Build the table of a pipeline's bubbles: a row for each rank whose device is idle, or only waits in messages."""
    columns: tuple[Column[Bubble], ...] = (
        Column("Rank", lambda row: str(row.rank), numeric=True),
        Column("In a step", lambda row: format_ns(row.bubble_ns), numeric=True),
        Column("Of it in messages", lambda row: format_ns(row.messages_ns), numeric=True),
        Column("Of a step of", lambda row: format_ns(row.of_step_ns), numeric=True),
    )
    return table_of(columns, rows[:_BUBBLES])


def group_table(rows: Sequence[RankGroup]) -> Table:
    """Build the table of process groups."""
    return table_of(
        [
            Column[RankGroup]("Group", lambda one: Name(one.description)),
            Column[RankGroup]("Ranks", lambda one: _or_unknown(one.size), numeric=True),
            Column[RankGroup]("Groups", lambda one: format_count(one.groups), numeric=True),
            Column[RankGroup](
                "Calls", lambda one: Name(", ".join(f"{n} {name}" for name, n in one.collectives.items()))
            ),
            Column[RankGroup]("In a step", lambda one: format_ns(one.busy_ns), numeric=True),
            Column[RankGroup]("Of it exposed", lambda one: format_ns(one.exposed_ns), numeric=True),
        ],
        rows,
    )


def _last(one: JobCollective) -> str:
    return "" if one.last_rank is None else f"{one.last_rank} ({format_share(one.last_share, 1.0)})"


def collective_table(rows: Sequence[JobCollective]) -> Table:
    """Build the table of collectives."""
    return table_of(
        [
            Column[JobCollective]("Collective", lambda one: Name(one.collective)),
            Column[JobCollective]("Group", lambda one: Name(one.group)),
            Column[JobCollective]("Size", lambda one: format_bytes(one.bytes), numeric=True),
            Column[JobCollective]("Calls", lambda one: format_count(one.calls), numeric=True),
            Column[JobCollective]("Transfer", lambda one: format_ns(one.transfer_ns), numeric=True),
            Column[JobCollective]("Wait", lambda one: format_ns(one.wait_ns), numeric=True),
            Column[JobCollective]("Worst wait", lambda one: format_ns(one.worst_wait_ns), numeric=True),
            Column[JobCollective]("Bus bandwidth", lambda one: format_rate(one.bus_bandwidth), numeric=True),
            Column[JobCollective](
                "Of the link", lambda one: format_share(one.bus_bandwidth, one.link_bandwidth), numeric=True
            ),
            Column[JobCollective]("Last rank", _last),
        ],
        rows,
    )


def rank_table(document: RanksDocument) -> Table:
    """Build the table of ranks, with their clocks."""
    clocks = {one.rank: one for one in document.clocks}

    def clock(read: Callable[[RankClock], str]) -> Callable[[RankEntry], str]:
        return lambda one: read(clocks[one.rank]) if one.rank in clocks else "unknown"

    late = {one.rank: one for one in document.late}
    return table_of(
        [
            Column[RankEntry]("Rank", lambda one: str(one.rank), numeric=True),
            Column[RankEntry]("State", lambda one: str(one.state)),
            Column[RankEntry](
                "Late by", lambda one: format_ns(late[one.rank].late_ns) if one.rank in late else "", numeric=True
            ),
            Column[RankEntry]("Cause", lambda one: str(late[one.rank].cause) if one.rank in late else ""),
            Column[RankEntry]("Host", lambda one: Name(one.host or "unknown")),
            Column[RankEntry]("Device", lambda one: Name(one.device or "unknown")),
            Column[RankEntry]("Steps", lambda one: format_count(one.steps), numeric=True),
            Column[RankEntry]("Clock ahead", clock(lambda one: format_ns(one.offset_ns)), numeric=True),
            Column[RankEntry]("Within", clock(lambda one: format_ns(one.error_ns)), numeric=True),
            Column[RankEntry]("Drift", clock(lambda one: f"{one.drift_ppm:.2f} ppm"), numeric=True),
        ],
        document.ranks,
    )


def _step_table(rows: Sequence[JobStep]) -> Table:
    """Build the table of steps."""
    return table_of(
        [
            Column[JobStep]("Step", lambda one: _or_unknown(one.step), numeric=True),
            Column[JobStep]("Ranks", lambda one: format_count(one.ranks), numeric=True),
            Column[JobStep]("Takes", lambda one: format_ns(one.duration_ns), numeric=True),
            Column[JobStep]("Last rank", lambda one: str(one.last_rank), numeric=True),
            Column[JobStep]("Later than most by", lambda one: format_ns(one.late_ns), numeric=True),
            Column[JobStep]("Exposed communication", lambda one: format_ns(one.exposed_ns), numeric=True),
        ],
        rows,
    )


_HEATS: Final = "·▁▂▃▄▅▆▇█"


def heat_table(document: RanksDocument) -> Table:
    """Build the heat map: a row for each rank, a character for each step or some of them, full where it is latest."""
    heat = document.heat
    if heat is None:
        return Table(columns=("Rank", "Late by at most", "Steps"), rows=())
    most = max(max(row) for row in heat.late_ns) or 1
    rows = [
        (str(rank), format_ns(max(*row, 0)), "".join(_shade(one / most) for one in row))
        for rank, row in zip(heat.ranks, heat.late_ns, strict=True)
    ]
    first, last = heat.steps[0][0], heat.steps[-1][1]
    span = "Steps" if first is None else f"Steps {first} to {last}"
    return Table(columns=("Rank", "Late by at most", span), rows=tuple(rows), numeric=frozenset({0, 1}))


def _shade(share: float) -> str:
    return _HEATS[max(0, min(len(_HEATS) - 1, round(share * (len(_HEATS) - 1))))]


# By what --by names: the table for people, and the rows and fields of CSV.
RANKS_TABLES: Final[Mapping[str, Callable[[RanksDocument], Table]]] = {
    "late": lambda document: late_table(document.late),
    "heat": heat_table,
    "rank": rank_table,
    "step": lambda document: _step_table(document.steps),
    "group": lambda document: group_table(document.groups),
    "collective": lambda document: collective_table(document.collectives),
}
_ROWS: Final[Mapping[str, tuple[Callable[[RanksDocument], Sequence[object]], tuple[str, ...]]]] = {
    "late": (lambda document: document.late, ("rank", "cause", "late_ns", "of_step_ns", "where", "steps")),
    "step": (lambda document: document.steps, JobStep.__struct_fields__),
    "group": (lambda document: document.groups, ("description", "size", "groups", "busy_ns", "exposed_ns")),
    "collective": (lambda document: document.collectives, JobCollective.__struct_fields__),
}


def ranks_values(document: RanksDocument, by: str) -> Table:
    """Build the table of CSV, with bare figures."""
    if by == "heat":
        return _heat_values(document)
    if by == "rank":
        return _rank_values(document)
    rows, fields = _ROWS[by]
    return Table(columns=fields, rows=tuple(field_values(one, fields) for one in rows(document)))


def _rank_values(document: RanksDocument) -> Table:
    """Build the table of ranks with what the one for people shows of each: why it is late, and its clock."""
    late = {one.rank: one for one in document.late}
    clocks = {one.rank: one for one in document.clocks}
    of_late, of_clock = ("late_ns", "cause"), ("offset_ns", "error_ns", "drift_ppm")
    rows = []
    for one in document.ranks:
        results = [(late.get(one.rank), of_late), (clocks.get(one.rank), of_clock)]
        joined = [("",) * len(fields) if of is None else field_values(of, fields) for of, fields in results]
        rows.append((*field_values(one, RankEntry.__struct_fields__), *joined[0], *joined[1]))
    return Table(columns=(*RankEntry.__struct_fields__, *of_late, *of_clock), rows=tuple(rows))


def _heat_values(document: RanksDocument) -> Table:
    heat = document.heat
    fields = ("rank", "first_step", "last_step", "late_ns")
    if heat is None:
        return Table(columns=fields, rows=())
    return Table(
        columns=fields,
        rows=tuple(
            (str(rank), "" if first is None else str(first), "" if last is None else str(last), str(late))
            for rank, row in zip(heat.ranks, heat.late_ns, strict=True)
            for (first, last), late in zip(heat.steps, row, strict=True)
        ),
    )
