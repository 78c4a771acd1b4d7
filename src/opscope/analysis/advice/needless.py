"""Rules on work that is not needed: expanded tensors, dense gradients, float32 logits, results thrown away."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.context import LEAST_SHARE, Apply, Context, Draft, Remedy, claims_of
from opscope.analysis.advice.remedies import all_of, scaled
from opscope.analysis.advice.rule import (
    RuleDescription,
    count_of,
    derived,
    general,
    measured,
    nanoseconds,
    of_bytes,
    percent,
    share_of,
    states,
)
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, kept
from opscope.analysis.structure.nesting import Ints, nearest
from opscope.base.text import lazy_pattern
from opscope.base.units import NS_PER_S, format_bytes, format_count, format_ns
from opscope.documents.findings import Fact, Rule, Source
from opscope.documents.limits import LimitRow
from opscope.knowledge.calls import RecordedCall, Shape
from opscope.knowledge.categories import Category
from opscope.knowledge.devices import Assumed
from opscope.knowledge.dtypes import recorded_dtype

# Shares of times below are what the change left of them in benchmarks/needless_programs.py on an H200, at least, likely
# and at most, rounded.

# ---------------------------------------------------------------- expanded tensors


_LEAST_EXPANDED: Final = 2  # times as large as what is copied
_OF_EXPANDED: Final = (0.15, 0.0, 0.0)
# What reads the copy reads the small tensor then: sooner where it is bound by what it reads, and by a kernel that is
# not vectorized where it is elementwise.
_READS_LESS: Final = (1.0, 0.4, 0.1)
_READS_BROADCAST: Final = (1.2, 1.0, 0.85)
_READS_BROADCAST_16: Final = (1.8, 1.7, 1.2)  # of 16 bits each: whole vectors of them took far less instructions
_OF_LONG_ATTENTION: Final = (1.35, 1.2, 0.9)
_OF_ATTENTION_BACKWARD: Final = (1.0, 0.9, 0.6)


@lru_cache(maxsize=1 << 14)
def _expansion(dims: str | None, types: str | None, strides: str | None) -> tuple[Shape, int] | None:
    """Return what a copy makes of an expanded tensor, and how many times as large; None where it is no such copy."""
    call = RecordedCall.read(dims, types, None, strides)
    if call is None or any(len(values) < 2 for values in (call.types, call.dims, call.strides)):
        return None
    (to, source), (shape, same) = call.strides[:2], call.dims[:2]
    if to is None or source is None or shape is None or shape != same or call.types[0] != call.types[1]:
        return None
    if len(source) != len(shape) or len(to) != len(shape):
        return None
    times = math.prod(size for size, stride in zip(shape, source, strict=True) if stride == 0)
    # One number for all, such as the gradient of a sum, is no tensor that is repeated.
    if not any(stride for size, stride in zip(shape, source, strict=True) if size > 1):
        return None
    whole = all(stride != 0 for size, stride in zip(shape, to, strict=True) if size > 1)
    return (shape, times) if whole and times >= _LEAST_EXPANDED else None


@states(
    RuleDescription(
        Rule.EXPANDED_COPY,
        f"copies of tensors with strides of 0, {_LEAST_EXPANDED} times and more as large as what they copy (repeat, "
        "repeat_interleave, expand and a copy)",
        f"{percent(1 - _OF_EXPANDED[0])} to all of their time; what reads them takes {percent(_READS_LESS[2])} to "
        f"{percent(_READS_BROADCAST_16[0])} of its time then",
    )
)
def expanded_copies(context: Context) -> Iterator[Draft]:
    """Find tensors that are repeated in memory for operators that would broadcast them."""
    rows = [
        row
        for row in context.rows
        if row.operator == "aten::copy_" and _expansion(row.input_dims, row.input_types, row.input_strides)
    ]
    copies = context.activities_of(rows)
    readers = _readers(context, copies)
    attends = any(row.category == Category.ATTENTION for row in readers)
    # What broadcasts sums its gradient up as well: only attention that shares heads does not.
    sums = _sums_of(context, rows) if attends else []
    time = sum(row.device_ns for row in (*rows, *sums)) / context.steps
    if not rows or time < LEAST_SHARE * context.step_ns:
        return
    # Others of the same sizes, which are not expanded, cannot be told apart in a replay.
    plain = claims_of(row for row in context.rows if not _expansion(row.input_dims, row.input_types, row.input_strides))
    if claims_of(rows) & plain:
        return
    first = max(rows, key=lambda row: row.device_ns)
    known = _expansion(first.input_dims, first.input_types, first.input_strides)
    assert known is not None
    shape, times = known
    reading = (*readers, *_backward_of(context, readers))
    sooner, soonest = (
        sum((1 - _read_smaller(row, times)[end]) * row.device_ns for row in reading) / context.steps
        for end in (Assumed.LOW, Assumed.HIGH)
    )
    # Whether these take a small tensor is not known: a convolution does not, and what is written to must be whole.
    sure = all(row.category in _BROADCASTS and not str(row.operator).endswith("_") for row in readers)
    left = _OF_EXPANDED if sure else (1.0, *_OF_EXPANDED[1:])
    action = "scaled_dot_product_attention(query, key, value, enable_gqa=True): heads share keys and values"
    if not attends:
        action = "leave the small tensor: operators broadcast it, and matmul takes one matrix for all batches"
    yield Draft(
        rule=Rule.EXPANDED_COPY,
        title=f"Tensors are repeated in memory, {times:,} times as large ({format_ns(time)} {context.words.per})",
        where=context.where_of_row(first),
        saving=context.of_device(max((1 - left[0]) * time + sooner, 0.0), time + soonest),
        derivation="the time of these copies"
        + (", and of what sums up their gradients" if sums else "")
        + (", and the change in time of what reads them" if readers else ""),
        evidence=(
            measured(
                count_of(sum(row.calls for row in rows) / context.steps, 1),
                f" copies {context.words.each}, the longest to {_sizes(shape)} from a tensor with strides of 0",
                source=Source.ACTIVITIES,
            ),
            *_read_by(readers),
        ),
        todo="share heads: enable_gqa=True" if attends else "broadcast instead of repeating",
        action=action,
        wrong_if="the copy is written to",
        claims=claims_of((*rows, *sums)),
        remedy=Remedy(
            f"no such copies (at worst {percent(left[0])} of their time stays: low); what runs next reads the small "
            "tensor: faster where it is bound by that, slower where it is elementwise, as on an H200",
            all_of(
                scaled(np.concatenate([copies, context.activities_of(sums)]), left),
                *(scaled(context.activities_of([row]), _read_smaller(row, times)) for row in reading),
            ),
            removes=True,
        ),
    )


_BROADCASTS: Final = frozenset({Category.ATTENTION, Category.MATRIX, Category.ELEMENTWISE, Category.ACTIVATION})


def _readers(context: Context, copies: Ints) -> list[LimitRow]:
    """Return the rows of what runs right after some copies on their streams, each once."""
    activities = context.trace.activities
    stream, start = column(activities, "stream"), column(activities, "start_ns")
    # What makes a single value in between reads nothing.
    values = context.activities_of([row for row in context.rows if _filled_shape(row) == ()])
    work = context.work[~np.isin(context.work, values)]
    work = work[np.lexsort((start[work], stream[work]))]
    is_copy = np.isin(work, copies)
    follows = np.flatnonzero(is_copy[:-1] & ~is_copy[1:] & (stream[work][:-1] == stream[work][1:])) + 1
    after = set(work[follows].tolist())
    return [row for row in context.rows if after & set(context.activities_of([row]).tolist())] if after else []


def _sums_of(context: Context, copies: Sequence[LimitRow]) -> list[LimitRow]:
    """Return what sums the gradients of expanded tensors up again, over tensors of the same shapes."""
    if not context.trains:
        return []
    made = {_shape_of_first(row.input_dims, row.input_types) for row in copies}
    return [
        row
        for row in context.rows
        if row.operator == "aten::sum"
        and _shape_of_first(row.input_dims, row.input_types) in made
        and _is_backward(context, row)
    ]


def _is_backward(context: Context, row: LimitRow) -> bool:
    """Tell whether all calls of a row run in a backward pass."""
    owners = context.links.activity_operator[context.activities_of([row])]
    return bool(len(owners)) and bool(np.append(context.backward().inside, False)[owners].all())


def _backward_of(context: Context, readers: Sequence[LimitRow]) -> list[LimitRow]:
    """Return the backward pass of attention among what reads the copies."""
    attends = any(row.category == Category.ATTENTION for row in readers)
    known = [id(row) for row in readers]
    return [row for row in context.rows if attends and _is_attention_backward(row) and id(row) not in known]


def _is_attention_backward(row: LimitRow) -> bool:
    return row.category == Category.ATTENTION and str(row.operator).endswith("backward")


def _read_smaller(row: LimitRow, times: int) -> tuple[float, float, float]:
    """Return which share of its time a call takes that reads a tensor so many times smaller: low, likely, high."""
    call = RecordedCall.read(row.input_dims, row.input_types, None)
    query = next((shape for shape in call.dims if shape), ()) if call is not None else ()
    if _is_attention_backward(row):
        return _OF_ATTENTION_BACKWARD
    if row.category == Category.ATTENTION:
        return _OF_LONG_ATTENTION if len(query) == 4 and query[2] >= 64 else _READS_LESS
    if row.product is not None:
        return _READS_LESS
    whole = [place for place, shape in enumerate(call.dims) if shape] if call is not None else []
    if call is not None and len(whole) == 1:  # its result is repeated as well, for what reads that
        likely = _READS_BROADCAST_16[1] if call.types[whole[0]] in _SIXTEEN else 1 / times
        return max(1.0, likely), likely, 1 / times
    return _READS_BROADCAST_16 if call is not None and _SIXTEEN & frozenset(call.types) else _READS_BROADCAST


def _read_by(readers: Sequence[LimitRow]) -> Iterator[Fact]:
    if readers:
        names = ", ".join(dict.fromkeys(str(row.operator) for row in readers[:3]))
        yield measured(f"next on the stream runs {names}", source=Source.ACTIVITIES)


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(format_count(size) for size in shape)


# ---------------------------------------------------------------- dense gradients of lookups


_LARGE_TABLE: Final = 1 << 24  # elements: 64 MB in float32
_FEW_ROWS: Final = 0.1  # of a table: with more of them, a sparse gradient is hardly smaller
_OF_DENSE: Final = (0.15, 0.0, 0.0)
_HOST_OF_DENSE: Final = (0.0, 0.5, 1.0)  # of the host's time that goes with it: a sparse gradient is launched as well
_OF_EMBEDDINGS: Final = frozenset({"aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward"})
_DENSE_BACKWARD: Final = _OF_EMBEDDINGS | {"aten::_index_put_impl_", "aten::index_add_"}


class _Lookup(Struct, frozen=True):
    """Tables of one shape of which a step looks up some rows.

    Attributes:
        shape: of the tables.
        touched: the elements of one table's gradient that are not zero, at most.
        rows: the calls that scatter gradients into a dense one.
        tables: how many the optimizer updates at once.
    """

    shape: Shape
    touched: float
    rows: list[LimitRow]
    tables: int


def _lookups(context: Context) -> list[_Lookup]:
    """Return the tables whose gradient is dense though few of its rows are not zero."""
    tables = {shape: count for row in context.rows if (shape := _filled(row)) and (count := _updated(context, shape))}
    tables = {shape: count for shape, count in tables.items() if not _is_used_whole(context, shape)}
    touched: dict[Shape, float] = dict.fromkeys(tables, 0.0)
    rows: dict[Shape, list[LimitRow]] = {shape: [] for shape in tables}
    for row in context.rows:
        call = RecordedCall.read(row.input_dims, row.input_types, None)
        shapes = [shape for shape in call.dims if shape] if call is not None else []
        if row.operator not in _DENSE_BACKWARD or len(shapes) < 2:
            continue
        if row.operator in _OF_EMBEDDINGS:
            # The gradient of the rows, and which ones they are; the table's own size is that of a tensor of zeros.
            if len(shapes[0]) < 2:
                continue
            width = shapes[0][-1]
            elements, fitting = math.prod(shapes[1]) * width, [one for one in tables if one[1:] == (width,)]
        else:
            elements, fitting = math.prod(shapes[-1]), [one for one in tables if one == shapes[0]]
            fitting = [one for one in fitting if _is_looked_up(context, one)]
        for shape in fitting:
            touched[shape] += elements * row.calls / context.steps / tables[shape]
            rows[shape].append(row)
    return [
        _Lookup(shape, touched[shape], rows[shape], tables[shape])
        for shape in tables
        if rows[shape] and touched[shape] <= _FEW_ROWS * math.prod(shape)
    ]


def _updated(context: Context, shape: Shape) -> int:
    """Return how many tensors of a shape an optimizer updates: 0 where none does."""
    result = 0
    for row in context.rows:
        if str(row.operator).startswith(_UPDATES):
            call = RecordedCall.read(row.input_dims, row.input_types, None)
            lists = [shapes for shapes in call.lists if shapes] if call is not None else []
            own = call.dims[:1] if call is not None else ()
            result = max(result, lists[0].count(shape) if lists else int(own == (shape,)))
    return result


def _is_used_whole(context: Context, shape: Shape) -> bool:
    """Tell whether something else reads all of a table, as a tied head does: its gradient is dense."""
    return any(
        taker.shape in (shape, shape[::-1]) and (taker.name in _READ_WHOLE or _is_of_program(taker.name))
        for taker in _takers(context).get(math.prod(shape), ())
    )


_READ_WHOLE: Final = frozenset(
    {"aten::linear", "aten::matmul", "aten::mm", "aten::addmm", "aten::bmm", "aten::t", "aten::_weight_norm_interface"}
)


def _is_of_program(name: str) -> bool:
    """Tell whether an operator is the program's own or a library's, and neither PyTorch's nor a node of autograd."""
    return "::" in name and not name.startswith(_OF_PYTORCH)


