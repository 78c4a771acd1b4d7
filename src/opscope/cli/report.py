"""``opscope report RUN``: write statistics, reports and comparison of a run directory anew. Needs no PyTorch."""

from pathlib import Path

import click

from opscope.cli.options import ListCommand, format_option
from opscope.cli.results import print_sweep
from opscope.errors import BadInputError
from opscope.store import RunDirectory, with_entry
from opscope.sweep.outputs import write_comparison, write_outputs


@click.command(cls=ListCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@format_option
def command(run: Path, output_format: str) -> None:
    """Write the reports of RUN, a directory made by opscope profile, anew from its raw traces.

    Every figure is computed again from the trace files. Neither PyTorch nor a GPU is needed, so results can be
    carried to any machine, and a newer opscope can be applied to old measurements.
    """
    directory = RunDirectory(run)
    manifest = directory.read_manifest()
    for entry in manifest.entries:
        if entry.status == "done":
            manifest = with_entry(manifest, write_outputs(directory, entry))
    if write_comparison(directory, manifest) is None:
        raise BadInputError(f"{run} holds no finished configuration")
    directory.write_manifest(manifest)
    print_sweep([(directory, manifest)], output_format)
