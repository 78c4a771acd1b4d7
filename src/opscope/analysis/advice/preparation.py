"""Rules on preparation within the steps: loading code, creating contexts, compiling, allocating and freeing memory."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.advice.blocking import followed_by_free
from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, idle_claim
from opscope.analysis.advice.remedies import without_host, work_around
from opscope.analysis.advice.rule import (
    RuleDescription,
    count_of,
    derived,
    general,
    measured,
    nanoseconds,
    percent,
    seen,
    span,
    states,
)
from opscope.analysis.idle.causes import compiles, inside_by_thread
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import calls_of, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.base.units import format_ns, format_times
from opscope.documents.findings import Rule, Source, Where
from opscope.documents.verdict import BoundKind, IdleCause
from opscope.knowledge.api_calls import ApiKind
from opscope.knowledge.devices import Assumed
from opscope.trace.model import Trace

LEAST_COMPILING_NS: Final = 1e6  # checking whether compiled code still fits takes less


_CERTAIN: Final = 0.7  # of the idle time in it
_LIKELY_OF_COMPILING: Final = 0.95  # of all of the time
_LIKELY_OF_LOADING: Final = 0.8
_MOSTLY: Final = 0.5  # of a gap: from here on, loading code explains it better than all else together
_ALLOCATES: Final = 0.7  # of the idle time in calls that allocate or free memory


@states(
    RuleDescription(
        Rule.ALLOCATOR_CHURN,
        "calls within the steps that allocate or free device memory",
        f"{percent(_ALLOCATES)} of the idle time in them, to what follows them too",
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
        saving=Range(_ALLOCATES * certain, max(time, certain)).within(context.step_ns),
        derivation=f"the idle time in these calls ({percent(_ALLOCATES)} of it: low), and after them until launches "
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


class Compiling(Struct, frozen=True):
    """When torch.compile was at work.

    Attributes:
        spans: on any thread.
        by_thread: pairs of a thread and its stretches.
    """

    spans: Intervals
    by_thread: Sequence[tuple[int, Intervals]]


def compiling_times(trace: Trace) -> Compiling:
    """Return when torch.compile was at work."""
    threads = inside_by_thread(trace, IdleCause.COMPILING)
    none = np.empty(0, np.int64)
    start = np.concatenate([none, *(spans.start for spans in threads.values())])
    end = np.concatenate([none, *(spans.end for spans in threads.values())])
    return Compiling(Intervals.union_of(start, end), tuple(threads.items()))


def _first_within(table: pl.DataFrame, spans: Intervals) -> str | None:
    """Return the name of the first range or frame of the compiler in some time."""
    rows = np.flatnonzero(names_that(table, compiles))
    inside = rows[spans.holds(column(table, "start_ns")[rows], end_of(table)[rows])]
    return next(iter(table["name"].gather(inside[:1]).cast(pl.String)), None)


@states(
    RuleDescription(
        Rule.RECOMPILATION,
        f"ranges of `torch.compile` at work within the steps, of {span(LEAST_COMPILING_NS)} a step and more",
        f"{percent(_CERTAIN)} of the idle time in them, to all of them, but of an unprofiled step no more than its "
        "idle time",
    ),
)
def recompilation(context: Context) -> Iterator[Draft]:
    """Find torch.compile at work within the steps."""
    spans = context.device.window.spans
    ranges = compiling_times(context.trace)
    within = ranges.spans.within(spans)
    time = recorded = within.length / context.steps
    waiting = context.waits.idle.pieces.within(within)
    whole = max(float(context.waits.lengths.sum()) / context.steps, 1.0)
    pieces = waiting.length / context.steps * min(context.least_idle_ns / whole, 1.0)
    if context.unprofiled_ns is not None:
        time = min(time, context.least_idle_ns)
    if time < LEAST_SHARE * context.step_ns or time < LEAST_COMPILING_NS:
        return
    yield Draft(
        rule=Rule.RECOMPILATION,
        title=f"torch.compile compiles {context.words.during}, {format_ns(recorded)} {context.words.each}",
        where=Where(
            annotation=_first_within(context.trace.annotations, spans),
            python=_first_within(context.trace.frames, spans),
        ),
        saving=Range(_CERTAIN * min(pieces, time), time, _LIKELY_OF_COMPILING * time).within(context.step_ns),
        derivation="the time in which the compiler runs, of an unprofiled step no more than its idle time (high), "
        f"{percent(_CERTAIN)} of the device's idle time in it (low)",
        evidence=(
            measured(
                nanoseconds(recorded),
                f" {context.words.each} as recorded lie in ranges of the compiler",
                source=Source.HOST,
            ),
        ),
        todo="compile with dynamic shapes",
        action="torch._dynamo.mark_dynamic(x, 0) or torch.compile(dynamic=True); pass changing numbers as tensors; "
        "TORCH_LOGS=recompiles names the guard that failed",
        wrong_if="these are the first steps: then it happens once",
        claims=idle_claim(BoundKind.HOST_WORK) | idle_claim(BoundKind.DISPATCH) | idle_claim(BoundKind.BLOCKING),
        remedy=Remedy(
            f"the compiler's ranges go, {_LIKELY_OF_COMPILING:.0%} of their time ({percent(_CERTAIN)} to all)",
            without_host(ranges.by_thread, (_CERTAIN, _LIKELY_OF_COMPILING, 1.0)),
        ),
    )


class LoadingGaps(Struct, frozen=True):
    """Pieces of idle time in gaps in which code is loaded.

    What else the host does there is most likely finding, reading or compiling that code: in recorded programs without
    warm-up it was, where loading itself took a hundredth of the gap. No trace tells it from other work.

    Attributes:
        all: which pieces lie in such gaps.
        mostly: those of gaps that are mostly loading, in which the rest is surely a part of it.
    """

    all: Bools
    mostly: Bools


def loading_gaps(context: Context) -> LoadingGaps:
    """Return the pieces of idle time in gaps in which code is loaded."""
    gap, loads = context.waits.idle.gap, context.waits.kinds[BoundKind.COLD_START]
    if not loads.any():
        return LoadingGaps(loads, loads)
    lengths = context.waits.lengths
    whole = np.bincount(gap, weights=lengths)
    loading = np.bincount(gap[loads], weights=lengths[loads], minlength=len(whole))
    return LoadingGaps((loading > 0)[gap], (loading > 0)[gap] & (loading >= _MOSTLY * whole)[gap])


@states(
    RuleDescription(
        Rule.COLD_START,
        "code that is loaded, and contexts that are created, within the steps; ranges that call themselves warm-up",
        f"{percent(_CERTAIN)} of it, to the whole gaps around it",
    ),
)
def cold_start(context: Context) -> Iterator[Draft]:
    """Find code that is loaded and contexts that are created within the steps."""
    pieces = context.waits.kinds[BoundKind.COLD_START]
    gaps = loading_gaps(context)
    around = gaps.all
    certain, time = context.idle_in(pieces), context.idle_in(around)
    if time < LEAST_SHARE * context.step_ns:
        return
    where = context.where_of_pieces(np.flatnonzero(pieces))
    yield Draft(
        rule=Rule.COLD_START,
        title=f"Code is loaded, or a context created, {context.words.during}: the device waits "
        f"{format_ns(certain)} {context.words.of}",
        where=where,
        saving=Range(_CERTAIN * certain, time, _LIKELY_OF_LOADING * time).within(context.step_ns),
        derivation=f"the idle time of gaps in which code is loaded (high), {percent(_CERTAIN)} of the loading itself "
        "(low)",
        evidence=(
            measured(count_of(int(pieces.sum())), " such waits in the recording", source=Source.IDLE),
            derived(
                "the gaps that they are part of take ", nanoseconds(time), f" {context.words.of}", source=Source.IDLE
            ),
            *seen(context, where),
        ),
        todo="profile later steps, or warm up",
        action="profile later steps; if these count, run "
        f"{'each shape and operator' if context.runs_pytorch else 'each kernel'} once before them (warm-up), or load "
        "all code at the start (CUDA_MODULE_LOADING=EAGER)",
        wrong_if="these are the first steps: then it happens once",
        claims=idle_claim(BoundKind.COLD_START) | context.claims_of_pieces(around),
        remedy=_warm(context, gaps),
        pieces=np.flatnonzero(around),
    )


def _warm(context: Context, gaps: LoadingGaps) -> Remedy:
    """Return the change that loads all code before the steps."""
    calls = np.flatnonzero(context.host.cold)
    compiled = compiling_times(context.trace).spans
    surely, perhaps = (work_around(context, np.flatnonzero(pieces), compiled) for pieces in (gaps.mostly, gaps.all))

    def apply(edit: Edit, assumed: Assumed) -> int:
        around = without_host(surely if assumed is Assumed.LOW else perhaps, (_CERTAIN, _LIKELY_OF_COMPILING, 1.0))
        return edit.shorten_calls(calls, _WARM_CALL_NS) + around(edit, assumed)

    return Remedy(
        f"calls that load code take {span(_WARM_CALL_NS)}, and of the host's other work in the same gaps "
        f"{_LIKELY_OF_COMPILING:.0%} goes, up to all, or only {percent(_CERTAIN)} and only where loading takes "
        f"{percent(_MOSTLY)} of the gap",
        apply,
    )


_WARM_CALL_NS: Final = 5_000  # launches of code that is loaded take 3 to 8 us
