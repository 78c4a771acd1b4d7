"""What a sweep prints when it has ended: the three most expensive operators, the comparison, where the files are."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from opscope.record import Manifest
from opscope.report.comparison import Comparison, compare, comparison_table
from opscope.report.document import OperatorEntry, ProfileDocument
from opscope.report.tables import as_csv, as_markdown, as_text
from opscope.store import RunDirectory
from opscope.sweep.outputs import read_documents
from opscope.sweep.runner import failed_entries
from opscope.units import NS_PER_MS, format_ns

_SHOWN = 3


def print_sweep(finished: Sequence[tuple[RunDirectory, Manifest]], output_format: str) -> None:
    """Print the results of one or more sweeps to standard output, and problems to standard error."""
    results = [(directory, manifest, list(read_documents(directory, manifest))) for directory, manifest in finished]
    if output_format == "json":
        comparisons = [compare(documents, manifest) for _, manifest, documents in results if documents]
        encoded = msgspec.json.encode(comparisons[0] if len(comparisons) == 1 else comparisons)
        click.echo(json.dumps(json.loads(encoded), indent=2))
    else:
        for directory, manifest, documents in results:
            if documents:
                _print_one(directory, compare(documents, manifest), documents, output_format)
    if any(d.summary.total_cuda_time_ms is None for _, _, documents in results for d in documents):
        click.echo("Nothing ran on a GPU: device times are unknown (null), CPU times are shown.", err=True)
    for directory, manifest, _ in results:
        _print_failures(directory, manifest)


def _print_one(
    directory: RunDirectory, comparison: Comparison, documents: Sequence[ProfileDocument], output_format: str
) -> None:
    table = comparison_table(comparison)
    if output_format == "csv":
        click.echo(as_csv(table))
    elif output_format == "md":
        click.echo(as_markdown(table, f"Comparison: {comparison.description}"))
    else:
        for document in documents:
            click.echo("\n".join(_top_operators(document)))
        click.echo(as_text(table))
        click.echo(f"\nReports in {directory.path}{_separator(directory.path)}:")
        click.echo("\n".join(_files(documents)))


def _separator(path: Path) -> str:
    return "" if str(path).endswith("/") else "/"


def _top_operators(document: ProfileDocument) -> Iterator[str]:
    name = document.configuration.id if document.configuration else document.trace
    wall = document.measurement.wall
    step = f"{format_ns(wall.median_ns)} per step" if wall else "step not timed"
    yield f"{name}: {step}, {document.summary.bound.kind}"
    for number, operator in enumerate(document.operators[:_SHOWN], 1):
        yield f"  {number}. {_operator(operator, document.summary.steps or 1)}"
    yield ""


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


def _print_failures(directory: RunDirectory, manifest: Manifest) -> None:
    for entry in failed_entries(manifest):
        if entry.failure is None:
            continue
        log = f" (log: {directory.path / entry.failure.log})" if entry.failure.log else ""
        click.echo(f"opscope: {entry.configuration.id} failed: {entry.failure.message}{log}", err=True)
    pending = [entry.configuration.id for entry in manifest.entries if entry.status == "pending"]
    if pending:
        click.echo(f"opscope: not run: {', '.join(pending)}; --resume runs them", err=True)
