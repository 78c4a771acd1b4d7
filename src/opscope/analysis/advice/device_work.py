"""Rules on attention, and on other kernels that are far from what their device allows."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl
from msgspec.structs import replace

from opscope.analysis.advice.context import LEAST_SHARE, MOST_IN_SHORT, Context, Draft, Range, Remedy, claims_of
from opscope.analysis.advice.memory_bound import changes_strides, elements
from opscope.analysis.advice.remedies import all_of, reaches, scaled, taking
from opscope.analysis.advice.rule import (
    RuleDescription,
    count_of,
    derived,
    general,
    measured,
    nanoseconds,
    percent,
    share_of,
    span,
    states,
)
from opscope.analysis.costs.limits import NO_INPUTS
from opscope.analysis.costs.sums import UNLINKED
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.verdict.bounds import BUSY_SHARE
from opscope.base.text import or_unknown, shell_path
from opscope.base.units import format_ns, format_share
from opscope.documents.findings import Fact, Rule, Source, Where
from opscope.documents.limits import LimitRow
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.categories import OF_LIBRARIES, Category
from opscope.knowledge.costs import Product
from opscope.knowledge.devices import Assumed, reach_of
from opscope.knowledge.kernels.decode import told_kernel
from opscope.knowledge.kernels.kinds import communicates, is_own, short_name
from opscope.knowledge.kernels.names import base_name

# ---------------------------------------------------------------- kernels that are far from their limit


_FAR: Final = 0.5  # of the limit
_REACHED: Final = 0.8  # of the limit: what kernels that pass over memory once reach (device copies on an H200 do)
_LEAST_CALL_NS: Final = 10_000.0  # shorter kernels are a matter of launching
_NAMED: Final = 3
_DOMINANT: Final = 0.3  # of the step: a kernel that takes so much is what the program does
_MOST_OF_A_NAME: Final = MOST_IN_SHORT - len("look into ")
_LIKELY: Final = 0.1  # of what the limit allows: why the work is far from it is unknown


FAR_FROM_LIMIT: Final = RuleDescription(
    Rule.FAR_FROM_LIMIT,
    f"of a device that is busy {percent(BUSY_SHARE)} of the step, work other than products of "
    f"{span(_LEAST_CALL_NS)} a call and more below {percent(_FAR)} of its limit, of which no other rule speaks: "
    "the "
    f"{_NAMED} that lose most",
    f"0 to what {percent(_REACHED)} of the limit allows",
    "the device waits",
)
DEAREST_WORK: Final = RuleDescription(
    Rule.DEAREST_WORK,
    f"a kernel that takes {percent(_DOMINANT)} of the step and more, without a model or below {percent(_FAR)} of its "
    "limit, of which no other rule speaks: one of the program's own first, behind two other findings where there "
    f"are any; of such a device where no rule has anything to say, the {_NAMED} kernels that take most",
    "0",
    "the kernel moves data between devices",
)


def far_from_limit(context: Context, others: Sequence[Draft]) -> Iterator[Draft]:
    """Find work that takes far longer than the device allows, and that no other rule speaks of.

    Args:
        context: what rules look at.
        others: what the other rules found.
    """
    claimed = frozenset[str]().union(*(draft.claims for draft in others))
    rows = [row for row in context.rows if _is_far(row) and not claims_of([row]) & claimed]
    rows.sort(key=lambda row: -(row.lost_ns or 0.0))
    for row in rows[:_NAMED]:
        lost = max(row.device_ns - row.calls * (row.ideal_ns or 0.0) / _REACHED, 0.0) / context.steps
        high = context.of_device(0.0, lost).high
        if high < LEAST_SHARE * context.step_ns:
            continue
        share, time = format_share(row.share or 0.0, 1), row.device_ns / context.steps
        yield Draft(
            rule=Rule.FAR_FROM_LIMIT,
            title=f"{or_unknown(row.operator, 'a kernel')} runs at {share} of its limit "
            f"({format_ns(time)} {context.words.per})",
            where=context.where_of_row(row),
            saving=Range(0.0, high, _LIKELY * high),
            derivation=f"its time less what it takes at {percent(_REACHED)} of the limit (high); why it is slower is "
            "not "
            "known (low)",
            evidence=(
                measured(
                    count_of(row.calls / context.steps, 1),
                    f" calls {context.words.each} of {or_unknown(row.input_dims, 'unknown inputs')}, ",
                    nanoseconds(row.call_ns),
                    f" each, as {told_kernel(row.kernel)}",
                    source=Source.ACTIVITIES,
                ),
                derived(f"{row.limited_by or 'the device'} allows ", nanoseconds(row.ideal_ns), source=Source.LIMITS),
                *_what_is_known(context, row),
            ),
            todo="see its source: opscope explain",
            action=f"opscope explain {shell_path(row.operator or row.kernel)}  "
            "# its source; opscope explain --in TRACE: what slows it",
            wrong_if="it must touch more than its inputs and outputs once, such as indices at random places",
            claims=claims_of([row]),
            remedy=Remedy(
                f"it takes what {percent(_REACHED)} of the limit allows (high), a tenth of the way there (likely), or "
                "as long as now (low): why it is slower is not known",
                taking(context, [row], _nearer),
                context.activities_of([row]),
            ),
        )


def _nearer(row: LimitRow, assumed: Assumed) -> float:
    """Return how long a call takes that comes nearer to its limit, in nanoseconds."""
    reached = min((row.ideal_ns or row.call_ns) / _REACHED, row.call_ns)
    return row.call_ns - {Assumed.LOW: 0.0, Assumed.LIKELY: _LIKELY, Assumed.HIGH: 1.0}[assumed] * (
        row.call_ns - reached
    )


def _is_far(row: LimitRow) -> bool:
    if row.product is not None or row.share is None or row.lost_ns is None or communicates(row.kernel):
        return False
    # What a library's algorithm has to do is more than to read its input once.
    if row.category in OF_LIBRARIES:
        return False
    return row.share < _FAR and row.call_ns >= _LEAST_CALL_NS


def _what_is_known(context: Context, row: LimitRow) -> Iterator[Fact]:
    units = context.properties.multiprocessors if context.properties else None
    if units and row.thread_blocks and row.thread_blocks < units:
        yield measured(
            f"{row.thread_blocks} thread blocks leave {units - row.thread_blocks} of {units} units idle",
            source=Source.ACTIVITIES,
        )
    if row.input_strides:
        yield measured(f"strides of its inputs: {row.input_strides}", source=Source.HOST)


def dominant(context: Context, others: Sequence[Draft]) -> Iterator[Draft]:
    """Find the kernel that is the program: no rule speaks of it, and it takes much of the step.

    Args:
        context: what rules look at.
        others: what the other rules found.
    """
    claimed = frozenset[str]().union(*(draft.claims for draft in others))
    least = _DOMINANT * context.step_ns * context.steps
    activities = context.trace.activities[context.work].with_columns(row=pl.Series(context.work))
    kernels = activities.filter((pl.col("kind") == "kernel") & pl.col("collective").is_null())
    table = (
        kernels.with_columns(pl.col("name").cast(pl.String))
        .group_by("name")
        .agg(pl.col("duration_ns").sum().alias("time"), "row")
        .filter(pl.col("time") >= least)
        .sort(["time", "name"], descending=[True, False])
    )
    own: list[tuple[str, int, Ints]] = []
    of_libraries: list[tuple[str, int, Ints]] = []
    for name, _, numbers in table.iter_rows():
        rows = np.array(numbers, np.int64)
        start, end = column(context.trace.activities, "start_ns")[rows], end_of(context.trace.activities)[rows]
        time = Intervals.union_of(start, end).length  # several streams may run it at once
        if time < least or communicates(name) or context.claims_of_activities(rows) & claimed:
            continue
        if _is_slow(context, name):
            (own if is_own(name) else of_libraries).append((name, time, rows))
    for name, time, rows in (own + of_libraries)[:1]:
        yield _of_kernel(context, name, time, rows)


def _is_slow(context: Context, kernel: str) -> bool:
    """Tell whether a kernel is far from its limit, or most of its time has no model."""
    known = _modelled(context, kernel)
    return (
        sum(row.calls * (row.ideal_ns or 0.0) for row in known) < _FAR * sum(row.device_ns for row in known)
        or not known
    )


def _modelled(context: Context, kernel: str) -> list[LimitRow]:
    """Return the work of a kernel that has a model; nothing where that is not most of its time."""
    rows = [row for row in context.rows if row.kernel == kernel]
    known = [row for row in rows if row.ideal_ns is not None]
    return known if 2 * sum(row.device_ns for row in known) > sum(row.device_ns for row in rows) else []


def _of_kernel(context: Context, name: str, time: int, activities: Ints) -> Draft:
    calls = [int(call) for call in context.links.activity_launch[activities] if call >= 0]
    place = context.where_of_call(calls[0]) if calls else Where()
    why = "no model knows what it computes, so how far it is from the device's limit is not known"
    todo = f"look into {base}" if len(base := base_name(name)) <= _MOST_OF_A_NAME else "look into the kernel"
    action = f"opscope explain {shell_path(name)} --in TRACE  # its source, and what slows it"
    if known := _modelled(context, name):
        why = f"it runs at {format_share(max(row.share or 0.0 for row in known), 1)} of its limit at best"
    elif not is_own(name) and any(row.kernel == name and row.reason == NO_INPUTS for row in context.rows):
        why = "its inputs were not recorded, so how far it is from the device's limit is not known"
        todo = "record shapes"
        action = f"record_shapes=True  # its limit follows from them; {action}"
    short = or_unknown(short_name(name))
    return Draft(
        rule=Rule.DEAREST_WORK,
        title=f"One kernel takes {format_share(time / context.steps, context.step_ns)} {context.words.of_the}: {short} "
        f"({format_ns(time / context.steps)} {context.words.per})",
        where=replace(place, kernel=name, call=None),
        saving=Range(0.0, 0.0),
        derivation=f"not known: {why}",
        evidence=(
            measured(
                count_of(len(activities) / context.steps, 1),
                f" calls {context.words.each}, ",
                nanoseconds(float(column(context.trace.activities, "duration_ns")[activities].mean())),
                " each",
                source=Source.ACTIVITIES,
            ),
            derived(share_of(time / context.steps, context.busy_ns), " of the device's busy time",
                    source=Source.ACTIVITIES),
        ),
        todo=todo,
        action=action,
        wrong_if="it already does what the device allows",
    )  # fmt: skip


def dearest(context: Context) -> Iterator[Draft]:
    """Find the kernels that take most of a busy device's time, where no rule has more to say."""
    if context.busy_ns < BUSY_SHARE * context.step_ns or not len(context.work):
        return
    names = context.trace.activities.select("name", "duration_ns")[context.work]
    table = names.group_by("name").agg(pl.len(), pl.col("duration_ns").sum()).sort("duration_ns", descending=True)
    whole = max(int(table["duration_ns"].sum()), 1)
    shown = [
        f"{told_kernel(str(name))} ({count / context.steps:,.0f} {context.words.each}, {format_share(time, whole)})"
        for name, count, time in table.head(_NAMED).iter_rows()
    ]
    yield Draft(
        rule=Rule.DEAREST_WORK,
        title=f"The device works on {', '.join(shown)}",
        where=Where(kernel=str(table["name"][0])),
        saving=Range(0.0, 0.0),
        derivation="no rule finds anything in it",
        evidence=(measured("shares of the time of all device work", source=Source.ACTIVITIES),),
        todo="see what is slow: opscope limits",
        action="opscope limits TRACE  # how far each is from its limit; opscope explain KERNEL names its source",
        wrong_if="a cause that no rule knows",
    )


