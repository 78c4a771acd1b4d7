"""What ``opscope analyze`` prints of its traces. Apart from its options, because this imports what takes a while."""

from collections.abc import Iterator, Mapping

import click

from opscope.analysis.analyzed import Analysis
from opscope.analysis.bounds import bound_of
from opscope.analysis.trust import Verdict
from opscope.knowledge.native_functions import NativeFunctions
from opscope.record import encode
from opscope.report.analysis_document import AnalysisDocuments, build_analysis_document
from opscope.report.analysis_tables import table_by, values_by
from opscope.report.by import SHOWN_ROWS, By
from opscope.report.tables import Format, as_csv, as_markdown, as_text
from opscope.report.text import printable
from opscope.units import format_ns, format_share


def print_analyses(
    analyses: Mapping[str, Analysis],
    functions: NativeFunctions,
    output_format: Format,
    *,
    by: By | None,
    sort: str | None,
    top: int | None,
) -> None:
    """Print the analyses of one or more traces, by path; ``top`` is how many rows tables have, and 0 means all."""
    rows = top or None
    if output_format is Format.JSON:
        documents = tuple(build_analysis_document(analysis, functions) for analysis in analyses.values())
        click.echo(encode(documents[0] if len(documents) == 1 else AnalysisDocuments(traces=documents)), nl=False)
        return
    if output_format is Format.CSV:
        click.echo(as_csv(values_by(analyses, by or _default(next(iter(analyses.values()))), sort=sort, top=rows)))
        return
    for path, analysis in analyses.items():
        table = table_by(analysis, by or _default(analysis), sort=sort, top=SHOWN_ROWS if top is None else rows)
        if output_format is Format.MD:
            click.echo(as_markdown(table, path))
        else:
            click.echo("\n".join(printable(line) for line in _summary(path, analysis)))
            click.echo(f"\n{as_text(table)}\n")


def _default(analysis: Analysis) -> By:
    return By.OPERATOR if analysis.operators.height else By.KERNEL


def _summary(path: str, analysis: Analysis) -> Iterator[str]:
    """Yield what a reader must know before any row of a table."""
    source = analysis.source
    yield f"{path}: {source.event_count:,} events, {analysis.step_count} steps"
    for device in analysis.devices:
        window, busy = device.window, device.busy_in_window_ns
        yield (
            f"Device {device.device} ({device.name}): {device.activities:,} activities, "
            f"sum {format_ns(device.sum_ns)}, busy {format_ns(busy)} ({format_share(busy, window.duration_ns)}), "
            f"idle {format_ns(device.idle_ns)} of the {window.kind} of {format_ns(window.duration_ns)}"
        )
    bound = bound_of(analysis, steps=analysis.step_count, wall_ns=None, ran_on_gpu=None)
    yield f"What bounds it: {bound.kind}. {bound.sentence}"
    if analysis.has_device_times:
        accounting = analysis.accounting
        yield (
            f"Accounting: operators {accounting.operators_ns:,} ns + unlinked {accounting.unlinked_ns:,} ns "
            f"({accounting.unlinked_activities:,} activities) = device sum {accounting.activities_ns:,} ns"
        )
    yield f"Trust: {analysis.trust.verdict}"
    for check in analysis.trust.checks:
        if check.verdict is not Verdict.PASS:
            yield f"  {check.verdict.upper()} {check.name}: {check.sentence}"
