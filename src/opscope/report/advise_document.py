"""Writes what was tried on a step, and what of it is proven, as a section."""

from collections.abc import Iterator, Sequence

from opscope.base.units import format_bytes, format_ns
from opscope.documents.advise import (
    AdviseDocument,
    Copies,
    ErrorClass,
    InputProof,
    LargerBatch,
    OtherLoading,
    Outcome,
    Patch,
    StageCost,
    Tried,
)
from opscope.render.blocks import Block, Bullets, Code, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, field_values, table_of

_FIELDS = (
    *("changes", "error_class", "verdict", "ratio", "ci_low", "ci_high", "step_ns", "error", "own_error"),
    *("compared_tensors", "compared_elements"),
    *("memory_bytes", "compile_s", "pays_after_steps", "reason"),
)
_CLASSES = {
    ErrorClass.EXACT: "exact to rounding",
    ErrorClass.TF32: "products in TF32",
    ErrorClass.BF16: "16-bit numbers",
    ErrorClass.LOWER: "fewer bits",
}


def advise_section(document: AdviseDocument, *, with_table: bool = True) -> Section:
    """Build what people read: the best of each class with the lines to write, then everything that was tried.

    Args:
        document: what it shows.
        with_table: whether all that was tried is listed; the page has a table that can be sorted.
    """
    blocks: list[Block] = [Bullets(tuple(_summary(document)))]
    for error_class, place in document.best.items():
        blocks += _best(error_class, document.results[place])
    if document.input is not None:
        blocks += _input(document.input)
    if document.larger_batches:
        blocks.append(Paragraph.of("Larger batches, which are other training; measured, and not proven:"))
        blocks.append(_batches(document.larger_batches))
    lacks_results = document.ended is not None and document.input is None
    if not document.best and (document.results or lacks_results):
        tried = sum(one.verdict is not Outcome.REFUSED for one in document.results)
        open_ones = sum(one.verdict is Outcome.UNDECIDED for one in document.results)
        undecided = f" {open_ones} could not be decided." if open_ones else ""
        timed = [one for one in document.results if one.verdict is Outcome.TIMED and one.ratio is not None]
        if timed:
            fastest = max(timed, key=lambda one: one.ratio or 0.0)
            among = f"Nothing is proven. {' + '.join(fastest.changes)} was {fastest.ratio:.2f} times as fast: "
            among += fastest.reason
        elif tried:
            those = "1 combination was" if tried == 1 else f"{tried} combinations were"
            among = f"Nothing found; {those} tried.{undecided}"
        else:
            among = "Nothing could be tried." if document.ended is None else "Nothing was tried to its end."
        blocks.append(Paragraph.of(among))
    tried_ones = [one for one in document.results if one.verdict is not Outcome.REFUSED]
    if tried_ones and with_table:
        blocks.append(_table(tried_ones))
    refused = [one for one in document.results if one.verdict is Outcome.REFUSED]
    if refused:
        blocks.append(Paragraph.of("Not tried:"))
        blocks.append(Bullets(tuple((Name(" + ".join(one.changes)), f": {one.reason}") for one in refused)))
    return Section((Name(document.target),), tuple(blocks))


def advise_values(document: AdviseDocument) -> Table:
    """Build the table of CSV: a line for each combination, with bare figures."""
    return Table(
        columns=_FIELDS,
        rows=tuple((" + ".join(one.changes), *field_values(one, _FIELDS[1:])) for one in document.results),
    )


def _summary(document: AdviseDocument) -> Iterator[Inline]:
    low, high = document.of_itself
    yield (
        f"As written: {format_ns(document.baseline_ns)} a step on {document.device}; the same code in another process "
        f"was {low:.2f} to {high:.2f} times as fast",
    )
    yield (
        f"{document.processes} processes in {document.seconds:.0f} s, timed in turns of steps that follow each other",
    )
    if document.unfinished is not None:
        yield (f"Not everything was done: {document.unfinished}",)


def _best(error_class: ErrorClass, one: Tried) -> Iterator[Block]:
    gain = f"{one.ratio:.2f} times as fast" if one.ratio else ""
    if one.ci_low is not None and one.ci_high is not None:
        gain += f" ({one.ci_low:.2f} to {one.ci_high:.2f})"
    steps = "1 step" if one.pays_after_steps == 1 else f"{one.pays_after_steps or 0:,} steps"
    pays = f"; its longer start pays after {steps}" if one.pays_after_steps else ""
    own = "" if one.own_error is None else f", as written {one.own_error:.1e}"
    reference = "float64" if one.reference == "float64" else "the step as written in another process"
    error = "" if one.error is None else f"; error {one.error:.1e} against {reference}{own}"
    if one.compared_tensors is not None:
        error += f" ({one.compared_tensors:,} tensors, {one.compared_elements:,} elements compared)"
    yield Paragraph.of(f"Proven, {_CLASSES[error_class]}: {gain}, {format_ns(one.step_ns)} a step{error}{pays}")
    write: list[Inline] = [("Write: ", Name(line)) for line in one.lines]
    mind: list[Inline] = [(f"Mind: {caveat}.",) for caveat in one.caveats]
    yield Bullets((*write, *mind))
    if one.patch is not None:
        yield from _patch(one.patch)


