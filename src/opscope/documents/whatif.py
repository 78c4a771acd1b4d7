"""A step as it would be with other durations, by replay of its recording: the schema ``opscope.whatif/1``."""

from typing import Literal

from msgspec import Struct

from opscope.base.summary import Summarised, Summary
from opscope.base.units import format_ns


class ChangeRow(Struct, frozen=True):
    """What a change does to a step. Times are nanoseconds a step.

    Attributes:
        change: the option that names it.
        targets: how many operators, activities, calls or steps of the replayed steps it is about.
        saving_ns: by how much it alone shortens the step of ``base_ns``; negative if it makes it longer. Null where
            the replay gives no promise.
        adds_ns: by how much it shortens the step that the changes before it left; null likewise.
        assumption: what is assumed of the step with it.
    """

    change: str
    targets: int
    saving_ns: float | None
    adds_ns: float | None
    assumption: str


class CriticalRow(Struct, frozen=True):
    """A part of the critical path: of the chain of moments that makes a step as long as it is.

    Attributes:
        name: the operator; the call or the activity where no operator is around it.
        kind: why the step waited there: ``host`` (between calls), ``call``, ``activity``, ``launch``, ``stream``,
            ``wait``, ``event``, ``handover``, ``queue``, ``graph``, ``room`` (other work filled the device),
            ``residual`` (what no record explains), ``added`` (by a change), ``before``.
        ns: how much of a step it is, in nanoseconds.
    """

    name: str
    kind: str
    ns: float


class EdgeCount(Struct, frozen=True):
    """How many edges of a kind the replayed steps have, and how they are known.

    Attributes:
        kind: as in `CriticalRow`.
        basis: ``recorded`` by order, ids or records; ``shown`` by times that fit within microseconds; ``assumed``:
            possible by the times and by what the API does.
        count: how many.
    """

    kind: str
    basis: str
    count: int


class WhatIfDocument(Summarised, Struct, frozen=True, kw_only=True):
    """The document. Times are nanoseconds a step, means over the replayed steps.

    Attributes:
        schema: the version.
        trace: the file.
        steps: the profiler's numbers of the replayed steps; empty for a whole recording that marks none.
        synchronized: whether each step ends with a wait for its work, so that it was measured alone; else the steps
            were measured together, from the first one's beginning to the last one's last work.
        step_ns: the recorded step.
        replayed_ns: its replay without a change.
        base_ns: the step that changes start from: the replay without what recording cost the host, as estimated from
            the numbers of operators, frames and calls, and from ``unprofiled_ns`` where the step follows the host; or
            ``replayed_ns``, if the user asked for that.
        base_low_ns: ``base_ns`` with the fastest host that is likely.
        base_high_ns: with the slowest; both are ``base_ns`` where the host's speed is known or does not matter.
        as_recorded: whether the user asked for that.
        changed_ns: the step with all changes; null without changes, or where the replay gives no promise.
        unprofiled_ns: the step's time without a profiler, where that was measured or given; null elsewhere.
        residual_share: the share of the replayed step that no record explains, along its critical path: as recorded, or
            without what recording cost, whichever is more.
        no_promise: why no saving is given; null if savings are.
        changes: in the order in which they were applied.
        critical: the critical path of the step that changes start from, the longest part first; it adds up to
            ``base_ns``.
        changed_critical: that of the changed step; empty where ``changed_ns`` is null.
        edges: what the replay rests on.
    """

    schema: Literal["opscope.whatif/1"] = "opscope.whatif/1"
    trace: str
    steps: tuple[int, ...]
    synchronized: bool
    step_ns: float
    replayed_ns: float
    base_ns: float
    base_low_ns: float
    base_high_ns: float
    as_recorded: bool
    changed_ns: float | None
    unprofiled_ns: float | None
    residual_share: float
    no_promise: str | None
    changes: tuple[ChangeRow, ...]
    critical: tuple[CriticalRow, ...]
    changed_critical: tuple[CriticalRow, ...]
    edges: tuple[EdgeCount, ...]

    def summary(self) -> Summary:
        """Return the step before and after, and what each change saves."""
        rows = [("step as recorded", format_ns(self.step_ns)), ("step to start from", format_ns(self.base_ns))]
        if self.no_promise is not None:
            rows.append(("no saving is given", self.no_promise))
        if self.changed_ns is not None:
            rows.append(("step with all changes", format_ns(self.changed_ns)))
        rows += [(one.change, _saved(one)) for one in self.changes]
        return Summary(f"What if: {self.trace}", tuple(rows))


def _saved(change: ChangeRow) -> str:
    """Return what a change saves alone, and what it assumes."""
    if change.saving_ns is None:
        return change.assumption
    return f"saves {format_ns(change.saving_ns)} alone; assumes: {change.assumption}"