# ---------------------------------------------------------------- attention


# Of the peak: what fused attention reaches at worst and at best.
_FUSED_AT_WORST: Final = 0.3
_FUSED_AT_BEST: Final = 0.6
_BY_NAMES: Final = (0.15, 1.8)  # of the time of products and softmax, where no shapes were recorded
_TITLE: Final = "Attention is written out and keeps all scores in memory ({time} {words.per})"
_ACTION: Final = (
    "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=..., is_causal=...)  # in transformers: "
    "attn_implementation='sdpa'"
)


@states(
    RuleDescription(
        Rule.EAGER_ATTENTION,
        "a softmax over scores in memory between two products of the same scores",
        f"half of what fused attention at {percent(_FUSED_AT_WORST)} of the limit saves, to what it does at "
        f"{percent(_FUSED_AT_BEST)}; without shapes {percent(_BY_NAMES[0])} to {percent(_BY_NAMES[1])} of the time "
        "of products and "
        "softmax",
        "the softmax is over classes",
    ),
)
def eager_attention(context: Context) -> Iterator[Draft]:
    """Find attention that is written out: products with a softmax between them, all scores in memory."""
    yield from _attention_by_names(context)
    rows: dict[int, LimitRow] = {}
    softmaxes: list[LimitRow] = []
    batched = _by_matrices(row for row in context.rows if row.operator in _BATCHED)
    for softmax in (row for row in context.rows if row.operator in _SOFTMAX):
        if (scores := _scores(softmax.input_dims)) is None:
            continue
        products = _of_scores(batched, scores)
        made, taken = ([_matrices(row)[place] for row in products] for place in (0, 1))
        # One product makes the scores and another one takes them; a softmax without both is over something else.
        if scores not in made or scores not in taken:
            continue
        softmaxes.append(softmax)
        passes = [row for row in context.rows if row.category not in _NO_PASSES and _scores(row.input_dims) == scores]
        if any(len(set(_matrices(row))) == 1 for row in products):
            passes = [softmax]  # heads are as wide as the sequence is long: other work of this size may be anything
        # By identity: a product may belong to several softmaxes, and counts once.
        rows |= {id(row): row for row in (*products, *passes)}
    if not rows:
        return
    results = list(rows.values())
    ideal = sum(row.calls * _fused_ns(row) for row in results if row.product) / context.steps
    time = sum(row.device_ns for row in results) / context.steps
    if time < LEAST_SHARE * context.step_ns:
        return
    yield Draft(
        rule=Rule.EAGER_ATTENTION,
        title=_TITLE.format(time=format_ns(time), words=context.words),
        where=context.where_of_row(max(softmaxes, key=lambda row: row.device_ns)),
        saving=context.of_device(0.5 * (time - ideal / _FUSED_AT_WORST), time - ideal / _FUSED_AT_BEST),
        derivation="the time of the products, the softmax and what works on the scores, less what fused "
        "attention takes at "
        f"{percent(_FUSED_AT_BEST)} of the device's limit (high); half of what is left at {percent(_FUSED_AT_WORST)} "
        "(low)",
        evidence=(
            measured(
                f"the scores of {softmaxes[0].input_dims} are written and read by ",
                count_of(sum(row.calls for row in results) / context.steps),
                f" calls {context.words.each}",
                source=Source.ACTIVITIES,
            ),
            derived(share_of(time, context.busy_ns), " of the device's busy time", source=Source.ACTIVITIES),
            general("fused attention never writes the scores to memory"),
        ),
        todo="use scaled_dot_product_attention",
        action=_ACTION,
        wrong_if="the attention weights themselves are needed, or the scores are changed in a way that it does "
        "not offer",
        claims=claims_of(results),
        remedy=_fused(context, results, sum(row.calls for row in softmaxes)),
    )


