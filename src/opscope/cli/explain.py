"""``opscope explain``: what an operator or a kernel is, where its source is, how it runs. Needs no PyTorch."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec
from msgspec import Struct

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.analysis.structure.origin import Producer, producer_of
from opscope.base.errors import BadInputError, OpscopeError, UsageError
from opscope.base.files import path_text
from opscope.base.text import printable
from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option, shown_rows, top_option
from opscope.cli.reading import TOLD, Doubted, damage_option, end_with, input_option
from opscope.cli.say import say, show
from opscope.documents.explain import ExplainDocument, PlaceEntry
from opscope.knowledge.kernels.index import (
    SourceIndex,
    by_nearness,
    parse_version,
    same_build,
    same_release,
    shipped_index,
    shipped_names,
)
from opscope.knowledge.kernels.installed import (
    InstalledTorch,
    build_ids,
    installed_torch,
    library_index,
    torch_in,
    torch_in_wheel,
    torch_index,
)
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions, TorchVersion
from opscope.lookup.explain import Lookup
from opscope.readers.reading import read
from opscope.record.capture import CaptureRecord
from opscope.record.counters import Precision
from opscope.render.blocks import Name, Table
from opscope.report.explain_sections import explain_section
from opscope.runs.pipeline import functions_of, measured_capture, run_resolver
from opscope.runs.store import RunDirectory

if TYPE_CHECKING:
    from opscope.documents.explain import DossierDocument
    from opscope.lookup.dossier import MeasureCounters

# ---------------------------------------------------------------- looking up


class LookupOptions(Struct, frozen=True):
    """What the user asked for.

    Attributes:
        input_path: a trace, a converted trace or a run directory; None to look names up without one.
        configuration: the id of one of a run directory; None for its first.
        torch: a version of PyTorch to look up in; None for the one of the input, or the installed one.
        libraries: further libraries with CUDA kernels.
        max_bytes: limit on what a trace may unpack to.
    """

    input_path: Path | None
    configuration: str | None
    torch: str | None
    libraries: tuple[Path, ...]
    max_bytes: int


def build_lookup(options: LookupOptions) -> Lookup:
    """Read the input and choose the indexes.

    Raises:
        UsageError: no index of the version is shipped, or the run has no such configuration.
        BadInputError: an input or a library cannot be read.
        EnvironmentLacksError: C++ names in a library cannot be read on this system.
    """
    # What the user named is asked before what is installed.
    named = [_named(path) for path in options.libraries]
    torch = next((result for result, _ in named if result is not None), None)
    lookup = _of_input(options) if options.input_path else _without_input(options, torch)
    lookup.resolver.installed = (*(index for _, result in named for index in result), *lookup.resolver.installed)
    return lookup


def _named(path: Path) -> tuple[InstalledTorch | None, list[SourceIndex]]:
    """Index what the user named: a library, or the PyTorch of a folder or a wheel, of this or another platform."""
    if path.is_dir():
        result = torch_in(path)
        if result is None:
            raise BadInputError(f"{path} holds no PyTorch: torch/version.py is not there, or does not say its version")
        return result, torch_index(result)
    if path.suffix == ".whl":
        with torch_in_wheel(path) as result:  # its libraries are there only as long as this block
            return result, torch_index(result)
    return None, [_library(path)]


def _library(path: Path) -> SourceIndex:
    """Index a library that the user named; its build id tells whether it is PyTorch's own, and which."""
    name = same_build(build_ids([path]).values())
    return library_index(path, torch=name or "", git=shipped_index(name).git if name else None)


def _without_input(options: LookupOptions, named: InstalledTorch | None) -> Lookup:
    installed = installed_torch()
    if options.torch is None and named is not None:
        version = TorchVersion.parse(named.version)
        resolver = SourceResolver(version, named.git)
    elif options.torch is None and installed is not None:
        version = TorchVersion.parse(installed.version)
        resolver = SourceResolver(version, installed.git, _installed_indexes(installed))
    else:
        version = None if options.torch is None else _asked(options.torch)
        resolver = SourceResolver(version)
    return Lookup(resolver, NativeFunctions.shipped(version), _host_index(version))


def _installed_indexes(installed: InstalledTorch) -> list[SourceIndex]:
    """Index the installed libraries. Where they tell nothing, say so; the shipped indexes answer then."""
    try:
        indexes = torch_index(installed)
        reason = None if indexes else f"the installed PyTorch {installed.version} has no CUDA kernels"
    except OpscopeError as error:
        indexes, reason = [], str(error)
    if reason:
        say(f"opscope: {printable(reason)}: answers come from the shipped indexes")
    return indexes


