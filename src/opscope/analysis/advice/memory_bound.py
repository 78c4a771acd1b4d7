"""Rules on work that only passes over memory: chains of small kernels, conversions, copies."""

import json
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl
from msgspec.structs import replace

from opscope.analysis.advice.context import LEAST_SHARE, Apply, Context, Draft, Range, Remedy, claims_of
from opscope.analysis.advice.optimizer import in_optimizer
from opscope.analysis.advice.remedies import all_of, reaches, scaled, taking
from opscope.analysis.advice.rule import RuleDescription, count_of, derived, general, measured, percent, states
from opscope.analysis.costs.limits import MOSTLY_MOVING, moving_share
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import step_of_activities, step_table
from opscope.base.text import lazy_pattern, or_unknown
from opscope.base.units import NS_PER_S, format_ns
from opscope.documents.findings import Rule, Source, Where
from opscope.documents.limits import LimitRow
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.categories import Category
from opscope.knowledge.collectives import Direction, direction_of
from opscope.knowledge.devices import Assumed, reach_of
from opscope.knowledge.dtypes import recorded_dtype
from opscope.knowledge.kernels.decode import decode_name, told_kernel
from opscope.knowledge.kernels.decoded import Operation

_MOST_OF_CHAIN: Final = 0.95
# Of the time of such copies, what a change saved at least and at most in benchmarks/programs.py.
_OF_CONVERSIONS: Final = (0.6, 2.0)
_OF_CASTS: Final = (0.8, 1.05)
_OF_STRIDES: Final = (0.3, 1.1)
_OF_GROWN: Final = 0.7
_MOST_OF_IT: Final = 0.9  # of the result's elements: the least that one input must hold
_HALF: Final = 0.5
_LEAST_NS: Final = 3_000  # shorter kernels are a matter of launching
_KERNELS_LOOKED_AT: Final = 1_000  # the most expensive ones
_FUSIBLE: Final = frozenset({Category.ELEMENTWISE, Category.ACTIVATION, Category.NORMALIZATION, Category.REDUCTION})
_ALSO_FUSIBLE: Final = frozenset({"aten::copy_", "aten::cat", "aten::native_dropout", "aten::native_dropout_backward"})


@lru_cache(maxsize=1 << 16)
def elements(dims: str | None) -> int:
    """Return the number of elements of the largest recorded input, or of a list of them; 0 where none has a shape."""
    call = RecordedCall.read(dims, "[]", None)
    if call is None:
        return 0
    of_lists = (sum(math.prod(shape) for shape in shapes) for shapes in call.lists if shapes)
    return max((*(math.prod(shape) for shape in call.dims if shape), *of_lists), default=0)


@states(
    RuleDescription(
        Rule.FUSIBLE_CHAIN,
        "elementwise, normalizing, reducing kernels of as many elements one after the other on a stream, of at least "
        "two "
        "operators, not in an optimizer",
        f"up to {percent(_MOST_OF_CHAIN)} of all but the longest of each chain: which tensors they pass no trace tells",
        "one operator over and over: it may be other tensors",
    ),
)
def fusible_chain(context: Context) -> Iterator[Draft]:
    """Find kernels that pass over the same tensors one after the other, each reading what the one before wrote."""
    chains = _chains(context)
    if not chains:
        return
    parts = np.concatenate(chains)
    first = np.cumsum([0, *(len(chain) for chain in chains[:-1])])
    duration = column(context.trace.activities, "duration_ns")[parts]
    sums = np.add.reduceat(duration, first)
    time = int(sums.sum()) / context.steps
    lost = int((sums - np.maximum.reduceat(duration, first)).sum()) / context.steps
    if lost < LEAST_SHARE * context.step_ns:
        return
    longest = chains[int(sums.argmax())]
    owners = context.links.activity_operator[longest]
    names = context.trace.operators["name"].gather(owners).cast(pl.String).to_list()
    row = next((row for row in context.rows if row.operator == names[0]), None)
    where = context.where_of_row(row) if row else Where(operator=names[0])
    shown = ", ".join(or_unknown(name.removeprefix("aten::")) for name in names[:8]) + (
        " ..." if len(names) > 8 else ""
    )
    yield Draft(
        rule=Rule.FUSIBLE_CHAIN,
        title=f"Chains of elementwise kernels pass over memory again and again ({format_ns(time)} {context.words.per})",
        where=where,
        saving=context.of_device(0.0, _MOST_OF_CHAIN * lost),
        derivation=f"the time of all kernels of a chain but its longest ({percent(_MOST_OF_CHAIN)}: high); what the "
        "backward pass keeps, and "
        "further inputs, must be moved all the same, and nothing is saved where they work on other tensors (low)",
        evidence=(
            measured(
                count_of(len(chains) / context.steps, 1),
                f" chains {context.words.each}; the longest: {shown}",
                source=Source.ACTIVITIES,
            ),
            measured(
                "they run one after the other on a stream, and on as many elements each", source=Source.ACTIVITIES
            ),
            general(
                "mostly each then reads what the one before it wrote; a trace does not tell which tensors those are"
            ),
        ),
        todo="compile the elementwise chain",
        action="torch.compile the function around them: one kernel then reads its inputs and writes its result once",
        wrong_if="something in between needs the intermediate results",
        claims=context.claims_of_activities(parts),
        remedy=_merged(context, chains),
    )


