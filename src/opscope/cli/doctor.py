"""``opscope doctor``: whether everything works here."""

import sys
import time

import click
from msgspec.structs import replace

from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.cli.terminal import echo_lines, echo_table
from opscope.documents.machine import DoctorDocument, MachineCheck, Status
from opscope.render.blocks import Name, Table
from opscope.workbench.doctor.ask import ask
from opscope.workbench.doctor.diagnose import diagnose

_PROBLEM = 3  # exit code


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@format_option
def command(output_format: str) -> None:
    """Try everything that opscope uses: driver, GPUs, PyTorch, profiler, nvcc, Triton, NCCL, counters.

    Each is really run: a kernel on every GPU, a product compared with the CPU's, a program built, a short profile, a
    counter read. What does not fit together is named, with what to do. Ends with exit code 3 where something that is
    there does not work.
    """
    began = time.perf_counter()
    checks = diagnose(ask())
    works = all(check.status is not Status.PROBLEM for check in checks)
    document = DoctorDocument(works=works, seconds=time.perf_counter() - began, checks=checks)
    _show(document, output_format)
    if not works:
        sys.exit(_PROBLEM)


def _show(document: DoctorDocument, output_format: str) -> None:
    def text() -> None:
        echo_table(_table(document, fixes=False))
        echo_lines(_fixes(document.checks))

    emit(replace(Output.of_table(document, _table(document), "Doctor"), text=text), output_format)


def _table(document: DoctorDocument, *, fixes: bool = True) -> Table:
    # In the text for people, what to do stands below the table.
    rows = [
        (check.name, str(check.status), Name(check.found), Name(check.fix) if check.fix else "-")
        for check in document.checks
    ]
    if fixes:
        return Table(("Check", "Result", "Found", "What to do"), tuple(rows))
    return Table(("Check", "Result", "Found"), tuple(row[:3] for row in rows))


def _fixes(checks: tuple[MachineCheck, ...]) -> list[str]:
    wanted = [check for check in checks if check.status in (Status.PROBLEM, Status.WARNING) and check.fix is not None]
    return ["", *(f"{check.name}: {check.fix}" for check in wanted)] if wanted else []