def _of_input(options: LookupOptions) -> Lookup:
    path = options.input_path
    assert path is not None
    directory = RunDirectory(path)
    if directory.manifest.is_file():
        return _of_run(directory, options)
    if options.configuration is not None:
        raise UsageError(f"--configuration belongs to a run directory; {path} is none")
    trace = read(path, max_bytes=options.max_bytes)
    producer = producer_of(trace.source)
    version = _version(options, producer)
    functions = NativeFunctions.shipped(version)
    measured = Measured(analyze(trace, functions))
    resolver = SourceResolver(version, producer.git, doubt=_doubt(options, producer))
    return Lookup(resolver, functions, _host_index(version), trace.source.path, measured)


def _of_run(directory: RunDirectory, options: LookupOptions) -> Lookup:
    record = _record(directory, options.configuration)
    functions = functions_of(directory, record)
    path = directory.trace_path(record.traces[0].file)
    measured = measured_capture(read(path, max_bytes=options.max_bytes), record, 0, functions, directory=directory)
    framework = record.framework
    producer = Producer(framework.torch, framework.torch_git) if framework else Producer(None, None)
    version = _version(options, producer)
    resolver = run_resolver(record)
    if options.torch is not None:
        resolver = SourceResolver(version, doubt=_doubt(options, producer))
        functions = NativeFunctions.shipped(version)
    precision = Precision(framework.float32_matmul_precision, framework.cudnn_allow_tf32) if framework else None
    return Lookup(resolver, functions, _host_index(version), path_text(path), measured, precision)


def _record(directory: RunDirectory, configuration: str | None) -> CaptureRecord:
    entries = [entry for entry in directory.read_manifest().entries if entry.measured]
    if not entries:
        raise BadInputError(f"{directory.path} holds no configuration that was measured")
    chosen = [entry for entry in entries if configuration in (None, entry.configuration.id)]
    if not chosen:
        known = ", ".join(entry.configuration.id for entry in entries)
        raise UsageError(f"{directory.path} has no configuration {configuration}; there are {known}")
    return directory.read_record(chosen[0])


def _version(options: LookupOptions, producer: Producer) -> TorchVersion | None:
    if options.torch is not None:
        return _asked(options.torch)
    return TorchVersion.parse(producer.torch) if producer.torch else None


def _asked(text: str) -> TorchVersion:
    version = parse_version(text)
    if same_release(version) is None:
        raise UsageError(f"no index of PyTorch {text} is shipped; there are {', '.join(sorted(shipped_names()))}")
    return version


def _doubt(options: LookupOptions, producer: Producer) -> str | None:
    """Say why answers about the version that the user named may not hold for the trace; None if they do."""
    recorded = TorchVersion.parse(producer.torch) if producer.torch else None
    if options.torch is None or recorded is None:
        return None
    if same_release(recorded) is not None and same_release(recorded) == same_release(_asked(options.torch)):
        return None
    return f"the trace was recorded with PyTorch {producer.torch}"


def _host_index(version: TorchVersion | None) -> SourceIndex:
    # Only shipped indexes know the files of C++ functions: that of the same release, else of the nearest one.
    name = (same_release(version) if version else None) or by_nearness(version)[0]
    return shipped_index(name)


# ---------------------------------------------------------------- the command


F = TypeVar("F", bound=Callable[..., Any])
_OPERATORS: Final = 3