# Of the time of what passes over the scores (scaling, masks, dropout, the softmax), where the fused kernel leaves some.
_PASSES_LEFT: Final = (0.15, 0.0, 0.0)


def _fused(context: Context, rows: Sequence[LimitRow], attentions: int) -> Remedy:
    """Return the change to fused attention.

    Args:
        context: what rules look at.
        rows: products and passes over the scores.
        attentions: how often attention is computed.
    """
    products = [row for row in rows if row.product]
    each = sum(row.calls for row in products) / max(attentions, 1)
    kind = "attention" if each < _WITH_BACKWARD else "attention_training"

    def time(row: LimitRow, assumed: Assumed) -> float:
        reach = reach_of(kind, assumed)
        return _fused_ns(row) / reach.share + reach.overhead_ns / each

    passes = context.activities_of(row for row in rows if not row.product)
    copies = _copies_of_inputs(context, rows)
    return Remedy(
        f"fused attention at {reaches(kind)}" + ("; no copies of its inputs (low: they stay)" if len(copies) else ""),
        all_of(taking(context, products, time), scaled(passes, _PASSES_LEFT), scaled(copies, (1.0, 0.0, 0.0))),
        np.union1d(context.activities_of(rows), copies),
    )


def _copies_of_inputs(context: Context, rows: Sequence[LimitRow]) -> Ints:
    """Return the copies that only change the strides of tensors as large as the products' inputs beside the scores.

    Products written out need them contiguous; fused attention takes them as they are.
    """
    scores = {elements(row.input_dims) for row in rows if not row.product}
    sizes = {
        product.batch * product.depth * side
        for row in rows
        if (product := row.product) is not None
        for side in (product.rows, product.columns)
    }
    sizes -= scores
    return context.activities_of(
        row
        for row in context.rows
        if row.operator == "aten::copy_" and changes_strides(row) and elements(row.input_dims) in sizes
    )


