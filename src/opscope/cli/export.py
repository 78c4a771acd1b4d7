"""``opscope export INPUT -o OUT``: a trace that viewers show whole, or a part of it."""

import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, BinaryIO

import click

from opscope.base.errors import UsageError
from opscope.base.files import STANDARD_OUTPUT, refuse_output
from opscope.base.files import output as output_file
from opscope.cli.options import StepRange, output_option, overwrite_option
from opscope.cli.reading import Size, input_option, part_of
from opscope.cli.say import say
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.readers import Reading, read
from opscope.runs.inputs import TraceFile, files_of, is_execution, measured_of

if TYPE_CHECKING:
    from opscope.export.chrome import Piece
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.trace.model import Trace

_MOST_OF_HEAD = 1 << 20  # bytes in which the mark of an export stands
_LEVEL = 3  # of gzip: level 9 takes nine times as long, and makes files a quarter smaller


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("input_path", metavar="INPUT", type=click.Path(path_type=Path))
@output_option("The Chrome trace to write; packed if it ends in .gz.", "--chrome", required=True)
@overwrite_option("the file and its further parts")
@click.option(
    "--steps",
    type=StepRange(),
    metavar="FIRST[..LAST]",
    help="Write only these steps, by the numbers that the profiler gave them.",
)
@click.option(
    "--ranks",
    is_flag=True,
    help="INPUT is a folder with the traces of a job's ranks: write all of them on one clock, of their last two common "
    "steps unless --steps names some.",
)
@click.option("--max-size", type=Size(), help="Split into parts of at most this size before packing: 200MB.")
@input_option
@damage_option
def command(
    input_path: Path,
    output: Path,
    overwrite: bool,
    steps: tuple[int, int] | None,
    ranks: bool,
    max_size: int | None,
    max_input: int,
    allow_damaged: bool,
) -> None:
    """Write a trace for ui.perfetto.dev or chrome://tracing.

    Viewers silently drop slices that overlap without nesting; here they get lanes of their own. Names are escaped,
    operators and kernels carry opscope's categories, and arrows lead from launches to kernels. Parts after the first
    are named OUT.part2.json and so on. Of a run of opscope exec, all processes are written, on one
    clock; what happens to unified memory is for viewers alone, opscope does not read it back.
    """
    if output == STANDARD_OUTPUT and max_size is not None:
        raise UsageError("--max-size makes several files, and standard output is one: name a file")
    if ranks:
        _export_ranks(input_path, output, steps, max_size, max_input, overwrite=overwrite)
        return
    files = list(files_of([input_path]))
    if len(files) > 1 and not is_execution(input_path):
        raise UsageError(f"{input_path} holds {len(files)} traces: name one, such as {files[0]}")
    file = files[0]
    refuse_output(output, [input_path, *(one.path for one in files)], overwrite=overwrite)
    stale = _refused_parts(output, [input_path, *(one.path for one in files)], overwrite=overwrite)
    tune_for_one_analysis()
    # A run's record is of its whole trace; of other files the rest need not be read.
    part = part_of(steps, None) if len(files) == 1 and file.capture is None else None
    libraries_imported = Event()
    readings = [] if part is not None else [Reading(file.path, max_input, libraries_imported)]
    import_libraries(libraries_imported)
    from opscope.analysis.merged import merged
    from opscope.analysis.part import read_part
    from opscope.analysis.structure.selection import select_steps
    from opscope.export.chrome import chrome_parts
    from opscope.knowledge.categories import classifier_of
    from opscope.knowledge.native_functions import NativeFunctions

    functions = NativeFunctions.shipped()
    if part is not None:
        trace = read_part(file.path, part, max_bytes=max_input)
    else:
        further = [read(other.path, max_bytes=max_input) for other in files[1:]]
        trace = merged([*(reading.trace() for reading in readings), *further])
    doubted = _doubted(file, trace, functions)
    if steps is not None and part is None:
        trace = select_steps(trace, *steps)
    _write_parts(chrome_parts(trace, classifier_of(functions), max_size, doubted.failed), output, stale)
    end_with([doubted], allow_damaged=allow_damaged)


