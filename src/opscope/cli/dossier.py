"""``opscope dossier INPUT``: the most expensive operators, how they run, and what could be gained."""

from pathlib import Path

import click

from opscope.cli.explain import lookup_options
from opscope.cli.lookup import LookupOptions, build_lookup
from opscope.cli.options import format_option
from opscope.cli.reading import input_option
from opscope.cli.say import show
from opscope.cli.terminal import echo_section
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.documents.dossier import DossierDocument
from opscope.lookup.dossier import Measure, build_dossier
from opscope.record.codec import encode
from opscope.render.blocks import Name, Table
from opscope.render.markdown import render
from opscope.render.table_formats import as_csv
from opscope.report.dossier_sections import dossier_section


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("input_path", metavar="INPUT", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=1, max=1000), default=3, show_default=True, help="How many operators.")
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
    top: int,
    counters: bool,
    configuration: str | None,
    torch: str | None,
    libraries: tuple[Path, ...],
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Show why the most expensive operators run in parallel, how they cover the device, and what could be gained.

    INPUT is a trace, a converted trace or a run directory. Every statement says whether it was measured, derived from
    shapes and launches, or is general knowledge. --format json prints the schema opscope.dossier/1.
    """
    lookup = build_lookup(LookupOptions(input_path, configuration, torch, libraries, max_input))
    document = build_dossier(lookup, top, _measure() if counters else None)
    if output_format == "json":
        show(encode(document))
    elif output_format == "csv":
        show(as_csv(_table(document)))
    elif output_format == "md":
        show(render(dossier_section(document)))
    else:
        echo_section(dossier_section(document))
    doubted = (Doubted(document.trace, document.failed_checks),)
    end_with(doubted, told=output_format in ("table", "md"), allow_damaged=allow_damaged)


def _measure() -> Measure:
    """Return what reads hardware counters; it is imported only for this."""
    from opscope.collect.nsight_compute import counters_of, find_ncu

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
