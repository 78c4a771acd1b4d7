"""Renders the difference of two runs for people."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from opscope.analysis.difference.compared import IDLE
from opscope.base.units import format_bytes, format_count, format_ns, format_share, input_shapes
from opscope.documents.difference import (
    DiffBy,
    DiffDocument,
    GroupChange,
    MatchedBy,
    MemoryChange,
    MemoryPart,
    PairDiff,
    StepChange,
    WorkChange,
)
from opscope.knowledge.categories import Category
from opscope.knowledge.kernels.kinds import short_name
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, field_values, table_of
from opscope.report.by import SHOWN_ROWS
from opscope.report.step_parts import of_change

# Fields of `WorkChange`, which add up to its change -> words.
_REASONS: Final = {
    "calls_ns": "calls",
    "inputs_ns": "other inputs",
    "launches_ns": "launches of a call",
    "kernel_changed_ns": "other kernels",
    "same_kernel_ns": "same work, other time",
    "clocks_ns": "clocks, at most",
}


_LEADING: Final = 3  # parts that are named first
_LEAST_LEADING: Final = 0.1  # of the largest of them
_LEAST_SHOWN: Final = 0.01  # of the largest part: smaller groups of work are one line together
_CONTAINERS: Final = (Category.COMPILED, Category.FRAMEWORK)  # they compute nothing themselves
_NAMED: Final = 8  # groups of work that the page has a line for
_SEVERAL: Final = 2  # kernels from which on these are opened
_OPENED: Final = 8  # kernels of a compiled region that are listed


def difference_section(document: DiffDocument, top: int | None = SHOWN_ROWS) -> Section:
    """Build the section of a whole document.

    Args:
        document: the difference.
        top: the rows of work shown for each pair; None for all.
    """
    one_sided = [
        (f"only {when}: ", Name(", ".join(names)))
        for when, names in (("before", document.only_before), ("after", document.only_after))
        if names
    ]
    one_sided += [("not compared: ", Name(reason)) for reason in document.incomplete]
    blocks: tuple[Block, ...] = (Paragraph.of("Before: ", Name(document.before), ", after: ", Name(document.after)),)
    if one_sided:
        blocks = (*blocks, Bullets(tuple(one_sided)))
    return Section(("What changed",), blocks, tuple(_pair(pair, top) for pair in document.pairs))


def pair_sections(document: DiffDocument) -> tuple[Section, ...]:
    """Build what the page says of a difference: of all, then of each pair; tables of work are its own."""
    whole = difference_section(document, top=0)
    return (replace(whole, sections=()), *(_pair_on_page(pair) for pair in document.pairs))


def _pair_on_page(pair: PairDiff) -> Section:
    parts = (
        Section(("What it is made of",), tuple(_adds_up(pair.step))) if pair.step.reason is None else None,
        Section(("Kernels, before and after",), (Paragraph.of(_of_kernels(pair)),)) if pair.kernels else None,
        Section(("Idle time by cause",), tuple(_idle(pair.step))) if pair.step.idle else None,
        Section(("The host, under the profiler",), tuple(_host(pair))) if pair.host else None,
        Section(("Memory",), tuple(_memory(pair.memory))) if pair.memory else None,
    )
    blocks = (*_verdict(pair), *_change_in_words(pair.step))
    return Section((Name(pair.name),), blocks, tuple(part for part in parts if part is not None))


def _of_kernels(pair: PairDiff) -> str:
    return f"Device time of {'a recorded step' if pair.step.per_step else 'the recording'}, by the kernels' names."


def _pair(pair: PairDiff, top: int | None) -> Section:
    parts = (
        Section(("What it is made of",), tuple(_made_of(pair.step, top))),
        None if pair.by is None else Section((f"By {pair.by}",), tuple(_grouped(pair, top))),
        Section(("The host, under the profiler",), tuple(_host(pair))) if pair.host else None,
        Section(("Memory",), tuple(_memory(pair.memory))) if pair.memory else None,
    )
    return Section((Name(pair.name),), tuple(_verdict(pair)), tuple(part for part in parts if part is not None))


def _verdict(pair: PairDiff) -> Iterator[Block]:
    if pair.differing:
        yield Paragraph.of("Differences in setup:")
        rows = ((one.kind, Name(one.name), Name(one.before or "-"), Name(one.after or "-")) for one in pair.differing)
        yield Table(("Of the", "What", "Before", "After"), tuple(rows))
    yield Paragraph.of(pair.unprofiled.sentence)
    if pair.gate is not None:
        yield Paragraph.of(f"Gate: {pair.gate}.")
    if pair.culprit is not None:
        yield Paragraph.of("What grew most: ", Name(pair.culprit))


def _what(step: StepChange) -> str:
    return f"{'unprofiled' if step.unprofiled else 'recorded'} step" if step.per_step else "recording"


def _change_in_words(step: StepChange) -> Iterator[Block]:
    what, plus = _what(step), "+" if step.change_ns > 0 else ""
    add_up = " Work and the other parts add up to that exactly." if step.reason is None else ""
    yield Paragraph.of(
        f"The {what} took {format_ns(step.before_ns)}, then {format_ns(step.after_ns)}: {change(step.change_ns)} "
        f"({plus}{format_share(step.change_ns, step.before_ns)}).{add_up}"
    )
    if step.reason is not None:
        yield Paragraph.of(f"It is not taken apart: {step.reason}.")
    else:
        yield Paragraph.of(*_leading(step))


def _idle(step: StepChange) -> Iterator[Block]:
    yield Paragraph.of("Idle time by its causes in the recorded steps:")
    yield Table(("Cause", "Change"), tuple((p.name, _marked(p.change_ns, step)) for p in step.idle), frozenset({1}))


def _made_of(step: StepChange, top: int | None) -> Iterator[Block]:
    yield from _change_in_words(step)
    if step.reason is not None:
        return
    shown = _shown(step, top)
    listed = sum(row.change_ns for row in shown)
    yield _parts_table(step, [("work listed below", listed)] if shown else [], len(step.work) - len(shown))
    if step.idle:
        yield from _idle(step)
    if shown:
        yield Paragraph.of("Work by operator and inputs:")
        yield work_table(step, len(shown))
        for row in shown:
            yield from _opened(row)


def _parts_table(step: StepChange, works: Sequence[tuple[str, int]], others: int) -> Table:
    """Build a table whose lines add up to the change exactly, however many groups of work have one.

    Args:
        step: the step taken apart.
        works: lines of work, with their changes in nanoseconds.
        others: how many groups of work are in no line.
    """
    rest = step.work_ns - sum(ns for _, ns in works)
    lines = chain(
        works,
        ((f"{others} {'other ' if works else ''}group{'s' if others > 1 else ''} of work", rest),) if others else (),
        ((part.name, part.change_ns) for part in step.parts),
        ((f"change of the {_what(step)}", step.change_ns),),
    )
    return Table(("Part", "Change"), tuple((Name(name), _marked(ns, step)) for name, ns in lines), frozenset({1}))


def _adds_up(step: StepChange) -> Iterator[Block]:
    """Yield what the change of a step is made of, the largest groups of work by name."""
    works = [(_with_inputs(row), row.change_ns) for row in step.work[:_NAMED]]
    yield _parts_table(step, works, len(step.work) - len(works))
    on_device = step.measured_on == "device"
    what = "device time" if on_device else "operators' CPU self time"
    unit = "step" if step.per_step else "recording"
    idle = " Idle is what the unprofiled step has beyond the device's work." if step.unprofiled and on_device else ""
    yield Paragraph.of(
        f"Work is {what} as recorded, a {unit}; it and the other parts add up to the change exactly.{idle}"
    )


def _opened(row: WorkChange) -> Iterator[Block]:
    """List the kernels of a compiled region or another part of the framework, which is one group of work."""
    if row.category not in _CONTAINERS or len(row.kernels) < _SEVERAL:
        return
    yield Paragraph.of("Kernels of ", Name(_called(row)), ", a step:")
    times = [(one, _time(one.calls_before, one.mean_before_ns), _time(one.calls_after, one.mean_after_ns))
             for one in row.kernels]  # fmt: skip
    times.sort(key=lambda result: -abs(result[2] - result[1]))
    lines = tuple(
        (
            Name(short_name(one.after or one.before or "")),
            change(round(after - before)),
            format_ns(before),
            format_ns(after),
            _both_counts(one.calls_before or 0.0, one.calls_after or 0.0),
        )
        for one, before, after in times[:_OPENED]
    )
    yield Table(("Kernel", "Change", "Before", "After", "Calls"), lines, frozenset({1, 2, 3}))
    if len(times) > _OPENED:
        yield Paragraph.of(f"and {len(times) - _OPENED} further kernels that changed less.")


def _time(calls: float | None, mean_ns: float | None) -> float:
    return (calls or 0.0) * (mean_ns or 0.0)


def _leading(step: StepChange) -> Inline:
    """Name the parts that changed most; of idle time, the cause."""
    parts = [(row.change_ns, _called(row), _with_inputs(row), "") for row in step.work]
    parts += [(one.change_ns, one.name, one.name, _cause(step) if one.name == IDLE else "") for one in step.parts]
    parts.sort(key=lambda part: -abs(part[0]))
    largest = abs(parts[0][0]) if parts else 0
    leading = [part for part in parts[:_LEADING] if part[0] and abs(part[0]) >= _LEAST_LEADING * largest]
    if not leading:
        return ("No part of it has changed.",)
    names = [name for _, name, _, _ in leading]  # inputs tell apart what has one name
    named = (
        (Name(name if names.count(name) == 1 else whole), f" {change(ns)}{cause}") for ns, name, whole, cause in leading
    )
    first, *others = named
    return ("What changed most: ", *first, *(text for pair in others for text in ("; ", *pair)), ".")


def _cause(step: StepChange) -> str:
    """Say which cause of idle time changed most, in the direction of all of it."""
    idle = sum(part.change_ns for part in step.idle)
    along = [part for part in step.idle if part.change_ns * idle > 0]
    return f" (mostly {max(along, key=lambda part: abs(part.change_ns)).name})" if along else ""


def _shown(step: StepChange, top: int | None) -> tuple[WorkChange, ...]:
    """Return the groups of work that are listed: without those that hardly count beside the largest part."""
    if top is None:
        return step.work
    largest = max(
        (abs(ns) for ns in (*(row.change_ns for row in step.work), *(part.change_ns for part in step.parts))), default=0
    )
    return tuple(row for row in step.work[:top] if abs(row.change_ns) >= _LEAST_SHOWN * largest)


def work_table(step: StepChange, top: int | None = None) -> Table:
    """Build a table with a row per group of work, the largest change first.

    Args:
        step: the step taken apart.
        top: the number of rows; None for all.
    """
    columns: tuple[Column[WorkChange], ...] = (
        Column("Operator", lambda row: Name(_called(row))),
        Column("Inputs", lambda row: Name(input_shapes(row.inputs_after or row.inputs_before)), optional=True),
        Column("Change", lambda row: _marked(row.change_ns, step), numeric=True),
        Column("Before", lambda row: format_ns(row.before_ns), numeric=True),
        Column("After", lambda row: format_ns(row.after_ns), numeric=True),
        Column("Calls", _calls),
        Column("Because of", lambda row: ", ".join(_reasons(row)) or "-"),
        Column("Matched by", _matched, optional=True),
    )
    return table_of(columns, step.work[:top])


def _grouped(pair: PairDiff, top: int | None) -> Iterator[Block]:
    if pair.groups is None:
        kernels = pair.by is DiffBy.KERNEL
        why = "work of a device." if kernels else "modules: profile with --with-stack."
        yield Paragraph.of(f"Not both sides recorded {why}")
        return
    inside = " with what runs inside it" if pair.by is DiffBy.MODULE else ""
    yield Paragraph.of(
        f"Device time of a recorded {'step' if pair.step.per_step else 'trace'}, of each {pair.by}{inside}:"
    )
    changed = [one for one in pair.groups if one.change_ns]
    if not changed:
        yield Paragraph.of("None of them has changed.")
        return
    columns: tuple[Column[GroupChange], ...] = (
        Column(
            str(pair.by).capitalize(), lambda one: Name(short_name(one.name) if pair.by is DiffBy.KERNEL else one.name)
        ),
        Column("Change", lambda one: _marked(one.change_ns, pair.step), numeric=True),
        Column("Before", lambda one: format_ns(one.before_ns), numeric=True),
        Column("After", lambda one: format_ns(one.after_ns), numeric=True),
        Column("Calls", lambda one: _both_counts(one.calls_before, one.calls_after)),
    )
    yield table_of(columns, changed[:top])


def group_values(document: DiffDocument) -> Table:
    """Build the table for programs: every kernel, module or category of every pair, as plain values."""
    columns = ("pair", *GroupChange.__struct_fields__)
    rows = tuple((pair.name, *field_values(one, columns[1:])) for pair in document.pairs for one in pair.groups or ())
    return Table(columns, rows)


def work_values(document: DiffDocument) -> Table:
    """Build the table for programs: every group of work of every pair, as plain values."""
    columns = (
        "pair", "operator", "renamed_to", "category", "matched", "inputs_before", "inputs_after", "calls_before",
        "calls_after", "before_ns", "after_ns", "change_ns", *_REASONS,
    )  # fmt: skip
    rows = tuple((pair.name, *field_values(row, columns[1:])) for pair in document.pairs for row in pair.step.work)
    return Table(columns, rows)


def _called(row: WorkChange) -> str:
    if row.operator is None:
        kernel = next((one.before or one.after for one in row.kernels), None)
        return short_name(kernel) if kernel else "work of no operator"
    return f"{row.operator} -> {row.renamed_to}" if row.renamed_to else row.operator


def _with_inputs(row: WorkChange) -> str:
    shapes = row.inputs_after or row.inputs_before
    return _called(row) if shapes is None else f"{_called(row)} {input_shapes(shapes)}".strip()


def _calls(row: WorkChange) -> str:
    return _both_counts(row.calls_before, row.calls_after)


def _both_counts(before: float, after: float) -> str:
    return format_count(before) if before == after else f"{format_count(before)} -> {format_count(after)}"


def _reasons(row: WorkChange) -> Iterator[str]:
    """Yield the reasons for a group's change, the largest first, with their parts if there are several."""
    if row.matched in (MatchedBy.GONE, MatchedBy.NEW):
        return
    words_of = {**_REASONS, "kernel_changed_ns": f"other kernels{_kernels(row)}"}
    reasons = {words: ns for name, words in words_of.items() if (ns := getattr(row, name))}
    for words, ns in sorted(reasons.items(), key=lambda item: -abs(item[1])):
        yield words if len(reasons) == 1 else f"{words} {change(ns)}"