_KEPT: Final = 0.5  # of a chain's time stays in the low replay of training: results that the backward pass needs


@lru_cache(maxsize=1 << 14)
def _bytes(dims: str | None, types: str | None) -> int:
    """Return the bytes of the largest input of a call; 0 where none has a known shape and type."""
    call = RecordedCall.read(dims, types, None)
    sizes = (
        math.prod(shape) * dtype.size_bytes
        for shape, name in (zip(call.dims, call.types, strict=False) if call else ())
        if shape and (dtype := recorded_dtype(name)) is not None
    )
    return max(sizes, default=0)


def _merged(context: Context, chains: list[Ints]) -> Remedy:
    """Return the change of each chain to one kernel that reads the first input and writes the last result."""
    firsts = np.array([chain[0] for chain in chains])
    others = np.concatenate([chain[1:] for chain in chains])
    duration = column(context.trace.activities, "duration_ns")
    now, longest = (np.array([function(duration[chain]) for chain in chains]) for function in (np.sum, np.max))
    moved = _moved(context, chains)
    bandwidth = None if context.peaks is None else context.peaks.memory_bytes_per_s
    trains = bool(context.backward().inside.any())

    def apply(edit: Edit, assumed: Assumed) -> int:
        reach = reach_of("one_pass", assumed)
        known = (moved > 0) & (bandwidth is not None)
        one = np.where(known, moved * (NS_PER_S / (bandwidth or 1)) / reach.share + reach.overhead_ns, longest)
        if assumed is Assumed.LOW:
            one = np.where(known & (not trains), one, np.maximum(one, _KEPT * now))
        result = edit.take(firsts, np.minimum(one, now).astype(np.int64))
        edit.remove_work(others)
        return result

    return Remedy(
        f"each chain as one kernel that reads its first input and writes its last result once, at {reaches('one_pass')}"
        + ("; in training half of its time stays (low)" if trains else ""),
        apply,
        np.concatenate(chains),
    )


def _moved(context: Context, chains: list[Ints]) -> Ints:
    """Return per chain the bytes of its first input and its last result; 0 where they are not known."""
    ends = np.array([(chain[0], chain[-1]) for chain in chains]).reshape(-1)
    owner = context.links.activity_operator[ends]
    inputs = context.trace.operators.select(pl.col("input_dims", "input_types").cast(pl.String))[owner]
    sizes = np.array([_bytes(dims, types) for dims, types in inputs.iter_rows()], np.int64).reshape(-1, 2)
    return np.where((sizes > 0).all(axis=1), sizes.sum(axis=1), 0)