def _attention_by_names(context: Context) -> Iterator[Draft]:
    """Find attention in a trace without shapes: two batched products per softmax, six with the backward pass."""
    if not context.trace.operators["input_dims"].is_null().all():
        return
    rows = [row for row in context.rows if row.operator in _OF_ATTENTION]
    calls = {name: sum(row.calls for row in rows if row.operator == name) for name in _OF_ATTENTION}
    softmaxes = calls["aten::_softmax"]
    if not softmaxes or calls["aten::bmm"] not in (2 * softmaxes, 6 * softmaxes):
        return
    time = sum(row.device_ns for row in rows) / context.steps
    yield Draft(
        rule=Rule.EAGER_ATTENTION,
        title=_TITLE.format(time=format_ns(time), words=context.words),
        where=context.where_of_row(max(rows, key=lambda row: row.device_ns)),
        saving=context.of_device(_BY_NAMES[0] * time, _BY_NAMES[1] * time),
        derivation=f"{percent(_BY_NAMES[0])} (low) of the time of its products and softmax; what else works on the "
        "scores "
        f"may take nearly as long again ({percent(_BY_NAMES[1])}: high): sizes were not recorded",
        evidence=(
            measured(
                count_of(calls["aten::bmm"] / context.steps),
                " batched products and ",
                count_of(softmaxes / context.steps),
                f" softmaxes {context.words.each}",
                source=Source.ACTIVITIES,
            ),
            general("record shapes for more (record_shapes=True)"),
        ),
        todo="use scaled_dot_product_attention",
        action=_ACTION,
        wrong_if="these products are not those around the softmax",
        claims=claims_of(rows),
    )


