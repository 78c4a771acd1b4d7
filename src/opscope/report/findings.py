"""What an operator's shapes, launches and counters say of it, each statement with what it rests on."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from opscope.record import Counters
from opscope.report.blocks import Block, Name, Paragraph, Table


class Basis(StrEnum):
    """What a statement rests on.

    ``measured`` is a figure of the trace or of hardware counters, ``derived`` follows from such figures or from schema
    and shapes, ``general`` is knowledge about kernels of this kind that was not checked on this one.
    """

    MEASURED = "measured"
    DERIVED = "derived"
    GENERAL = "general"


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence, and what it rests on."""

    text: str
    basis: Basis


@dataclass(frozen=True, slots=True)
class Findings:
    """One operator.

    Attributes:
        inputs: shapes of the inputs that took most of its time, which the statements are about; null if not recorded.
        kernel: the kernel that took most of the time with these inputs; null if it launched none.
        parallel: dimensions that are independent of each other, with their sizes.
        reduced: dimensions that are combined for each element of the result.
        parallelism: why it can run in parallel.
        coverage: how grid and block cover those dimensions.
        resources: registers, shared memory, occupancy and what limits it.
        memory_access: how it reads and writes.
        synchronisation: what waits for what.
        gains: what could be gained.
        counters: hardware counters of the operator, replayed alone; empty without.
        counters_reason: why there are none.
    """

    inputs: str | None
    kernel: str | None
    parallel: dict[str, int]
    reduced: dict[str, int]
    parallelism: tuple[Statement, ...]
    coverage: tuple[Statement, ...]
    resources: tuple[Statement, ...]
    memory_access: tuple[Statement, ...]
    synchronisation: tuple[Statement, ...]
    gains: tuple[Statement, ...]
    counters: tuple[Counters, ...]
    counters_reason: str | None


_HEADINGS = {
    "parallelism": "Why it runs in parallel",
    "coverage": "How grid and block cover it",
    "resources": "Registers, shared memory, occupancy",
    "memory_access": "Memory access",
    "synchronisation": "Synchronisation",
    "gains": "What could be gained",
}


def findings_blocks(findings: Findings) -> Iterator[Block]:
    """Yield what is known of one operator, each statement with what it rests on."""
    about = () if findings.inputs is None else (" for inputs ", Name(findings.inputs))
    kernel = () if findings.kernel is None else (", kernel ", Name(findings.kernel))
    yield Paragraph.of("How it runs", *about, *kernel, "; each statement says what it rests on:")
    yield Table(("About", "Basis", "What is known"), tuple(_rows(findings)))
    if findings.counters_reason:
        yield Paragraph.of("Hardware counters: none (", Name(findings.counters_reason), ").")


def _rows(findings: Findings) -> Iterator[tuple[str, str, str]]:
    for field, heading in _HEADINGS.items():
        statements: tuple[Statement, ...] = getattr(findings, field)
        for number, statement in enumerate(statements):
            yield ("" if number else heading, str(statement.basis), statement.text)