_OF_PYTORCH: Final = ("aten::", "autograd::", "torch::", "prims::", "c10d::", "nccl:")


def _is_looked_up(context: Context, shape: Shape) -> bool:
    return any(
        row.operator in _LOOKUPS and _shape_of_first(row.input_dims, row.input_types) == shape for row in context.rows
    )


@lru_cache(maxsize=1 << 12)
def _shape_of_first(dims: str | None, types: str | None) -> Shape | None:
    call = RecordedCall.read(dims, types, None)
    return call.dims[0] if call is not None and call.dims else None


def _filled_shape(row: LimitRow) -> Shape | None:
    if row.operator not in ("aten::fill_", "aten::zero_"):
        return None
    return _shape_of_first(row.input_dims, row.input_types)


def _filled(row: LimitRow) -> Shape | None:
    """Return the shape of a large tensor that is filled, as a gradient is with zeros; None for other work."""
    shape = _filled_shape(row)
    return shape if shape and math.prod(shape) >= _LARGE_TABLE else None


def _share_of_tables(row: LimitRow, shape: Shape, tables: int) -> float:
    """Return which share of a call's elements is that of some tables: of an optimizer's list that of its entries."""
    call = RecordedCall.read(row.input_dims, row.input_types, None)
    if call is None:
        return 0.0
    lists = [shapes for shapes in call.lists if shapes]
    if lists:
        total = sum(math.prod(one) for one in lists[0])
        return min(lists[0].count(shape), tables) * math.prod(shape) / max(total, 1)
    return 1.0 if shape in call.dims else 0.0


