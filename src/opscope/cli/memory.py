"""``opscope memory INPUT``: what fills a GPU, at which line, and what to do. Needs no PyTorch."""

from pathlib import Path

import click

from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option, shown_rows, top_option
from opscope.cli.reading import input_option
from opscope.cli.startup import tune_for_one_analysis


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("input_", metavar="INPUT", type=click.Path(path_type=Path))
@top_option()
@input_option
@format_option
def command(input_: Path, top: int | None, max_input: int, output_format: str) -> None:
    """Show what fills a GPU's memory at its peak, by owner and line of code, what grows, and what to change.

    INPUT is the run directory of opscope profile --memory, or a file of torch.cuda.memory._dump_snapshot (a pickle,
    also packed with gzip, xz or Zstandard), or a page of PyTorch's memory_viz, or a trace of torch.profiler with
    profile_memory=True, which says less. Nothing in it is run.

    To record a snapshot without opscope, call torch.cuda.memory._record_memory_history(stacks="python") before the
    steps of interest and torch.cuda.memory._dump_snapshot("snapshot.pickle") after them, or where an out-of-memory
    error is caught.

    What a change saves follows from the recorded history with that change alone. Settings of the allocator are replayed
    by its rules. --format json prints a document of the schema opscope.memory/1.
    """
    tune_for_one_analysis()
    from opscope.report.memory_document import memory_section, memory_values
    from opscope.runs.inputs import memory_of

    document = memory_of(input_, max_bytes=max_input).document
    emit(
        Output.of_section(document, lambda: memory_values(document), lambda: memory_section(document, shown_rows(top))),
        output_format,
    )
