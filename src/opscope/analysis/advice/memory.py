"""Rules on work that a step need not do: passes over memory, conversions, the same thing twice."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.advice.context import (
    Context,
    Draft,
    Range,
    any_above,
    claims_of,
    derived,
    general,
    idle_claim,
    measured,
)
from opscope.analysis.api import names_that
from opscope.analysis.columns import column, end_of, nesting_of
from opscope.analysis.intervals import Intervals
from opscope.analysis.modules import MODULE_FRAME
from opscope.analysis.nesting import Bools, Ints
from opscope.analysis.stacks import is_users
from opscope.documents.bound import BoundKind
from opscope.documents.findings import Rule, Where
from opscope.documents.limits import LimitRow
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.categories import Category, Classifier
from opscope.knowledge.copies import Direction, direction_of
from opscope.knowledge.kernels.decode import decode
from opscope.knowledge.kernels.decoded import Operation
from opscope.knowledge.native_functions import NativeFunctions
from opscope.units import format_ns, format_share

_LEAST_NS: Final = 3_000  # shorter kernels are a matter of launching
_LEAST_SHARE: Final = 0.02  # of the step
_KERNELS_LOOKED_AT: Final = 1_000  # the most expensive ones
_FUSIBLE: Final = frozenset({Category.ELEMENTWISE, Category.ACTIVATION, Category.NORMALIZATION, Category.REDUCTION})
_ALSO_FUSIBLE: Final = frozenset({"aten::copy_", "aten::native_dropout", "aten::native_dropout_backward"})
_OPTIMIZER: Final = re.compile(r"^Optimizer\.step#")
# Composite operators of the forward pass: no backward formula calls them.
_FORWARD_ONLY: Final = frozenset(
    f"aten::{name}"
    for name in (
        *(
            "linear",
            "conv1d",
            "conv2d",
            "conv3d",
            "layer_norm",
            "group_norm",
            "batch_norm",
            "rms_norm",
            "gelu",
        ),
        *("relu", "silu", "softmax", "log_softmax", "dropout", "embedding", "scaled_dot_product_attention"),
    )
)


@lru_cache(maxsize=1 << 16)
def _elements(dims: str | None) -> int:
    """Return how many elements the largest of some recorded inputs has."""
    call = RecordedCall.read(dims, "[]", None)
    return max((math.prod(shape) for shape in (call.dims if call else ()) if shape), default=0)


def fusible_chain(context: Context) -> Iterator[Draft]:
    """Find kernels that pass over the same tensors one after the other, each reading what the one before wrote."""
    chains = _chains(context)
    if not chains:
        return
    duration = column(context.trace.activities, "duration_ns")
    lost = sum(int(duration[chain].sum() - duration[chain].max()) for chain in chains) / context.steps
    time = sum(int(duration[chain].sum()) for chain in chains) / context.steps
    if lost < _LEAST_SHARE * context.step_ns:
        return
    longest = max(chains, key=lambda chain: int(duration[chain].sum()))
    owners = context.links.activity_operator[longest]
    names = context.trace.operators["name"].gather(owners).cast(pl.String).to_list()
    row = next((row for row in context.rows if row.operator == names[0]), None)
    where = context.where_of_row(row) if row else Where(operator=names[0])
    shown = ", ".join(name.removeprefix("aten::") for name in names[:8]) + (" ..." if len(names) > 8 else "")
    yield Draft(
        rule=Rule.FUSIBLE_CHAIN,
        title=f"Chains of elementwise kernels pass over memory again and again ({format_ns(time)} per step)",
        where=where,
        saving=context.of_device(0.0, 0.95 * lost),
        derivation="the time of all kernels of a chain but its longest (95 %: high); what the backward pass keeps, and "
        "further inputs, must be moved all the same, and nothing is saved where they work on other tensors (low)",
        evidence=(
            measured(f"{len(chains) / context.steps:,.1f} chains a step; the longest: {shown}"),
            measured("they run one after the other on a stream, and on as many elements each"),
            general("mostly each then reads what the one before it wrote; which tensors those are no trace tells"),
        ),
        action="torch.compile the function around them: one kernel then reads its inputs and writes its result once",
        wrong_if="something in between needs the intermediate results",
        claims=context.claims_of_activities(np.concatenate(chains)),
    )


def _chains(context: Context) -> list[Ints]:
    """Return runs of activities that one kernel could do: rows of the activities, in order.

    The same operator over and over may well work on other tensors each time, and an optimizer's loop does.
    """
    activities, operators = context.trace.activities, context.trace.operators
    if not operators.height:
        return []
    owner = context.links.activity_operator
    classifier = Classifier(NativeFunctions.shipped())
    fusible = names_that(
        operators["name"],
        lambda name: (
            name in _ALSO_FUSIBLE
            or (not name.startswith(("aten::_foreach", "triton_")) and classifier.classify(name).category in _FUSIBLE)
        ),
    )
    kernels = (activities["kind"] == "kernel").to_numpy()
    mine = np.flatnonzero(kernels & (column(activities, "device") == context.device.device))
    mine = mine[context.device.window.spans.holds(column(activities, "start_ns")[mine], end_of(activities)[mine])]
    order = mine[np.lexsort((column(activities, "start_ns")[mine], column(activities, "stream")[mine]))]
    elements = {code: _elements(text) for code, text in _distinct(operators["input_dims"])}
    code = operators["input_dims"].to_physical().fill_null(_NO_CODE).to_numpy()
    size = _looked_up(elements, code)
    known = owner[order] >= 0
    part = known & fusible[owner[order]] & ~in_optimizer(context)[order]
    # What works on a few numbers, such as means of rows, fits in between.
    kept = ~part | (column(activities, "duration_ns")[order] >= _LEAST_NS)
    order, part = order[kept], part[kept]
    # Where no shapes were recorded, kernels of the same grid have about as many elements.
    grid = activities["grid"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()[order]
    sizes = np.where(code[owner[order]] == _NO_CODE, -1 - grid, size[owner[order]])
    part &= sizes != 0
    stream = column(activities, "stream")[order]
    goes_on = part[1:] & part[:-1] & (stream[1:] == stream[:-1]) & (sizes[1:] == sizes[:-1])
    run = np.cumsum(np.append(True, ~goes_on)) if len(order) else np.zeros(0, np.int64)
    names = operators["name"].to_physical().to_numpy()[owner[order]]
    return [order[rows] for rows in _runs(run, part, names)]


def _looked_up(values: Mapping[int, int], code: Ints) -> Ints:
    """Return per code its value; 0 for what has none."""
    table = np.zeros(max(values, default=-1) + 2, np.int64)
    table[list(values)] = list(values.values())
    found: Ints = table[np.where(code == _NO_CODE, len(table) - 1, code)]
    return found


def _runs(run: Ints, part: Bools, names: Ints) -> list[Ints]:
    """Return the positions of each run that has several parts, of several names."""
    inside = np.flatnonzero(part)
    if not len(inside):
        return []
    numbers = run[inside]
    first = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    last = np.append(first[1:], len(inside))
    lowest, highest = (function.reduceat(names[inside], first) for function in (np.minimum, np.maximum))
    several = np.flatnonzero(lowest != highest)
    return [inside[begin:end] for begin, end in zip(first[several].tolist(), last[several].tolist(), strict=True)]


_NO_CODE: Final = (1 << 32) - 1


def _distinct(texts: pl.Series) -> Iterator[tuple[int, str]]:
    """Yield the distinct texts of a column with their numbers."""
    unique = texts.unique().drop_nulls()
    yield from zip(unique.to_physical().to_list(), unique.cast(pl.String).to_list(), strict=True)


def eager_attention(context: Context) -> Iterator[Draft]:
    """Find attention that is written out: products with a softmax between them, all scores in memory."""
    yield from _attention_by_names(context)
    rows: dict[int, LimitRow] = {}
    softmaxes: list[LimitRow] = []
    for softmax in context.rows:
        scores = _scores(softmax.input_dims) if softmax.operator in _SOFTMAX else None
        products = [row for row in context.rows if scores and row.operator in _BATCHED and _of_scores(row, scores)]
        makes = any(_matrices(row)[0] == scores for row in products)
        if scores is None or not makes or not any(_matrices(row)[1] == scores for row in products):
            continue
        softmaxes.append(softmax)
        passes = [row for row in context.rows if row.category not in _NO_PASSES and _scores(row.input_dims) == scores]
        if any(len(set(_matrices(row))) == 1 for row in products):
            passes = [softmax]  # heads as wide as the sequence is long: what else has these sizes may be anything
        rows |= {id(row): row for row in (*products, *passes)}
    if not rows:
        return
    found = list(rows.values())
    ideal = sum(row.calls * _compute_ns(row) for row in found if row.product) / context.steps
    time = sum(row.device_ns for row in found) / context.steps
    if time < _LEAST_SHARE * context.step_ns:
        return
    yield Draft(
        rule=Rule.EAGER_ATTENTION,
        title=f"Attention is written out and keeps all scores in memory ({format_ns(time)} per step)",
        where=context.where_of_row(max(softmaxes, key=lambda row: row.device_ns)),
        saving=context.of_device(0.5 * (time - ideal / 0.3), time - ideal / 0.6),
        derivation="the time of the products, the softmax and what works on the scores, less what fused "
        "attention takes at "
        "60 % of the device's limit (high); half of what is left at 30 % (low)",
        evidence=(
            measured(f"the scores of {softmaxes[0].input_dims} are written and read by "
                     f"{sum(row.calls for row in found) / context.steps:,.0f} calls a step"),
            derived(f"{format_share(time, context.busy_ns)} of the device's busy time"),
            general("fused attention never writes the scores to memory"),
        ),
        action="torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=..., is_causal=...)  # in "
        "transformers: "
        "attn_implementation='sdpa'",
        wrong_if="the attention weights themselves are needed, or the scores are changed in a way that it does "
        "not offer",
        claims=claims_of(found),
    )  # fmt: skip


def _attention_by_names(context: Context) -> Iterator[Draft]:
    """Where no shapes were recorded: two batched products per softmax (with the backward pass: six)."""
    rows = [row for row in context.rows if row.input_dims is None and row.operator in _OF_ATTENTION]
    if not context.trace.operators["input_dims"].is_null().all():
        return
    calls = {name: sum(row.calls for row in rows if row.operator == name) for name in _OF_ATTENTION}
    softmaxes = calls["aten::_softmax"]
    if not softmaxes or calls["aten::bmm"] not in (2 * softmaxes, 6 * softmaxes):
        return
    time = sum(row.device_ns for row in rows) / context.steps
    yield Draft(
        rule=Rule.EAGER_ATTENTION,
        title=f"Attention is written out and keeps all scores in memory ({format_ns(time)} per step)",
        where=context.where_of_row(max(rows, key=lambda row: row.device_ns)),
        saving=context.of_device(0.15 * time, 0.95 * time),
        derivation="15 % (low) to 95 % (high) of the time of its products and softmax: their sizes were not recorded",
        evidence=(
            measured(f"{calls['aten::bmm'] / context.steps:,.0f} batched products and {softmaxes / context.steps:,.0f} "
                     "softmaxes a step"),
            general("record shapes for more (record_shapes=True)"),
        ),
        action="torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=..., is_causal=...)  # in "
        "transformers: attn_implementation='sdpa'",
        wrong_if="these products are not those around the softmax",
        claims=claims_of(rows),
    )  # fmt: skip


_OF_ATTENTION: Final = ("aten::bmm", "aten::_softmax", "aten::_softmax_backward_data")
_BATCHED: Final = ("aten::bmm", "aten::baddbmm", "aten::mm")
_SOFTMAX: Final = ("aten::_softmax", "aten::_safe_softmax")
_NO_PASSES: Final = ("Unlinked", str(Category.MATRIX), str(Category.CONVOLUTION))
_Matrices = tuple[int, int, int]  # how many, their rows and columns


@lru_cache(maxsize=1 << 14)
def _scores(input_dims: str | None) -> _Matrices | None:
    """Return the matrices of a call's first input, if it has three or four dimensions as the scores of attention do."""
    call = RecordedCall.read(input_dims, "[]", None)
    shape = (call.dims[0] if call and call.dims else None) or ()
    return (math.prod(shape[:-2]), shape[-2], shape[-1]) if len(shape) in (3, 4) else None