@states(
    RuleDescription(
        Rule.DENSE_GRADIENT,
        f"gradients of lookups (Embedding, table[rows]) that are filled whole though at most {percent(_FEW_ROWS)} of "
        "their rows are not zero, and what updates the whole table with them",
        f"{percent(1 - _OF_DENSE[0])} to all of their time",
    )
)
def dense_gradient(context: Context) -> Iterator[Draft]:
    """Find tables whose gradient is filled and applied whole, for the few rows that were looked up."""
    if not context.trains:
        return
    lookups = [(lookup, _parts_of(context, lookup)) for lookup in _lookups(context)]
    lookups = [(lookup, parts) for lookup, parts in lookups if len(parts) > len(lookup.rows)]
    every = _joined(part for _, parts in lookups for part in parts)
    time = sum(share * row.device_ns for row, share in every) / context.steps
    if not lookups or time < LEAST_SHARE * context.step_ns:
        return
    first = max((lookup for lookup, _ in lookups), key=lambda lookup: math.prod(lookup.shape))
    rows = [row for row, _ in every]
    # What decays or scales the whole table must do so for the rows that were not looked up as well.
    decays = any(str(row.operator).startswith(_DECAYS) for row, _ in every)
    left = (1.0, *_OF_DENSE[1:]) if decays else _OF_DENSE
    tables = sum(lookup.tables for lookup, _ in lookups)
    several = f", and of {tables - 1} more," if tables > 1 else ""
    yield Draft(
        rule=Rule.DENSE_GRADIENT,
        title=f"A gradient of {_sizes(first.shape)}{several} is filled and applied whole ({format_ns(time)} "
        f"{context.words.per}), nearly all of it zeros",
        where=context.where_of_row(_looks_up(context, first)),
        saving=context.of_device((1 - left[0]) * time, time),
        derivation="the time in which gradients are filled with zeros and whole tables updated",
        evidence=(
            derived(
                share_of(first.touched, math.prod(first.shape)),
                " of such a gradient is not zero at most: so many rows are looked up",
                source=Source.ACTIVITIES,
            ),
            measured(
                nanoseconds(time),
                f" {context.words.each} to fill ",
                of_bytes(4 * sum(lookup.tables * math.prod(lookup.shape) for lookup, _ in lookups)),
                " (in float32) and to update the tables with them",
                source=Source.ACTIVITIES,
            ),
        ),
        todo="sparse gradients of the table",
        action="torch.nn.Embedding(..., sparse=True) with SparseAdam or SGD for the table: they update the rows "
        "that were looked up, and leave the moments of the others alone",
        wrong_if="weight decay or momentum must change all rows in each step",
        claims=claims_of(rows),
        remedy=Remedy(
            "nothing fills the gradient or updates the whole table "
            f"(at worst {percent(left[0])} of that time stays: low)",
            _left_of_tables(context, every, left),
            removes=True,
        ),
    )


def _joined(parts: Iterable[tuple[LimitRow, float]]) -> list[tuple[LimitRow, float]]:
    """Return each call once, with the shares of all tables in it, at most all of it."""
    shares: dict[int, tuple[LimitRow, float]] = {}
    for row, share in parts:
        _, before = shares.get(id(row), (row, 0.0))
        shares[id(row)] = row, min(before + share, 1.0)
    return list(shares.values())


def _parts_of(context: Context, lookup: _Lookup) -> list[tuple[LimitRow, float]]:
    """Return the work on a table's whole gradient, with the share of each call that is this table's."""
    updates = [
        (row, share)
        for row in context.rows
        if (share := _share_of_tables(row, lookup.shape, lookup.tables)) > 0
        and (_filled(row) == lookup.shape or str(row.operator).startswith(_UPDATES))
    ]
    return [*updates, *((row, 1.0) for row in lookup.rows)]


def _looks_up(context: Context, lookup: _Lookup) -> LimitRow:
    """Return the call that looks rows up, which the program writes; else the one that scatters their gradient."""
    forward = [
        row
        for row in context.rows
        if row.operator in _LOOKUPS and _shape_of_first(row.input_dims, row.input_types) == lookup.shape
    ]
    return max(forward or lookup.rows, key=lambda row: row.device_ns)


