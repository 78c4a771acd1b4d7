"""``opscope page INPUT... [-o FILE.html]``: everything on one page that opens in a browser, offline."""

import itertools
import webbrowser
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

import click

from opscope.base.errors import UsageError
from opscope.base.files import STANDARD_OUTPUT, refuse_output, write_output
from opscope.cli.options import StepRange, output_option, overwrite_option
from opscope.cli.reading import (
    Doubted,
    damage_option,
    end_with,
    gpu_option,
    input_option,
    read_advice,
    read_bench,
    read_ranks,
    traces_of,
)
from opscope.cli.say import say
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.cli.stats_output import JoinedCounters, is_counters_file
from opscope.knowledge.devices import Device
from opscope.readers.formats import is_snapshot_file
from opscope.runs.inputs import measured_of, traces_below

if TYPE_CHECKING:
    from opscope.documents.memory import MemoryDocument, MemoryPicture

_BENCH: Final = b'"opscope.bench/1"'
_ADVICE: Final = b'"opscope.advise/1"'
_RANKS: Final = b'"opscope.ranks/1"'
_BEGINNING: Final = 4096  # bytes in which a document says what it is


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@output_option("The file to write.  [default: INPUT.html, with a number if that exists]")
@overwrite_option("the file")
@click.option("--open", "opened", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--steps", type=StepRange(), metavar="A..B", help="Show these steps in the timeline.  [default: as many as fit]"
)
@click.option("--title", help="The title of the page.")
@gpu_option
@input_option
@damage_option
def command(
    inputs: tuple[Path, ...],
    output: Path | None,
    overwrite: bool,
    opened: bool,
    steps: tuple[int, int] | None,
    title: str | None,
    gpu: Device | None,
    max_input: int,
    allow_damaged: bool,
) -> None:
    """Write a page with verdict, operators, kernels, timeline, flame view, roofline and memory of INPUT.

    INPUT is a trace of torch.profiler, a run directory of opscope profile (then also with the sweep), a recording of
    opscope exec, a directory that opscope export --parquet made, a benchmark that opscope bench --save wrote, or what
    opscope advise or opscope ranks printed with --format json, or a CSV file of Nsight Compute (ncu --csv), whose
    counters then give a roofline of what kernels did, or a memory snapshot of PyTorch (of two, the difference too); or
    several of these. The page is one file that loads nothing: it
    can be sent, kept, and opened offline.
    """
    tune_for_one_analysis()
    benches = [path for path in inputs if _is_document(path, _BENCH)]
    advised = [path for path in inputs if _is_document(path, _ADVICE)]
    of_jobs = [path for path in inputs if _is_document(path, _RANKS)]
    counted = tuple(path for path in inputs if is_counters_file(path))
    of_memory = [path for path in inputs if is_snapshot_file(path)]
    others = [path for path in inputs if path not in {*benches, *advised, *of_jobs, *counted, *of_memory}]
    target = output or _default(inputs[0])
    refuse_output(target, inputs, overwrite=overwrite)
    if opened and target == STANDARD_OUTPUT:
        raise UsageError("--open opens a file: name one with -o")
    benchmarks, advice = [read_bench(path) for path in benches], [read_advice(path) for path in advised]
    jobs = [read_ranks(path) for path in of_jobs]
    counters = JoinedCounters(counted, gpu) if counted else None
    # How many traces there are decides how much of each the page can show, so they are counted before any is read.
    count, unreadable, libraries_imported = sum(1 for _ in traces_below(others)), list[str](), Event()
    traces = traces_of(others, max_input, unreadable, libraries_imported) if others else ()
    import_libraries(libraries_imported)
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.report.page.html import page_html
    from opscope.runs.pipeline import PageParts

    parts, doubted, shipped = PageParts(count, steps), list[Doubted](), NativeFunctions.shipped()
    for file, trace in traces:
        if counters is not None:
            counters.add(trace)
        measured, functions = measured_of(file, trace, shipped, gpu=gpu)
        if (capture := file.capture) is None:
            parts.add(measured, functions)
        else:
            raw = capture.record.traces[capture.cycle].file
            parts.add(measured, functions, raw, capture.directory, capture.cycle)
        doubted.append(Doubted.of(str(file), measured.trust))
    snapshots = [_snapshot_of(path, max_input) for path in of_memory]
    page = page_html(parts.page(title, benchmarks, advice, jobs, counters.document() if counters else None, snapshots))
    write_output(target, page)
    if target != STANDARD_OUTPUT:
        say(f"{target}: {len(page):,} bytes")
    if opened:
        webbrowser.open(target.resolve().as_uri())
    end_with(doubted, unreadable, allow_damaged=allow_damaged)


def _snapshot_of(path: Path, max_input: int) -> "tuple[MemoryDocument, tuple[MemoryPicture, ...]]":
    from opscope.analysis.memory.answered import answered, cases_of
    from opscope.readers.snapshot import read_snapshot

    snapshot = read_snapshot(path, max_bytes=max_input)
    answer = answered(snapshot.path, cases_of(snapshot))
    return answer.document, answer.pictures


def _default(path: Path) -> Path:
    """Return a name in the current folder that is free: the input's, with the ending of a page."""
    name = path.resolve().name if path.is_dir() else path.name
    for ending in (".gz", ".xz", ".zst", ".json", ".pickle", ".pkl", ".sqlite", ".cudarec", ".csv"):
        name = name.removesuffix(ending)
    numbered = (Path(f"{name}-{number}.html") for number in itertools.count(2))
    candidates = itertools.chain((Path(f"{name or 'page'}.html" if name != "-" else "page.html"),), numbered)
    return next(candidate for candidate in candidates if not candidate.exists())


def _is_document(path: Path, schema: bytes) -> bool:
    """Tell whether a file is a document of a schema, by how it begins."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return schema in file.read(_BEGINNING)