def _matrices(row: LimitRow) -> tuple[_Matrices, _Matrices, _Matrices]:
    """Return what a product makes, and its two operands."""
    sizes = row.product or {}
    batch, rows, columns, depth = (sizes.get(name, 0) for name in ("batch", "rows", "columns", "depth"))
    return (batch, rows, columns), (batch, rows, depth), (batch, depth, columns)


def _of_scores(row: LimitRow, scores: _Matrices) -> bool:
    """Tell whether a product makes or takes matrices of these sizes, or transposed ones as the backward pass does."""
    count, rows, columns = scores
    return row.product is not None and any(m in (scores, (count, columns, rows)) for m in _matrices(row))


def _compute_ns(row: LimitRow) -> float:
    return row.ideal_ns if row.ideal_ns is not None and row.limited_by == "compute" else 0.0


def in_optimizer(context: Context) -> Bools:
    """Tell per activity whether it was launched within an optimizer's step."""
    annotations, trace = context.trace.annotations, context.trace
    ranges = annotations.filter(names_that(annotations["name"], _OPTIMIZER.search))
    found = np.zeros(trace.activities.height, np.bool_)
    launch = context.links.activity_launch
    launched = np.flatnonzero(launch >= 0)
    if ranges.height and len(launched):
        thread, start = (column(trace.launches, name)[launch[launched]] for name in ("thread", "start_ns"))
        found[launched] = nesting_of(ranges).innermost_at(thread, start) >= 0
    return found