def _export_ranks(
    folder: Path, output: Path, steps: tuple[int, int] | None, max_size: int | None, max_input: int, *, overwrite: bool
) -> None:
    """Write some steps of all ranks of a job."""
    tune_for_one_analysis()
    from opscope.distributed.engines import Here
    from opscope.distributed.inputs import files_of as traces_in
    from opscope.distributed.inputs import record_of
    from opscope.distributed.job import read_job
    from opscope.distributed.timeline import one_timeline
    from opscope.export.chrome import chrome_parts
    from opscope.knowledge.categories import classifier_of
    from opscope.knowledge.native_functions import NativeFunctions

    files = traces_in([str(folder)])
    refuse_output(output, [folder, *files], overwrite=overwrite)
    stale = _refused_parts(output, files, overwrite=overwrite)
    job = read_job(files, Here(), record_of([str(folder)]))
    trace, untied = one_timeline(job, steps, max_input)
    if untied:
        listed = ", ".join(map(str, untied))
        say(f"shown by their own clocks, which no collective ties to those of the others: ranks {listed}")
    _write_parts(chrome_parts(trace, classifier_of(NativeFunctions.shipped()), max_size, ()), output, stale)


def _refused_parts(output: Path, inputs: Sequence[Path], *, overwrite: bool) -> dict[int, Path]:
    """Return the further parts that are there, by number, unless they may not be replaced."""
    stale = _further_parts(output)
    for further_part in stale.values():
        refuse_output(further_part, inputs, overwrite=overwrite)
    return stale


def _write_parts(pieces: "Iterable[Piece]", output: Path, stale: dict[int, Path]) -> None:
    """Write the parts of an export, and remove those of an earlier one that it does not replace."""
    number = 0
    for number, of_file in itertools.groupby(pieces, key=lambda piece: piece.part):
        target = _target(output, number)
        events, size = _write(target, of_file)
        to_stderr = output == STANDARD_OUTPUT  # which holds the trace, so what is said goes to standard error
        say(f"{target}: {events:,} events, {size:,} bytes unpacked", err=to_stderr)
    for earlier, left_over in stale.items():
        if earlier > number and _is_export(left_over):
            left_over.unlink()  # of an earlier export, of another trace


def _doubted(file: TraceFile, trace: "Trace", functions: "NativeFunctions") -> Doubted:
    """Return the checks that the file fails, and those of the measurement: what a reader of the export cannot see."""
    if file.capture is None:
        return Doubted.of_file(str(file), trace.source)
    measured, _ = measured_of(file, trace, functions)
    return Doubted.of(str(file), measured.trust)


def _further_parts(output: Path) -> dict[int, Path]:
    """Return the files that are already there under the names of further parts, by part number."""
    if output == STANDARD_OUTPUT:
        return {}
    name, ending = map(re.escape, _name_and_ending(output))
    form = re.compile(rf"{name}\.part(\d{{1,6}}){ending}")
    result = ((form.fullmatch(path.name), path) for path in output.absolute().parent.iterdir())
    return {int(match[1]): path for match, path in result if match is not None}


def _is_export(path: Path) -> bool:
    """Tell whether opscope wrote a trace."""
    from opscope.readers.exported import HEADER

    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            return f'"{HEADER}"'.encode() in file.read(_MOST_OF_HEAD)
    except (OSError, EOFError, zlib.error):
        return False


def _write(target: Path, pieces: "Iterable[Piece]") -> tuple[int, int]:
    """Write a file piece by piece; return how many events and bytes it holds."""
    events = size = 0
    with output_file(target) as plain, _opened(plain, packed=target.suffix == ".gz") as file:
        for piece in pieces:
            file.write(piece.content)
            events, size = events + piece.events, size + len(piece.content)
    return events, size


@contextmanager
def _opened(file: BinaryIO, *, packed: bool) -> Iterator[BinaryIO | gzip.GzipFile]:
    if packed:
        # The header holds no file name, which would be that of the temporary file.
        with gzip.GzipFile("", "wb", _LEVEL, file) as content:
            yield content
    else:
        yield file


def _target(output: Path, number: int) -> Path:
    if number == 1:
        return output
    name, ending = _name_and_ending(output)
    return output.with_name(f"{name}.part{number}{ending}")


def _name_and_ending(output: Path) -> tuple[str, str]:
    name = output.name.removesuffix(".gz").removesuffix(".json")
    return name, output.name.removeprefix(name)
