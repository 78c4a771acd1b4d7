"""``opscope report RUN``: write statistics, reports and comparison of a run directory anew. Needs no PyTorch."""

import sys
from pathlib import Path

import click

from opscope.base.errors import BadInputError
from opscope.cli.options import format_option
from opscope.cli.results import print_sweep
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.runs.pipeline import read_documents
from opscope.runs.store import RunDirectory, with_entry
from opscope.sweep.reporting import report
from opscope.sweep.runner import failed_entries, worthless_entries, written_sweep


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@damage_option
@format_option
def command(run: Path, allow_damaged: bool, output_format: str) -> None:
    """Write the reports of RUN, a directory made by opscope profile, anew from its raw traces.

    Every figure is computed again from the trace files. Neither PyTorch nor a GPU is needed, so results can be
    carried to any machine, and a newer opscope can be applied to old measurements. A configuration whose files are
    damaged is named, the others are written, and the exit code is 4; with --allow-damaged, reports of what is whole of
    its trace are written too.
    """
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
