"""``opscope diff BEFORE AFTER``: whether a step or a benchmark changed, and what caused it. Needs no PyTorch."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opscope.base.errors import BadInputError, UsageError
from opscope.base.files import refuse_outputs, write_output
from opscope.cli.bench_words import axes_of, words_options
from opscope.cli.diff_bench import Remeasure, are_benchmarks, compare_benchmarks
from opscope.cli.options import INCONCLUSIVE, Percent, format_option, overwrite_option, shown_rows, top_option
from opscope.cli.reading import input_option
from opscope.cli.say import say
from opscope.cli.startup import tune_for_one_analysis
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.documents.difference import DiffBy, Gate
from opscope.runs.folders import RESULTS, last_two
from opscope.runs.inputs import unmeasured_of

if TYPE_CHECKING:
    from opscope.api.diff import Diff


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", required=False, type=click.Path(path_type=Path))
@click.argument("after", required=False, type=click.Path(path_type=Path))
@click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    show_default=True,
    help="The folder whose last two runs are compared if BEFORE and AFTER are omitted.",
)
@click.option(
    "--fail-over",
    type=Percent(),
    metavar="PERCENT",
    help="Exit with code 1 if a step has become slower by more than this.  [default of benchmarks: 5%]",
)
@click.option(
    "--ranks",
    "of_ranks",
    is_flag=True,
    help="BEFORE and AFTER are folders with the traces of all ranks of a job each: compare the jobs.",
)
@click.option("--any-device", is_flag=True, help="Compare even if the devices differ.")
@click.option(
    "--any-steps", is_flag=True, help="Compare even if the kinds of steps differ, such as training and evaluation."
)
@click.option(
    "--by",
    type=click.Choice([by.value for by in DiffBy]),
    help="Also list work by kernel, module (needs recorded stacks) or category, over all operators.",
)
@top_option("rows of work")
@click.option("--any-environment", is_flag=True, help="Compare benchmarks even if devices, versions or inputs differ.")
@click.option(
    "--again",
    is_flag=True,
    help="Measure inconclusive results of benchmarks again. This runs the targets that --target names.",
)
@click.option(
    "--target",
    "targets",
    metavar="TARGET",
    multiple=True,
    help="A target that AFTER measured, for --again. May be repeated.",
)
@words_options
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page for a browser.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Also write the result as Markdown.")
@overwrite_option("files that --page and --report name")
@input_option
@damage_option
@format_option
def command(
    before: Path | None,
    after: Path | None,
    runs: Path,
    fail_over: float | None,
    of_ranks: bool,
    any_device: bool,
    any_steps: bool,
    by: str | None,
    top: int | None,
    any_environment: bool,
    again: bool,
    targets: tuple[str, ...],
    size: str | None,
    dtype: str | None,
    settings: tuple[str, ...],
    inputs: str | None,
    reference: str | None,
    page: Path | None,
    report: Path | None,
    overwrite: bool,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Compare two runs: BEFORE, and AFTER; without them the last two runs of the target that ran last.

    Each is a run directory of opscope profile, a trace, or a directory that opscope export --parquet made. What differs
    in environment and settings is said first; then whether the step changed, by the unprofiled steps of both; then the
    change is taken apart by operator and inputs, idle time, host and memory, so that the parts add up to it.

    With --fail-over 5%, ends with exit code 1 if a step proves to take over 5 % longer, and names what grew most;
    with 5 if that cannot be decided, as between traces without unprofiled steps, and if a configuration of either
    side has no result. Steps of different kinds (training, evaluation, ...) are not compared: exit code 5.

    With --ranks each side is a job, and what is compared are its steps over all ranks: what they are made of, late
    ranks, process groups, collectives and kernels. --fail-over then ends with 5, and names them, while ranks are
    missing, damaged or not read.

    Two benchmarks that opscope bench --save wrote are compared by the times of kernels where there are any, else by the
    host's clock. Ends with exit code 1 where something takes longer than --fail-over allows, is wrong or missing; with
    5 if that cannot be decided. Nothing that a file names is run: with --again, inconclusive results are measured once
    more, four times as long, of the targets that you name, with the options of opscope bench.
    """
    repeat = Remeasure(
        wanted=again, targets=targets, inputs=inputs, reference=reference, axes=axes_of(size, dtype, settings)
    )
    if before is not None and after is not None and are_benchmarks(before, after):
        if of_ranks or any_device or any_steps or overwrite or by is not None or top is not None or page or report:
            raise UsageError("of benchmarks there are --fail-over, --any-environment, --again and --format")
        sys.exit(compare_benchmarks(before, after, fail_over, repeat, output_format, any_environment=any_environment))
    if any_environment or not repeat.is_empty:
        raise UsageError("--any-environment, --again and what belongs to it are for two benchmarks of bench --save")
    tune_for_one_analysis()
    if of_ranks:
        if before is None or after is None:
            raise UsageError("--ranks compares two jobs: name their folders, BEFORE and AFTER")
        if page is not None:
            raise UsageError("a difference of jobs has no page: leave out --page")
        if by is not None or any_steps or runs != RESULTS:
            raise UsageError("--by, --any-steps and --runs are for two runs: leave them out with --ranks")
        refuse_outputs((report,), (before, after), overwrite=overwrite)
        _compare_jobs(before, after, fail_over, shown_rows(top), report, output_format, any_device=any_device)
        return
    from opscope.api.diff import compare_sides, traces_by_name

    before, after = _sides(before, after, runs)
    refuse_outputs((page, report), (before, after), overwrite=overwrite)
    unreadable: list[str] = []

    def skipped(path: str, error: BadInputError) -> None:
        unreadable.append(path)
        say(f"opscope: {error}")

    sides = [dict(traces_by_name([path], max_input, skipped)) for path in (before, after)]
    diff = compare_sides(
        str(before),
        str(after),
        *sides,
        fail_over=fail_over,
        any_device=any_device,
        any_steps=any_steps,
        by=None if by is None else DiffBy(by),
        without_result=(unmeasured_of([before]), unmeasured_of([after])),
    )
    from opscope.render.markdown import render
    from opscope.report.difference_sections import difference_section

    _show(diff, shown_rows(top), output_format)
    if report is not None:
        write_output(report, render(difference_section(diff.document, shown_rows(top)), level=2).encode())
    if page is not None:
        diff.page().save(page)
        say(f"opscope: the page is {page}")
    doubted = [
        Doubted.of(f"{path}: {name}", measured.trust)
        for path, side in zip((before, after), sides, strict=True)
        for name, measured in side.items()
    ]
    _tell(diff)
    # A damaged file ends the command here, with its own exit code, before the gate does.
    end_with(doubted, unreadable, allow_damaged=allow_damaged)
    gate = diff.document.gate
    if gate is not None and gate is not Gate.FINE:
        sys.exit(1 if gate is Gate.REGRESSION else INCONCLUSIVE)