def _kernels(row: WorkChange) -> str:
    """Name the replaced and the new kernel if there is exactly one of each; else return an empty text."""
    gone = [short_name(one.before) for one in row.kernels if one.before and not one.after]
    new = [short_name(one.after) for one in row.kernels if one.after and not one.before]
    return f" ({gone[0]} -> {new[0]})" if len(gone) == len(new) == 1 else ""


def _matched(row: WorkChange) -> str:
    return str(row.matched) if row.why is None else f"{row.matched}: {row.why}"


def _host(pair: PairDiff) -> Iterator[Block]:
    host = pair.host
    if host is None:
        return
    yield Paragraph.of(
        f"{format_count(host.launches_before)} launches, then {format_count(host.launches_after)}; "
        f"{format_ns(host.before_ns)} on the host, then {format_ns(host.after_ns)}."
    )
    lines = [*((part.name, part.change_ns) for part in host.parts), ("change on the host", host.change_ns)]
    yield Table(("Part", "Change"), tuple((name, change(ns)) for name, ns in lines), frozenset({1}))


def _memory(memory: MemoryChange) -> Iterator[Block]:
    items = [
        _both("peak allocated in the unprofiled steps", memory.before_bytes, memory.after_bytes),
        _both("peak in the recording", memory.recorded_before_bytes, memory.recorded_after_bytes),
    ]
    yield Bullets(tuple(item for item in items if item is not None))
    if memory.parts:
        columns: tuple[Column[MemoryPart], ...] = (
            Column("Alive at the peak, by operator", lambda part: Name(part.name)),
            Column("Before", lambda part: format_bytes(part.before_bytes), numeric=True),
            Column("After", lambda part: format_bytes(part.after_bytes), numeric=True),
            Column("Change", lambda part: _more(part.change_bytes), numeric=True),
        )
        yield table_of(columns, memory.parts)


def _both(name: str, before: int | None, after: int | None) -> Inline | None:
    if before is None and after is None:
        return None
    grown = "" if before is None or after is None else f" ({_more(after - before)})"
    return (f"{name}: {format_bytes(before)}, then {format_bytes(after)}{grown}",)


def _more(size: int) -> str:
    return f"+{format_bytes(size)}" if size > 0 else format_bytes(size)


def change(ns: float) -> str:
    """Format a change in nanoseconds, with a plus sign if it takes longer."""
    return f"+{format_ns(ns)}" if ns > 0 else format_ns(ns)


def _marked(ns: float, step: StepChange) -> str:
    return of_change(change(ns), ns, step.before_ns)