def _patch(patch: Patch) -> Iterator[Block]:
    if patch.diff is None:
        yield Paragraph.of(f"No patch: {patch.reason}.")
        return
    between = "" if patch.ci_low is None or patch.ci_high is None else f" ({patch.ci_low:.2f} to {patch.ci_high:.2f})"
    yield Paragraph.of(f"As a patch, with which the script itself was {patch.ratio:.2f} times as fast{between}:")
    yield Code(tuple(patch.diff.splitlines()), "diff")


def _batches(larger: Sequence[LargerBatch]) -> Table:
    columns: tuple[Column[LargerBatch], ...] = (
        Column("Batch size", lambda one: f"{one.batch_size:,}", numeric=True),
        Column("Step", lambda one: format_ns(one.step_ns), numeric=True),
        Column("Times as many samples", lambda one: "-" if one.ratio is None else f"{one.ratio:.2f}", numeric=True),
        Column(
            "95 %",
            lambda one: "-" if one.ci_low is None or one.ci_high is None else f"{one.ci_low:.2f} to {one.ci_high:.2f}",
        ),
        Column("Memory", lambda one: format_bytes(one.memory_bytes), numeric=True, optional=True),
        Column("Why not", lambda one: one.reason or "-"),
    )
    return table_of(columns, larger)


def _input(proof: InputProof) -> Iterator[Block]:
    """Yield whether steps wait for their data, what loading is made of, and what would be gained."""
    low, high = proof.ci_low, proof.ci_high
    between = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    memory = f"with batches from memory a step takes {format_ns(proof.from_memory_ns)} instead of"
    times = f"{memory} {format_ns(proof.step_ns)}: {proof.ratio:.2f} times as fast{between}"
    if proof.undecided is not None:
        yield Paragraph.of(f"Whether steps wait for their data is {proof.undecided}: {times}")
        return
    if proof.blamed:
        yield Paragraph.of(
            f"Loading costs {format_ns(proof.step_ns - proof.from_memory_ns)} of each step: {times}. A step waits "
            f"{format_ns(proof.wait_ns)} for its data, which {_who_loads(proof.workers)}."
        )
    else:
        yield Paragraph.of(
            f"Loading is not to blame: {times}. A step waits {format_ns(proof.wait_ns)} for its data; by the rest, one "
            "process may differ from another."
        )
    if proof.copies is not None:
        yield Paragraph.of(_said_of_copies(proof.copies, proof.from_memory_ns))
    if not proof.others:
        return
    yield _stage_table(proof)
    yield Bullets(tuple((_other(one),) for one in proof.others))


def _said_of_copies(copies: Copies, from_memory_ns: float) -> str:
    cost = from_memory_ns - copies.from_device_ns
    if not copies.blamed:
        return "Copies to the GPU cost no time that can be measured: they are short, or hidden behind its work."
    pinned = copies.from_pinned_ns
    from_pinned = "" if pinned is None else f"; from pinned memory a step takes {format_ns(pinned)}"
    return (
        f"Copies to the GPU cost {format_ns(cost)} of each step: with batches that are there already it takes "
        f"{format_ns(copies.from_device_ns)}, {copies.ratio:.2f} times as fast as from memory{from_pinned}."
    )


def _other(one: OtherLoading) -> str:
    how = "Measured with" if one.measured else "Computed for"
    return f"{how} {one.change}: {format_ns(one.step_ns)} a step, {one.ratio:.2f} times as fast"


def _who_loads(workers: int) -> str:
    if not workers:
        return "the process itself loads"
    return "one worker loads" if workers == 1 else f"{workers} workers load"


def _stage_table(proof: InputProof) -> Table:
    columns: tuple[Column[StageCost], ...] = (
        Column("Stage", lambda one: one.stage),
        Column("Per batch", lambda one: format_ns(one.batch_ns), numeric=True),
        Column("Per step", lambda one: format_ns(one.step_ns), numeric=True),
        Column("Mostly in", lambda one: Name(one.function or "-")),
        Column("Where", lambda one: Name("-" if one.file is None else f"{one.file}:{one.line}")),
    )
    return table_of(columns, proof.stages)


def _compared(one: Tried) -> str:
    return "-" if one.compared_tensors is None else f"{one.compared_tensors:,} tensors"


def _table(tried: Sequence[Tried]) -> Table:
    columns: tuple[Column[Tried], ...] = (
        Column("Changes", lambda one: Name(" + ".join(one.changes))),
        Column("Class", lambda one: one.error_class),
        Column("Verdict", lambda one: one.verdict),
        Column("Times as fast", lambda one: "-" if one.ratio is None else f"{one.ratio:.2f}", numeric=True),
        Column(
            "95 %",
            lambda one: "-" if one.ci_low is None or one.ci_high is None else f"{one.ci_low:.2f} to {one.ci_high:.2f}",
        ),
        Column("Step", lambda one: format_ns(one.step_ns), numeric=True),
        Column("Error", lambda one: "-" if one.error is None else f"{one.error:.1e}", numeric=True),
        Column("Compared", _compared, numeric=True, optional=True),
        Column("Memory", lambda one: format_bytes(one.memory_bytes), numeric=True, optional=True),
        Column("Why", lambda one: one.reason),
    )
    return table_of(columns, tried)