def unfused_optimizer(context: Context) -> Iterator[Draft]:
    """Find an optimizer that updates parameters by many kernels."""
    annotations, trace = context.trace.annotations, context.trace
    ranges = annotations.filter(names_that(annotations["name"], _OPTIMIZER.search))
    inside = context.work[in_optimizer(context)[context.work]]
    names = trace.activities["name"].gather(inside).cast(pl.String)
    if not len(inside) or names.str.contains("Fused(Adam|Adagrad|Sgd)MathFunctor").any():
        return
    kernels = len(inside) / context.steps
    work = float(column(trace.activities, "duration_ns")[inside].sum()) / context.steps
    spans = Intervals.union_of(column(ranges, "start_ns"), end_of(ranges))
    mask = context.waits.kinds[BoundKind.DISPATCH] | context.waits.kinds[BoundKind.HOST_WORK]
    idle = context.waits.idle.pieces.chosen(mask).within(spans).length / context.steps
    waiting = context.idle_for(BoundKind.DISPATCH) + context.idle_for(BoundKind.HOST_WORK)
    share = idle * context.steps / max(int(context.waits.lengths[mask].sum()), 1)
    waiting = waiting.times(share, share)
    lists = bool(names.str.contains("multi_tensor_apply").any())
    saved = context.of_device(0.3 * work, 0.75 * work)
    saving = (waiting.times(0.5, 1.0) + saved).within(context.step_ns)
    if saving.high < _LEAST_SHARE * context.step_ns or kernels < 8:
        return
    name = str(ranges["name"][0]).split("#")[1].removesuffix(".step")
    now = "a few kernels per operation" if lists else "several kernels per parameter"
    yield Draft(
        rule=Rule.UNFUSED_OPTIMIZER,
        title=f"{name} takes {kernels:,.0f} kernels a step: {now}",
        where=Where(annotation=str(ranges["name"][0])),
        saving=saving,
        derivation="75 % (high) and 30 % (low) of its device time, as one pass over parameters, gradients and states "
        "remains; and all and half of the idle time in its ranges",
        evidence=(
            measured(f"{format_ns(work)} of device time and {format_ns(idle)} of idle time a step in {name}.step"),
            general("the fused optimizer reads and writes everything once, in a few kernels"),
        ),
        action=f"torch.optim.{name}(..., fused=True)" if name in _FUSED else "torch.compile(optimizer.step)",
        wrong_if="parameters or gradients are no plain tensors of one device",
        claims=context.claims_of_activities(inside)
        | (idle_claim(BoundKind.DISPATCH) if waiting.high > 0.02 * context.step_ns else frozenset()),
    )


