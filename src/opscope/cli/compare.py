"""``opscope compare A B``: whether saved benchmarks take longer now."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from opscope.benchmarking.regression import changes, differences, worst
from opscope.cli.inputs import read_bench
from opscope.cli.options import INCONCLUSIVE, Percent, format_option
from opscope.cli.terminal import echo_table
from opscope.documents.bench import BenchDocument, Change, Changed, ChangesDocument
from opscope.errors import UsageError
from opscope.record.codec import encode
from opscope.report.bench_document import change_table
from opscope.report.tables import as_csv, as_markdown

_CLOSER = 4  # times as narrow, and as long, when it is measured again


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("now", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--fail-over", type=Percent(), default="5%", show_default=True, help="How much longer it may take.")
@click.option("--any-environment", is_flag=True, help="Compare what ran on other devices, versions or inputs.")
@click.option("--again/--not-again", default=True, show_default=True, help="Measure again what is inconclusive.")
@format_option
def command(before: Path, now: Path, fail_over: float, any_environment: bool, again: bool, output_format: str) -> None:
    """Compare two benchmarks that opscope bench --save wrote: BEFORE, and NOW.

    By the times of kernels where there are any, else by the host's clock. Ends with exit code 1 where something takes
    longer than --fail-over allows, is wrong or missing; with 5 where that cannot be told.
    """
    first, second = read_bench(before), read_bench(now)
    other = differences(first, second)
    if other and not any_environment:
        raise UsageError(f"these were not measured alike ({'; '.join(other)}): --any-environment")
    found = changes(first, second, fail_over)
    if again and worst(found) is Change.INCONCLUSIVE and second.request is not None:
        found = _again(first, second, fail_over) or found
    _show(found, fail_over, output_format)
    result = worst(found)
    if result is not Change.FINE:
        sys.exit(INCONCLUSIVE if result is Change.INCONCLUSIVE else 1)


def _again(first: BenchDocument, second: BenchDocument, fail_over: float) -> tuple[Changed, ...] | None:
    """Measure again, longer; None where that is not possible here."""
    from importlib.util import find_spec

    request = second.request
    if request is None or find_spec("torch") is None:
        return None
    from opscope.sweep.bench_process import benchmark

    closer = replace(request, seconds=_CLOSER * request.seconds, half_width=request.half_width / _CLOSER)
    measured = benchmark(closer, second.processes, 3600.0, lambda text: click.echo(f"opscope: again: {text}", err=True))
    if differences(second, measured):
        return None
    return changes(first, measured, fail_over)


def _show(found: tuple[Changed, ...], threshold: float, output_format: str) -> None:
    table = change_table(found)
    if output_format == "json":
        click.echo(encode(ChangesDocument(threshold=threshold, changes=found)), nl=False)
    elif output_format == "csv":
        click.echo(as_csv(table))
    elif output_format == "md":
        click.echo(as_markdown(table, "Since then"))
    else:
        echo_table(table)