def _compare_jobs(
    before: Path,
    after: Path,
    fail_over: float | None,
    top: int | None,
    report: Path | None,
    output_format: str,
    *,
    any_device: bool,
) -> None:
    from opscope.cli.diff_ranks import difference_of_jobs, exit_code, show_ranks_difference

    document = difference_of_jobs(before, after, any_device=any_device)
    show_ranks_difference(document, top, output_format, report)
    sys.exit(exit_code(document, fail_over))


def _sides(before: Path | None, after: Path | None, runs: Path) -> tuple[Path, Path]:
    """Return the two sides to compare; runs that the user did not name are looked for, and said.

    Raises:
        UsageError: only one side is named.
    """
    if before is not None and after is not None:
        return before, after
    if before is not None:
        raise UsageError("name both, BEFORE and AFTER, or neither: then the last two runs of one target are compared")
    first, second = last_two(runs)
    say(f"opscope: {first}, then {second}")
    return first, second


def _show(diff: "Diff", top: int | None, output_format: str) -> None:
    from opscope.cli.emit import Output, emit
    from opscope.report.difference_sections import difference_section, group_values, work_values

    document = diff.document
    grouped = any(pair.by is not None for pair in document.pairs)
    section = Output.of_section(
        document,
        lambda: (group_values if grouped else work_values)(document),
        lambda: difference_section(document, top),
    )
    emit(section, output_format)


def _tell(diff: "Diff") -> None:
    """Say which steps take longer than allowed, or may, and what grew most."""
    for pair in diff.pairs:
        if pair.gate is not None and pair.gate is not Gate.FINE:
            grew = f" What grew most: {pair.culprit}." if pair.culprit else ""
            say(f"opscope: {pair.name}: {pair.gate}. {pair.unprofiled.sentence}{grew}")
    for reason in diff.document.incomplete if diff.document.gate is not None else ():
        say(f"opscope: not compared: {reason}")
