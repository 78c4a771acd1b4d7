"""What a sweep prints when it has ended: the three most expensive operators, the comparison, where the files are."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from opscope.cli.terminal import echo_lines, echo_table
from opscope.documents.comparison import Comparison, Comparisons
from opscope.documents.trace import OperatorRow, TraceDocument
from opscope.documents.trust import Verdict
from opscope.pipeline import read_documents
from opscope.record.codec import encode
from opscope.record.sweep import Manifest
from opscope.report.comparison import compare
from opscope.report.comparison_report import comparison_table, comparison_values
from opscope.report.finding_text import first_things
from opscope.report.tables import as_csv, as_markdown
from opscope.store import COMPARISON, COMPARISON_REPORT, PAGE, RunDirectory
from opscope.sweep.runner import failed_entries, worthless_entries
from opscope.text import printable
from opscope.units import format_ns, format_share

_SHOWN = 3


def print_sweep(finished: Sequence[tuple[RunDirectory, Manifest]], output_format: str) -> None:
    """Print the results of one or more sweeps to standard output, and problems to standard error."""
    results = [(directory, manifest, list(read_documents(directory, manifest))) for directory, manifest in finished]
    comparisons = {str(directory.path): compare(documents, manifest) for directory, manifest, documents in results}
    if output_format == "json":
        several = tuple(comparisons.values())
        click.echo(encode(several[0] if len(several) == 1 else Comparisons(sweeps=several)).decode(), nl=False)
    elif output_format == "csv":
        click.echo(as_csv(comparison_values(comparisons)))
    else:
        for directory, manifest, documents in results:
            if documents:
                _print_one(directory, manifest, comparisons[str(directory.path)], documents, output_format)
    for reason in dict.fromkeys(document.device_times_reason for _, _, found in results for document in found):
        if reason is not None:
            click.echo(f"Device times are unknown (null): {reason}. CPU times are shown.", err=True)
    for directory, manifest, _ in results:
        _print_problems(directory, manifest)


def _print_one(
    directory: RunDirectory,
    manifest: Manifest,
    comparison: Comparison,
    documents: Sequence[TraceDocument],
    output_format: str,
) -> None:
    table = comparison_table(comparison)
    if output_format == "md":
        click.echo(as_markdown(table, f"Comparison: {comparison.description}"))
        return
    for document in documents:
        echo_lines(_first(document))
    echo_table(table)
    click.echo(f"\nReports in {printable(str(directory.path))}{_separator(directory.path)}:")
    click.echo("\n".join(printable(line) for line in _files(directory, manifest)))


def _separator(path: Path) -> str:
    return "" if str(path).endswith("/") else "/"


def _first(document: TraceDocument) -> Iterator[str]:
    """Yield what bounds the step, what to do first, and the operators that cost most."""
    wall = document.measurement.wall
    step = f"{format_ns(wall.median_ns)} per step" if wall else "step not timed"
    yield f"{document.name}: {step}, {document.bound.kind}{_doubts(document)}"
    if document.capture is not None and document.capture.steady_state:
        yield f"  {document.capture.steady_state}"
    if document.has_device_times:
        yield f"  {document.bound.sentence}"
    for line in first_things(document.findings):
        yield f"  {''.join(line)}"
    if document.findings:
        yield "  The operators that cost most:"
    for number, operator in enumerate(document.operators[:_SHOWN], 1):
        yield f"  {'- ' if document.findings else f'{number}. '}{_operator(operator, document)}"
    yield ""


def _doubts(document: TraceDocument) -> str:
    failed = [check.name for check in document.trust.checks if check.verdict is Verdict.FAIL]
    return f" (TRUST CHECKS FAIL: {', '.join(failed)})" if failed else ""


def _operator(row: OperatorRow, document: TraceDocument) -> str:
    if document.has_device_times:
        time, all_, whole = row.self_device_ns, document.device_sum_ns, "device sum"
    else:
        time, all_, whole = row.self_cpu_ns, document.cpu_self_ns, "operators' CPU self time"
    steps = document.step_count
    took = f"{format_ns(time / steps)} per step" if steps else f"{format_ns(time)} in the recording"
    where = f", {row.cpp_function}" if row.cpp_function else ""
    return f"{row.name}: {took}, {format_share(time, all_)} of the {whole} ({row.category}{where})"


def _files(directory: RunDirectory, manifest: Manifest) -> Iterator[str]:
    page = f"{PAGE} (for a browser), " if directory.inside(PAGE).is_file() else ""
    yield f"  {page}{COMPARISON_REPORT}, {COMPARISON}, manifest.json"
    for entry in manifest.entries:
        if entry.status == "done":
            first = entry.files.cycles[0]
            yield f"  {first.report}, {first.statistics}, {first.trace}"


def _print_problems(directory: RunDirectory, manifest: Manifest) -> None:
    lines = []
    for entry in failed_entries(manifest):
        if entry.failure is not None:
            log = f" (log: {directory.path / entry.failure.log})" if entry.failure.log else ""
            lines.append(f"{entry.configuration.id} failed: {entry.failure.message}{log}")
    if any(entry.status == "done" for entry in manifest.entries) and not directory.inside(PAGE).is_file():
        lines.append(f"{PAGE} was not written: opscope page {directory.path} -o page.html says why")
    lines += [f"{entry.configuration.id}: {entry.problem}" for entry in worthless_entries(manifest)]
    pending = [entry.configuration.id for entry in manifest.entries if entry.status == "pending"]
    if pending:
        lines.append(f"not run: {', '.join(pending)}; --resume runs them")
    for line in lines:
        click.echo(f"opscope: {printable(line)}", err=True)
