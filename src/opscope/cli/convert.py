"""``opscope convert INPUT -o DIRECTORY``: a trace as Parquet files, which every command reads much faster."""

from pathlib import Path

import click

from opscope.cli.inputs import input_option
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.errors import UsageError
from opscope.inputs import files_of
from opscope.readers import parquet, read
from opscope.text import printable


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files go; several traces get folders of their own in it.",
)
@input_option
@damage_option
def command(inputs: tuple[Path, ...], output_dir: Path, max_input: int, allow_damaged: bool) -> None:
    """Write the tables of traces as Parquet files.

    INPUT is a trace (.json or .json.gz) or a run directory. Every command takes the result where it takes a trace.
    The tables hold what opscope computes with; Concrete values of arguments and flows stay behind in the trace.
    """
    files = [file.path for file in files_of(inputs)]
    targets = [output_dir] if len(files) == 1 else [output_dir / _name(path) for path in files]
    if len(set(targets)) < len(targets):
        raise UsageError("two of the traces have the same name: convert them into directories of their own")
    doubted = []
    for path, target in zip(files, targets, strict=True):
        trace = read(path, max_bytes=max_input)
        manifest = parquet.write(trace, target)
        doubted.append(Doubted.of_file(str(path), trace.source))
        size = sum(file.stat().st_size for file in target.glob("*.parquet"))
        click.echo(printable(f"{target}: {sum(manifest.rows.values()):,} rows, {size:,} bytes"))
    end_with(doubted, allow_damaged=allow_damaged)


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")
