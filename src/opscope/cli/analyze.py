"""``opscope analyze INPUT...``: what a trace says, and how far it can be trusted. Needs no PyTorch."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from opscope.analysis import Analysis, analyze
from opscope.analysis.bounds import bound_of
from opscope.analysis.trust import Verdict
from opscope.cli.inputs import input_option, traces_of
from opscope.cli.options import format_option
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers import read
from opscope.record import encode
from opscope.report.analysis_tables import By, table_by, values_by
from opscope.report.tables import as_csv, as_markdown, as_text
from opscope.report.text import printable
from opscope.units import format_ns, format_share

_SHOWN = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice([by.value for by in By]),
    help="What a row stands for.  [default: operator, or kernel where no operators were recorded]",
)
@click.option("--top", type=click.IntRange(min=0), help=f"How many rows; 0 for all.  [default: {_SHOWN} in tables]")
@click.option("--sort", metavar="COLUMN", help="Sort by a column of --format csv, such as calls or self_cpu_ns.")
@click.option(
    "--graph-capture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A trace in which the CUDA graphs were captured: tells which operators their nodes came from.",
)
@click.option("--strict", is_flag=True, help="End with exit code 1 if a trust check fails.")
@input_option
@format_option
def command(
    inputs: tuple[Path, ...],
    by: str | None,
    top: int | None,
    sort: str | None,
    graph_capture: Path | None,
    strict: bool,
    max_input: int,
    output_format: str,
) -> None:
    """Analyse traces of torch.profiler (.json or .json.gz), of any PyTorch from 1.13 on, NVIDIA or AMD.

    INPUT may also be a run directory of opscope profile, or a directory that opscope convert made.

    Shows what bounds the step, the accounting of the device time, the trust checks that do not pass, and a table.
    --format json prints everything, by the schema opscope.analysis/1.
    """
    functions = NativeFunctions.shipped()
    capture = None if graph_capture is None else read(graph_capture, max_bytes=max_input)
    analyses = {path: analyze(trace, functions, graph_capture=capture) for path, trace in traces_of(inputs, max_input)}
    rows = None if top == 0 else top
    if output_format == "json":
        from opscope.report.analysis_document import AnalysisDocuments, build_analysis_document

        documents = tuple(build_analysis_document(analysis, functions) for analysis in analyses.values())
        click.echo(encode(documents[0] if len(documents) == 1 else AnalysisDocuments(traces=documents)), nl=False)
    elif output_format == "csv":
        click.echo(as_csv(values_by(analyses, _by(by, next(iter(analyses.values()))), sort=sort, top=rows)))
    else:
        shown = _SHOWN if top is None else rows
        for path, analysis in analyses.items():
            table = table_by(analysis, _by(by, analysis), sort=sort, top=shown)
            if output_format == "md":
                click.echo(as_markdown(table, path))
            else:
                click.echo("\n".join(printable(line) for line in _summary(path, analysis)))
                click.echo(f"\n{as_text(table)}\n")
    if strict and any(analysis.trust.verdict is Verdict.FAIL for analysis in analyses.values()):
        sys.exit(1)


def _by(chosen: str | None, analysis: Analysis) -> By:
    if chosen is not None:
        return By(chosen)
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