_LOOKUPS: Final = frozenset({"aten::embedding", "aten::index_select", "aten::index", "aten::gather"})
_UPDATES: Final = ("aten::_foreach_", "aten::_fused_", "aten::add_", "aten::addcmul_", "aten::addcdiv_", "aten::mul_")
_DECAYS: Final = ("aten::_foreach_mul_", "aten::_fused_adamw_", "aten::mul_")


def _left_of_tables(
    context: Context, every: Sequence[tuple[LimitRow, float]], left: tuple[float, float, float]
) -> Apply:
    parts = [(context.activities_of([row]), share) for row, share in every]
    owners = context.links.activity_operator
    scatters = [context.activities_of([row]) for row, _ in every if row.operator in _DENSE_BACKWARD]
    dense = np.zeros(context.trace.operators.height, np.bool_)
    for activities in scatters:
        dense[owners[activities][owners[activities] >= 0]] = True
    within = np.append(nearest(context.links.operators.parent, dense) >= 0, False)[owners]

    def apply(edit: Edit, assumed: Assumed) -> int:
        result, gone = 0, []
        for activities, share in parts:
            factor = 1 - share * (1 - left[assumed])
            if factor:
                result += edit.scale(activities, factor)
            else:
                gone.append(activities)
        if gone:  # what scatters goes with all that it launches, and the host's time of each operator once
            every = np.concatenate(gone)
            result += len(every)
            edit.remove_operators(dense, of_host=_HOST_OF_DENSE[assumed])
            edit.remove_work(every[~within[every]], of_host=_HOST_OF_DENSE[assumed])
        return result

    return apply


# ---------------------------------------------------------------- float32 copies of large logits


_MANY_CLASSES: Final = 8_192
_LARGE_LOGITS: Final = 1 << 26  # elements: 256 MB in float32
_OF_COPIES: Final = (0.3, 0.0, 0.0)
# A softmax that reads and writes 16 bits moves half; its backward pass too.
_OF_SOFTMAX: Final = (1.0, 0.65, 0.5)
_LOSSES: Final = ("aten::_log_softmax", "aten::_log_softmax_backward_data")
_FILLS: Final = ("aten::fill_", "aten::zero_", "aten::nll_loss_backward")
_SIXTEEN: Final = frozenset({"c10::BFloat16", "c10::Half"})


@lru_cache(maxsize=1 << 14)
def _logits(dims: str | None, types: str | None) -> tuple[Shape, tuple[str, ...]] | None:
    """Return the shape of large logits among a call's inputs, and the types; None where there are none."""
    call = RecordedCall.read(dims, types, None)
    if call is None:
        return None
    shapes = [
        shape for shape in call.dims if shape and shape[-1] >= _MANY_CLASSES and math.prod(shape) >= _LARGE_LOGITS
    ]
    return (max(shapes, key=math.prod), call.types) if shapes else None


@states(
    RuleDescription(
        Rule.FLOAT32_LOGITS,
        f"copies of logits of {_MANY_CLASSES:,} classes and more from 16 bits to float32, or of float32 logits to "
        "change their strides, beside a log_softmax over them",
        f"{percent(1 - _OF_COPIES[0])} to all of the copies, and up to {percent(1 - _OF_SOFTMAX[2])} of the softmax",
    )
)
def float32_logits(context: Context) -> Iterator[Draft]:
    """Find logits that are copied to float32 before a loss that computes in float32 by itself."""
    wide = [
        (row, known[0][-1])
        for row in context.rows
        if (known := _logits(row.input_dims, row.input_types)) is not None and "float" in known[1][:2]
    ]
    # Sampling from a softmax is no loss: there the float32 numbers are what is drawn from.
    classes = {size for row, size in wide if row.operator in _LOSSES}
    softmax = [
        row
        for row, size in wide
        if size in classes and (row.operator in _LOSSES or row.category == Category.ELEMENTWISE)
    ]
    copies, widens = [], False
    for row in context.rows:
        known = _logits(row.input_dims, row.input_types) if row.operator in ("aten::copy_", *_FILLS) else None
        if known is None or known[0][-1] not in classes or not known[1]:
            continue
        to, *rest = known[1]
        source = rest[0] if rest else ""
        if row.operator != "aten::copy_" or {to, source} & {"float"}:
            copies.append(row)
            widens = widens or (to == "float" and source in _SIXTEEN)
    time = sum(row.device_ns for row in copies) / context.steps
    if not softmax or not widens or time < LEAST_SHARE * context.step_ns:
        return
    copied = [row for row in copies if row.operator == "aten::copy_"]
    first = max(copied, key=lambda row: row.device_ns)
    known = _logits(first.input_dims, first.input_types)
    assert known is not None
    shape, _ = known
    rows = [*copies, *softmax]
    total = sum(row.device_ns for row in rows) / context.steps
    yield Draft(
        rule=Rule.FLOAT32_LOGITS,
        title=f"Logits of {max(classes):,} classes are copied to float32 ({format_ns(time)} {context.words.per} of "
        f"copies, {format_ns(total)} with the loss)",
        where=context.where_of_row(first),
        saving=context.of_device((1 - _OF_COPIES[0]) * time, time + (1 - _OF_SOFTMAX[2]) * (total - time)),
        derivation="the time of the copies, and what the softmax takes longer on float32",
        evidence=(
            measured(
                count_of(sum(row.calls for row in copied) / context.steps),
                f" copies {context.words.each} of {_sizes(shape)} and the like, ",
                of_bytes(4 * math.prod(shape)),
                " each in float32",
                source=Source.ACTIVITIES,
            ),
            general("cross_entropy and log_softmax of 16-bit logits compute in float32 by themselves"),
        ),
        todo="no .float() of the logits",
        action="functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) on the 16-bit logits; shift the "
        "labels (pad with -100) and not the logits; or compute head and loss together in chunks",
        wrong_if="the float32 logits are needed for something else",
        claims=claims_of(rows),
        remedy=Remedy(
            f"none of these copies ({percent(_OF_COPIES[0])} of their time stays: low), and a softmax that moves 16 "
            "bits: it takes as long (low), 65 % (likely) or half (high)",
            all_of(
                scaled(context.activities_of(copies), _OF_COPIES),
                scaled(context.activities_of(softmax), _OF_SOFTMAX),
            ),
            context.activities_of(rows),
        ),
    )


# ---------------------------------------------------------------- results that are thrown away


