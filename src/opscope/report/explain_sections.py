"""Renders explanations of operators and kernels, the statements on one operator, and dossiers for people."""

from collections.abc import Iterator, Sequence

from opscope.base.units import format_bytes, format_count, format_ns, format_share, input_shapes
from opscope.documents.explain import DossierDocument, ExplainDocument, LaunchRow, NativeFunctionEntry
from opscope.documents.statements import OperatorStatements
from opscope.documents.verdict import Check
from opscope.lookup.operator_source import source_facts
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, table_of
from opscope.report.brief import first_things

_LAUNCHES_SHOWN = 12
# Fields of `DecodedKernel` -> headings, in the order in which they are shown.
_DECODED = {
    "family": "Family",
    "operation": "Operation",
    "architecture": "Architecture",
    "unit": "Arithmetic unit",
    "input_dtype": "Input type",
    "compute_dtype": "Multiplied as",
    "accumulate_dtype": "Accumulated as",
    "output_dtype": "Output type",
    "layout": "Layout",
    "tile": "Tile",
    "stages": "Stages",
    "cluster": "Cluster",
    "split_k": "Split-K",
    "vector_width": "Elements per load",
    "functor": "Functor",
}
_HEADINGS = {
    "parallelism": "Why it runs in parallel",
    "coverage": "How grid and block cover it",
    "resources": "Registers, shared memory, occupancy",
    "memory_access": "Memory access",
    "synchronisation": "Synchronisation",
    "gains": "What could be gained",
}


def statement_blocks(findings: OperatorStatements) -> Iterator[Block]:
    """Yield blocks with all statements on one operator, each with its basis."""
    shapes = None if findings.inputs is None else Name(input_shapes(findings.inputs))
    about = () if shapes is None else (" with the inputs that took most of its time (", shapes, ")")
    kernel = () if findings.kernel is None else (", in kernel ", Name(findings.kernel))
    yield Paragraph.of("How it runs", *about, *kernel, "; each statement says what it rests on:")
    yield Table(("About", "Basis", "What is known"), tuple(_rows(findings)))
    if findings.counters_reason:
        yield Paragraph.of("Hardware counters: none (", Name(findings.counters_reason), ").")


def _rows(findings: OperatorStatements) -> Iterator[tuple[str, str, str]]:
    for topic, statements in findings.by_topic().items():
        for number, statement in enumerate(statements):
            yield ("" if number else _HEADINGS[topic], str(statement.basis), statement.text)


def dossier_section(document: DossierDocument) -> Section:
    """Build the section of a whole dossier document."""
    intro = Paragraph.of("Trace: ", Name(document.trace), f". What bounds it: {document.bound}")
    first = tuple(Paragraph(line) for line in first_things(document.actions))
    sections = tuple(
        Section(
            (f"{number}. ", Name(dossier.explanation.name)),
            tuple(statement_blocks(dossier.findings)),
            (explain_section(dossier.explanation, with_trust=False),),
        )
        for number, dossier in enumerate(document.operators, 1)
    )
    doubts = failed_checks(document.failed_checks)
    nothing = () if sections else (Paragraph.of("No operator of the trace launched work on a device."),)
    return Section(("Operator dossier",), (intro, *first, *doubts, *nothing), sections)


def explain_section(document: ExplainDocument, *, with_trust: bool = True) -> Section:
    """Build the section on one operator or kernel.

    Args:
        document: the explanation.
        with_trust: whether to list failed trust checks; False if they are shown elsewhere.
    """
    blocks: list[Block] = [Bullets(tuple(_facts(document)))]
    if with_trust:
        blocks.extend(failed_checks(document.context.failed_checks))
    if document.launches:
        blocks.append(_launches(document.launches[:_LAUNCHES_SHOWN]))
    return Section((f"{document.kind.capitalize()} ", Name(document.name)), tuple(blocks))


def failed_checks(checks: Sequence[Check]) -> Iterator[Block]:
    """Yield a warning with the trust checks that the trace fails; nothing if it fails none."""
    if checks:
        yield Paragraph.of("Do not rely on the figures before these are cleared up:")
        yield Bullets(tuple((f"FAIL {check.name}: ", Name(check.sentence)) for check in checks))