_FUSED: Final = ("SGD", "Adam", "AdamW", "Adagrad")


def layout_conversion(context: Context) -> Iterator[Draft]:
    """Find kernels that change the layout of tensors around convolutions."""
    work = context.trace.activities.select("name", "duration_ns").with_row_index("row")[context.work]
    kernels = work.group_by("name").agg(pl.col("duration_ns").sum(), pl.col("row"))
    kernels = kernels.sort("duration_ns", descending=True).head(_KERNELS_LOOKED_AT)
    converting = [
        (str(name), int(time), np.array(rows))
        for name, time, rows in kernels.with_columns(pl.col("name").cast(pl.String)).iter_rows()
        if decode(str(name)).operation is Operation.LAYOUT_CHANGE
    ]
    time = sum(time for _, time, _ in converting) / context.steps
    if time < _LEAST_SHARE * context.step_ns:
        return
    convolutions = [row for row in context.rows if row.category == str(Category.CONVOLUTION)]
    where = context.where_of_row(max(convolutions, key=lambda row: row.device_ns)) if convolutions else Where()
    name = max(converting, key=lambda item: item[1])[0]
    yield Draft(
        rule=Rule.LAYOUT_CONVERSION,
        title=f"Tensors are converted between NCHW and NHWC around convolutions ({format_ns(time)} per step)",
        where=replace(where, kernel=name),
        saving=context.of_device(0.6 * time, 1.3 * time),
        derivation="the time of the conversions (60 %: low); without them the layers between run on whole vectors too "
        "(130 %: high)",
        evidence=(
            measured(f"{sum(len(rows) for *_, rows in converting) / context.steps:,.0f} conversions a step, mostly "
                     f"{decode(name).summary}"),
        ),
        action="model = model.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)",
        wrong_if="layers between the convolutions only work on NCHW",
        claims=context.claims_of_activities(np.concatenate([rows for *_, rows in converting])),
    )  # fmt: skip


