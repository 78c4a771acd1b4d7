"""``opscope kernel check FILE.py:FUNCTION``: whether a Triton kernel is right, in the interpreter and on the GPU."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click

from opscope.base.errors import UsageError
from opscope.cli.emit import Output, emit
from opscope.cli.options import Positive, format_option
from opscope.documents.triton_check import KernelRun, MemoryProblem, ProblemKind, TritonCheckDocument
from opscope.render.blocks import Block, Bullets, Name, Section, Table
from opscope.render.table_formats import Column, table_of
from opscope.workbench.triton_check.interpreter import check_kernel


@click.command("triton-check", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", metavar="FILE.py:FUNCTION")
@click.option("--size", metavar="N", help="Value for the parameter size of the inputs function: 1000 or 64k.")
@click.option(
    "--dtype", metavar="TYPE", help="Value for the parameter dtype of the inputs function: fp32, bf16, fp16, fp64."
)
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="Value for any parameter of the inputs function."
)
@click.option(
    "--timeout",
    type=Positive(1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="End a run that takes longer.",
)
@format_option
def command(
    target: str, size: str | None, dtype: str | None, settings: tuple[str, ...], timeout: float, output_format: str
) -> None:
    """Run Triton kernels in Triton's interpreter on the CPU and on the GPU, and say whether they are right.

    FUNCTION is called with what the function inputs(device) of the same file returns; it launches kernels and returns
    tensors, which must equal those that the function reference of the file returns for the same arguments. The
    interpreter checks every access for bounds and for memory that was never written. Exits with code 1 if anything is
    wrong.
    """
    document = check_kernel(target, _parameters(size, dtype, settings), timeout)
    output = Output.of_section(document, lambda: _table(document.cpu.problems), lambda: _section(document))
    emit(output, output_format)
    if not document.passed:
        sys.exit(1)


def _parameters(size: str | None, dtype: str | None, settings: Sequence[str]) -> dict[str, str]:
    words = {name: word for name, word in (("size", size), ("dtype", dtype)) if word}
    for setting in settings:
        name, _, value = setting.partition("=")
        if not name.isidentifier() or not value:
            raise UsageError(f"--set takes NAME=VALUE, not {setting!r}")
        words[name] = value
    return words


def _section(document: TritonCheckDocument) -> Section:
    made = "".join(f", {name}={value}" for name, value in document.parameters.items())
    lines = (*_lines(document.cpu), *_lines(document.gpu))
    blocks: list[Block] = [Bullets(tuple((Name(line),) for line in lines))]
    if document.cpu.problems:
        blocks.append(_table(document.cpu.problems))
    verdict = "passed" if document.passed else "FAILED"
    version = f" (Triton {document.triton})" if document.triton else ""
    return Section((Name(f"{document.target}{made}"), f": {verdict}{version}"), tuple(blocks))


def _lines(run: KernelRun) -> Iterator[str]:
    if run.reason is not None:
        yield f"{run.device}: not run: {run.reason}"
    if run.error is not None:
        yield f"{run.device}: {run.error}"
    if run.agreement is not None:
        result = run.agreement
        yield f"{run.device}: {'right' if result.right else 'WRONG'} beside {result.compared_with}: {result.sentence}"
    elif run.ran and run.error is None:
        yield f"{run.device}: it ran; nothing was compared, as the file has no function reference"
    if run.accesses is not None:
        yield f"accesses checked: {run.accesses:,}, launches: {run.launches:,}, problems: {len(run.problems)}"
    yield from (f"not checked: {sentence}" for sentence in run.not_checked)


def _table(problems: Sequence[MemoryProblem]) -> Table:
    return table_of(_COLUMNS, problems)


def _offsets(problem: MemoryProblem) -> str:
    first, last = problem.first_offset, problem.last_offset
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _beyond(problem: MemoryProblem) -> str:
    if problem.kind in (ProblemKind.UNWRITTEN_READ, ProblemKind.UNWRITTEN_RESULT):
        return "-"
    return "the view, inside its memory" if problem.in_storage else "the memory"


_COLUMNS: Final[tuple[Column[MemoryProblem], ...]] = (
    Column("Problem", lambda problem: str(problem.kind)),
    Column("Where", lambda problem: Name(problem.location or "-")),
    Column("Kernel", lambda problem: Name(problem.kernel or "-")),
    Column("Tensor", lambda problem: Name(f"{problem.tensor} ({problem.tensor_elements:,} elements)")),
    Column("Elements", lambda problem: f"{problem.elements:,}", numeric=True),
    Column("Programs", lambda problem: f"{problem.programs:,}" if problem.kernel else "-", numeric=True),
    Column(
        "First program",
        lambda problem: "-" if problem.first_program is None else str(problem.first_program),
        optional=True,
    ),
    Column("Offset", _offsets),
    Column("Beyond", _beyond),
)