_FEW_OF_SORTED: Final = 1 / 16  # of what is sorted
# torch.topk of 100 and 1,024 against sorts of 1 and 8 million.
_OF_SORT: Final = (0.5, 0.1, 0.0)
_LEAST_SORT_NS: Final = 20_000  # a step: what takes less is not worth the look
_SHORT_ROW: Final = 4_096  # entries: PyTorch sorts such rows within a block each
_OF_SHORT_SORTS: Final = (0.95, 0.85, 0.3)
_OF_LONG_SORT: Final = (0.7, 0.45, 0.1)  # of one row: torch.topk then looks at it with few blocks, over and over


class _Taker(Struct, frozen=True):
    """An operator that takes a large tensor.

    Attributes:
        name: of the operator.
        shape: of the tensor.
        values: of the call.
        calls: how many such calls there are.
        indices: of an index of the first axes, how many entries it has and of how many axes.
        is_backward: whether they run in a backward pass.
        converts: whether the first two tensors have different types.
    """

    name: str
    shape: Shape
    values: tuple[str, ...]
    calls: int
    indices: tuple[int, int] | None
    is_backward: bool
    converts: bool

    def value(self, place: int) -> int | None:
        """Return one of its values; None where it is not recorded, or no whole number."""
        try:
            value = json.loads(self.values[place]) if place < len(self.values) else None
        except (ValueError, RecursionError):
            return None
        return value if type(value) is int else None

    @property
    def axis(self) -> int | None:
        """Along which axis it sorts or takes a part, from 0; None where that is not known."""
        axis, count = self.value(1), len(self.shape)
        return axis % count if axis is not None and -count <= axis < count else None

    @property
    def part(self) -> tuple[int, int] | None:
        """From where to where a slice or select takes along its axis; None where that is not known."""
        if self.axis is None or self.name not in ("aten::select", "aten::slice"):
            return None
        size = self.shape[self.axis]
        if self.name == "aten::select":
            chosen = self.value(2)
            if chosen is None or not -size <= chosen < size:
                return None
            return chosen % size, chosen % size + 1
        if len(self.values) <= _END_OF_SLICE:
            return None
        ends = (self.value(2), self.value(3))
        begin, end = 0 if ends[0] is None else ends[0], size if ends[1] is None else ends[1]
        low, high = (min(max(one + size if one < 0 else one, 0), size) for one in (begin, end))
        return low, max(low, high)

    @property
    def share(self) -> float | None:
        """Which share of a tensor's rows it takes; None where that is not known, or it takes parts of rows."""
        last = len(self.shape) - 1
        if self.indices is not None:
            entries, axes = self.indices
            return entries / math.prod(self.shape[:axes]) if 0 < axes <= last else None
        if self.axis is None or self.part is None or self.axis == last:
            return None
        return (self.part[1] - self.part[0]) / self.shape[self.axis]


_END_OF_SLICE: Final = 3  # where the values of aten::slice have the end
_LEAST_TAKEN: Final = 1 << 22  # elements


def _takers(context: Context) -> Mapping[int, Sequence[_Taker]]:
    """Return the operators that take large tensors, by how many elements these have."""
    return kept(context.trace.operators, "takers", lambda: _takers_among(_calls(context)))


def _calls(context: Context) -> pl.DataFrame:
    """Return what takers are made of: a row per operator, in the order of the trace's."""
    return kept(context.trace.operators, "calls of takers", lambda: _with_indices(context))


def _with_indices(context: Context) -> pl.DataFrame:
    operators, columns = context.trace.operators, ["name", "input_dims", "input_types", "concrete_inputs", "start_ns"]
    inside = pl.Series("backward", context.backward().inside)
    return operators.select(columns).with_columns(*_indices_of(operators, context.links.operators.parent), inside)


def _takers_among(calls: pl.DataFrame) -> dict[int, list[_Taker]]:
    result: dict[int, list[_Taker]] = {}
    kinds = calls.drop("start_ns")
    groups = kinds.group_by(kinds.columns, maintain_order=True).len()
    for name, dims, types, values, entries, axes, backward, count in groups.iter_rows():
        call = RecordedCall.read(dims, types, values)
        if call is None:
            continue
        shapes = {one for one in call.dims if one} | {one for shapes in call.lists if shapes for one in shapes if one}
        converts = len(call.types) > 1 and call.types[0] != call.types[1]
        for shape in shapes:
            if math.prod(shape) >= _LEAST_TAKEN:
                indices = (entries, axes) if axes else None
                taker = _Taker(str(name), shape, call.values, count, indices, backward, converts)
                result.setdefault(math.prod(shape), []).append(taker)
    return result


def _indices_of(operators: pl.DataFrame, parent: Ints) -> list[pl.Series]:
    """Return per operator, of an index of the first axes, how many entries it has and of how many axes; 0 else.

    A trace has no sizes of an index's list; but PyTorch reshapes each index inside of it, masks as the rows that they
    keep: to their sizes, with a 1 for each axis that is not indexed before and after.
    """
    entries, axes = (np.zeros(operators.height, np.int64) for _ in range(2))
    indexes = names_that(operators, lambda name: name in _INDEXES)
    shaped = names_that(operators, lambda name: name == "aten::reshape")
    rows = np.flatnonzero(shaped & np.append(indexes, False)[parent])
    chosen = operators.select("input_dims", "input_types", "concrete_inputs")[rows]
    for owner, (dims, types, values) in zip(parent[rows].tolist(), chosen.iter_rows(), strict=True):
        call = RecordedCall.read(dims, types, values, None, ("self", "shape"))
        shape, to = (None, None) if call is None else (call.shape("self"), call.integers("shape"))
        if shape and to and len(to) > 1 and to[0] != 1 and to[-1] == 1 and axes[owner] >= 0:
            entries[owner] = max(entries[owner], math.prod(shape))
            axes[owner] += 1
        else:
            axes[owner] = -1
    return [pl.Series("entries", entries), pl.Series("axes", np.maximum(axes, 0))]


_INDEXES: Final = frozenset({"aten::index", "aten::_index_put_impl_"})


# What only looks at a tensor in another way.
_VIEWS: Final = frozenset(
    {
        *("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::_reshape_alias", "aten::as_strided"),
        *("aten::alias", "aten::detach", "detach", "aten::flatten", "aten::unflatten"),
        *("aten::squeeze", "aten::unsqueeze"),
    }
)
# What a sort does by itself with tensors of its shape.
_MAKES: Final = frozenset({"aten::copy_", "aten::empty_like", "aten::clone", "aten::contiguous", "aten::arange"})
_SORTS: Final = frozenset({"aten::sort", "aten::argsort"})


