"""``opscope dossier INPUT``: the most expensive operators, how they run, and what could be gained."""

from pathlib import Path
from typing import Final

import click

from opscope.cli.emit import Output, emit
from opscope.cli.explain import lookup_options
from opscope.cli.lookup import LookupOptions, build_lookup
from opscope.cli.options import format_option, shown_rows, top_option
from opscope.cli.reading import input_option
from opscope.cli.trust import TOLD, Doubted, damage_option, end_with
from opscope.documents.dossier import DossierDocument
from opscope.lookup.dossier import Measure, build_dossier
from opscope.render.blocks import Name, Table
from opscope.report.dossier_sections import dossier_section

_OPERATORS: Final = 3


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("input_path", metavar="INPUT", type=click.Path(path_type=Path))
@top_option("operators", _OPERATORS)
@click.option(
    "--counters",
    is_flag=True,
    help="Replay each operator alone with its recorded shapes under Nsight Compute. Needs ncu, PyTorch and a GPU.",
)
@lookup_options
@input_option
@damage_option
@format_option
def command(
    input_path: Path,
    top: int | None,
    counters: bool,
    configuration: str | None,
    torch: str | None,
    libraries: tuple[Path, ...],
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Show how the most expensive operators use the device in parallel, and what could be gained.

    INPUT is a trace, a converted trace or a run directory. Every statement says whether it was measured, derived from
    shapes and launches, or is general knowledge. --format json prints the schema opscope.dossier/1.
    """
    lookup = build_lookup(LookupOptions(input_path, configuration, torch, libraries, max_input))
    document = build_dossier(lookup, shown_rows(top, _OPERATORS), _measure() if counters else None)
    emit(Output.of_section(document, lambda: _table(document), lambda: dossier_section(document)), output_format)
    doubted = (Doubted(document.trace, document.failed_checks),)
    end_with(doubted, told=output_format in TOLD, allow_damaged=allow_damaged)


def _measure() -> Measure:
    """Return what reads hardware counters; it is imported only for this."""
    from opscope.collect.nsight_compute import counters_of, find_ncu

    # Where ncu is missing, this is an error of the command; later it would be a reason at every operator.
    find_ncu()
    return counters_of


def _table(document: DossierDocument) -> Table:
    rows = tuple(
        (Name(dossier.explanation.name), about, str(statement.basis), Name(statement.text))
        for dossier in document.operators
        for about, statements in dossier.findings.by_topic().items()
        for statement in statements
    )
    return Table(("operator", "about", "basis", "statement"), rows)