def _chains(context: Context) -> list[Ints]:
    """Return runs of activities that one kernel could replace, each as rows of the activities in order.

    A run of one operator only does not count, nor does an optimizer's loop: each call may work on other tensors.
    """
    activities, operators = context.trace.activities, context.trace.operators
    if not operators.height:
        return []
    owner = context.links.activity_operator
    category = {row.operator: row.category for row in context.rows}
    fusible = names_that(
        operators,
        lambda name: (
            name in _ALSO_FUSIBLE
            or (not name.startswith(("aten::_foreach", "triton_")) and category.get(name) in _FUSIBLE)
        ),
    )
    kernels = (activities["kind"] == "kernel").to_numpy()
    own = np.flatnonzero(kernels & (column(activities, "device") == context.device.device))
    own = own[context.device.window.spans.holds(column(activities, "start_ns")[own], end_of(activities)[own])]
    order = own[np.lexsort((column(activities, "start_ns")[own], column(activities, "stream")[own]))]
    sizes_of = {code: elements(text) for code, text in _distinct(operators["input_dims"])}
    code = operators["input_dims"].to_physical().fill_null(_NO_CODE).to_numpy()
    size = _looked_up(sizes_of, code)
    known = owner[order] >= 0
    # -1, no operator, reads the last row; `known` masks what that gives.
    part = known & fusible[owner[order]] & ~in_optimizer(context)[order]
    # A short kernel, such as one on the means of rows, does not interrupt a chain.
    kept = ~part | (column(activities, "duration_ns")[order] >= _LEAST_NS)
    order, part = order[kept], part[kept]
    # Where no shapes were recorded, kernels of the same grid have about as many elements. Codes of grids are made
    # negative, so that none equals a number of elements; 0 stands for a grid that was not recorded either.
    grid = activities["grid"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()[order]
    sizes = np.where(code[owner[order]] == _NO_CODE, -1 - grid, size[owner[order]])
    part &= sizes != 0
    # A chain ends with its step, even where nothing lies between the last kernel of one and the first of the next.
    step = step_of_activities(context.trace, context.links, step_table(context.trace))[order]
    goes_on = part[1:] & part[:-1]
    for same in (column(activities, "stream")[order], step):
        goes_on &= same[1:] == same[:-1]
    # A part of the way may be on one half of a tensor, as in rotary positions.
    goes_on &= (sizes[1:] == sizes[:-1]) | (sizes[1:] == 2 * sizes[:-1]) | (2 * sizes[1:] == sizes[:-1])
    run = np.cumsum(np.append(True, ~goes_on)) if len(order) else np.zeros(0, np.int64)
    names = operators["name"].to_physical().to_numpy()[owner[order]]
    return [order[rows] for rows in _runs(run, part, names)]


def _looked_up(values: Mapping[int, int], code: Ints) -> Ints:
    """Return per code its value; 0 for what has none."""
    # The last entry belongs to _NO_CODE and stays 0.
    table = np.zeros(max(values, default=-1) + 2, np.int64)
    table[list(values)] = list(values.values())
    result: Ints = table[np.where(code == _NO_CODE, len(table) - 1, code)]
    return result


def _runs(run: Ints, part: Bools, names: Ints) -> list[Ints]:
    """Return the positions of each run whose parts have several names.

    Args:
        run: per position the number of its run, ascending.
        part: per position whether it can be a part of a chain.
        names: per position the code of its operator's name.
    """
    inside = np.flatnonzero(part)
    if not len(inside):
        return []
    numbers = run[inside]
    first = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    last = np.append(first[1:], len(inside))
    # A run has several names if its smallest and its largest code differ.
    lowest, highest = (function.reduceat(names[inside], first) for function in (np.minimum, np.maximum))
    several = np.flatnonzero(lowest != highest)
    return [inside[begin:end] for begin, end in zip(first[several].tolist(), last[several].tolist(), strict=True)]


_NO_CODE: Final = (1 << 32) - 1  # stands for null among the unsigned 32-bit codes of texts


def _distinct(texts: pl.Series) -> Iterator[tuple[int, str]]:
    """Yield the code and the text of each distinct value of a column."""
    unique = texts.unique().drop_nulls()
    yield from zip(unique.to_physical().to_list(), unique.cast(pl.String).to_list(), strict=True)


@states(
    RuleDescription(
        Rule.LAYOUT_CONVERSION,
        "kernels that convert between NCHW and NHWC",
        f"{percent(_OF_CONVERSIONS[0])} to {percent(_OF_CONVERSIONS[1])} of their time",
    ),
)
def layout_conversion(context: Context) -> Iterator[Draft]:
    """Find kernels that change the layout of tensors around convolutions."""
    work = context.trace.activities.select("name", "duration_ns").with_row_index("row")[context.work]
    kernels = work.group_by("name").agg(pl.col("duration_ns").sum(), pl.col("row"))
    kernels = kernels.sort("duration_ns", descending=True).head(_KERNELS_LOOKED_AT)
    converting = [
        (str(name), int(time), np.array(rows))
        for name, time, rows in kernels.with_columns(pl.col("name").cast(pl.String)).iter_rows()
        if decode_name(str(name)).operation is Operation.LAYOUT_CHANGE
    ]
    time = sum(time for _, time, _ in converting) / context.steps
    if time < LEAST_SHARE * context.step_ns:
        return
    convolutions = [row for row in context.rows if row.category == str(Category.CONVOLUTION)]
    normalizing = _normalizing(context)
    where = context.where_of_row(max(convolutions, key=lambda row: row.device_ns)) if convolutions else Where()
    name = max(converting, key=lambda item: item[1])[0]
    yield Draft(
        rule=Rule.LAYOUT_CONVERSION,
        title=f"Tensors are converted between NCHW and NHWC around convolutions ({format_ns(time)} "
        f"{context.words.per})",
        where=replace(where, kernel=name),
        saving=context.of_device(_OF_CONVERSIONS[0] * time, _OF_CONVERSIONS[1] * time),
        derivation=f"the time of the conversions ({percent(_OF_CONVERSIONS[0])}: low); without them the layers "
        "between run on "
        f"whole vectors too, which saved as much again ({percent(_OF_CONVERSIONS[1])}: high)",
        evidence=(
            measured(
                count_of(sum((len(rows) for *_, rows in converting)) / context.steps),
                f" conversions {context.words.each}, mostly {told_kernel(name)}",
                source=Source.ACTIVITIES,
            ),
        ),
        todo="keep tensors in channels_last",
        action="model = model.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)",
        wrong_if="layers between the convolutions only work on NCHW",
        claims=context.claims_of_activities(conversions := np.concatenate([rows for *_, rows in converting])),
        remedy=Remedy(
            "no conversions (low: eight tenths of their time stay)"
            + (
                f"; batch norm takes {percent(_OF_NORMALIZING[1])} (likely) or {percent(_OF_NORMALIZING[2])} (high) of "
                "its time"
                if normalizing
                else ""
            ),
            all_of(
                scaled(conversions, (0.8, 0.0, 0.0)),
                scaled(context.activities_of(normalizing), _OF_NORMALIZING),
            ),
        ),
    )


def _normalizing(context: Context) -> list[LimitRow]:
    """Return the normalization of images in NCHW, which may be quicker in the other layout."""
    return [row for row in context.rows if row.operator in _NORMALIZING and not _is_channels_last(row)]


def _is_channels_last(row: LimitRow) -> bool:
    call = RecordedCall.read(row.input_dims, row.input_types, None, row.input_strides)
    strides = call.strides[0] if call is not None and call.strides else None
    return strides is not None and len(strides) > 2 and strides[1] == 1


# Of batch norm's time, 45 to 80 % were left in four programs of benchmarks/ in the other layout, on an H200.
_OF_NORMALIZING: Final = (1.0, 0.65, 0.4)
_NORMALIZING: Final = frozenset(
    {
        *("aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward"),
        *("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    }
)


@states(
    RuleDescription(
        Rule.REPEATED_CASTS,
        "conversions to 16 bits of tensors that have the shape of products' weights, in inference or more than once "
        "per "
        "update",
        f"{percent(_OF_CASTS[0])} to {percent(_OF_CASTS[1])}",
        "weights change in between",
    ),
)
def repeated_casts(context: Context) -> Iterator[Draft]:
    """Find weights that autocast converts again in every forward pass."""
    # A kernel may take a weight as it is or transposed.
    weights = {
        size
        for row in context.rows
        if row.product and row.precision in ("bf16", "fp16")
        for size in ((row.product.columns, row.product.depth), (row.product.depth, row.product.columns))
    }
    rows = [row for row in context.rows if row.operator == "aten::copy_" and _casts_weight(row, weights)]
    passes = _forward_passes_per_update(context)
    if not rows or passes is None:
        return
    again = 1.0 if passes == math.inf else 1 - 1 / passes
    time = again * sum(row.device_ns for row in rows) / context.steps
    if time < LEAST_SHARE * context.step_ns:
        return
    calls = sum(row.calls for row in rows) / context.steps
    columns = {(row.product.columns,) for row in context.rows if row.product and row.precision in ("bf16", "fp16")}
    biases = [row for row in context.rows if row.operator == "aten::copy_" and _casts_weight(row, columns)]
    casts = (*rows, *biases)
    yield Draft(
        rule=Rule.REPEATED_CASTS,
        title=f"Autocast converts weights anew in each forward pass ({format_ns(time)} {context.words.per})",
        where=context.where_of_row(max(rows, key=lambda row: row.device_ns)),
        saving=context.of_device(_OF_CASTS[0] * time, _OF_CASTS[1] * time),
        derivation="the time of the conversions that are repeated",
        evidence=(
            measured(
                count_of(calls),
                f" conversions {context.words.each} of tensors as large as the products' weights",
                source=Source.ACTIVITIES,
            ),
            derived(
                "no update of the weights lies between them"
                if passes == math.inf
                else f"the weights change once in {passes:.0f} forward passes",
                source=Source.ACTIVITIES,
            ),
        ),
        todo="convert the weights once",
        action="model = model.to(torch.bfloat16) for inference; else one autocast region around all "
        "micro-batches, so that "
        "its cache keeps the converted weights",
        wrong_if="the converted tensors are not weights",
        claims=claims_of(casts),
        remedy=Remedy(
            "the repeated conversions go, with their launches, also those of biases; a tenth of them stays (low)",
            _without_some([context.activities_of([row]) for row in casts], again),
            context.activities_of(casts),
        ),
    )


def _without_some(kinds: Sequence[Ints], share: float) -> Apply:
    """Return the change that removes a share of each kind of activity; nine tenths of that for the low replay.

    Args:
        kinds: the activities of each kind, such as of one shape. Those that go are evenly spread among them.
        share: how many go, from 0 to 1.
    """

    def apply(edit: Edit, assumed: Assumed) -> int:
        going = share * (0.9 if assumed is Assumed.LOW else 1.0)
        chosen = [np.sort(one)[np.diff(np.floor(np.arange(len(one) + 1) * going)) > 0] for one in kinds]
        return edit.remove_work(np.concatenate(chosen))

    return apply


def _casts_weight(row: LimitRow, weights: Container[tuple[int, ...]]) -> bool:
    call = RecordedCall.read(row.input_dims, row.input_types, None)
    # What was converted once was not converted again.
    if call is None or row.calls < 2 or len(call.types) < 2 or not call.dims:
        return False
    # aten::copy_(self, src): the first input is the destination.
    return call.types[1] == "float" and call.types[0] in ("c10::BFloat16", "c10::Half") and call.dims[0] in weights


def _forward_passes_per_update(context: Context) -> float | None:
    """Return how many forward passes run per update of the weights.

    Infinity without a backward pass; None where no backward pass adds to gradients that are already there, as the
    second one between two updates does.
    """
    operators = context.trace.operators
    accumulated = names_that(operators, lambda name: name.startswith("torch::autograd") and "AccumulateGrad" in name)
    count = int(accumulated.sum())
    if not count:
        return math.inf
    parent = context.links.operators.parent
    adds = np.flatnonzero((operators["name"] == "aten::add_").to_numpy() & (parent >= 0))
    added = int(accumulated[parent[adds]].sum())
    return count / max(count - added, 1) if added else None


@states(
    RuleDescription(
        Rule.CONTIGUOUS_COPIES,
        "copies that change nothing but strides",
        f"{percent(_OF_STRIDES[0])} to {percent(_OF_STRIDES[1])}",
        "an expanded tensor is made whole; a factorisation or transform makes the copy, as its library needs it",
    ),
)
def contiguous_copies(context: Context) -> Iterator[Draft]:
    """Find copies that only change the strides of a tensor."""
    rows = [
        row
        for row in context.rows
        if row.operator == "aten::copy_" and changes_strides(row) and not _of_library(context, row)
    ]
    time = sum(row.device_ns for row in rows) / context.steps
    if not rows or time < LEAST_SHARE * context.step_ns:
        return
    first = max(rows, key=lambda row: row.device_ns)
    yield Draft(
        rule=Rule.CONTIGUOUS_COPIES,
        title=f"Tensors are copied only to change their strides ({format_ns(time)} {context.words.per})",
        where=context.where_of_row(first),
        saving=context.of_device(_OF_STRIDES[0] * time, _OF_STRIDES[1] * time),
        derivation=f"the time of these copies (high); {percent(_OF_STRIDES[0])} of it where the layout is needed by "
        "what follows (low)",
        evidence=(
            measured(
                count_of(sum(row.calls for row in rows) / context.steps),
                f" copies {context.words.each}, mostly of {first.input_dims} with strides {first.input_strides}",
                source=Source.ACTIVITIES,
            ),
        ),
        todo="keep tensors contiguous",
        action="keep the tensor contiguous where it is made (weights: once, before the loop), or use the "
        "transposed form of "
        "what follows",
        wrong_if="the copy is wanted",
        claims=claims_of(rows),
        remedy=Remedy(
            "no such copies; six tenths of their time stay (low)",
            scaled(context.activities_of(rows), (0.6, 0.0, 0.0)),
            context.activities_of(rows),
        ),
    )


_LIBRARIES: Final = lazy_pattern(r"aten::_?(?:linalg_|cholesky|lu_|qr|svd|fft_|sort|stft|istft)")
_MOST_ABOVE: Final = 8  # operators above a copy


def _of_library(context: Context, row: LimitRow) -> bool:
    """Tell whether a copy is a part of an operator that hands its tensors to a library, in the order that it needs."""
    activities = context.activities_of([row])
    if not len(activities):
        return False
    operator, names = int(context.links.activity_operator[activities[0]]), context.trace.operators["name"]
    for _ in range(_MOST_ABOVE):
        if operator < 0:
            return False
        if _LIBRARIES.match(str(names[operator])):
            return True
        operator = int(context.links.operators.parent[operator])
    return False


@states(
    RuleDescription(
        Rule.DEVICE_COPIES,
        "copies within the device's memory that change nothing",
        "0 to all of their time",
        "the program mostly moves data",
    ),
)
def device_copies(context: Context) -> Iterator[Draft]:
    """Find whole tensors that are copied within the device's memory, beside other work."""
    rows = [
        row
        for row in context.rows
        if direction_of(row.kernel) is Direction.WITHIN
        and row.operator != "aten::cat"
        and not changes_strides(row)
        and not _of_library(context, row)
    ]
    time = sum(row.device_ns for row in rows) / context.steps
    # If a program mostly moves data, no trace tells whether they must be moved.
    if time < LEAST_SHARE * context.step_ns or moving_share(context.rows) >= MOSTLY_MOVING:
        return
    first = max(rows, key=lambda row: row.device_ns)
    yield Draft(
        rule=Rule.DEVICE_COPIES,
        title=f"Tensors are copied within the device's memory, unchanged ({format_ns(time)} {context.words.per})",
        where=context.where_of_row(first),
        saving=context.of_device(0.0, time),
        derivation="the time of these copies (high); whether they are needed, no trace tells (low)",
        evidence=(
            measured(
                count_of(sum(row.calls for row in rows) / context.steps, 1),
                f" copies {context.words.each}",
                source=Source.ACTIVITIES,
            ),
            measured(
                f"most of the time by {or_unknown(first.operator, 'no operator')}, "
                f"{or_unknown(first.input_dims, 'of unknown size')}",
                source=Source.ACTIVITIES,
            ),
        ),
        todo="write in place, or use a view",
        action="write the result where it is needed (out=, one preallocated buffer), or use a view instead of clone()",
        wrong_if="the copy is changed while the original is still needed",
        claims=claims_of(rows),
        remedy=Remedy(
            "none of these copies (high), half of their time (likely), all of them as they are (low): whether they are "
            "needed, no trace tells",
            scaled(context.activities_of(rows), (1.0, 0.5, 0.0)),
            context.activities_of(rows),
        ),
    )


@states(
    RuleDescription(
        Rule.GROWN_COPY,
        f"`torch.cat` of which one input is {percent(_MOST_OF_IT)} of the result and more",
        f"{percent(_OF_GROWN)} of its time to all of it",
    ),
)
def grown_copies(context: Context) -> Iterator[Draft]:
    """Find results that are one input with little added, such as torch.cat of a cache and a row."""
    rows = [row for row in context.rows if row.operator == "aten::cat" and _largest_share(row) >= _MOST_OF_IT]
    time = sum(row.device_ns for row in rows) / context.steps
    if not rows or time < LEAST_SHARE * context.step_ns:
        return
    first = max(rows, key=lambda row: row.device_ns)
    share = _largest_share(first)
    # What appends to a tensor that is still short is written in place as well.
    appending = [row for row in context.rows if row.operator == "aten::cat" and _largest_share(row) >= _HALF]
    yield Draft(
        rule=Rule.GROWN_COPY,
        title=f"A tensor is copied whole to append to it ({format_ns(time)} {context.words.per})",
        where=context.where_of_row(first),
        saving=_of_copies(context, time),
        derivation=f"the time of these copies (high); {percent(_OF_GROWN)} of it where a part must be copied all the "
        "same, as far as "
        "the host is not the bound (low)",
        evidence=(
            measured(
                count_of(sum(row.calls for row in rows) / context.steps),
                f" such torch.cat {context.words.each}, the largest of {first.input_dims}",
                source=Source.ACTIVITIES,
            ),
            derived(f"{100 * share:.2f} % of the result is one input, unchanged", source=Source.ACTIVITIES),
        ),
        todo="collect in a list, torch.cat once",
        action="collect what is added in a list, and torch.cat it once after the loop; if it is read in between, "
        "allocate it once at its largest size, and write into its place: cache[:, n : n + 1] = row",
        wrong_if="the tensor as it was before is needed as well, or the largest size is not known",
        claims=claims_of(rows),
        remedy=Remedy(
            "what is added is written alone, a part of each copy by its size; three tenths of the copies stay (low), "
            "or nothing on the host, as with one torch.cat after the loop (high)",
            _written_alone(context, appending),
        ),
    )


def _written_alone(context: Context, rows: Sequence[LimitRow]) -> Apply:
    """Return the change that writes what is added alone; for the high replay the host joins it once, after all."""
    of_device, activities = taking(context, rows, _added_alone), context.activities_of(rows)

    def apply(edit: Edit, assumed: Assumed) -> int:
        result = of_device(edit, assumed)
        if assumed is Assumed.HIGH:
            edit.remove_launches(activities)
        return result

    return apply


def _added_alone(row: LimitRow, assumed: Assumed) -> float:
    """Return how long it takes to write what was added, in nanoseconds."""
    left = 0.3 if assumed is Assumed.LOW else 1 - _largest_share(row)
    return max(left * row.call_ns, reach_of("one_pass", assumed).overhead_ns)


def _of_copies(context: Context, time: float) -> Range:
    saving = context.of_device(_OF_GROWN * time, time)
    # The host's own time is known only within the range of the profiler's cost: at best, all of this time is saved.
    return Range(saving.low, max(saving.high, min(time, context.step_ns)), saving.likely)


@lru_cache(maxsize=1 << 12)
def _share_of_largest(dims: str | None) -> float:
    """Return the share of the largest tensor in all elements of a list of tensors; 0 unless it is a list of several."""
    try:
        shapes = json.loads(dims or "null")
        sizes = [math.prod(shape) for shape in shapes[0]]
    except (ValueError, TypeError, IndexError, KeyError):
        return 0.0
    return max(sizes) / sum(sizes) if len(sizes) > 1 and sum(sizes) else 0.0


def _largest_share(row: LimitRow) -> float:
    return _share_of_largest(row.input_dims)


def changes_strides(row: LimitRow) -> bool:
    """Tell whether a copy changes nothing but a tensor's strides."""
    call = RecordedCall.read(row.input_dims, row.input_types, None, row.input_strides)
    if call is None or any(len(values) < 2 for values in (call.types, call.dims, call.strides)):
        return False
    # aten::copy_(self, src). A stride of 0 marks an expanded tensor, which the copy makes whole.
    to, source = call.strides[:2]
    same = call.types[0] == call.types[1] and call.dims[0] == call.dims[1]
    return same and to is not None and source is not None and to != source and 0 not in source
