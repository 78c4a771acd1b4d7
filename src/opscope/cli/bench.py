"""``opscope bench TARGET...``: how long functions take, whether they are right, and which is faster."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from opscope.cli.options import format_option
from opscope.cli.terminal import echo_section
from opscope.documents.bench import BenchDocument, Correct
from opscope.errors import EnvironmentLacksError, UsageError
from opscope.files import write_whole
from opscope.record.bench import BenchRequest
from opscope.record.codec import encode
from opscope.report.bench_document import bench_section, bench_table
from opscope.report.markdown import render
from opscope.report.tables import as_csv

_TRIALS = 50


def _axes(size: str | None, dtype: str | None, settings: Sequence[str]) -> dict[str, tuple[str, ...]]:
    words = [("size", size), ("dtype", dtype)]
    for setting in settings:
        name, found, values = setting.partition("=")
        if not found or not name.isidentifier() or not values:
            raise UsageError(f"--set takes NAME=VALUE,VALUE,..., not {setting!r}")
        words.append((name, values))
    return {name: tuple(text.split(",")) for name, text in words if text}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@click.option("--size", metavar="LIST", help="Values of the inputs' parameter size: 4096,1M or 1k..64M (times four).")
@click.option("--dtype", metavar="LIST", help="Values of the inputs' parameter dtype: fp32,bf16,fp16,fp64.")
@click.option("--set", "settings", metavar="NAME=LIST", multiple=True, help="Values of any parameter of the inputs.")
@click.option("--inputs", metavar="FILE:FUNCTION", help="What makes the arguments.  [default: inputs of the file]")
@click.option("--reference", metavar="FILE:FUNCTION", help="What is right.  [default: reference of the file]")
@click.option("--device", default="auto", show_default=True, help="Where: cpu, cuda, cuda:1.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="The most time for one kind of duration of one variant.",
)
@click.option(
    "--precision",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Half the width of the interval of the median that is narrow enough.",
)
@click.option("--calls", type=click.IntRange(min=6), default=2000, show_default=True, help="The most calls.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Fresh processes, each one sample: for what differs from process to process.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="The most time for a process.",
)
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON document to a file as well."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw the durations: .png, .svg or .pdf (needs matplotlib).",
)
@click.option(
    "--pytest-benchmark-json",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write what dashboards of pytest-benchmark read.",
)
@click.option(
    "--calibrate", is_flag=True, help="Measure how often equal functions are said to differ here, and keep it."
)
@click.option("--trials", type=click.IntRange(min=1), default=_TRIALS, show_default=True, help="Of --calibrate.")
@format_option
def command(
    targets: tuple[str, ...],
    size: str | None,
    dtype: str | None,
    settings: tuple[str, ...],
    inputs: str | None,
    reference: str | None,
    device: str,
    seconds: float,
    precision: float,
    calls: int,
    processes: int,
    timeout: float,
    save: Path | None,
    plot: Path | None,
    pytest_benchmark_json: Path | None,
    calibrate: bool,
    trials: int,
    output_format: str,
) -> None:
    """Benchmark functions of the same inputs beside each other; the first one is the baseline.

    TARGET is a file (all its functions; inputs makes their arguments, and reference says what is right), a function
    (file.py:function, package.module:function), or a case of the gallery: square, gelu, add, matmul, cdist, softmax,
    layer_norm, timers. Results are checked first and after, with a float64 reference and several kinds of inputs. Ends
    with exit code 1 where a variant is wrong.
    """
    request = BenchRequest(
        targets=targets,
        inputs=inputs,
        reference=reference,
        axes=_axes(size, dtype, settings),
        device=device,
        seconds=seconds,
        half_width=precision / 100,
        calls=calls,
        trials=trials if calibrate else 0,
    )
    if calibrate == bool(targets):
        raise UsageError("name what to benchmark, or --calibrate" if not targets else "--calibrate takes no targets")
    _check_torch()
    from opscope.sweep import bench_process

    if calibrate:
        found, path = bench_process.calibrate(request, timeout, _say)
        click.echo(f"Of {found.trials} comparisons of a function with itself, {found.alarms} said that it differs.")
        click.echo(f"opscope: kept as {path}", err=True)
        return
    document = bench_process.benchmark(request, processes, timeout, _say)
    if save is not None:
        write_whole(save, encode(document))
    if pytest_benchmark_json is not None:
        from opscope.report.pytest_benchmark import pytest_benchmark_json as as_json

        write_whole(pytest_benchmark_json, as_json(document))
    if plot is not None:
        from opscope.report.bench_plot import write_plot

        write_plot(document, plot)
    _show(document, output_format)
    if any(r.correctness is not None and r.correctness.verdict is Correct.WRONG for r in document.results):
        sys.exit(1)


def _check_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise EnvironmentLacksError("benchmarks need PyTorch, which is missing: pip install torch")


def _say(text: str) -> None:
    click.echo(f"opscope: {text}", err=True)


def _show(document: BenchDocument, output_format: str) -> None:
    if output_format == "json":
        click.echo(encode(document), nl=False)
    elif output_format == "csv":
        click.echo(as_csv(bench_table(document)))
    elif output_format == "md":
        click.echo(render(bench_section(document), level=2).rstrip("\n"))
    else:
        echo_section(bench_section(document))