_OF_ATTENTION: Final = ("aten::bmm", "aten::_softmax", "aten::_softmax_backward_data")
_WITH_BACKWARD: Final = 4  # products per softmax: two of the forward pass, and four of the backward pass
_BATCHED: Final = ("aten::bmm", "aten::baddbmm", "aten::mm")
_SOFTMAX: Final = ("aten::_softmax", "aten::_safe_softmax")
_NO_PASSES: Final = (UNLINKED, str(Category.MATRIX), str(Category.CONVOLUTION))
_Matrices = tuple[int, int, int]  # number of matrices, their rows and columns


@lru_cache(maxsize=1 << 14)
def _scores(input_dims: str | None) -> _Matrices | None:
    """Return the matrices of a call's first input; None unless it has three or four dimensions, as scores do."""
    # Types are not needed, but a call without any is not read.
    call = RecordedCall.read(input_dims, "[]", None)
    shape = (call.dims[0] if call and call.dims else None) or ()
    return (math.prod(shape[:-2]), shape[-2], shape[-1]) if len(shape) in (3, 4) else None


def _matrices(row: LimitRow) -> tuple[_Matrices, _Matrices, _Matrices]:
    """Return the sizes of a product's result and of its two operands."""
    made = row.product or Product(0, 0, 0, 0)
    batch = made.batch
    return (batch, made.rows, made.columns), (batch, made.rows, made.depth), (batch, made.depth, made.columns)


def _by_matrices(products: Iterable[LimitRow]) -> dict[_Matrices, list[LimitRow]]:
    """Return products by the sizes of the matrices that they make or take."""
    results: dict[_Matrices, list[LimitRow]] = {}
    for row in products:
        for matrices in set(_matrices(row)) if row.product is not None else ():
            results.setdefault(matrices, []).append(row)
    return results


def _of_scores(products: Mapping[_Matrices, list[LimitRow]], scores: _Matrices) -> list[LimitRow]:
    """Return products that make or take matrices of these sizes, or transposed ones, as the backward pass does."""
    count, rows, columns = scores
    both = (*products.get(scores, ()), *products.get((count, columns, rows), ()))
    return list({id(row): row for row in both}.values())


def _fused_ns(row: LimitRow) -> float:
    """Return the least time of a fused product: that of its operations, as its matrices stay out of memory."""
    return row.compute_ns or 0.0