def lookup_options(function: F) -> F:
    """Add ``--library``, ``--torch`` and ``--configuration``, which say what names are looked up in."""
    for option in (
        click.option(
            "--configuration",
            metavar="ID",
            help="The configuration of a run directory, such as bs8_seq128.  [default: the first]",
        ),
        click.option(
            "--torch",
            metavar="VERSION",
            help="Look names up in the shipped index of this PyTorch release, such as 2.11.0+cu130.",
        ),
        click.option(
            "--library",
            "libraries",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Also search this library (.so), or this PyTorch wheel or folder, of any platform. May be repeated.",
        ),
    ):
        function = option(function)
    return function


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--in",
    "input_path",
    type=click.Path(path_type=Path),
    metavar="INPUT",
    help="A trace, a converted trace or a run directory: shows what the name launched there, and its cost.",
)
@top_option("of the most expensive operators, where no NAME is given", _OPERATORS)
@click.option(
    "--counters",
    is_flag=True,
    help="Replay each of the most expensive operators alone with its recorded shapes under Nsight Compute. Needs ncu, "
    "PyTorch and a GPU.",
)
@lookup_options
@input_option
@damage_option
@format_option
def command(
    names: tuple[str, ...],
    input_path: Path | None,
    top: int | None,
    counters: bool,
    configuration: str | None,
    torch: str | None,
    libraries: tuple[Path, ...],
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Say what an operator or a kernel is, where its source is, and how that is known.

    NAME is an operator (aten::addmm, or addmm) or a kernel's name as a trace has it; - reads names from standard input,
    one a line. Without --in, names are looked up in the installed PyTorch, or in the index of --torch.
    --format json prints one object a line, by the schema opscope.explain/1. A name that nothing recognises ends the
    command with exit code 1.

    Without NAME, the most expensive operators of --in are explained: how they use the device in parallel, and what
    could be gained. Every statement says whether it was measured, derived from shapes and launches, or is general
    knowledge. --format json then prints the schema opscope.dossier/1.
    """
    if configuration is not None and input_path is None:
        raise UsageError("--configuration belongs to a run directory: name it with --in")
    if not names and input_path is None:
        raise UsageError("name an operator or a kernel, or a trace with --in for its most expensive operators")
    if names and (top is not None or counters):
        raise UsageError("--top and --counters are for the most expensive operators: leave out NAME")
    lookup = build_lookup(LookupOptions(input_path, configuration, torch, libraries, max_input))
    if not names:
        _print_dossier(lookup, top, output_format, counters=counters, allow_damaged=allow_damaged)
        return
    documents = [lookup.explain(name) for name in _names(names)]
    if output_format == "json":
        for document in documents:
            show(msgspec.json.encode(document))
    else:
        sections = [explain_section(document) for document in documents]
        emit(
            Output(document=lambda: documents, values=lambda: _table(documents), sections=lambda: sections),
            output_format,
        )
    unknown = [document for document in documents if not document.known]
    for document in unknown:
        meant = f": did you mean {', '.join(document.did_you_mean)}?" if document.did_you_mean else ""
        say(f"opscope: nothing is known of {document.name!r}{meant}")
    doubted = (Doubted(lookup.trace_name or "", lookup.failed_checks),)
    end_with(doubted, told=output_format in TOLD, allow_damaged=allow_damaged)
    if unknown:
        sys.exit(1)


def _print_dossier(
    lookup: "Lookup", top: int | None, output_format: str, *, counters: bool, allow_damaged: bool
) -> None:
    """Print how the most expensive operators use the device, and what could be gained."""
    from opscope.lookup.dossier import build_dossier
    from opscope.report.explain_sections import dossier_section

    document = build_dossier(lookup, shown_rows(top, _OPERATORS), _measure() if counters else None)
    emit(
        Output.of_section(document, lambda: _dossier_table(document), lambda: dossier_section(document)), output_format
    )
    doubted = (Doubted(document.trace, document.failed_checks),)
    end_with(doubted, told=output_format in TOLD, allow_damaged=allow_damaged)


def _measure() -> "MeasureCounters":
    """Return what reads hardware counters; it is imported only for this."""
    from opscope.collect.nsight_compute import counters_of, find_ncu

    # Where ncu is missing, this is an error of the command; later it would be a reason at every operator.
    find_ncu()
    return counters_of


def _dossier_table(document: "DossierDocument") -> Table:
    rows = tuple(
        (Name(dossier.explanation.name), about, str(statement.basis), Name(statement.text))
        for dossier in document.operators
        for about, statements in dossier.findings.by_topic().items()
        for statement in statements
    )
    return Table(("operator", "about", "basis", "statement"), rows)


def _names(values: Iterable[str]) -> Iterator[str]:
    for name in values:
        if name != "-":
            yield name.encode("utf-8", "replace").decode()  # of bytes that are not text
            continue
        if getattr(sys, "stdin", None) is None:
            raise UsageError("standard input is closed: - reads names from it")
        for line in sys.stdin.buffer:
            if name := line.decode("utf-8", "replace").strip():
                yield name


def _table(documents: Iterable[ExplainDocument]) -> Table:
    columns = (
        *("kind", "name", "summary", "category", "native_function", "cpp_function", "file", "line", "how"),
        *("definition", "launch_site", "library", "url", "calls", "self_device_ns", "share"),
    )
    return Table(columns, tuple(tuple(Name(cell) for cell in _cells(document)) for document in documents))


def _shown_place(place: PlaceEntry | None) -> str:
    if place is None:
        return ""
    return f"{place.file}:{place.line}" if place.line else place.file


def _cells(document: ExplainDocument) -> Iterator[str]:
    source, native, cost = document.source, document.native_function, document.cost
    yield from (document.kind, document.name, document.summary, document.category)
    yield from ((native.name, native.detail.cpp_function or "") if native else ("", ""))
    yield from (source.file or "", str(source.line or ""), str(source.how))
    for place in (source.definition, source.launch_site):
        yield _shown_place(place)
    yield from (source.library or "", source.url or "")
    yield from ("", "", "") if cost is None else (str(cost.calls), str(cost.self_device_ns), str(cost.share or ""))
