"""``opscope compare A B``: whether saved benchmarks take longer now."""

import sys
from pathlib import Path

import click

from opscope.base.errors import UsageError
from opscope.cli.bench_words import axes_of, words_options
from opscope.cli.emit import Output, emit
from opscope.cli.options import INCONCLUSIVE, Percent, format_option
from opscope.cli.reading import read_bench
from opscope.cli.say import say
from opscope.documents.bench import BenchDocument, Changed, ChangesDocument, RegressionVerdict
from opscope.record.bench import BenchRequest
from opscope.report.bench_document import change_table
from opscope.workbench.benchmarking.regression import changes, differences, worst_change

_CLOSER = 4  # times: measured again, the interval is to be that much narrower, and may take that much longer
_MOST_PROCESSES = 64  # whatever a file says


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("now", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--fail-over", type=Percent(), default="5%", show_default=True, help="The largest slowdown to accept.")
@click.option("--any-environment", is_flag=True, help="Compare even if devices, versions or inputs differ.")
@click.option(
    "--again", is_flag=True, help="Measure inconclusive results again. This runs the targets that --target names."
)
@click.option(
    "--target",
    "targets",
    metavar="TARGET",
    multiple=True,
    help="A target that NOW measured, for --again. May be repeated.",
)
@words_options
@format_option
def command(
    before: Path,
    now: Path,
    fail_over: float,
    any_environment: bool,
    again: bool,
    targets: tuple[str, ...],
    size: str | None,
    dtype: str | None,
    settings: tuple[str, ...],
    inputs: str | None,
    reference: str | None,
    output_format: str,
) -> None:
    """Compare two benchmarks that opscope bench --save wrote: BEFORE, and NOW.

    By the times of kernels where there are any, else by the host's clock. Ends with exit code 1 where something takes
    longer than --fail-over allows, is wrong or missing; with 5 if that cannot be decided.

    Nothing that a file names is run. With --again, inconclusive results are measured once more, four times as long:
    name the targets, and repeat the options of opscope bench (--inputs, --reference, --size, --dtype, --set).
    """
    request = _request(targets, inputs, reference, axes_of(size, dtype, settings), again=again)
    first, second = read_bench(before), read_bench(now)
    if request is not None:
        _refuse_other(request, second.request, now)
    other = differences(first, second)
    if other and not any_environment:
        raise UsageError(f"these were not measured alike ({'; '.join(other)}): --any-environment")
    outcome = changes(first, second, fail_over)
    if request is not None and worst_change(outcome) is RegressionVerdict.INCONCLUSIVE:
        outcome = _again(request, first, second, fail_over) or outcome
    _show(outcome, fail_over, output_format)
    result = worst_change(outcome)
    if result is not RegressionVerdict.FINE:
        sys.exit(INCONCLUSIVE if result is RegressionVerdict.INCONCLUSIVE else 1)


def _request(
    targets: tuple[str, ...],
    inputs: str | None,
    reference: str | None,
    axes: dict[str, tuple[str, ...]],
    *,
    again: bool,
) -> BenchRequest | None:
    """Return what to measure again, from the words of this command line alone; None where nothing is."""
    if not again:
        if targets or inputs or reference or axes:
            raise UsageError("--target and what belongs to it are for --again")
        return None
    if not targets:
        raise UsageError(
            "--again runs code, so name what to run: --target ways.py, and --inputs, --reference, --size, --dtype, "
            "--set as opscope bench was given them"
        )
    asked = BenchRequest()
    return BenchRequest(
        targets=targets,
        inputs=inputs,
        reference=reference,
        axes=axes,
        seconds=_CLOSER * asked.seconds,
        half_width=asked.half_width / _CLOSER,
    )


def _refuse_other(request: BenchRequest, measured: BenchRequest | None, path: Path) -> None:
    """Refuse to measure something else than what a file holds."""
    if measured is None:
        raise UsageError(f"{path} does not say what it measured, so it cannot be measured again")
    for name in ("targets", "inputs", "reference", "axes"):
        if getattr(request, name) != getattr(measured, name):
            raise UsageError(
                f"{path} is of other {name}: {_words(getattr(measured, name))} there, "
                f"{_words(getattr(request, name))} here"
            )


def _words(value: object) -> str:
    if isinstance(value, dict):
        value = tuple(f"{name}={','.join(values)}" for name, values in value.items())
    return " ".join(value) or "none" if isinstance(value, tuple) else str(value or "none")


def _again(
    request: BenchRequest, first: BenchDocument, second: BenchDocument, fail_over: float
) -> tuple[Changed, ...] | None:
    """Measure again, longer; None where that is not possible here."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return None
    from opscope.workbench.jobs.bench_process import benchmark

    def announce(text: str) -> None:
        say(f"opscope: again: {text}")

    measured = benchmark(request, min(second.processes, _MOST_PROCESSES), 3600.0, announce)
    if differences(second, measured):  # measured in another environment, it says nothing of NOW
        return None
    return changes(first, measured, fail_over)


def _show(results: tuple[Changed, ...], threshold: float, output_format: str) -> None:
    document = ChangesDocument(threshold=threshold, changes=results)
    emit(Output.of_table(document, change_table(results), "Since then"), output_format)