def repeated_casts(context: Context) -> Iterator[Draft]:
    """Find weights that autocast converts again in every forward pass."""
    weights = {
        size
        for row in context.rows
        if row.product and row.precision in ("bf16", "fp16")
        for size in ((row.product["columns"], row.product["depth"]), (row.product["depth"], row.product["columns"]))
    }
    rows = [row for row in context.rows if row.operator == "aten::copy_" and _casts_weight(row, weights)]
    passes = _forward_passes_per_update(context)
    if not rows or passes is None:
        return
    again = 1.0 if passes == math.inf else 1 - 1 / passes
    time = again * sum(row.device_ns for row in rows) / context.steps
    if time < _LEAST_SHARE * context.step_ns:
        return
    calls = sum(row.calls for row in rows) / context.steps
    yield Draft(
        rule=Rule.REPEATED_CASTS,
        title=f"Autocast converts weights anew in each forward pass ({format_ns(time)} per step)",
        where=context.where_of_row(max(rows, key=lambda row: row.device_ns)),
        saving=context.of_device(0.8 * time, 1.05 * time),
        derivation="the time of the conversions that are repeated",
        evidence=(
            measured(f"{calls:,.0f} conversions a step of tensors as large as the products' weights"),
            derived("no update of the weights lies between them" if passes == math.inf else
                    f"the weights change once in {passes:.0f} forward passes"),
        ),
        action="model = model.to(torch.bfloat16) for inference; else one autocast region around all "
        "micro-batches, so that "
        "its cache keeps the converted weights",
        wrong_if="the converted tensors are no weights",
        claims=claims_of(rows),
    )  # fmt: skip


def _casts_weight(row: LimitRow, weights: set[tuple[int, int]]) -> bool:
    call = RecordedCall.read(row.input_dims, row.input_types, None)
    # What was converted once was not converted again.
    if call is None or row.calls < 2 or len(call.types) < 2 or not call.dims:
        return False
    return call.types[1] == "float" and call.types[0] in ("c10::BFloat16", "c10::Half") and call.dims[0] in weights


def _forward_passes_per_update(context: Context) -> float | None:
    """Return how many forward passes run per update of the weights: all without training; None where unknown.

    From the second backward pass on, gradients are added to those that are there.
    """
    names = context.trace.operators["name"]
    accumulated = names_that(names, lambda name: name.startswith("torch::autograd") and "AccumulateGrad" in name)
    count = int(accumulated.sum())
    if not count:
        return math.inf
    parent = context.links.operators.parent
    adds = np.flatnonzero((names == "aten::add_").to_numpy() & (parent >= 0))
    added = int(accumulated[parent[adds]].sum())
    return count / max(count - added, 1) if added else None


