"""``opscope diff BEFORE AFTER``: whether a step or a benchmark changed, and what caused it. Needs no PyTorch."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opscope.base.errors import BadInputError, UsageError
from opscope.base.files import refuse_outputs, write_output
from opscope.cli.options import (
    INCONCLUSIVE,
    Percent,
    axes_of,
    format_option,
    overwrite_option,
    shown_rows,
    top_option,
    words_options,
)
from opscope.cli.reading import Doubted, damage_option, end_with, input_option
from opscope.cli.say import say
from opscope.cli.startup import tune_for_one_analysis
from opscope.documents.difference import DiffBy, Gate
from opscope.runs.folders import RESULTS, last_two
from opscope.runs.inputs import unmeasured_of

if TYPE_CHECKING:
    from opscope.api.diff import Diff

from msgspec import Struct

from opscope.cli.emit import Output, emit
from opscope.cli.reading import read_bench
from opscope.documents.bench import BenchDocument, Changed, ChangesDocument, RegressionVerdict
from opscope.measuring.verdicts import changes, differences, worst_change
from opscope.record.bench import BenchRequest
from opscope.report.bench_document import change_table

# ---------------------------------------------------------------- benchmarks


_CLOSER = 4  # times: measured again, the interval is to be that much narrower, and may take that much longer
_FAIL_OVER = 0.05  # the largest slowdown that is accepted where none is named
_HEAD = 4096  # bytes in which a document names its schema
_MOST_PROCESSES = 64  # whatever a file says


class Remeasure(Struct, frozen=True, kw_only=True):
    """What is run to measure inconclusive results once more, as the command line names it.

    Attributes:
        wanted: whether that is asked for.
        targets: the benchmarks' targets.
        inputs, reference: the functions that make arguments, and right results.
        axes: the values of parameters, by name.
    """

    wanted: bool
    targets: tuple[str, ...]
    inputs: str | None
    reference: str | None
    axes: dict[str, tuple[str, ...]]

    @property
    def is_empty(self) -> bool:
        """Whether no option of it is given."""
        return not (self.wanted or self.targets or self.inputs or self.reference or self.axes)


def are_benchmarks(before: Path, after: Path) -> bool:
    """Tell whether two files are benchmarks that ``opscope bench --save`` wrote.

    Raises:
        UsageError: one of them is, and the other is not.
    """
    kinds = {path: _is_benchmark(path) for path in (before, after)}
    if any(kinds.values()) and not all(kinds.values()):
        one, other = (before, after) if kinds[before] else (after, before)
        raise UsageError(f"{one} is a benchmark of opscope bench --save, and {other} is not: compare two of a kind")
    return kinds[before]


def _is_benchmark(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"opscope.bench/' in file.read(_HEAD)


def compare_benchmarks(
    before: Path, now: Path, fail_over: float | None, again: Remeasure, output_format: str, *, any_environment: bool
) -> int:
    """Print whether anything takes longer in one of two benchmarks, and return the exit code.

    Args:
        before: the file of the first.
        now: that of the second.
        fail_over: the largest slowdown to accept, as a ratio less 1; None for 5 %.
        again: what is run to measure inconclusive results once more.
        output_format: ``table``, ``json``, ``csv``, ``md`` or ``brief``.
        any_environment: whether they are compared even if devices, versions or inputs differ.

    Raises:
        UsageError: they were not measured alike, or something else is to be run than what was measured.
    """
    most = _FAIL_OVER if fail_over is None else fail_over
    request = _request(again)
    first, second = read_bench(before), read_bench(now)
    if request is not None:
        _refuse_other(request, second.request, now)
    other = differences(first, second)
    if other and not any_environment:
        raise UsageError(f"these were not measured alike ({'; '.join(other)}). --any-environment compares them anyway")
    outcome = changes(first, second, most)
    if request is not None and worst_change(outcome) is RegressionVerdict.INCONCLUSIVE:
        outcome = _again(request, first, second, most) or outcome
    _show_bench(outcome, most, output_format)
    result = worst_change(outcome)
    if result is RegressionVerdict.FINE:
        return 0
    return INCONCLUSIVE if result is RegressionVerdict.INCONCLUSIVE else 1


def _request(again: Remeasure) -> BenchRequest | None:
    """Return what to measure again, from the words of this command line alone; None where nothing is."""
    if not again.wanted:
        if not again.is_empty:
            raise UsageError("--target, --inputs, --reference, --size, --dtype and --set need --again")
        return None
    if not again.targets:
        raise UsageError(
            "--again runs code, so name what to run: --target ways.py, and --inputs, --reference, --size, --dtype, "
            "--set as opscope bench was given them"
        )
    asked = BenchRequest()
    return BenchRequest(
        targets=again.targets,
        inputs=again.inputs,
        reference=again.reference,
        axes=again.axes,
        seconds=_CLOSER * asked.seconds,
        half_width=asked.half_width / _CLOSER,
    )


def _refuse_other(request: BenchRequest, measured: BenchRequest | None, path: Path) -> None:
    """Refuse to measure anything other than what a file holds."""
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
    from opscope.workbench.jobs.bench_process import benchmark_in_processes

    def announce(text: str) -> None:
        say(f"opscope: again: {text}")

    measured = benchmark_in_processes(request, min(second.processes, _MOST_PROCESSES), 3600.0, announce)
    if differences(second, measured):  # measured in another environment, it says nothing of NOW
        return None
    return changes(first, measured, fail_over)


def _show_bench(results: tuple[Changed, ...], threshold: float, output_format: str) -> None:
    document = ChangesDocument(threshold=threshold, changes=results)
    emit(Output.of_table(document, change_table(results), "Since then"), output_format)


# ---------------------------------------------------------------- the command


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

    Two memory snapshots of PyTorch are compared at their peaks: by owner and by line of code.

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
    inapplicable = any((of_ranks, any_device, any_steps, any_environment, by, page, fail_over is not None))
    if _compared_snapshots(
        before, after, (max_input, shown_rows(top)), report, output_format, overwrite=overwrite, refused=inapplicable
    ):
        return
    _refuse_of_benchmarks(repeat, any_environment=any_environment)
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


def _refuse_of_benchmarks(repeat: Remeasure, *, any_environment: bool) -> None:
    """Refuse options that only two benchmarks have."""
    if any_environment or not repeat.is_empty:
        raise UsageError("--any-environment, --again and what belongs to it are for two benchmarks of bench --save")


def are_snapshots(before: Path, after: Path) -> bool:
    """Tell whether two files are memory snapshots, by how they begin or, if they are packed, by their names.

    Raises:
        UsageError: one of them is, and the other is not.
    """
    from opscope.readers.formats import is_snapshot_file

    kinds = {path: is_snapshot_file(path) for path in (before, after)}
    if any(kinds.values()) and not all(kinds.values()):
        one, other = (before, after) if kinds[before] else (after, before)
        raise UsageError(f"{one} is a memory snapshot, and {other} is not: compare two of a kind")
    return kinds[before]


def _compared_snapshots(
    before: Path | None,
    after: Path | None,
    limits: tuple[int, int | None],
    report: Path | None,
    output_format: str,
    *,
    overwrite: bool,
    refused: bool,
) -> bool:
    """Compare two memory snapshots; return False where the sides are something else.

    Args:
        before: the first side, if one was named.
        after: the second one.
        limits: the most bytes that each may unpack to, and the most rows to show.
        report: where to write the result as Markdown too.
        output_format: as ``--format`` has it.
        overwrite: whether the report may replace a file.
        refused: whether options were given that snapshots do not have.
    """
    if before is None or after is None or not are_snapshots(before, after):
        return False
    if refused:
        raise UsageError("of memory snapshots there are --top, --report, --overwrite and --format")
    refuse_outputs((report,), (before, after), overwrite=overwrite)
    tune_for_one_analysis()
    from opscope.analysis.memory.answered import answer
    from opscope.analysis.memory.difference import difference_of
    from opscope.readers.snapshot import read_snapshot
    from opscope.render.markdown import render
    from opscope.report.memory_document import memory_difference_section, memory_difference_values

    document = difference_of(*(answer(read_snapshot(path, max_bytes=limits[0])) for path in (before, after)))
    section = memory_difference_section(document, limits[1])
    emit(Output.of_section(document, lambda: memory_difference_values(document), lambda: section), output_format)
    if report is not None:
        write_output(report, render(section, level=2).encode())
    return True


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