class _Used(Struct, frozen=True):
    """How much of a sort is used.

    Attributes:
        entries: so many of a row, from its beginning or its end.
        is_sure: whether nothing else may read the others.
        from_end: whether they are the last ones.
    """

    entries: int
    is_sure: bool
    from_end: bool


def _used(context: Context, row: LimitRow) -> _Used | None:
    """Return how much of what a row sorts along the last axis is used; None where it is much, or not known."""
    shape = _shape_of_first(row.input_dims, row.input_types)
    if not shape:
        return None
    last, entries, is_sure, from_end = len(shape) - 1, 0, True, False
    makes: Mapping[_Taker, int] | None = None
    for taker in _takers(context).get(math.prod(shape), ()):
        part = taker.part
        if taker.name in _SORTS and taker.shape == shape:
            if taker.axis not in (None, last):
                return None
        elif part is not None and taker.shape == shape and taker.axis == last:  # the first or the last of them
            own = min(part[1], shape[-1] - part[0])
            from_end = part[1] > own if own >= entries else from_end
            entries = max(entries, own)
        elif part is not None and taker.shape == shape:  # all of another axis is on the way to a part of the last one
            is_sure &= part == (0, shape[taker.axis or 0])
        elif taker.name not in _VIEWS and (taker.name not in _MAKES or taker.shape != shape):
            makes = _before_sorts(context, row, math.prod(shape)) if makes is None else makes
            # What runs as often before a step's sort makes what is sorted.
            is_sure &= taker.calls <= makes.get(replace(taker, calls=0), 0) * context.steps
    return _Used(entries, is_sure, from_end) if 0 < entries <= _FEW_OF_SORTED * shape[-1] else None


def _before_sorts(context: Context, row: LimitRow, elements: int) -> dict[_Taker, int]:
    """Return how often operators take tensors of a size before the first call of a row."""
    table = context.trace.operators
    own = ((table["name"] == row.operator) & (table["input_dims"] == row.input_dims)).fill_null(False).to_numpy()
    first = int(column(table, "start_ns")[own].min()) if own.any() else 0
    before = _takers_among(_calls(context).filter(pl.col("start_ns") < first))
    return {replace(taker, calls=0): taker.calls for taker in before.get(elements, ())}


@states(
    RuleDescription(
        Rule.FULL_SORT,
        f"sorts of tensors of which at most {percent(_FEW_OF_SORTED)} is taken by slices",
        f"{percent(1 - _OF_SORT[0])} to {percent(1 - _OF_SORT[2])} of their time",
        "nothing takes a part of them",
    )
)
def full_sort(context: Context) -> Iterator[Draft]:
    """Find sorts of which only the first or the last entries are used."""
    long = [row for row in context.rows if row.operator in _SORTS and row.device_ns / context.steps >= _LEAST_SORT_NS]
    matches = [
        (row, shape[-1], used)
        for row in long
        if (used := _used(context, row)) and (shape := _shape_of_first(row.input_dims, row.input_types))
    ]
    rows = [row for row, _, _ in matches]
    time = sum(row.device_ns for row in rows) / context.steps
    if not matches or time < LEAST_SHARE * context.step_ns:
        return
    first, of, used = max(matches, key=lambda one: one[0].device_ns)
    is_sure, end = all(one.is_sure for _, _, one in matches), "last" if used.from_end else "first"
    left = _left_of_sort(first, is_sure=is_sure)
    yield Draft(
        rule=Rule.FULL_SORT,
        title=f"{of:,} entries are sorted, and slices take the {end} {used.entries:,} ({format_ns(time)} "
        f"{context.words.per})",
        where=context.where_of_row(first),
        saving=context.of_device((1 - left[0]) * time, (1 - left[2]) * time),
        derivation=f"the sort's time, less the {percent(left[2])} to {percent(left[0])} of it that torch.topk takes",
        evidence=(
            measured(
                count_of(sum(row.calls for row in rows) / context.steps),
                f" sorts {context.words.each}; slices of tensors of that shape take the {end} ",
                count_of(used.entries),
                " of a row at most",
                source=Source.ACTIVITIES,
            ),
            *(() if is_sure else (general("other operators take tensors of that shape too: they may read the rest"),)),
        ),
        todo="torch.topk instead of sort",
        action=f"values, places = x.topk({used.entries}): the largest; with largest=False the smallest",
        wrong_if="the rest of the order is read elsewhere",
        claims=claims_of(rows),
        remedy=Remedy(
            f"torch.topk in {percent(left[0])} (low), {percent(left[1])} (likely) or {percent(left[2])} (high) of the "
            "sort's time, measured on an H200",
            all_of(*(scaled(context.activities_of([row]), _left_of_sort(row, is_sure=is_sure)) for row in rows)),
            context.activities_of(rows),
        ),
    )


def _left_of_sort(row: LimitRow, *, is_sure: bool) -> tuple[float, float, float]:
    shape = _shape_of_first(row.input_dims, row.input_types) or ()
    left = _OF_SHORT_SORTS if shape[-1:] and shape[-1] <= _SHORT_ROW else _OF_SORT
    left = _OF_LONG_SORT if math.prod(shape[:-1]) == 1 else left
    return left if is_sure else (1.0, *left[1:])


_OF_ONE_HOT: Final = (0.1, 0.02, 0.0)
_OF_ROWS: Final = frozenset({"aten::scatter_", "aten::fill_", "aten::zero_", "aten::copy_"})


@states(
    RuleDescription(
        Rule.ONE_HOT_PRODUCT,
        "products with as many columns as `torch.nn.functional.one_hot` makes, in a step that calls it",
        f"{percent(1 - _OF_ONE_HOT[0])} to all of their time, and of what makes and converts the one-hot rows",
    )
)
def one_hot_product(context: Context) -> Iterator[Draft]:
    """Find lookups that are written as products with one-hot rows."""
    operators = context.trace.operators
    if context.trains or not operators.height:
        return
    if not names_that(operators, lambda name: name == "aten::one_hot").any():
        return
    made = {
        shape
        for row in context.rows
        if row.operator == "aten::scatter_" and (shape := _shape_of_first(row.input_dims, row.input_types))
    }
    products = [
        row
        for row in context.rows
        if row.product is not None
        and any((row.product.rows, row.product.depth) == (math.prod(one[:-1]), one[-1]) for one in made)
    ]
    moved = [
        row for row in context.rows if row.product is None and _shape_of_first(row.input_dims, row.input_types) in made
    ]
    if any(row.operator not in _OF_ROWS for row in moved):
        return
    rows = [*products, *moved]
    time = sum(row.device_ns for row in rows) / context.steps
    if not products or time < LEAST_SHARE * context.step_ns:
        return
    first = max(products, key=lambda row: row.device_ns)
    assert first.product is not None
    yield Draft(
        rule=Rule.ONE_HOT_PRODUCT,
        title=f"Rows are looked up by products with one-hot rows of {first.product.depth:,} ({format_ns(time)} "
        f"{context.words.per})",
        where=context.where_of_row(first),
        saving=context.of_device((1 - _OF_ONE_HOT[0]) * time, time),
        derivation="the time of the products and of what makes their one-hot rows",
        evidence=(
            measured("one_hot is called, and a product has as many columns as it makes", source=Source.ACTIVITIES),
            derived(
                "a lookup reads ",
                of_bytes(first.product.rows * first.product.columns * 2),
                ", the product with the whole table ",
                of_bytes(first.least_bytes),
                source=Source.LIMITS,
            ),
        ),
        todo="index the table",
        action="table[tokens], or torch.nn.functional.embedding(tokens, table)",
        wrong_if="the rows are no single ones, as with smoothed labels",
        claims=claims_of(rows),
        remedy=Remedy(
            f"a lookup instead, in {percent(_OF_ONE_HOT[0])} (low) or {percent(_OF_ONE_HOT[1])} (likely) of the time",
            scaled(context.activities_of(rows), _OF_ONE_HOT),
            context.activities_of(rows),
        ),
    )