def recomputation(context: Context) -> Iterator[Draft]:
    """Find forward work that the backward pass does again."""
    trace, links = context.trace, context.links
    inside = context.backward().inside
    forward = names_that(trace.operators["name"], lambda name: name in _FORWARD_ONLY) & inside
    if not forward.any():
        return
    own = np.zeros(trace.operators.height, np.int64)
    linked = np.zeros(trace.activities.height, np.bool_)
    linked[context.work] = links.activity_operator[context.work] >= 0
    np.add.at(own, links.activity_operator[linked], column(trace.activities, "duration_ns")[linked])
    parent = links.operators.parent
    outermost = forward & ~np.where(parent >= 0, any_above(forward, parent), False)
    time = float(links.operators.subtree_sums(own)[outermost].sum()) / context.steps
    work = np.bincount(links.activity_operator[linked], minlength=trace.operators.height).astype(np.int64)
    works = links.operators.subtree_sums(work)[outermost]
    launches, again_calls = float(works.sum()) / max(int(linked.sum()), 1), int((works > 0).sum())
    if time < _LEAST_SHARE * context.step_ns:
        return
    again = np.flatnonzero(linked)
    again = again[any_above(forward, parent)[links.activity_operator[again]] | forward[links.activity_operator[again]]]
    yield Draft(
        rule=Rule.RECOMPUTATION,
        title=f"The backward pass computes parts of the forward pass again ({format_ns(time)} per step)",
        where=_checkpoint(context),
        saving=context.of_removed(0.85 * time, 1.4 * time, launches),
        derivation="the device time of forward operators that run within the backward pass (85 %: low; 140 %: "
        "high, with what keeps its results), and their part of the time spent launching",
        evidence=(measured(f"{again_calls / context.steps:,.0f} forward operators a step run in the backward "
                           f"pass, {format_share(time, context.busy_ns)} of the device's busy time"),),
        action="checkpoint fewer layers, as memory allows (torch.utils.checkpoint), or selectively "
        "(create_selective_checkpoint_contexts)",
        wrong_if="memory does not allow it",
        claims=context.claims_of_activities(again),
    )  # fmt: skip


def _checkpoint(context: Context) -> Where:
    frames = context.trace.frames
    found = names_that(frames["name"], lambda name: "torch/utils/checkpoint.py" in name)
    if not found.any():
        return Where()
    row = int(np.flatnonzero(found)[0])
    nesting = nesting_of(frames)
    above = int(nesting.parent[row])
    names = frames["name"]
    while above >= 0 and not is_users(str(names[above])):
        above = int(nesting.parent[above])
    return Where(python=str(names[above]) if above >= 0 else str(names[row]))


def contiguous_copies(context: Context) -> Iterator[Draft]:
    """Find copies that only change the strides of a tensor."""
    rows = [row for row in context.rows if row.operator == "aten::copy_" and _changes_strides(row)]
    time = sum(row.device_ns for row in rows) / context.steps
    if not rows or time < _LEAST_SHARE * context.step_ns:
        return
    first = max(rows, key=lambda row: row.device_ns)
    yield Draft(
        rule=Rule.CONTIGUOUS_COPIES,
        title=f"Tensors are copied only to change their strides ({format_ns(time)} per step)",
        where=context.where_of_row(first),
        saving=context.of_device(0.3 * time, 1.1 * time),
        derivation="the time of these copies (high); 30 % of it where the layout is needed by what follows (low)",
        evidence=(
            measured(f"{sum(row.calls for row in rows) / context.steps:,.0f} copies a step, mostly of "
            f"{first.input_dims} "
                     f"with strides {first.input_strides}"),
        ),
        action="keep the tensor contiguous where it is made (weights: once, before the loop), or use the "
        "transposed form of "
        "what follows",
        wrong_if="the copy is wanted",
        claims=claims_of(rows),
    )  # fmt: skip


def _changes_strides(row: LimitRow) -> bool:
    call = RecordedCall.read(row.input_dims, row.input_types, None, row.input_strides)
    if call is None or any(len(values) < 2 for values in (call.types, call.dims, call.strides)):
        return False
    to, source = call.strides[:2]
    same = call.types[0] == call.types[1] and call.dims[0] == call.dims[1]
    return same and to is not None and source is not None and to != source and 0 not in source


