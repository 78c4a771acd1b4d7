"""How commands read what they are given: options, one trace after the other, and whether it can be trusted."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from opscope.base.errors import BadInputError, DamagedInputError, NotATraceError, UsageError
from opscope.base.files import regular
from opscope.cli.options import StepRange, TimeRange
from opscope.cli.say import say
from opscope.documents.verdict import Check, CheckName, Trust
from opscope.readers.reading import Reading
from opscope.readers.unpacked import MAX_UNPACKED_BYTES
from opscope.runs.inputs import TraceFile, distinct, traces_below

if TYPE_CHECKING:
    from opscope.analysis.part import Part
    from opscope.documents.advise import AdviseDocument
    from opscope.documents.bench import BenchDocument
    from opscope.documents.ranks import RanksDocument
    from opscope.knowledge.devices import Device
    from opscope.trace.model import Trace, TraceSource

F = TypeVar("F", bound=Callable[..., Any])

# ---------------------------------------------------------------- trust


TOLD: Final = ("table", "md", "brief")  # the formats in which a result shows the checks that fail
_LISTED: Final = 3


def damage_option(function: F) -> F:
    """Add ``--allow-damaged``."""
    return click.option(
        "--allow-damaged",
        is_flag=True,
        help="Exit with code 0 even if a file is damaged. Without this option the code is 4 then.",
    )(function)


class Doubted(Struct, frozen=True):
    """A trace and the checks that it fails."""

    trace: str
    failed: tuple[Check, ...]

    @classmethod
    def of(cls, trace: str, trust: Trust) -> "Doubted":
        """Keep the checks that fail."""
        return cls(trace, trust.failures())

    @classmethod
    def of_file(cls, trace: str, source: "TraceSource") -> "Doubted":
        """Check a file that was read but not analysed: whether it is whole."""
        from opscope.analysis.trust.checks import check_file  # needs polars, which commands import while they read

        return cls.of(trace, Trust.of((check_file(source),)))


def end_with(
    doubted: Iterable[Doubted], unreadable: Sequence[str] = (), *, told: bool = False, allow_damaged: bool
) -> None:
    """Print the failed checks to standard error, and end the command if a file is damaged.

    The command's result is printed before.

    Args:
        doubted: the traces that were read, with the checks that they fail.
        unreadable: files that could not be read, which was said already.
        told: whether the result shows the failed checks, so that they are not printed again.
        allow_damaged: whether damage is not a failure.

    Raises:
        DamagedInputError: a file is damaged, and that is not allowed.
    """
    damaged = list(unreadable)
    for one in doubted:
        for check in () if told else one.failed:
            say(f"opscope: {one.trace}: FAIL {check.name}: {check.sentence}")
        if any(check.name is CheckName.FILE_IS_VALID for check in one.failed):
            damaged.append(one.trace)
    if damaged and not allow_damaged:
        names = ", ".join(damaged[:_LISTED]) + (f" and {len(damaged) - _LISTED} more" if len(damaged) > _LISTED else "")
        raise DamagedInputError(
            f"{names}: damaged, or no trace; the figures are of what could be read. --allow-damaged takes that for a "
            "success"
        )


# ---------------------------------------------------------------- reading


D = TypeVar("D")
_NAMED = 8  # GPUs in a message
_DIGITS = 18  # of a size: more bytes than any disk
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


class Size(click.ParamType[int]):
    """A number of bytes: ``500MB``, ``2GiB``, ``1000``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert a size to bytes."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        digits = text.rstrip("BKMGIbkmgi ")
        unit = text[len(digits) :].strip().upper()
        if not (digits.isdecimal() and len(digits) <= _DIGITS) or unit not in _UNITS:
            self.fail(f"{value!r} is not a size; write 500MB or 2GiB", param, ctx)
        return int(digits) * _UNITS[unit]


def input_option(function: F) -> F:
    """Add ``--max-input``, the limit on what a trace may unpack to."""
    return click.option(
        "--max-input",
        type=Size(),
        default=MAX_UNPACKED_BYTES,
        help="Refuse a trace that is larger than this when unpacked.  [default: 16GiB]",
    )(function)


def part_options(function: F) -> F:
    """Add ``--steps`` and ``--window``: the part of a trace to read, which memory need hold no more than."""
    function = click.option(
        "--window",
        type=TimeRange(),
        metavar="FROM..TO",
        help="Read only this range of time, counted from the trace's beginning: 1.5s..2s. The rest needs no memory.",
    )(function)
    return click.option(
        "--steps",
        type=StepRange(),
        metavar="FIRST[..LAST]",
        help="Read only these steps, by the numbers that the profiler gave them. The rest needs no memory.",
    )(function)


def part_of(steps: tuple[int, int] | None, window: tuple[int, int] | None) -> "Part | None":
    """Return the part that the options of `part_options` name; None for the whole trace.

    Raises:
        UsageError: both name one.
    """
    if steps is None and window is None:
        return None
    if steps is not None and window is not None:
        raise UsageError("--steps and --window both name a part of the trace: give one")
    from opscope.analysis.part import Part

    return Part(steps, window)


def gpu_option(function: F) -> F:
    """Add ``--gpu``, for traces whose header does not say what they ran on."""
    return click.option(
        "--gpu",
        metavar="NAME",
        callback=lambda _context, _option, name: None if name is None else _gpu_called(name),
        help="The GPU that the trace is of, if the trace does not say or is wrong: a name that opscope gpus lists.",
    )(function)


