"""What a sweep prints when it has ended: the three most expensive operators, the comparison, where the files are."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from opscope.analysis.trust import Verdict
from opscope.record import Manifest, encode
from opscope.report.comparison import Comparison, Comparisons, compare
from opscope.report.comparison_report import comparison_table, comparison_values
from opscope.report.document import OperatorEntry, ProfileDocument
from opscope.report.tables import as_csv, as_markdown, as_text
from opscope.report.text import printable
from opscope.store import RunDirectory
from opscope.sweep.outputs import read_documents
from opscope.sweep.runner import failed_entries, worthless_entries
from opscope.units import NS_PER_MS, format_ns

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
        for directory, _, documents in results:
            if documents:
                _print_one(directory, comparisons[str(directory.path)], documents, output_format)
    for reason in dict.fromkeys(document.summary.device_times_reason for _, _, found in results for document in found):
        if reason is not None:
            click.echo(f"Device times are unknown (null): {reason}. CPU times are shown.", err=True)
    for directory, manifest, _ in results:
        _print_problems(directory, manifest)


def _print_one(
    directory: RunDirectory, comparison: Comparison, documents: Sequence[ProfileDocument], output_format: str
) -> None:
    table = comparison_table(comparison)
    if output_format == "md":
        click.echo(as_markdown(table, f"Comparison: {comparison.description}"))
        return
    for document in documents:
        click.echo("\n".join(printable(line) for line in _top_operators(document)))
    click.echo(as_text(table))
    click.echo(f"\nReports in {printable(str(directory.path))}{_separator(directory.path)}:")
    click.echo("\n".join(_files(documents)))


def _separator(path: Path) -> str:
    return "" if str(path).endswith("/") else "/"


def _top_operators(document: ProfileDocument) -> Iterator[str]:
    name = document.configuration.id if document.configuration else document.trace
    wall = document.measurement.wall
    step = f"{format_ns(wall.median_ns)} per step" if wall else "step not timed"
    yield f"{name}: {step}, {document.summary.bound.kind}{_doubts(document)}"
    for number, operator in enumerate(document.operators[:_SHOWN], 1):
        yield f"  {number}. {_operator(operator, document.summary.steps or 1)}"
    yield ""


def _doubts(document: ProfileDocument) -> str:
    failed = [check.name for check in document.trust.checks if check.verdict is Verdict.FAIL]
    return f" (TRUST CHECKS FAIL: {', '.join(failed)})" if failed else ""


def _operator(operator: OperatorEntry, steps: int) -> str:
    if operator.self_cuda_time_ms is not None:
        time, share, whole = operator.self_cuda_time_ms, operator.percent_of_device_sum, "device sum"
    else:
        time, share, whole = (
            operator.self_cpu_time_ms,
            operator.percent_of_cpu_self_sum,
            "operators' CPU self time",
        )
    percent = "-" if share is None else f"{share:.1f} %"
    per_step = format_ns(time / steps * NS_PER_MS)
    function = operator.native_function_detail.cpp_function
    where = f", {function}" if function else ""
    return f"{operator.name}: {per_step} per step, {percent} of the {whole} ({operator.category}{where})"


def _files(documents: Sequence[ProfileDocument]) -> Iterator[str]:
    yield "  comparison.md, comparison.json, manifest.json"
    for document in documents:
        if document.configuration is None:
            continue
        name = document.configuration.id
        yield f"  kernel_analysis_report_{name}.md, profiling_stats_{name}.json, {document.trace}"


def _print_problems(directory: RunDirectory, manifest: Manifest) -> None:
    lines = []
    for entry in failed_entries(manifest):
        if entry.failure is not None:
            log = f" (log: {directory.path / entry.failure.log})" if entry.failure.log else ""
            lines.append(f"{entry.configuration.id} failed: {entry.failure.message}{log}")
    lines += [f"{entry.configuration.id}: {entry.problem}" for entry in worthless_entries(manifest)]
    pending = [entry.configuration.id for entry in manifest.entries if entry.status == "pending"]
    if pending:
        lines.append(f"not run: {', '.join(pending)}; --resume runs them")
    for line in lines:
        click.echo(f"opscope: {printable(line)}", err=True)