def duplicate_work(context: Context) -> Iterator[Draft]:
    """Find modules that run several times a step on inputs of the same shapes: on the same inputs, perhaps."""
    if context.backward().inside.any():
        return  # what runs again may belong to another micro-batch
    found = sorted(_repeated_modules(context), key=lambda item: -item[2])
    for name, calls, time in found[:1]:
        saved = time * (1 - 1 / calls)
        if saved < _LEAST_SHARE * context.step_ns:
            return
        high = context.of_device(0.0, saved).high
        yield Draft(
            rule=Rule.DUPLICATE_WORK,
            title=f"{name} runs {calls:.0f} times a step with inputs of the same shapes",
            where=Where(module=name),
            # Whether the inputs are the same no trace tells: it never comes before what was seen.
            saving=Range(0.0, high, 0.01 * high),
            derivation="all of its runs but one, if their inputs are the same (high)",
            evidence=(
                measured(f"it takes {format_ns(time)} of device time a step, in {calls:.0f} runs of the same kernels"),
                general("a trace does not record whether tensors hold the same values"),
            ),
            action="if the inputs are the same, compute it once and use the result again",
            wrong_if="the inputs differ from run to run",
            claims=frozenset({"duplicates"}),
        )


def _copies_from_host(context: Context) -> Ints:
    """Return when copies from the host to the device were launched."""
    launch = context.links.activity_launch
    copies = names_that(context.trace.activities["name"], lambda name: direction_of(name) is Direction.TO_DEVICE)
    return column(context.trace.launches, "start_ns")[launch[copies & (launch >= 0)]]


def _work_between(begin: Ints, end: Ints, launched: Ints) -> bool:
    """Tell whether something is launched between all runs but a step's last one and the next step's first."""
    between = np.searchsorted(launched, begin[1:]) > np.searchsorted(launched, end[:-1])
    return bool(between.all())


def _new_data_between(starts: Ints, each: int, copied: Ints) -> bool:
    """Tell whether data came from the host between the runs of any step: then the inputs are others."""
    groups = starts[: len(starts) // each * each].reshape(-1, each)
    first, last = np.searchsorted(copied, groups[:, 0]), np.searchsorted(copied, groups[:, -1])
    return bool((last > first).any())


def _repeated_modules(context: Context) -> Iterator[tuple[str, float, float]]:
    """Yield modules of which each step has as many equal runs: name, runs and device time per step."""
    frames = context.trace.frames
    modules = frames.filter(names_that(frames["name"], lambda name: name.startswith(MODULE_FRAME)))
    launch = context.links.activity_launch
    launched = np.flatnonzero(launch >= 0)
    if not modules.height or not len(launched):
        return
    nesting = nesting_of(modules)
    thread, start = (column(context.trace.launches, name)[launch[launched]] for name in ("thread", "start_ns"))
    owner = nesting.innermost_at(thread, start)
    inside = owner >= 0
    duration, kernels = np.zeros(modules.height, np.int64), np.zeros(modules.height, np.int64)
    np.add.at(duration, owner[inside], column(context.trace.activities, "duration_ns")[launched[inside]])
    np.add.at(kernels, owner[inside], 1)
    names = modules["name"].cast(pl.String)
    table = pl.DataFrame(
        {
            "name": names,
            "around": names.gather(pl.Series(nesting.parent).replace(-1, None)),
            "time": nesting.subtree_sums(duration),
            "kernels": nesting.subtree_sums(kernels),
        }
    )
    runs = table.group_by("name").agg(
        pl.len().alias("runs"), pl.col("time").sum(), pl.col("kernels").min().alias("least"), pl.col("kernels").max(),
        pl.col("around").first(),
    )  # fmt: skip
    repeated = runs.filter(
        (pl.col("runs") >= 2 * context.steps) & (pl.col("runs") % context.steps == 0)
        & (pl.col("least") == pl.col("kernels")) & (pl.col("kernels") > 0)
    )  # fmt: skip
    outer = set(repeated["name"])
    begun = column(modules, "start_ns")
    copied = np.sort(_copies_from_host(context))
    for name, count, time, _, _, around in repeated.iter_rows():
        mine = np.flatnonzero((modules["name"] == name).to_numpy())
        mine = mine[np.argsort(begun[mine], kind="stable")]
        if around in outer or _new_data_between(begun[mine], count // context.steps, copied):
            continue
        # A run right after another takes what that one gave.
        if _work_between(begun[mine], end_of(modules)[mine], np.sort(start)):
            yield str(name).removeprefix(MODULE_FRAME), count / context.steps, time / context.steps