def _facts(document: ExplainDocument) -> Iterator[Inline]:
    yield ("In short: ", Name(document.summary))
    yield (f"Category: {document.category} ({document.category_rule})",)
    yield from _cost(document)
    if document.native_function:
        yield from _native_function(document.native_function)
    yield from source_facts(document.source)
    yield from _device_kernels(document)
    yield from _decoded(document)
    context = document.context
    if context.trace:
        yield ("Looked up in ", Name(context.trace), f", operators of PyTorch {context.torch}")
    else:
        yield (f"Looked up without a trace, operators of PyTorch {context.torch}",)


def _cost(document: ExplainDocument) -> Iterator[Inline]:
    cost = document.cost
    if cost is None:
        if document.context.trace:
            yield ("Time: not in this trace",)
        return
    share = "" if cost.share is None else f", {format_share(cost.share, 1)} of the device sum"
    total = "" if cost.total_device_ns is None else f", total {format_ns(cost.total_device_ns)}"
    yield (
        f"Time: {format_count(cost.calls)} calls, self {format_ns(cost.self_device_ns)} on the device{share}{total}",
    )


def _native_function(entry: NativeFunctionEntry) -> Iterator[Inline]:
    detail = entry.detail
    if detail.schema:
        yield ("Schema: ", Name(detail.schema))
    if detail.yaml_line:
        where = f" (native_functions.yaml line {detail.yaml_line}, PyTorch {detail.torch_version})"
        yield ("Native function: ", Name(entry.name), where)
    if detail.cpp_function:
        yield ("Dispatched to ", Name(detail.cpp_function), f" under {detail.dispatch_key} ({detail.how})")
    else:
        yield (f"Dispatch: {detail.how}",)
    if entry.host_file:
        yield ("C++ function in ", Name(entry.host_file.file), f" ({entry.host_file.how}: {entry.host_file.basis})")
    for inputs, formula in entry.derivatives.items():
        yield ("Gradient of ", Name(inputs), ": ", Name(formula))
    if entry.calls:
        called = ", ".join(f"{name} ({format_count(count)})" for name, count in entry.calls.items())
        yield ("Calls, as recorded: ", Name(called))


def _device_kernels(document: ExplainDocument) -> Iterator[Inline]:
    result = document.device_kernels
    if result is None:
        return
    if not result.candidates:
        yield (f"Device kernels: no candidate file ({result.reason})",)
    for candidate in result.candidates:
        yield ("Device kernels may be in ", Name(candidate.file), f" (candidate: {candidate.basis})")


def _decoded(document: ExplainDocument) -> Iterator[Inline]:
    decoded = document.decoded
    if decoded is None:
        return
    for field, heading in _DECODED.items():
        value = getattr(decoded, field)
        if value is None:
            continue
        if isinstance(value, tuple):
            value = "x".join(str(side) for side in value if side is not None)
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        yield (f"{heading}: ", Name(str(value)))
    for what, detail in decoded.details:
        yield (f"{what.capitalize()}: ", Name(detail))
    if decoded.unknown:
        yield ("Not understood in the name: ", Name("; ".join(decoded.unknown)[:200]))


def _launches(rows: tuple[LaunchRow, ...]) -> Table:
    columns: tuple[Column[LaunchRow], ...] = (
        Column("Operator", lambda row: Name(row.operator or "-")),
        Column("Input shapes", lambda row: Name(input_shapes(row.input_dims))),
        Column("Kernel", lambda row: Name(row.summary)),
        Column("Calls", lambda row: format_count(row.calls), numeric=True),
        Column("Mean", lambda row: format_ns(row.mean_ns), numeric=True),
        Column("Total", lambda row: format_ns(row.total_ns), numeric=True),
        Column("Grid", lambda row: row.grid or "-"),
        Column("Block", lambda row: row.block or "-"),
        Column("Registers", lambda row: format_count(row.registers_per_thread), numeric=True),
        Column("Shared memory", lambda row: format_bytes(row.shared_memory_bytes), numeric=True),
        Column("Occupancy", lambda row: _occupancy(row)[0]),
        Column("Limited by", lambda row: _occupancy(row)[1]),
        Column("Waves", lambda row: _occupancy(row)[2], numeric=True),
        Column("Tail", lambda row: _occupancy(row)[3], numeric=True),
    )
    return table_of(columns, rows)


def _occupancy(row: LaunchRow) -> tuple[str, str, str, str]:
    result = row.occupancy
    if result is None:
        return "-", "-", "-", "-"
    waves = "-" if result.waves is None else f"{result.waves:.2f}"
    tail = "-" if result.tail is None else f"{100 * result.tail:.0f} %"
    return f"{result.percent:.0f} %", result.limiter, waves, tail
