"""What ``opscope analyze`` prints of its traces. Apart from its options, because this takes a while to import."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.analysis.structure.origin import process_name
from opscope.analysis.verdict.step_evidence import busiest
from opscope.base.units import format_ns, format_share
from opscope.cli.emit import Output, emit
from opscope.cli.options import shown_rows
from opscope.cli.say import say
from opscope.cli.terminal import echo_block, echo_lines, echo_table, on_terminal
from opscope.documents.trace import TraceDocument, TraceDocuments
from opscope.documents.verdict import BoundKind
from opscope.knowledge.native_functions import NativeFunctions
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.report.analysis_tables import table_by, values_by
from opscope.report.brief import first_things, together_line
from opscope.report.by import By
from opscope.report.compiled_document import compile_section
from opscope.report.step_parts import of_trust, or_reason, step_line

if TYPE_CHECKING:
    from opscope.documents.findings import BriefDocument


_LONGEST_NAME = 40  # characters of a file's name at the head of what is read first


class Analysed(Struct, frozen=True):
    """One of the command's traces.

    Attributes:
        path: as text.
        measured: what the trace says.
        functions: the operators of the PyTorch that ran.
        called: what commands take for it; None for its path.
    """

    path: str
    measured: Measured
    functions: NativeFunctions
    called: str | None = None

    @property
    def analysis(self) -> Analysis:
        """The trace's analysis."""
        return self.measured.analysis


class RowChoice(Struct, frozen=True):
    """Which rows tables have.

    Attributes:
        by: what a row stands for; None for what all traces record.
        sort: a column to sort by; None for the table's own order.
        top: how many; 0 means all, None those that fit a table for people.
        full_names: whether kernels have their whole names on a terminal too.
    """

    by: By | None
    sort: str | None
    top: int | None
    full_names: bool = False


def print_lines(analysed: Sequence[Analysed], output_format: str, sort: str | None) -> None:
    """Print a line for each of many traces, and what they share.

    Args:
        analysed: the traces.
        output_format: ``table``, ``csv`` or ``md``.
        sort: a column to sort by; None keeps the order of the traces.

    Raises:
        UsageError: there is no such column.
    """
    from opscope.report.trace_lines import line_of, lines_table, lines_values, shared, sorted_lines

    lines = sorted_lines([line_of(one.called or one.path, one.measured) for one in analysed], sort)
    table, sentences = lines_table(lines), shared(lines)

    def text() -> None:
        echo_table(table)
        say("", err=False)
        echo_lines(sentences)
        say("opscope: --each shows each of them, --by rows of all", err=True)

    section = Section(("Traces",), (table, Bullets(tuple((sentence,) for sentence in sentences))))
    emit(
        Output(document=lambda: lines, values=lambda: lines_values(lines), sections=lambda: (section,), text=text),
        output_format,
    )


def print_analyses(analysed: Sequence[Analysed], output_format: str, rows: RowChoice, *, why: bool = False) -> None:
    """Print the analyses of one or more traces.

    Args:
        analysed: the traces.
        output_format: ``table``, ``json``, ``csv`` or ``md``.
        rows: which rows tables have.
        why: whether people see how what is said first is known, too.

    Raises:
        UsageError: a table has no column to sort by that name, or the traces do not record what rows stand for.
    """
    by = rows.by or _default(analysed)
    analyses = {one.path: one.analysis for one in analysed}

    def document() -> TraceDocument | TraceDocuments:
        from opscope.report.trace_document import build_trace_document  # tables for people need none of this

        documents = tuple(build_trace_document(one.measured, one.functions) for one in analysed)
        return documents[0] if len(documents) == 1 else TraceDocuments(traces=documents)

    def text() -> None:
        short = on_terminal() and not rows.full_names
        for one in analysed:
            _print_one(one, by, _table(one, by, rows, short_names=short), why=why, alone=len(analysed) == 1)

    def brief() -> Sequence[Section]:
        """Return the brief of one trace; a table where that was asked for."""
        if rows.by is not None or rows.top is not None or rows.sort is not None:
            return [
                Section(
                    (Name(one.path),),
                    (
                        Paragraph.of(f"{one.measured.bound.sentence} Trust: {one.measured.trust.verdict}."),
                        _table(one, by, rows, short_names=True),
                    ),
                )
                for one in analysed
            ]
        from opscope.report.brief import brief_section

        return [brief_section(brief_of(one)) for one in analysed]

    output = Output(
        document=document,
        # CSV has all rows, unless --top asks for some.
        values=lambda: values_by(analyses, by, sort=rows.sort, top=rows.top or None),
        sections=lambda: [_section(one, by, _table(one, by, rows, short_names=False)) for one in analysed],
        text=text,
        brief=brief,
    )
    emit(output, output_format)


