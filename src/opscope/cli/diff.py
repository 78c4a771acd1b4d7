"""``opscope diff BEFORE AFTER``: whether the step changed, and what the change is made of. Needs no PyTorch."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opscope.cli.inputs import input_option
from opscope.cli.options import INCONCLUSIVE, Percent, format_option
from opscope.cli.startup import tune_for_one_analysis
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.documents.difference import Gate
from opscope.errors import BadInputError, UsageError
from opscope.files import write_whole
from opscope.report.by import SHOWN_ROWS
from opscope.text import printable

if TYPE_CHECKING:
    from opscope.diff_api import Diff


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--fail-over", type=Percent(), metavar="PERCENT", help="End with 1 where a step proves to take longer.")
@click.option("--any-device", is_flag=True, help="Compare what ran on different devices.")
@click.option("--top", type=click.IntRange(min=0), default=SHOWN_ROWS, show_default=True, help="Rows; 0 for all.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Write a page for a browser as well.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write it as Markdown as well.")
@input_option
@damage_option
@format_option
def command(
    before: Path,
    after: Path,
    fail_over: float | None,
    any_device: bool,
    top: int,
    page: Path | None,
    report: Path | None,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Compare two runs: BEFORE, and AFTER.

    Each is a run directory of opscope profile, a trace, or a directory that opscope convert made. What differs in
    environment and settings is said first; then whether the step changed, by the unprofiled steps of both; then the
    change is taken apart by operator and inputs, idle time, host and memory, so that the parts add up to it.

    With --fail-over 5%, ends with exit code 1 where a step proves to take over 5 % longer, and names what grew most;
    with 5 where that cannot be told, as between traces without unprofiled steps.
    """
    tune_for_one_analysis()
    from opscope.diff_api import compare_sides, traces_by_name

    for target in (page, report):
        if target is not None and not target.parent.is_dir():
            raise UsageError(f"{target.parent} is no folder: make it, or name another file")

    unreadable: list[str] = []

    def skipped(path: str, error: BadInputError) -> None:
        unreadable.append(path)
        click.echo(printable(f"opscope: {error}"), err=True)

    sides = [dict(traces_by_name([path], max_input, skipped)) for path in (before, after)]
    diff = compare_sides(str(before), str(after), *sides, fail_over=fail_over, any_device=any_device)
    from opscope.report.difference_sections import difference_section
    from opscope.report.markdown import render

    _show(diff, top or None, output_format)
    if report is not None:
        write_whole(report, render(difference_section(diff.document, top or None), level=2).encode())
    if page is not None:
        diff.page().save(page)
        click.echo(printable(f"opscope: the page is {page}"), err=True)
    doubted = [
        Doubted.of(f"{path}: {name}", measured.trust)
        for path, side in zip((before, after), sides, strict=True)
        for name, measured in side.items()
    ]
    _tell(diff)
    end_with(doubted, unreadable, allow_damaged=allow_damaged)
    gate = diff.document.gate
    if gate is not None and gate is not Gate.FINE:
        sys.exit(1 if gate is Gate.REGRESSION else INCONCLUSIVE)


def _show(diff: "Diff", top: int | None, output_format: str) -> None:
    from opscope.cli.terminal import echo_section
    from opscope.record.codec import encode
    from opscope.report.difference_sections import difference_section, work_values
    from opscope.report.markdown import render
    from opscope.report.tables import as_csv

    if output_format == "json":
        click.echo(encode(diff.document), nl=False)
    elif output_format == "csv":
        click.echo(as_csv(work_values(diff.document)))
    elif output_format == "md":
        click.echo(render(difference_section(diff.document, top), level=2), nl=False)
    else:
        echo_section(difference_section(diff.document, top))


def _tell(diff: "Diff") -> None:
    """Say which steps take longer than allowed, or may, and what grew most."""
    for pair in diff.pairs:
        if pair.gate is not None and pair.gate is not Gate.FINE:
            grew = f" What grew most: {pair.culprit}." if pair.culprit else ""
            click.echo(printable(f"opscope: {pair.name}: {pair.gate}. {pair.unprofiled.sentence}{grew}"), err=True)
