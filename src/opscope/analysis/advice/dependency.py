"""The rule on queued work that waits for other streams."""

from collections.abc import Iterator

import numpy as np

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, idle_claim
from opscope.analysis.advice.rule import RuleDescription, derived, seen, share_of, states
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.base.units import format_ns
from opscope.documents.bound import BoundKind
from opscope.documents.findings import Rule, Source
from opscope.knowledge.copies import Direction, direction_of
from opscope.knowledge.devices import Assumed


@states(
    RuleDescription(
        Rule.STREAM_DEPENDENCY,
        "queued work that waits for other streams; copies on a stream of their own that take turns with work by events",
        "0 to all of it",
        of_host=True,
    ),
)
def stream_dependency(context: Context) -> Iterator[Draft]:
    """Find a device that waits although work is queued: for another stream, device or copy."""
    if context.trace.activities.select("device", "stream").n_unique() == 1:
        return  # nothing else in this program is seen to run: what the work waits for, the trace does not say
    # Idle time beside other devices' work belongs to devices_take_turns.
    pieces = context.waits.kinds[BoundKind.DEPENDENCY] & ~context.beside_others_work
    time = context.idle_in(pieces)
    if time < LEAST_SHARE * context.step_ns:
        return
    where = context.where_of_pieces(np.flatnonzero(pieces))
    yield Draft(
        rule=Rule.STREAM_DEPENDENCY,
        title=f"Queued work waits {format_ns(time)} {context.words.of} for other streams",
        where=where,
        saving=Range(0.0, time).within(context.step_ns),
        derivation="all of that idle time (high)",
        evidence=(
            derived(share_of(time, context.step_ns), f" {context.words.of_the}", source=Source.IDLE),
            *seen(context, where),
        ),
        todo="let streams wait only if they must",
        action="let streams wait for each other's results only where they use them: two buffers instead of one, events "
        "recorded right after what is needed",
        wrong_if="the work really needs what it waits for",
        claims=idle_claim(BoundKind.DEPENDENCY),
        remedy=without_guards(context),
        pieces=np.flatnonzero(pieces),
    )


def without_guards(context: Context) -> Remedy:
    """Return the change that lets streams go on without waits that only guard a buffer, as far as names tell.

    A copy to the device before what reads it is data flow, and so is work before the copy of its result to the host.
    The other way round, a wait only keeps a buffer from being written too early. Between kernels no trace tells.
    """
    writes = names_that(context.trace.activities, lambda name: direction_of(name) is Direction.TO_DEVICE)
    reads = names_that(context.trace.activities, lambda name: direction_of(name) is Direction.TO_HOST)

    def apply(edit: Edit, assumed: Assumed) -> int:
        edges, before, after = edit.waits_of_streams()
        guards = edges[writes[after] | reads[before]]
        if assumed is Assumed.LOW:
            chosen = guards[::2]
        else:
            chosen = guards if len(guards) and assumed is Assumed.LIKELY else edges
        edit.let_run_on(chosen)
        return len(edges)

    return Remedy(
        "no waits of streams that only guard a buffer (low: half of them), or where there are none, and for high, no "
        "waits for other streams at all: what they are for, no trace tells",
        apply,
    )
