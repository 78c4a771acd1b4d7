"""Builds the document of a what-if question from the changes that a user asks for, and its tables."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.measured import Measured
from opscope.analysis.replay import changes
from opscope.analysis.replay.batch import more_workers, other_batch
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.changes import MOST_ERROR, MOST_MISSED, MOST_RESIDUAL, ReplayedChange
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeBasis, EdgeKind
from opscope.analysis.replay.path import critical_path, residual_share, unprofiled_step, unprofiled_steps
from opscope.base.units import format_count, format_ns, format_share
from opscope.documents.whatif import ChangeRow, CriticalRow, EdgeCount, WhatIfDocument
from opscope.render.blocks import Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, field_values, table_of

_SPREAD: Final = 0.01  # of the step: a range is shown from here on
_FIELDS: Final = ("change", "targets", "saving_ns", "adds_ns", "assumption")


class Asked(Struct, frozen=True, kw_only=True):
    """What a user asks for; each field is the option of `opscope whatif` with its name.

    Attributes:
        finding: ids of findings, whose advice is taken.
        remove: names of operators.
        scale: names of operators or kernels, each with a factor on its time.
        to_limit: names of operators or kernels.
        no_wait: names of calls or operators.
        overlap_collectives: whether other work no longer waits for collectives.
        bandwidth: links (`opscope.analysis.replay.changes.LINKS`), each with a factor on its speed.
        workers: how many times as fast a DataLoader loads batches, ahead of the step; None as it does.
        batch_size: how many times the batch, with the steps of another trace to which costs are fitted; None for the
            trace's own.
        no_launch_gaps: whether each step is launched at once.
    """

    finding: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    scale: tuple[tuple[str, float], ...] = ()
    to_limit: tuple[str, ...] = ()
    no_wait: tuple[str, ...] = ()
    overlap_collectives: bool = False
    bandwidth: tuple[tuple[str, float], ...] = ()
    workers: float | None = None
    batch_size: tuple[float, Steps] | None = None
    no_launch_gaps: bool = False


def changes_asked(measured: Measured, steps: Steps, asked: Asked) -> Iterator[ReplayedChange]:
    """Yield the changes, in the order of the options.

    Args:
        measured: the trace with what was measured beside it.
        steps: its steps as a graph.
        asked: what the user asks for.

    Raises:
        UsageError: the trace has nothing of what one is about.
    """
    limits = measured.analysis.limits
    yield from (measured.advice.change(name) for name in asked.finding)
    yield from (changes.remove(steps, name) for name in asked.remove)
    yield from (changes.scale(steps, name, factor) for name, factor in asked.scale)
    yield from (changes.to_limit(steps, name, limits) for name in asked.to_limit)
    yield from (changes.no_wait(steps, name) for name in asked.no_wait)
    if asked.overlap_collectives:
        yield changes.overlap_collectives(steps)
    yield from (changes.bandwidth(steps, link, factor, limits) for link, factor in asked.bandwidth)
    if asked.workers is not None:
        yield more_workers(steps, asked.workers)
    if asked.batch_size is not None:
        yield other_batch(steps, *asked.batch_size)
    if asked.no_launch_gaps:
        yield changes.no_launch_gaps()


def build_whatif(
    trace: str,
    steps: Steps,
    changes: Sequence[ReplayedChange],
    unprofiled_ns: float | None,
    *,
    as_recorded: bool = False,
) -> WhatIfDocument:
    """Replay steps without and with changes.

    Args:
        trace: the file's name.
        steps: the steps.
        changes: applied one after the other.
        unprofiled_ns: the step's time without a profiler; None where unknown.
        as_recorded: whether changes start from the recorded step, with what recording cost.
    """
    base = Edit(steps)
    recorded = base
    replayed = recorded.step_ns
    slow, base, fast = (base, base, base) if as_recorded else unprofiled_steps(steps, unprofiled_ns)
    start = base.step_ns
    # With a quicker host the path may go through what the recorded one went around.
    share = max(residual_share(edit) for edit in ((recorded,) if as_recorded else (recorded, base)))
    reason = _no_promise(steps.graph.step_ns, replayed, share) or _misses(start, None if as_recorded else unprofiled_ns)
    edit, rows, before = base.copy(), [], start
    for change in changes:
        alone = base.copy()
        targets = change.apply(alone)
        change.apply(edit)
        after = edit.step_ns
        saving, adds = (None, None) if reason else (start - alone.step_ns, before - after)
        rows.append(ChangeRow(change.text, targets, saving, adds, change.assumption))
        before = after
    changed = before if changes and reason is None else None
    return WhatIfDocument(
        trace=trace,
        steps=steps.graph.steps,
        synchronized=steps.synchronized,
        step_ns=steps.graph.step_ns,
        replayed_ns=replayed,
        base_ns=start,
        base_low_ns=fast.step_ns,
        base_high_ns=max(start, min(slow.step_ns, replayed)),
        as_recorded=as_recorded,
        changed_ns=changed,
        unprofiled_ns=unprofiled_ns,
        residual_share=share,
        no_promise=reason,
        changes=tuple(rows),
        critical=_critical(base),
        changed_critical=() if changed is None else _critical(edit),
        edges=tuple(_edges(steps)),
    )


def changed_steps(
    steps: Steps, changes: Sequence[ReplayedChange], unprofiled_ns: float | None, *, as_recorded: bool = False
) -> Edit:
    """Return the steps with all changes.

    Args:
        steps: the steps.
        changes: applied one after the other.
        unprofiled_ns: the step's time without a profiler; None where unknown.
        as_recorded: whether they start from the recorded step, with what recording cost.
    """
    edit = Edit(steps) if as_recorded else unprofiled_step(steps, unprofiled_ns)
    for change in changes:
        change.apply(edit)
    return edit


def _no_promise(step: float, replayed: float, share: float) -> str | None:
    if share > MOST_RESIDUAL:
        return (
            f"{100 * share:.1f} % of the step is spent on what no record explains, such as work that was launched "
            "before the recording: a saving by replay would be a guess"
        )
    if step <= 0 or abs(replayed / step - 1) > MOST_ERROR:
        return "the replay without a change is not the recorded step, so a saving by replay would be a guess"
    return None


def _misses(estimated: float, measured: float | None) -> str | None:
    if measured is None or abs(estimated / measured - 1) <= MOST_MISSED:
        return None
    return (
        f"without the profiler the step takes {format_ns(measured)}, and the replay's estimate of that is "
        f"{format_ns(estimated)}: a saving by replay would be a guess"
    )


def _critical(edit: Edit) -> tuple[CriticalRow, ...]:
    return tuple(CriticalRow(part.name, part.kind, part.ns) for part in critical_path(edit))


def _edges(steps: Steps) -> Iterator[EdgeCount]:
    for kind in EdgeKind:
        for basis in EdgeBasis:
            count = int(np.count_nonzero((steps.graph.kind == kind) & (steps.graph.basis == basis)))
            if count:
                yield EdgeCount(kind.name.lower(), basis.name.lower(), count)


# ---------------------------------------------------------------- text


def whatif_section(document: WhatIfDocument, top: int | None) -> Section:
    """Build what people read.

    Args:
        document: the document.
        top: how many parts of the critical path; None for all.
    """
    blocks: list[Bullets | Table | Paragraph] = [Bullets(tuple(_summary(document)))]
    if document.changes:
        blocks.append(_changes(document))
    parts, step = document.critical, document.base_ns
    if document.changed_ns is not None:
        parts, step = document.changed_critical, document.changed_ns
    blocks += [Paragraph.of(_by_kind(parts, step)), _path(parts[:top], step)]
    return Section((Name(document.trace),), tuple(blocks))


def whatif_values(document: WhatIfDocument) -> Table:
    """Build the table of CSV: a line per change, with bare figures."""
    return Table(columns=_FIELDS, rows=tuple(field_values(row, _FIELDS) for row in document.changes))


def _summary(document: WhatIfDocument) -> Iterator[Inline]:
    numbers = document.steps
    which = "the whole recording" if not numbers else f"step {numbers[0]}"
    if len(numbers) > 1:
        in_a_row = list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))
        listed = f"{numbers[0]} to {numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))
        which = f"steps {listed}, mean"
    yield (f"Recorded: {format_ns(document.step_ns)} ({which})",)
    error = document.replayed_ns / document.step_ns - 1 if document.step_ns else 0.0
    yield (f"Replayed without a change: {format_ns(document.replayed_ns)} ({100 * error:+.2f} %)",)
    if not document.as_recorded:
        measured = document.unprofiled_ns
        beside = "it was not measured" if measured is None else f"measured: {format_ns(measured)}"
        if document.base_high_ns - document.base_low_ns > _SPREAD * document.base_ns:
            spread = f"{format_ns(document.base_low_ns)} to {format_ns(document.base_high_ns)}"
            beside = f"{spread}, by how much recording slowed the host; {beside}"
        yield (f"Without the profiler, estimated: {format_ns(document.base_ns)} ({beside})",)
    if document.no_promise is not None:
        yield (f"No saving is given: {document.no_promise}.",)
    if document.changed_ns is not None:
        saved = document.base_ns - document.changed_ns
        word = "shorter" if saved >= 0 else "longer"
        share = format_share(abs(saved), document.base_ns)
        yield (f"With all changes: {format_ns(document.changed_ns)}, {format_ns(abs(saved))} {word} ({share})",)
    assumed = sum(edge.count for edge in document.edges if edge.basis == "assumed")
    if assumed:
        waits = "1 wait is" if assumed == 1 else f"{format_count(assumed)} waits are"
        yield (f"{waits} assumed: possible by the times, but no record shows so",)


def _changes(document: WhatIfDocument) -> Table:
    columns: tuple[Column[ChangeRow], ...] = (
        Column("Change", lambda row: Name(row.change)),
        Column("About", lambda row: format_count(row.targets), numeric=True),
        Column("Saves on its own", lambda row: format_ns(row.saving_ns), numeric=True),
        Column("After those above", lambda row: format_ns(row.adds_ns), numeric=True),
        Column("Assumes that", lambda row: Name(row.assumption), optional=True),
    )
    return table_of(columns, document.changes)


def _by_kind(parts: Sequence[CriticalRow], step: float) -> str:
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.kind] = sums.get(part.kind, 0.0) + part.ns
    shares = sorted(sums.items(), key=lambda item: -item[1])
    return "Critical path: " + (", ".join(f"{kind} {format_share(ns, step)}" for kind, ns in shares) or "empty")


def _path(parts: Sequence[CriticalRow], step: float) -> Table:
    columns: tuple[Column[CriticalRow], ...] = (
        Column("On the critical path", lambda row: Name(row.name)),
        Column("Why", lambda row: row.kind),
        Column("Time", lambda row: format_ns(row.ns), numeric=True),
        Column("of the step", lambda row: format_share(row.ns, step), numeric=True),
    )
    return table_of(columns, parts)
