"""``opscope export INPUT``: a trace for viewers or as Parquet files, or the reports of a run. Needs no PyTorch."""

import gzip
import itertools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, BinaryIO

import click
from click.core import ParameterSource

from opscope.base.errors import BadInputError, UsageError
from opscope.base.files import STANDARD_OUTPUT, refuse_output
from opscope.base.files import output as output_file
from opscope.cli.options import format_option, output_option, overwrite_option
from opscope.cli.reading import Doubted, Size, damage_option, end_with, input_option, part_of, part_options
from opscope.cli.say import say
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.readers.reading import Reading, read
from opscope.runs.inputs import TraceFile, is_execution, measured_of, traces_below

if TYPE_CHECKING:
    from opscope.analysis.part import Part
    from opscope.export.chrome import Piece
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.trace.model import Trace

_MOST_OF_HEAD = 1 << 20  # bytes in which the mark of an export stands
_LEVEL = 3  # of gzip: level 9 takes nine times as long, and makes files a quarter smaller


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@output_option("The trace to write for viewers (Chrome's format); packed if it ends in .gz.", "--chrome")
@click.option(
    "--parquet",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write the tables of traces as Parquet files, which every command reads where it reads a trace; several "
    "traces get folders of their own in it.",
)
@click.option(
    "--reports",
    is_flag=True,
    help="Write the reports of a run of opscope profile again, from its raw traces, into the run's folder.",
)
@overwrite_option("a file and its further parts, or a converted trace")
@part_options
@click.option(
    "--ranks",
    is_flag=True,
    help="INPUT is a folder with the traces of a job's ranks: write all of them on one clock, of their last two common "
    "steps unless --steps names some.",
)
@click.option("--max-size", type=Size(), help="Split into parts of at most this size before packing: 200MB.")
@input_option
@damage_option
@format_option
def command(
    inputs: tuple[Path, ...],
    output: Path | None,
    parquet: Path | None,
    reports: bool,
    overwrite: bool,
    steps: tuple[int, int] | None,
    window: tuple[int, int] | None,
    ranks: bool,
    max_size: int | None,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Write a trace for ui.perfetto.dev or chrome://tracing, or as Parquet files, or the reports of a run again.

    --output: viewers silently drop slices that overlap without nesting; here they get lanes of their own. Names are
    escaped, operators and kernels carry opscope's categories, and arrows lead from launches to kernels. Parts after the
    first are named OUT.part2.json and so on. Of a run of opscope exec, all processes are written, on one clock; what
    happens to unified memory is for viewers alone, opscope does not read it back.

    --parquet: the tables hold what opscope computes with; Concrete values of arguments and flows stay behind in the
    trace. --window is for this alone.

    --reports: every figure is computed again from the trace files. Neither PyTorch nor a GPU is needed, so results can
    be carried to any machine, and a newer opscope can be applied to old measurements. A configuration whose files are
    damaged is named, the others are written, and the exit code is 4. --format is that of the comparison it prints.
    """
    if (output is not None) + (parquet is not None) + reports != 1:
        raise UsageError("choose what to write: --output FILE, --parquet DIRECTORY or --reports")
    if output is None and (ranks or max_size is not None):
        raise UsageError("--ranks and --max-size are for --output")
    if not reports and (given := _given("output_format", "brief")):
        raise UsageError(f"{given} is for --reports: what is written has its own format")
    if reports and (given := _given("max_input", "overwrite")):
        raise UsageError(f"{given} is not for --reports, which reads and replaces what opscope wrote")
    part = part_of(steps, window)
    if parquet is not None:
        _write_tables(inputs, parquet, part, max_input, overwrite=overwrite, allow_damaged=allow_damaged)
    elif len(inputs) > 1:
        raise UsageError("--output and --reports take one INPUT")
    elif output is not None:
        if window is not None:
            raise UsageError("--window is for --parquet: viewers get whole steps, which --steps names")
        _write_chrome(
            inputs[0], output, steps, max_size, max_input, ranks=ranks, overwrite=overwrite, allow_damaged=allow_damaged
        )
    else:
        if part is not None:
            raise UsageError("reports are of whole traces: leave out --steps and --window")
        _write_reports(inputs[0], output_format, allow_damaged=allow_damaged)


def _given(*names: str) -> str | None:
    """Return the first option of these parameters that the command line has; None without one."""
    context = click.get_current_context()
    for option in context.command.params:
        asked = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if option.name in names and asked:
            return option.opts[0]
    return None


def _write_reports(run: Path, output_format: str, *, allow_damaged: bool) -> None:
    """Write the reports of a run anew, and print its comparison."""
    from opscope.cli.results import print_sweep
    from opscope.runs.pipeline import read_documents
    from opscope.runs.store import RunDirectory, with_entry
    from opscope.sweep.runner import failed_entries, report, worthless_entries, written_sweep

    if not run.is_dir():
        raise UsageError(f"{run} is not a run: --reports takes a directory that opscope profile made")
    directory = RunDirectory(run)
    manifest = directory.read_manifest()
    measured = [entry for entry in manifest.entries if entry.measured]
    if not measured:
        raise BadInputError(f"{run} holds no configuration that was measured")
    for entry in measured:
        manifest = with_entry(manifest, report(directory, entry, allow_damaged=allow_damaged)[0])
    manifest = directory.with_digests(manifest, measured)
    manifest = written_sweep(directory, manifest, allow_damaged=allow_damaged)
    print_sweep([(directory, manifest)], output_format)
    documents = read_documents(directory, manifest)
    doubted = tuple(Doubted.of(f"{run}: {document.name}", document.trust) for document in documents)
    end_with(doubted, told=output_format in ("table", "brief"), allow_damaged=allow_damaged)
    # Configurations that were never measured had failed before: that is not a failure of the reports.
    tried = {entry.configuration for entry in measured}
    if any(entry.configuration in tried for entry in failed_entries(manifest)):
        sys.exit(BadInputError.exit_code)
    if worthless_entries(manifest):
        sys.exit(1)


def _write_tables(
    inputs: Sequence[Path], folder: Path, part: "Part | None", max_input: int, *, overwrite: bool, allow_damaged: bool
) -> None:
    """Write traces as Parquet files."""
    from opscope.analysis.part import read_part
    from opscope.readers import parquet

    files = [file.path for file in traces_below(inputs)]
    targets = [folder] if len(files) == 1 else [folder / name for name in _names(files)]
    # All targets are checked before anything is read or written.
    for path, target in zip(files, targets, strict=True):
        parquet.refuse_target(target, path, overwrite=overwrite)
    doubted = []
    for path, target in zip(files, targets, strict=True):
        trace = read(path, max_bytes=max_input) if part is None else read_part(path, part, max_bytes=max_input)
        manifest = parquet.write(trace, target)
        doubted.append(Doubted.of_file(str(path), trace.source))
        size = sum(file.stat().st_size for file in target.glob("*.parquet"))
        say(f"{target}: {sum(manifest.rows.values()):,} rows, {size:,} bytes", err=False)
    end_with(doubted, allow_damaged=allow_damaged)


def _names(paths: Sequence[Path]) -> Iterator[str]:
    """Yield a distinct name for each trace: its own, else with its folder's before it, else with a number."""
    taken: set[str] = set()
    for path in paths:
        name = path.name.removesuffix(".gz").removesuffix(".json")
        candidates = itertools.chain(
            (name, f"{path.absolute().parent.name}-{name}"), (f"{name}-{number}" for number in itertools.count(2))
        )
        chosen = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(chosen)
        yield chosen


def _write_chrome(
    input_path: Path,
    output: Path,
    steps: tuple[int, int] | None,
    max_size: int | None,
    max_input: int,
    *,
    ranks: bool,
    overwrite: bool,
    allow_damaged: bool,
) -> None:
    """Write a trace, or some of its steps, for viewers."""
    if output == STANDARD_OUTPUT and max_size is not None:
        raise UsageError("--max-size makes several files, and standard output is one: name a file")
    if ranks:
        _export_ranks(input_path, output, steps, max_size, max_input, overwrite=overwrite)
        return
    files = list(traces_below([input_path]))
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
    from opscope.analysis.part import merged, read_part
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
    from opscope.distributed.engines import InThisProcess
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
    job = read_job(files, InThisProcess(), record_of([str(folder)]))
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
