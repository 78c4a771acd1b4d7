"""``opscope bench TARGET...``: how long functions take, whether they are right, and which is faster."""

import sys
from pathlib import Path

import click
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import refuse_outputs, write_output
from opscope.cli.emit import Output, emit
from opscope.cli.options import (
    Positive,
    axes_of,
    format_option,
    output_option,
    overwrite_option,
    redaction_options,
    redactor_of,
    words_options,
)
from opscope.cli.say import say
from opscope.cli.targets import refuse_what_is_no_text
from opscope.documents.bench import BenchDocument, Correct
from opscope.record.bench import BenchRequest
from opscope.record.codec import encode
from opscope.record.redaction import Redactor
from opscope.report.bench_document import bench_section, bench_table, check_format

_TRIALS = 50


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@words_options
@click.option("--device", default="auto", show_default=True, help="The device to run on: cpu, cuda, cuda:1.")
@click.option(
    "--seconds",
    type=Positive(),
    default=0.5,
    show_default=True,
    help="The longest time to spend on each kind of duration of each variant.",
)
@click.option(
    "--precision",
    type=Positive(),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Stop once the median is known to within this much.",
)
@click.option(
    "--calls",
    type=click.IntRange(min=6),
    default=2000,
    show_default=True,
    help="The largest number of calls per variant.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Run in this many fresh processes and take each as one sample.",
)
@click.option(
    "--timeout",
    type=Positive(1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="End a process that takes longer.",
)
@output_option("Write the JSON document to a file as well; opscope diff reads it.", "--save")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Draw the durations into a .png, .svg or .pdf file (needs matplotlib).",
)
@click.option(
    "--pytest-benchmark-json",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write a file that dashboards for pytest-benchmark can read.",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure how often two equal functions are reported as different on this machine, and keep the result.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=_TRIALS,
    show_default=True,
    help="How many comparisons --calibrate makes.",
)
@overwrite_option("files that the results are written to")
@redaction_options
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
    output: Path | None,
    plot: Path | None,
    pytest_benchmark_json: Path | None,
    calibrate: bool,
    trials: int,
    overwrite: bool,
    redact: tuple[str, ...],
    keep_arguments: bool,
    output_format: str,
) -> None:
    """Benchmark functions that take the same inputs; the first one is the baseline.

    TARGET is a file (all its functions; inputs makes their arguments, and reference says what is right), a function
    (file.py:function, package.module:function), or a case of the gallery: square, gelu, add, matmul, cdist, softmax,
    layer_norm, timers. Results are checked before and after the timing, against a float64 reference and with
    several kinds of inputs. Ends with exit code 1 if a variant is wrong.
    """
    request = BenchRequest(
        targets=targets,
        inputs=inputs,
        reference=reference,
        axes=axes_of(size, dtype, settings),
        device=device,
        seconds=seconds,
        half_width=precision / 100,
        calls=calls,
        trials=trials if calibrate else 0,
    )
    if calibrate == bool(targets):
        raise UsageError("name what to benchmark, or --calibrate" if not targets else "--calibrate takes no targets")
    refuse_what_is_no_text(*targets)
    redactor = redactor_of(redact, keep_arguments=keep_arguments)
    # What is read must not be overwritten: the files that the words of the command line name.
    sources = [Path(word.partition(":")[0]) for word in (*targets, inputs, reference) if word]
    refuse_outputs((output, plot, pytest_benchmark_json), sources, overwrite=overwrite)
    if plot is not None:
        check_format(plot)
    _check_torch()
    from opscope.workbench.jobs import bench_process

    if calibrate:
        result, path = bench_process.calibrate(request, timeout, _say)
        say(
            f"Of {result.trials} comparisons of a function with itself, {result.alarms} said that it differs.",
            err=False,
        )
        say(f"opscope: kept as {path}")
        return
    document = _redacted(bench_process.benchmark_in_processes(request, processes, timeout, _say), redactor)
    if output is not None:
        write_output(output, encode(document))
    if pytest_benchmark_json is not None:
        from opscope.report.bench_document import pytest_benchmark_json as as_json

        write_output(pytest_benchmark_json, as_json(document))
    if plot is not None:
        from opscope.report.bench_document import drawn

        write_output(plot, drawn(document, plot.suffix))
    _show(document, output_format)
    if any(r.correctness is not None and r.correctness.verdict is Correct.WRONG for r in document.results):
        sys.exit(1)


def _redacted(document: BenchDocument, redactor: Redactor) -> BenchDocument:
    """Return a document whose parameters hold no secrets."""
    results = tuple(replace(one, parameters=_hidden(one.parameters, redactor)) for one in document.results)
    comparisons = tuple(replace(one, parameters=_hidden(one.parameters, redactor)) for one in document.comparisons)
    request = document.request
    if request is not None:
        axes = {
            name: tuple(_hidden({name: v}, redactor)[name] for v in result) for name, result in request.axes.items()
        }
        request = replace(request, axes=axes)
    return replace(document, results=results, comparisons=comparisons, request=request)


def _hidden(parameters: dict[str, str], redactor: Redactor) -> dict[str, str]:
    hidden = redactor.settings({name: (value,) for name, value in parameters.items()})
    return {name: str(result[0]) for name, result in hidden.items()}


def _check_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise EnvironmentLacksError("benchmarks need PyTorch, which is missing: pip install torch")


def _say(text: str) -> None:
    say(f"opscope: {text}")


def _show(document: BenchDocument, output_format: str) -> None:
    emit(Output.of_section(document, lambda: bench_table(document), lambda: bench_section(document)), output_format)
