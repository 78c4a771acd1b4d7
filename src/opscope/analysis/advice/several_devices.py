"""Rules on several devices of one program."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range
from opscope.analysis.advice.evidence import derived, measured, share_of
from opscope.analysis.advice.rule import RuleDescription, percent, states
from opscope.base.units import format_ns
from opscope.documents.findings import Rule, Source, Where

_MOSTLY: Final = 0.5  # of the busiest device's idle time: the least that lies beside work of others
_TURNS: Final = 0.2  # of the other devices' work: the most that lies beside work of the busiest, if they take turns
_IN_TURNS: Final = (
    "cut the batch into micro-batches, so that all stages work at once (torch.distributed.pipelining), or keep the "
    "model on one device where it fits"
)


@states(
    RuleDescription(
        Rule.DEVICES_TAKE_TURNS,
        f"idle time of the busiest device of which {percent(_MOSTLY)} and more lies beside other devices' work",
        "0 to all of it",
        "there is one device, or they work at once",
    ),
)
def devices_take_turns(context: Context) -> Iterator[Draft]:
    """Find devices that wait for each other; those of a split model take turns, one batch at a time."""
    own, others = context.own_work, context.work_of_others
    if not others.length:
        return
    idle = context.waits.idle.pieces
    waiting = idle.within(others)
    time = waiting.length / context.steps
    if time < LEAST_SHARE * context.step_ns or waiting.length < _MOSTLY * idle.length:
        return
    count, ours = len(context.evidence.devices), context.device.device
    in_turns = others.within(own).length <= _TURNS * others.length
    yield Draft(
        rule=Rule.DEVICES_TAKE_TURNS,
        title=f"{count} devices {'take turns' if in_turns else 'wait for each other'}: for {format_ns(time)} "
        f"{context.words.of} others work and device {ours} does not",
        where=Where(),
        saving=Range(0.0, time).within(context.step_ns),
        derivation="the idle time of the busiest device in which others work (high)",
        evidence=(
            measured(
                share_of(waiting.length, idle.length), " of its idle time lies beside their work", source=Source.IDLE
            ),
            derived(
                share_of(others.within(own).length, others.length),
                " of their work lies beside its own",
                source=Source.STEP,
            ),
        ),
        todo="keep all devices busy at once",
        action=_IN_TURNS if in_turns else "share the work out more evenly between the devices",
        wrong_if="each stage needs the whole batch of the one before, and there is only one batch",
        claims=context.claims_of_pieces(context.beside_others_work),
        pieces=np.flatnonzero(context.beside_others_work),
    )