_FEW_READ: Final = 0.3  # of a product's rows
_OF_REST: Final = 0.2  # of the time of rows that are not read: fewer rows may run less well


class _Sliced(Struct, frozen=True):
    """A product of whose rows few are read: its row, the share that is read, and by a mask or an index."""

    row: LimitRow
    share: float
    by_index: bool


@states(
    RuleDescription(
        Rule.SLICED_PRODUCT,
        f"products of whose result at most {percent(_FEW_READ)} of the rows is taken by select, slice, a mask or an "
        "index, and which no other operator takes, such as logits of all positions of which the last is used",
        f"{percent(1 - _OF_REST)} to all of the part of their time that computes the other rows; in training that of "
        "the gradients' products too",
    )
)
def sliced_product(context: Context) -> Iterator[Draft]:
    """Find products of whose result only a few rows are read."""
    takers = _takers(context)
    products = [
        one
        for row in context.rows
        if row.product is not None and row.product.batch == 1 and (one := _sliced(context, takers, row)) is not None
    ]
    # What stands beside several of them counts once, with the share that leaves most of it.
    shares: dict[int, _Sliced] = {}
    beside = [more for product in products for more in _beside(context, product)]
    for one in (*products, *beside):
        known = shares.get(id(one.row))
        shares[id(one.row)] = one if known is None or one.share > known.share else known
    matches = list(shares.values())
    rows = [one.row for one in matches]
    time = sum((1 - one.share) * one.row.device_ns for one in matches) / context.steps
    if not matches or time < LEAST_SHARE * context.step_ns:
        return
    first = max(products, key=lambda one: one.row.device_ns)
    product = first.row.product
    assert product is not None
    read = max(round(first.share * product.rows), 1)
    by = "a mask or an index" if first.by_index else "select or slice"
    yield Draft(
        rule=Rule.SLICED_PRODUCT,
        title=f"A product computes {product.rows:,} rows of which {read:,} are read ({format_ns(time)} "
        f"{context.words.per} for the others)",
        where=context.where_of_row(first.row),
        saving=context.of_device((1 - _OF_REST) * time, time),
        derivation=f"the time of the rows that are not read; {percent(_OF_REST)} stays where fewer rows run less well "
        "(low)",
        evidence=(
            measured(
                f"{by} takes ",
                share_of(read, product.rows),
                " of its result of ",
                of_bytes(2 * product.rows * product.columns),
                " (in 16 bits); nothing else takes a tensor of its size but what works on each row for itself"
                + (", and the backward pass" if context.trains else ""),
                source=Source.ACTIVITIES,
            ),
        ),
        todo="take the rows before the product",
        action="take the rows first: "
        + (
            "head(hidden[mask]) and not head(hidden)[mask]"
            if first.by_index
            else "head(hidden[:, -1]) and not head(hidden)[:, -1]"
        ),
        wrong_if="the rest is read where no operator was recorded, or returned",
        claims=claims_of(rows),
        remedy=Remedy(
            f"only the rows that are read; {percent(_OF_REST)} of the others' time stays (low)",
            all_of(*(_fewer_rows(context, one) for one in matches)),
            context.activities_of(rows),
            removes=True,
        ),
    )


def _fewer_rows(context: Context, one: _Sliced) -> Apply:
    least = one.share + _OF_REST * (1 - one.share)
    return scaled(context.activities_of([one.row]), (least, one.share, one.share))


# In inference these work on each row for itself: what is taken after them may be taken before them.
_ALONG_ROWS: Final = frozenset({"aten::log_softmax", "aten::_log_softmax", "aten::softmax", "aten::_softmax"})
_ELEMENT_WISE: Final = frozenset(
    {
        *("aten::tanh", "aten::sigmoid", "aten::gelu", "aten::silu", "aten::relu", "aten::clamp_min", "aten::_to_copy"),
        "aten::to",
    }
)
_PRODUCTS: Final = frozenset({"aten::linear", "aten::matmul", "aten::mm", "aten::addmm"})


def _is_row_wise(taker: _Taker) -> bool:
    """Tell whether each row of its result is of one row of a tensor; a copy only where it converts, as float() does."""
    if taker.name in _ALONG_ROWS:
        return taker.axis == len(taker.shape) - 1
    return taker.name in _ELEMENT_WISE or (taker.name == "aten::copy_" and taker.converts)


def _sliced(context: Context, takers: Mapping[int, Sequence[_Taker]], row: LimitRow) -> _Sliced | None:
    """Return which share of a product's rows is read, where it is few and known; None else."""
    assert row.product is not None
    rows, columns, depth = row.product.sizes
    if _is_backward(context, row):
        return None
    # Of one product from and to a tensor of the same sizes, as a square layer is, a product takes the input.
    taking = [
        one
        for one in context.rows
        if one.product is not None and (one.product.rows, one.product.depth) == (rows, columns)
    ]
    takes_input = columns == depth and [id(one) for one in taking] == [id(row)] and row.calls == context.steps
    read, by_index = 0.0, False
    for taker in takers.get(rows * columns, ()):
        if taker.name in _VIEWS or taker.is_backward or (takes_input and taker.name in _PRODUCTS):
            continue
        if not context.trains and _is_row_wise(taker) and taker.shape[-1:] == (columns,):
            continue
        if taker.shape[-1:] != (columns,) or taker.share is None:
            return None
        if taker.share < 1:  # what takes all is on the way to a smaller part
            read += taker.share * taker.calls / context.steps
            by_index |= taker.indices is not None
    return _Sliced(row, read, by_index) if 0 < read <= _FEW_READ else None


