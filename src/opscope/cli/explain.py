"""``opscope explain``: what an operator or a kernel is, where its source is, how it runs. Needs no PyTorch."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from opscope.base.errors import UsageError
from opscope.cli.emit import Output, emit
from opscope.cli.lookup import LookupOptions, build_lookup
from opscope.cli.options import format_option, shown_rows, top_option
from opscope.cli.reading import input_option
from opscope.cli.say import say, show
from opscope.cli.trust import TOLD, Doubted, damage_option, end_with
from opscope.documents.explain import ExplainDocument
from opscope.documents.source import PlaceEntry
from opscope.render.blocks import Name, Table
from opscope.report.explain_sections import explain_section

if TYPE_CHECKING:
    from opscope.documents.explain import DossierDocument
    from opscope.lookup.dossier import MeasureCounters
    from opscope.lookup.explain import Lookup

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