def print_briefs(analysed: Sequence[Analysed], output_format: str) -> None:
    """Print the document of one trace's brief, or a line for each of several traces.

    Args:
        analysed: the traces.
        output_format: ``json``, ``csv`` or ``md``.
    """
    from opscope.report.brief import brief_section

    if len(analysed) != 1:
        print_lines(analysed, output_format, None)
        return
    document = brief_of(analysed[0])
    rows = ((one.id, str(round(one.likely_ns)), Name(one.title), Name(one.prove)) for one in document.findings)
    table = Table(("id", "likely_ns", "title", "prove"), tuple(rows))
    emit(Output.of_section(document, lambda: table, lambda: brief_section(document)), output_format)


def brief_of(one: Analysed) -> "BriefDocument":
    """Return a trace in a few lines."""
    from opscope.report.brief import build_brief
    from opscope.report.trace_document import build_trace_document

    return build_brief(one.called or one.path, one.measured, build_trace_document(one.measured, one.functions))


def _table(one: Analysed, by: By, rows: RowChoice, *, short_names: bool) -> Table:
    losses, part = one.analysis.losses, f"the table by {by}"
    table = partial(table_by, one.analysis, by, sort=rows.sort, top=shown_rows(rows.top), short_names=short_names)
    return or_reason(losses, part, lambda: (table(),), lambda reason: Table((part,), ((reason,),)))[0]


def _section(one: Analysed, by: By, table: Table) -> Section:
    """Return a trace as a section: with all evidence, as no one waits at a terminal for it."""
    empty = () if table.rows else (Paragraph.of(f"No rows by {by}."),)
    further = () if one.measured.compiled is None else (compile_section(one.measured.compiled),)
    return Section((one.path,), (*_screen(one), *_why(one), table, *empty), further)


def _print_one(one: Analysed, by: By, table: Table, *, why: bool, alone: bool) -> None:
    for block in (*_screen(one, alone=alone), *(_why(one) if why else ())):
        echo_block(block)
    if not why:
        echo_lines(["More: --why, opscope page TRACE"])
    say("", err=False)
    echo_table(table)
    if not table.rows:
        say(f"opscope: {one.path} has nothing to show by {by}")
    if one.measured.compiled is not None:
        say("", err=False)
        for block in compile_section(one.measured.compiled).blocks:
            echo_block(block)
    say("", err=False)


def _default(analysed: Sequence[Analysed]) -> By:
    """Return what rows stand for by default: the same in every trace, so that one table can hold them all."""
    if all(one.measured.bound.kind == BoundKind.CAPTURE for one in analysed):
        return By.CAPTURED
    known = all(one.analysis.operators.height and not one.analysis.mostly_unlinked for one in analysed)
    return By.OPERATOR if known else By.KERNEL


def _screen(one: Analysed, *, alone: bool = False) -> list[Block]:
    """Return what is read first; what fails is left out with its reason. A trace alone is called by its file's name."""
    from opscope.report.brief import first_screen, screen_blocks

    losses = one.analysis.losses
    screen = or_reason(losses, "the first screen", lambda: screen_blocks(first_screen(one.measured)), Paragraph.of)
    # Made after it: its trust is also about what failed in the screen.
    named = or_reason(losses, "the file's name", lambda: (Paragraph(_named(one, alone=alone)),), Paragraph.of)
    return [*named, *screen]


def _why(one: Analysed) -> Iterator[Block]:
    """Yield how that is known: evidence, devices, gaps, accounting, and all checks that are in doubt."""
    parts: tuple[tuple[str, Callable[[Analysed], Iterator[Inline]]], ...] = (
        ("the evidence", _evidence),
        ("the light pass and the devices", _devices),
        ("the longest gap", _gap),
        ("what was sampled", _sampled),
        ("the accounting", _accounting),
        ("graphs", _graphs),
    )
    for name, make in parts:
        yield from map(Paragraph, or_reason(one.analysis.losses, name, partial(make, one), lambda reason: (reason,)))
    trust = one.measured.trust  # last: it says what failed before
    yield Paragraph((of_trust(f"Trust: {trust.verdict}", trust.verdict),))
    for check in trust.doubts():
        yield Paragraph((of_trust(f"  {check.verdict.upper()} {check.name}: {check.sentence}", check.verdict),))


