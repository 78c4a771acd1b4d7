"""``opscope convert INPUT -o DIRECTORY``: a trace as Parquet files, which every command reads much faster."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from opscope.analysis.part import read_part
from opscope.cli.options import folder_option, overwrite_option
from opscope.cli.reading import input_option, part_of, part_options
from opscope.cli.say import say
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.readers import parquet, read
from opscope.runs.inputs import files_of


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@folder_option("Where the files go; several traces get folders of their own in it.", required=True)
@overwrite_option("a converted trace")
@part_options
@input_option
@damage_option
def command(
    inputs: tuple[Path, ...],
    output_dir: Path,
    overwrite: bool,
    steps: tuple[int, int] | None,
    window: tuple[int, int] | None,
    max_input: int,
    allow_damaged: bool,
) -> None:
    """Write the tables of traces as Parquet files.

    INPUT is a trace (.json or .json.gz) or a run directory. Every command takes the result where it takes a trace.
    The tables hold what opscope computes with; Concrete values of arguments and flows stay behind in the trace.
    """
    part = part_of(steps, window)
    files = [file.path for file in files_of(inputs)]
    targets = [output_dir] if len(files) == 1 else [output_dir / name for name in _names(files)]
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