def _beside(context: Context, sliced: _Sliced) -> Iterator[_Sliced]:
    """Yield what takes the rows of such a result, and in training what computes, fills and sums its gradients."""
    assert sliced.row.product is not None
    rows, columns, depth = sliced.row.product.sizes
    gradients = {(rows, depth, columns), (columns, depth, rows), (depth, columns, rows)}
    for row in context.rows:
        if row is sliced.row:
            continue
        if row.product is not None:
            yes = context.trains and row.product.sizes in gradients and _is_backward(context, row)
        else:
            shape = _shape_of_first(row.input_dims, row.input_types) or ()
            yes = shape[-1:] == (columns,) and math.prod(shape) == rows * columns
            if context.trains:
                yes = yes and (row.operator == "aten::index" or _is_backward(context, row))
            else:
                yes = yes and row.operator in ("aten::index", "aten::copy_", *_ALONG_ROWS, *_ELEMENT_WISE)
        if yes:
            yield _Sliced(row, sliced.share, sliced.by_index)


# ---------------------------------------------------------------- own kernels


_LEAST_OWN_NS: Final = 50_000
_FAR: Final = 0.25  # of the memory's bandwidth, for the bytes of a kernel's arguments
_STAYS_OF_OWN: Final = 0.1  # likely, of what is above that: four kernels with their accesses mended left 1 to 9 %
_REACHED: Final = 0.8  # of the memory's bandwidth: what one pass reaches at best on an H100 and an H200


@states(
    RuleDescription(
        Rule.EXCESS_TRAFFIC,
        f"kernels of the program's own operators of {_LEAST_OWN_NS // 1_000} us and more a call that take "
        f"{1 / _FAR:.0f} times as long as it takes to read their arguments",
        "0 to what reading the arguments once leaves: a kernel may compute for so long",
    )
)
def excess_traffic(context: Context) -> Iterator[Draft]:
    """Find the program's own operators that take far longer than it takes to read what they are given."""
    bandwidth = None if context.peaks is None else context.peaks.memory_bytes_per_s
    if not bandwidth:
        return
    rows = [row for row in context.rows if _is_own(row) and row.call_ns >= _LEAST_OWN_NS and _given(row)]
    rows = [row for row in rows if not _is_of_library(context, row)]
    far = [row for row in rows if _share_of_bandwidth(row, bandwidth) < _FAR]
    time = sum(row.device_ns for row in far) / context.steps
    if not far or time < LEAST_SHARE * context.step_ns:
        return
    first = max(far, key=lambda row: row.device_ns)
    share = _share_of_bandwidth(first, bandwidth)
    lost = sum(row.device_ns * (1 - _share_of_bandwidth(row, bandwidth)) for row in far) / context.steps
    yield Draft(
        rule=Rule.EXCESS_TRAFFIC,
        title=f"{first.operator} takes {format_ns(first.call_ns)} for {format_bytes(_given(first))} of arguments: "
        f"{100 * share:.0f} % of the memory's bandwidth",
        where=context.where_of_row(first),
        saving=context.of_device(0.0, lost),
        derivation="what is left if each argument is read or written once at the memory's bandwidth (high); a kernel "
        "that computes for so long loses nothing (low)",
        evidence=(
            measured(
                count_of(sum(row.calls for row in far) / context.steps),
                f" calls {context.words.each}; the arguments of the longest hold ",
                of_bytes(_given(first)),
                source=Source.ACTIVITIES,
            ),
            general("a kernel that moves more than its arguments hold mostly reads or writes what lies far apart"),
        ),
        todo="make memory accesses contiguous",
        action="check in the kernel that threads of a warp read and write addresses that lie together "
        "(opscope kernel, or Nsight Compute's sectors per request)",
        wrong_if="the kernel computes for so long",
        claims=claims_of(far),
        remedy=Remedy(
            f"each argument once at {percent(_REACHED)} of the memory's bandwidth (high), {percent(1 - _STAYS_OF_OWN)} "
            "of the way there (likely), as now (low)",
            all_of(*(_read_once(context, row, bandwidth) for row in far)),
            context.activities_of(far),
        ),
    )


# Operators of libraries that compute much with what they are given.
_COMPUTE: Final = ("flash_attn", "xformers", "vllm", "torchvision", "fbgemm", "torchao", "bitsandbytes", "sglang")


def _is_own(row: LimitRow) -> bool:
    name = str(row.operator or "")
    if row.product is not None or row.ideal_ns is not None or name.startswith(_COMPUTE) or _COMPUTES.search(name):
        return False
    if row.category in (Category.ATTENTION, Category.MATRIX, Category.CONVOLUTION):
        return False
    return _is_of_program(name)


# Kernels whose names say that they compute much.
_COMPUTES: Final = lazy_pattern(r"(?i)(gemm|matmul|(?<![a-z])mm|moe|attn|attention|conv|dot|expert|_fwd|_bwd|scan)")


def _is_of_library(context: Context, row: LimitRow) -> bool:
    """Tell whether an operator around a call is of a library that computes much."""
    around = names_that(context.trace.operators, lambda name: name.startswith(_COMPUTE))
    if not around.any():
        return False
    owners = context.links.activity_operator[context.activities_of([row])]
    inside = nearest(context.links.operators.parent, around) >= 0
    return bool(np.append(inside, False)[owners].any())


@lru_cache(maxsize=1 << 10)
def _held(dims: str | None, types: str | None) -> int:
    call = RecordedCall.read(dims, types, None)
    if call is None:
        return 0
    known = [(shape, recorded_dtype(name)) for shape, name in zip(call.dims, call.types, strict=False) if shape]
    return sum(math.prod(shape) * (dtype.size_bytes if dtype else 4) for shape, dtype in known)


def _given(row: LimitRow) -> int:
    """Return how many bytes a call's tensors hold; 0 where they are not recorded."""
    return _held(row.input_dims, row.input_types)


def _share_of_bandwidth(row: LimitRow, bandwidth: float) -> float:
    """Return how much of the memory's bandwidth a call reaches if it moves each argument once."""
    return _given(row) * NS_PER_S / bandwidth / row.call_ns


def _read_once(context: Context, row: LimitRow, bandwidth: float) -> Apply:
    least = min(_share_of_bandwidth(row, bandwidth) / _REACHED, 1.0)
    return scaled(context.activities_of([row]), (1.0, least + _STAYS_OF_OWN * (1 - least), least))
