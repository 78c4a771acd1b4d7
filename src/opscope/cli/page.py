"""``opscope page INPUT... -o FILE.html``: everything on one page that opens in a browser, offline."""

from pathlib import Path
from threading import Event
from typing import Final

import click

from opscope.cli.inputs import input_option, read_bench, traces_of
from opscope.cli.options import StepRange
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.errors import EnvironmentLacksError
from opscope.files import write_whole
from opscope.inputs import files_of, measured_of
from opscope.text import printable

_BENCH: Final = b'"opscope.bench/1"'
_BEGINNING: Final = 4096  # bytes in which a document says what it is


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write."
)
@click.option("--steps", type=StepRange(), metavar="A..B", help="Steps of the timeline.  [default: as many as fit]")
@click.option("--title", help="What the page is called.")
@input_option
@damage_option
def command(
    inputs: tuple[Path, ...],
    output: Path,
    steps: tuple[int, int] | None,
    title: str | None,
    max_input: int,
    allow_damaged: bool,
) -> None:
    """Write a page with verdict, operators, kernels, timeline, flame view, roofline and memory of INPUT.

    INPUT is a trace of torch.profiler, a run directory of opscope profile (then also with the sweep), a recording of
    opscope exec, a directory that opscope convert made, or a benchmark that opscope bench --save wrote; or several of
    these. The page is one file that loads nothing: it can be sent, kept, and opened offline.
    """
    tune_for_one_analysis()
    benches = [path for path in inputs if _is_bench(path)]
    others = [path for path in inputs if path not in benches]
    if not output.parent.is_dir():
        raise EnvironmentLacksError(f"cannot write {output}: {output.parent} is no folder")
    benchmarks = [read_bench(path) for path in benches]
    count, unreadable, libraries_imported = sum(1 for _ in files_of(others)), list[str](), Event()
    traces = traces_of(others, max_input, unreadable, libraries_imported) if others else ()
    import_libraries(libraries_imported)
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.pipeline import PageParts
    from opscope.report.page.html import page_html

    parts, doubted, shipped = PageParts(count, steps), list[Doubted](), NativeFunctions.shipped()
    for file, trace in traces:
        measured, functions = measured_of(file, trace, shipped)
        if (capture := file.capture) is None:
            parts.add(measured, functions)
        else:
            raw = capture.record.traces[capture.cycle].file
            parts.add(measured, functions, raw, capture.directory, capture.cycle)
        doubted.append(Doubted.of(str(file), measured.trust))
    page = page_html(parts.page(title, benchmarks))
    write_whole(output, page)
    click.echo(printable(f"{output}: {len(page):,} bytes"), err=True)
    end_with(doubted, unreadable, allow_damaged=allow_damaged)


def _is_bench(path: Path) -> bool:
    """Tell whether a file is a saved benchmark, by how it begins."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return _BENCH in file.read(_BEGINNING)