def _gpu_called(name: str) -> "Device":
    """Return the GPU that a name means.

    Raises:
        UsageError: no GPU of the table has this name, or several that differ.
    """
    from opscope.knowledge.devices import known_devices
    from opscope.report.gpus_document import chosen_gpus, known_gpus

    names = [gpu.name for gpu in chosen_gpus(known_gpus(), (name,), None)]
    results = [device for device in known_devices() if device.name in names and device.peaks]
    # A name that models end with means those, although others contain it too; models with the same peaks are as one.
    results = [device for device in results if f" {device.name.lower()}".endswith(f" {name.lower()}")] or results
    rates = {(tuple(sorted(device.peaks.items())), device.memory_bytes_per_s) for device in results}
    if not results:
        raise UsageError(f"--gpu: no GPU with known peaks is called {name}; opscope gpus lists all")
    if len(rates) > 1:
        raise UsageError(
            f"--gpu: {name} may be {', '.join(device.name for device in results[:_NAMED])}: name one whole"
        )
    return results[0]


def traces_of(
    paths: Iterable[Path],
    max_bytes: int,
    unreadable: list[str],
    libraries_imported: Event | None = None,
    skipped: list[str] | None = None,
    part: "Part | None" = None,
) -> Iterator[tuple[TraceFile, "Trace"]]:
    """Yield every trace of the inputs with its file, one after the other; none is read twice.

    A file in a folder that is not a trace stops nothing: it is reported on stderr. The first trace is being read
    from this call on, so call it before importing what the analysis needs.

    Args:
        paths: traces, run directories and folders.
        max_bytes: refuse a trace that unpacks to more.
        unreadable: gets the names of files in folders that cannot be read.
        libraries_imported: see `Reading`.
        skipped: gets the names of files that are whole and no traces, also of those that were named, as by a glob;
            None treats them as files that cannot be read.
        part: what to read of each; None for everything.

    Raises:
        BadInputError: a run directory is damaged, a file that was named cannot be read, or there is no trace at all.
        UsageError: a part is wanted of a run, whose record is of the whole trace; or a trace has no such part.
    """
    files = distinct(traces_below(paths))
    if part is not None:
        return _read(((file, _of_part(file, part, max_bytes)) for file in files), unreadable, skipped)
    first = next(files, None)
    if first is None:
        raise BadInputError("the inputs hold no trace")
    readings = itertools.chain(
        [(first, Reading(first.path, max_bytes, libraries_imported).trace)],
        ((file, Reading(file.path, max_bytes).trace) for file in files),
    )
    return _read(readings, unreadable, skipped)


def _of_part(file: TraceFile, part: "Part", max_bytes: int) -> Callable[[], "Trace"]:
    if file.capture is not None:
        raise UsageError(f"{file} belongs to a run, whose record is of all of it: opscope export takes --steps of it")
    from opscope.analysis.part import read_part

    return lambda: read_part(file.path, part, max_bytes=max_bytes)


def _read(
    readings: Iterable[tuple[TraceFile, Callable[[], "Trace"]]], unreadable: list[str], skipped: list[str] | None
) -> Iterator[tuple[TraceFile, "Trace"]]:
    result = False
    for file, read in readings:
        try:
            trace = read()
        except NotATraceError as error:
            if skipped is None and not file.guessed:
                raise
            (unreadable if skipped is None else skipped).append(str(file))
            say(f"opscope: {error}")
        except BadInputError as error:
            if not file.guessed:
                raise
            unreadable.append(str(file))
            say(f"opscope: {error}")
        else:
            result = True
            yield file, trace
    if not result:
        raise BadInputError("none of the files is a trace")


def _document(path: Path, kind: type[D], wanted: str) -> D:
    """Read a document of a schema.

    Args:
        path: the file.
        kind: the document's type.
        wanted: who wrote it, for the error.

    Raises:
        BadInputError: it is something else.
    """
    import msgspec

    try:
        return msgspec.json.decode(regular(path).read_bytes(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"{path} is not what {wanted}: {error}") from error


def read_ranks(path: Path) -> "RanksDocument":
    """Read what ``opscope ranks --format json`` printed.

    Raises:
        BadInputError: it is something else.
    """
    from opscope.documents.ranks import RanksDocument

    document = _document(path, RanksDocument, "opscope ranks --format json prints")
    heat = document.heat
    if heat is not None and (
        len(heat.ranks) != len(heat.late_ns) or any(len(row) != len(heat.steps) for row in heat.late_ns)
    ):
        raise BadInputError(f"{path} is not what opscope ranks --format json prints: its heat map has gaps")
    return document


def read_advice(path: Path) -> "AdviseDocument":
    """Read what ``opscope advise --format json`` printed.

    Raises:
        BadInputError: it is something else.
    """
    from opscope.documents.advise import AdviseDocument

    document = _document(path, AdviseDocument, "opscope advise --format json prints")
    for place in document.best.values():
        if place not in range(len(document.results)) or document.results[place].ratio is None:
            raise BadInputError(f"{path} names a best result that it does not hold")
    return document


def read_bench(path: Path) -> "BenchDocument":
    """Read what ``opscope bench --save`` wrote.

    Raises:
        BadInputError: it is something else, or holds figures that no benchmark measures.
    """
    from opscope.documents.bench import BenchDocument
    from opscope.measuring.verdicts import impossible

    document = _document(path, BenchDocument, "opscope bench --save writes")
    if reason := impossible(document):
        raise BadInputError(f"{path} holds what no benchmark measures: {reason}")
    return document