def _named(one: Analysed, *, alone: bool) -> Inline:
    analysis, measured = one.analysis, one.measured
    process = process_name(analysis.source)
    named = f" ({process})" if process != analysis.source.path else ""
    steps = "1 step" if measured.step_count == 1 else f"{measured.step_count:,} steps"
    if (odd := len(analysis.odd_steps)) > 0:
        steps = f"{measured.step_count:,} of {measured.step_count + odd:,} steps"
    if analysis.steps_from is not None:
        steps = f"{steps}, not marked"
    trust = measured.trust.verdict
    doubts = sum(check.verdict is trust for check in measured.trust.doubts())
    text = f"{trust} ({doubts})" if doubts else str(trust)
    path = Path(one.path).name if alone else one.path
    if alone and len(path) > _LONGEST_NAME:
        path = f"{path[: _LONGEST_NAME - 1]}…"
    return Name(f"{path}{named}"), *_on(one), f": {steps}; trust: ", of_trust(text, trust)


def _on(one: Analysed) -> Inline:
    """Return on which devices it ran, and how their name is known where the trace does not record it."""
    devices = one.measured.timed.devices
    if not devices:
        return ()
    more = f" and {len(devices) - 1} more" if len(devices) > 1 else ""
    return " on ", Name(busiest(devices).name), more


def _evidence(one: Analysed) -> Iterator[Inline]:
    measured = one.measured
    yield (f"{one.analysis.source.event_count:,} events.",)
    if measured.bound.evidence:
        yield (f"How that is known: {measured.bound.evidence}",)
    if measured.step_time is not None:
        yield (f"{step_line(measured.step_time).capitalize()}.",)
    if one.analysis.steps_from is not None:
        yield (one.analysis.steps_from,)
    yield from first_things(measured.findings)
    if measured.advice.together is not None:
        yield together_line(measured.advice.together)


def _devices(one: Analysed) -> Iterator[Inline]:
    measured = one.measured
    if measured.light is not None:
        yield (measured.light.sentence,)
    for device in measured.timed.devices:
        window, busy = device.window, device.busy_in_window_ns
        yield (
            f"Device {device.device} (",
            Name(device.name),
            f"): {device.activities:,} activities, "
            f"sum {format_ns(device.sum_ns)}, busy {format_ns(busy)} ({format_share(busy, window.duration_ns)}), "
            f"idle {format_ns(device.idle_ns)} of the {window.kind} of {format_ns(window.duration_ns)}",
        )


def _gap(one: Analysed) -> Iterator[Inline]:
    from opscope.report.overview import longest_gap

    analysis, measured = one.analysis, one.measured
    windows = {device.device: device.window.duration_ns for device in analysis.devices}
    light = measured.light is not None and measured.light.analysis is not None
    gap = longest_gap(analysis.gaps, windows, with_names=light, may_have_stacks=analysis.trace.operators.height > 0)
    if gap is not None and measured.bound.kind != BoundKind.CAPTURE:
        yield gap


def _sampled(one: Analysed) -> Iterator[Inline]:
    from opscope.report.overview import sampled

    return ((sentence,) for sentence in sampled(one.analysis.counters))


def _accounting(one: Analysed) -> Iterator[Inline]:
    analysis = one.analysis
    if analysis.has_device_times:
        yield (analysis.accounting.sentence,)


def _graphs(one: Analysed) -> Iterator[Inline]:
    analysis = one.analysis
    if (unknown := analysis.graph_nodes.filter(pl.col("captured_operator").is_null())).height:
        # Of reasons that are equally frequent the first by name, so that the same trace gives the same text.
        most = unknown["captured_how"].mode().sort()[0]
        yield (
            f"Graphs: {unknown.height:,} of {analysis.graph_nodes.height:,} nodes have no operator: {most} "
            "(--graph-capture FILE: a trace of the capture)",
        )
