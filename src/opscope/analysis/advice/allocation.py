"""The rule on memory that is allocated and freed over and over."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.advice.blocking import followed_by_free
from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, idle_claim
from opscope.analysis.advice.evidence import general, measured, nanoseconds, seen
from opscope.analysis.advice.rule import RuleDescription, percent, states
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import calls_of
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.nesting import Ints
from opscope.base.units import format_times
from opscope.documents.bound import BoundKind
from opscope.documents.findings import Rule, Source
from opscope.knowledge.api_calls import ApiKind
from opscope.knowledge.devices import Assumed

_CERTAIN: Final = 0.7  # of the idle time in calls that allocate or free memory


@states(
    RuleDescription(
        Rule.ALLOCATOR_CHURN,
        "calls within the steps that allocate or free device memory",
        f"{percent(_CERTAIN)} of the idle time in them, to what follows them too",
        "nothing waits for them",
        of_host=True,
    ),
)
def allocator_churn(context: Context) -> Iterator[Draft]:
    """Find steps that allocate and free device memory over and over."""
    launches = context.trace.launches
    manages = calls_of(launches, ApiKind.ALLOCATE, ApiKind.FREE)
    inside = context.device.window.spans.holds(column(launches, "start_ns"), end_of(launches))
    # Calls that create a context or load code belong to the rule on cold starts.
    calls = np.flatnonzero(manages & inside & ~context.host.cold)
    # Freeing waits for the device, so idle time after such a call is due to it as well.
    pieces = context.waits.kinds[BoundKind.ALLOCATION] | np.isin(context.waits.after, calls)
    time = context.idle_in(pieces)
    if not len(calls) or time < LEAST_SHARE * context.step_ns:
        return
    certain = context.idle_for(BoundKind.ALLOCATION).low
    longest = int(calls[np.argmax(column(launches, "duration_ns")[calls])])
    where = context.where_of_call(longest)
    busiest = launches["name"].gather(calls).cast(pl.String).value_counts(sort=True)["name"][0]
    often = format_times(len(calls) / context.steps)
    yield Draft(
        rule=Rule.ALLOCATOR_CHURN,
        title=f"Memory is allocated or freed {often} times {context.words.each} ({busiest})",
        where=where,
        saving=Range(_CERTAIN * certain, max(time, certain)).within(context.step_ns),
        derivation=f"the idle time in these calls ({percent(_CERTAIN)} of it: low), and after them until launches "
        "catch up (high)",
        evidence=(
            measured("the device waits ", nanoseconds(time), f" {context.words.of} for that", source=Source.IDLE),
            general(
                "PyTorch's allocator keeps freed memory: once it has enough, no such call is needed"
                if context.runs_pytorch
                else "memory that is kept and used again needs no such call"
            ),
            *seen(context, where),
        ),
        todo="keep memory instead of freeing it",
        action=_keep_memory(context, str(busiest)),
        wrong_if="memory is needed by another process",
        claims=idle_claim(BoundKind.ALLOCATION) | context.claims_of_pieces(pieces),
        remedy=_without_managing(context, calls),
        pieces=np.flatnonzero(pieces),
    )


def _without_managing(context: Context, calls: Ints) -> Remedy:
    """Return the change that allocates and frees nothing within the steps."""
    waits = np.flatnonzero(followed_by_free(context.trace, context.host) & context.host.drains)

    def apply(edit: Edit, assumed: Assumed) -> int:
        if assumed is not Assumed.LOW:
            edit.remove_calls(waits)
        return edit.remove_calls(calls)

    return Remedy("these calls are not made, nor the waits right before memory is freed (low: these stay)", apply)


def _keep_memory(context: Context, call: str) -> str:
    """Return advice on how to keep memory instead of allocating it again."""
    # cudaHostAlloc, cudaFreeHost: pinned memory of the host.
    if "Host" in call:
        return (
            "pin memory once and copy into it: buffer = torch.empty(shape, pin_memory=True) before the loop"
            if context.runs_pytorch
            else "pin memory once, before the loop, and copy into it"
        )
    if context.runs_pytorch:
        return (
            "remove torch.cuda.empty_cache() from the loop; allocate what grows once, at its largest size; else "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return (
        "allocate once, before the loop; or cudaMallocAsync from a pool that keeps freed memory "
        "(cudaMemPoolAttrReleaseThreshold)"
    )
