"""Rules on matrix products and convolutions: precision, sizes, kernels, grids."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.context import Apply, Context, Draft, Range, Remedy, claims_of
from opscope.analysis.advice.remedies import all_of, reach_kind, reaches, reaching, taking
from opscope.analysis.advice.rule import (
    RuleDescription,
    count_of,
    derived,
    general,
    measured,
    nanoseconds,
    percent,
    share_of,
    states,
)
from opscope.analysis.costs.limits import CLEARLY_FASTER, PRODUCTS
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.nesting import Ints
from opscope.base.text import or_unknown
from opscope.base.units import NS_PER_S, format_ns
from opscope.documents.findings import Fact, Rule, Source
from opscope.documents.limits import LimitedBy, LimitRow
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.categories import OF_LIBRARIES, Category
from opscope.knowledge.devices import Assumed, reach_of
from opscope.knowledge.kernels.decode import decode_name, told_kernel
from opscope.knowledge.kernels.decoded import FP32_CORES, Operation
from opscope.knowledge.kernels.kinds import communicates

_NS_PER_US: Final = 1_000.0
# Shares of their limit that products reach: in a well-chosen kernel for large sizes, and at worst.
_GOOD_SHARE: Final = 0.75
_POOR_SHARE: Final = 0.3
_TF32_AT_WORST: Final = 0.2  # of its peak
_ALIGNED_AT_WORST: Final = 0.28
_BF16_OF_DOUBLES: Final = 0.9
# Elements in 16 bytes, by precision: the fast kernels load that much at once.
_MULTIPLE: Final = {"bf16": 8, "fp16": 8, "tf32": 4, "fp32": 4, "fp8": 16, "int8": 16}
_UNALIGNED: Final = frozenset({"1", "2"})
_LEAST_CALL_NS: Final = 3 * _NS_PER_US  # shorter kernels are a matter of launching
_SMALL_GRID_SHARE: Final = 0.5  # of the multiprocessors
_CONVOLUTIONS: Final = (Operation.FPROP, Operation.DGRAD, Operation.WGRAD)
_MIXED: Final = 0.2  # of the time: with less of it, one of two kinds is not worth naming


class _Matter(Struct, frozen=True):
    """What is wrong with some products, and what to do about it.

    Attributes:
        todo, action: as in `opscope.analysis.advice.context.Draft`.
        least_of_time, most_of_time: the share of their time that is saved, at least and at most, where their sizes are
            not known.
    """

    title: str
    todo: str
    action: str
    wrong_if: str
    least_of_time: float
    most_of_time: float


_ON_FP32_CORES: Final = "{subject} run on the FP32 cores ({time} {words.per}); the Tensor Cores are idle"
_FP32: Final = _Matter(
    _ON_FP32_CORES,
    "allow TF32, or use bfloat16",
    "torch.set_float32_matmul_precision('high')  # or bfloat16 autocast; results change in the 4th digit",
    "the results need more than TF32's 10 bits of mantissa",
    0.25,
    0.87,
)
_FP32_CONVOLUTIONS: Final = replace(
    _FP32,
    action="torch.backends.cudnn.allow_tf32 = True  # or bfloat16 autocast; results change in the 4th digit",
)
# Where TF32 is no faster than FP32 (GeForce), and before TF32 (Volta, Turing): 16 bits, at twice FP32's peak and more.
_FP32_TO_BF16: Final = _Matter(
    _ON_FP32_CORES,
    "use bfloat16 autocast",
    "with torch.autocast('cuda', dtype=torch.bfloat16):",
    "the results need more than bfloat16's 8 bits of mantissa",
    0.1,
    0.5,
)
_FP32_BEFORE_TF32: Final = _Matter(
    _ON_FP32_CORES,
    "use autocast with float16",
    "with torch.autocast('cuda', dtype=torch.float16):  # and torch.amp.GradScaler in training",
    "the results need more than 16 bits hold",
    _FP32.least_of_time,
    _FP32.most_of_time,
)
_ANY_ALIGNMENT: Final = _Matter(
    "Products run in kernels for operands of any alignment ({time} {words.per})",
    "pad sizes to multiples of 8",
    "pad sizes to multiples of 8 elements (a vocabulary, a number of features), and keep operands contiguous",
    "the sizes cannot be changed",
    0.15,
    0.85,
)
_DOUBLES: Final = _Matter(
    "Products run in double precision ({time} {words.per})",
    "use less than float64",
    "x = x.to(torch.bfloat16)  # or float32 with TF32, if doubles were not meant: numpy's default type is one",
    "double precision is needed",
    0.0,
    0.92,
)


def _lost(context: Context, rows: Sequence[LimitRow], ideal_ns: Callable[[LimitRow], float], share: float) -> float:
    """Return how much device time a step would save if these calls reached a share of their limit, in nanoseconds.

    Args:
        context: what rules look at.
        rows: the calls.
        ideal_ns: the time of one call at its limit.
        share: the share of that limit, from 0 to 1.
    """
    return sum(max(row.device_ns - row.calls * ideal_ns(row) / share, 0.0) for row in rows) / context.steps


def _ideal(row: LimitRow) -> float:
    return row.ideal_ns or 0.0


def _at_lower(row: LimitRow) -> float:
    return row.lower_ideal_ns or 0.0


def _time(context: Context, rows: Sequence[LimitRow]) -> float:
    return sum(row.device_ns for row in rows) / context.steps


def _costliest(rows: Sequence[LimitRow]) -> LimitRow:
    return max(rows, key=lambda row: row.device_ns)


def _sizes(row: LimitRow) -> str:
    return or_unknown(row.input_dims, "") if row.product is None else row.product.text


@states(
    RuleDescription(
        Rule.FP32_PRODUCTS,
        "products and convolutions whose kernel's name says FP32 cores, on a device that is over 1.5 times as fast in "
        "TF32, else in 16 bits (GeForce, Volta, Turing)",
        f"that precision at {percent(_TF32_AT_WORST)} to {percent(_GOOD_SHARE)} of its peak",
        "TF32 was used",
    ),
)
def fp32_products(context: Context) -> Iterator[Draft]:
    """Find products and convolutions on the FP32 cores of a device whose Tensor Cores take fewer bits."""
    lower = _below_fp32(context)
    if lower is None:
        return
    rows = [row for row in context.rows if row.precision == "fp32" and row.lower_precision == lower and row.flop]
    rows = [row for row in rows if row.lower_ideal_ns is not None and row.share is not None]
    # Those without recorded shapes are judged by their kernels' names, one by one: a compiled region has many kernels.
    others = _on_fp32_cores(context, besides=context.activities_of(rows))
    unknown = float(column(context.trace.activities, "duration_ns")[others].sum()) / context.steps
    time = _time(context, rows) + unknown
    named = _rows_with(context, others)
    if not time or not (rows or named):
        return
    first = _costliest([*rows, *named])
    convolve = _convolve(context, np.concatenate([context.activities_of(rows), others]))
    matter = _matter_of(lower, convolve)
    least = _lost(context, rows, _at_lower, _TF32_AT_WORST) + matter.least_of_time * unknown
    most = _lost(context, rows, _at_lower, _GOOD_SHARE) + matter.most_of_time * unknown
    yield Draft(
        rule=Rule.FP32_PRODUCTS,
        title=matter.title.format(subject=_SUBJECTS[convolve], time=format_ns(time), words=context.words),
        where=context.where_of_row(first),
        saving=context.of_device(least, most),
        derivation=_fp32_derivation(lower, matter, unknown, sized=bool(rows)),
        evidence=tuple(_fp32_evidence(context, rows, first, time)),
        todo=matter.todo,
        action=matter.action,
        wrong_if=matter.wrong_if,
        claims=claims_of([*rows, *named]),
        remedy=Remedy(
            f"{lower.upper()} at {reaches(reach_kind(first, lower))}"
            if rows
            else f"{matter.least_of_time:.0%} (low) to {matter.most_of_time:.0%} (high) less time for each",
            all_of(_in_precision(context, rows, lower), _shorter_activities(others, matter)),
        ),
    )


_SUBJECTS: Final = {None: "Matrix products and convolutions", False: "Matrix products", True: "Convolutions"}


def _below_fp32(context: Context) -> str | None:
    """Return the precision below FP32 at which the device is clearly faster; None where there is none."""
    rates = context.peaks.rates if context.peaks is not None else {}
    choices = ("tf32", "bf16", "fp16") if context.has_tensor_cores_for_fp32 else ("fp16",)
    if (own := rates.get("fp32")) and any(one in rates for one in choices):
        return next((one for one in choices if rates.get(one, 0.0) > CLEARLY_FASTER * own), None)
    return "tf32" if context.has_tensor_cores_for_fp32 else None


def _matter_of(lower: str, convolve: bool | None) -> _Matter:
    if lower == "tf32":
        return _FP32_CONVOLUTIONS if convolve else _FP32
    return _FP32_TO_BF16 if lower == "bf16" else _FP32_BEFORE_TF32


def _multiplies_on_fp32_cores(name: str) -> bool:
    kernel = decode_name(name)
    return kernel.unit == FP32_CORES and kernel.operation in PRODUCTS and kernel.operation is not Operation.GEMV


def _on_fp32_cores(context: Context, *, besides: Ints) -> Ints:
    """Return the rows of activities of a step whose names say FP32 cores, but for some."""
    chosen = context.work[names_that(context.trace.activities, _multiplies_on_fp32_cores)[context.work]]
    of_libraries = context.activities_of([row for row in context.rows if row.category in OF_LIBRARIES])
    return chosen[~np.isin(chosen, besides) & ~np.isin(chosen, of_libraries)]


def _convolve(context: Context, activities: Ints) -> bool | None:
    """Tell whether activities are convolutions, by most of their time; None where both take a fifth of it and more."""
    table = context.trace.activities
    convolves = names_that(table, lambda name: decode_name(name).operation in _CONVOLUTIONS)[activities]
    duration = column(table, "duration_ns")[activities]
    share = float(duration[convolves].sum()) / max(float(duration.sum()), 1.0)
    return None if _MIXED <= share <= 1 - _MIXED else share > _MIXED


def _rows_with(context: Context, activities: Ints) -> list[LimitRow]:
    """Return the rows of work that some activities belong to."""
    return [row for row in context.rows if np.isin(context.activities_of([row]), activities).any()]


def _shorter_activities(activities: Ints, matter: _Matter) -> Apply:
    """Return the change of activities whose sizes are not known."""
    gone = (matter.least_of_time, (matter.least_of_time + matter.most_of_time) / 2, matter.most_of_time)
    return lambda edit, assumed: edit.scale(activities, 1 - gone[assumed]) if len(activities) else 0


def _fp32_derivation(lower: str, matter: _Matter, unknown: float, *, sized: bool) -> str:
    shares = f"{percent(matter.most_of_time)} (high) and {percent(matter.least_of_time)} (low)"
    if not sized:
        return f"{shares} of their time: their sizes were not recorded"
    text = (
        f"their time less what {lower.upper()} takes at {percent(_GOOD_SHARE)} (high) and {percent(_TF32_AT_WORST)} "
        "(low) of its peak"
    )
    return f"{text}; {shares} of the {format_ns(unknown)} in those whose sizes were not recorded" if unknown else text


def _fp32_evidence(context: Context, rows: Sequence[LimitRow], first: LimitRow, time: float) -> Iterator[Fact]:
    mostly = f" of the device's busy time, mostly {_sizes(first)}" if rows else " of the device's busy time"
    yield measured(share_of(time, context.busy_ns), mostly, source=Source.ACTIVITIES)
    yield measured(f"the kernel is {told_kernel(first.kernel)}", source=Source.ACTIVITIES)
    if not rows:
        yield general("record shapes for more (record_shapes=True)")
        return
    share = sum((row.share or 0) * row.device_ns for row in rows) / sum(row.device_ns for row in rows)
    yield derived("they run at ", share_of(share, 1), " of what the FP32 cores allow", source=Source.LIMITS)


@states(
    RuleDescription(
        Rule.UNALIGNED_SIZES,
        f"products in 16 or 8 bits or TF32, of more than {_LEAST_CALL_NS / _NS_PER_US:.0f} us a call, with a size "
        "that is no "
        "multiple of 16 bytes, in a kernel for any alignment (or "
        f"below {percent(_POOR_SHARE)} of the limit where the name does not say)",
        f"aligned at {percent(_ALIGNED_AT_WORST)} to {percent(_GOOD_SHARE)} of the limit",
        "the kernel is a fast one all the same",
    ),
)
def unaligned_sizes(context: Context) -> Iterator[Draft]:
    """Find products whose sizes keep the fast kernels away."""
    rows = [row for row in context.rows if _is_unaligned(row)]
    named = [row for row in _unknown(context) if row.precision in ("bf16", "fp16") and _alignment(row) in _UNALIGNED]
    yield from _by_name(context, Rule.UNALIGNED_SIZES, named, _ANY_ALIGNMENT)
    if not rows:
        return
    first = _costliest(rows)
    multiple = _MULTIPLE.get(first.precision or "", 8)
    sizes = {size for row in rows if row.product is not None for size in row.product.sizes}
    odd = sorted(size for size in sizes if size % multiple)
    padded = ", ".join(f"{size} to {-(-size // 64) * 64}" for size in odd[:3])
    yield Draft(
        rule=Rule.UNALIGNED_SIZES,
        title=f"Sizes that are not multiples of {multiple} ({', '.join(map(str, odd[:3]))}) keep products off the fast "
        "kernels",
        where=context.where_of_row(first),
        saving=context.of_device(
            _lost(context, rows, _ideal, _ALIGNED_AT_WORST), _lost(context, rows, _ideal, _GOOD_SHARE)
        ),
        derivation=f"their time less what aligned products take at {percent(_GOOD_SHARE)} (high) and "
        f"{percent(_ALIGNED_AT_WORST)} (low) of the device's limit",
        evidence=(
            measured(
                share_of(_time(context, rows), context.busy_ns), " of the device's busy time", source=Source.ACTIVITIES
            ),
            measured(f"{_sizes(first)} runs as {told_kernel(first.kernel)}", source=Source.ACTIVITIES),
            derived(
                "that is ", share_of(first.share or 0, 1), f" of the limit at {first.precision}", source=Source.LIMITS
            ),
        ),
        todo="pad these sizes",
        action=f"pad these sizes: {padded} (a vocabulary: nn.Embedding and the output layer)",
        wrong_if="the operands are not contiguous, so that their strides keep the fast kernels away",
        claims=claims_of(rows),
        remedy=_well_chosen(context, rows, first),
    )


def _well_chosen(context: Context, rows: Sequence[LimitRow], first: LimitRow) -> Remedy:
    """Return the change to kernels that suit the products' sizes."""
    return Remedy(
        f"products at {reaches(reach_kind(first, first.precision))}",
        reaching(context, rows, lambda row: row.ideal_ns),
        context.activities_of(rows),
    )


def _in_precision(context: Context, rows: Sequence[LimitRow], precision: str) -> Apply:
    """Return the change of products to their next lower precision."""

    def time(row: LimitRow, assumed: Assumed) -> float:
        slower = _TF32_IN_NCHW[assumed] if precision == "tf32" and _is_nchw(row) else 1.0
        result = slower * reach_of(reach_kind(row, precision), assumed).time_ns(_at_lower(row))
        return max(result, _OF_FEW_CHANNELS[assumed] * row.call_ns) if _has_few_channels(row) else result

    return taking(context, rows, time)


# Convolutions in TF32 of tensors in NCHW convert them to NHWC and back: in benchmarks/needless_programs.py and
# further_programs.py they took so many times as long as those that reach.toml was measured with.
_TF32_IN_NCHW: Final = {Assumed.LOW: 2.5, Assumed.LIKELY: 1.8, Assumed.HIGH: 1.0}


# Convolutions of images (three channels) hardly fill Tensor Cores: of two with patches of 14 and 16 in FP32, half and
# 63 % of their time were left in 16 bits, with what converts the images.
_FEW_CHANNELS: Final = 4
_OF_FEW_CHANNELS: Final = {Assumed.LOW: 0.8, Assumed.LIKELY: 0.55, Assumed.HIGH: 0.2}


def _has_few_channels(row: LimitRow) -> bool:
    call = RecordedCall.read(row.input_dims, row.input_types, None)
    if row.category != str(Category.CONVOLUTION) or call is None:
        return False
    # A backward pass has the gradient first, and then the input.
    shapes = [shape for shape in call.dims if shape]
    place = int("backward" in str(row.operator))
    return len(shapes) > place and len(shapes[place]) > 2 and shapes[place][1] <= _FEW_CHANNELS


def _is_nchw(row: LimitRow) -> bool:
    call = RecordedCall.read(row.input_dims, row.input_types, None, row.input_strides)
    if row.category != str(Category.CONVOLUTION) or call is None or not call.strides or not call.strides[0]:
        return False
    return len(call.strides[0]) > 2 and call.strides[0][1] != 1


def _shorter(context: Context, rows: Sequence[LimitRow], matter: _Matter) -> Apply:
    """Return the change of products whose sizes were not recorded."""
    gone = (matter.least_of_time, (matter.least_of_time + matter.most_of_time) / 2, matter.most_of_time)
    return taking(context, rows, lambda row, assumed: (1 - gone[assumed]) * row.call_ns)


def _alignment(row: LimitRow) -> str | None:
    """Return how many elements of its operands a kernel takes at once by its name; None where it does not say."""
    return dict(decode_name(row.kernel).details).get("alignment in elements")


def _unknown(context: Context) -> list[LimitRow]:
    """Return products whose sizes were not recorded; their kernels' names say how they multiply."""
    return [row for row in context.rows if row.flop is None and row.precision is not None]


def _by_name(context: Context, rule: Rule, rows: Sequence[LimitRow], matter: _Matter) -> Iterator[Draft]:
    """Yield the finding on products whose shapes were not recorded: their kernels' names alone show it."""
    if not rows:
        return
    first, time = _costliest(rows), _time(context, rows)
    low, high = matter.least_of_time, matter.most_of_time
    yield Draft(
        rule=rule,
        title=matter.title.format(time=format_ns(time), words=context.words),
        where=context.where_of_row(first),
        saving=context.of_device(low * time, high * time),
        derivation=f"{low:.0%} (low) to {high:.0%} (high) of their time: their sizes were not recorded",
        evidence=(
            measured(share_of(time, context.busy_ns), " of the device's busy time", source=Source.ACTIVITIES),
            measured(f"the kernel is {told_kernel(first.kernel)}", source=Source.ACTIVITIES),
            general("record shapes for more (record_shapes=True)"),
        ),
        todo=matter.todo,
        action=matter.action,
        wrong_if=matter.wrong_if,
        claims=claims_of(rows),
        remedy=Remedy(f"{low:.0%} (low) to {high:.0%} (high) less time for each", _shorter(context, rows, matter)),
    )


def _is_unaligned(row: LimitRow) -> bool:
    multiple = _MULTIPLE.get(row.precision or "")
    if row.product is None or multiple is None or row.share is None or row.precision == "fp32":
        return False
    sizes = row.product.sizes
    if all(size % multiple == 0 for size in sizes) or row.call_ns < _LEAST_CALL_NS or min(sizes) < 2 * multiple:
        return False
    alignment = _alignment(row)
    if alignment is not None:
        return alignment in _UNALIGNED and row.share < _GOOD_SHARE
    # Where the name does not tell the alignment, only a low share of the compute limit does.
    return row.share < _POOR_SHARE and row.limited_by == LimitedBy.COMPUTE


@states(
    RuleDescription(
        Rule.SLOW_PRODUCT_KERNEL,
        f"products in double precision; products on Tensor Cores below {percent(_POOR_SHARE)} of the limit without "
        "another "
        "reason",
        f"0 to {percent(_GOOD_SHARE)} (doubles: bfloat16 at {percent(_BF16_OF_DOUBLES)}) of the limit",
        "calls are short, grids small",
    ),
)
def slow_product_kernel(context: Context) -> Iterator[Draft]:
    """Find products in double precision, and those far below what their Tensor Cores allow without another reason."""
    doubles = [row for row in context.rows if row.flop and row.precision in ("fp64", "fp64_tensor")]
    if doubles:
        yield _doubles(context, doubles)
    named = [row for row in _unknown(context) if row.precision in ("fp64", "fp64_tensor")]
    yield from _by_name(context, Rule.SLOW_PRODUCT_KERNEL, named, _DOUBLES)
    slow = [row for row in context.rows if _is_slow(context, row)]
    if not slow:
        return
    first = _costliest(slow)
    yield Draft(
        rule=Rule.SLOW_PRODUCT_KERNEL,
        title=f"Products in {first.precision} run far below the Tensor Cores' limit",
        where=context.where_of_row(first),
        saving=context.of_device(0.0, _lost(context, slow, _ideal, _GOOD_SHARE)),
        derivation=f"their time less what they take at {percent(_GOOD_SHARE)} of the limit (high); that another "
        "kernel exists is "
        "not certain",
        evidence=(
            measured(
                f"{_sizes(first)} takes ",
                nanoseconds(first.call_ns),
                f" as {told_kernel(first.kernel)}",
                source=Source.ACTIVITIES,
            ),
            derived(
                "that is ", share_of(first.share or 0, 1), f" of the limit at {first.precision}", source=Source.LIMITS
            ),
            measured(
                share_of(_time(context, slow), context.busy_ns), " of the device's busy time", source=Source.ACTIVITIES
            ),
        ),
        todo="make the operands contiguous",
        action="make the operands contiguous before the product, or join many small products into one (bmm, larger "
        "batches)",
        wrong_if="the sizes are too small for the device, or the operands' layout is needed as it is",
        claims=claims_of(slow),
        remedy=_well_chosen(context, slow, first),
    )


# Bytes of an element over those of a double: TF32's and bfloat16's.
_OF_DOUBLES: Final = {"tf32": 4 / 8, "bf16": 2 / 8}


def _ideal_in(context: Context, row: LimitRow, precision: str) -> float | None:
    """Return the least time of a product of doubles at another precision, in nanoseconds; None where unknown."""
    peaks = context.peaks
    if peaks is None or precision not in peaks.rates or row.flop is None or not peaks.memory_bytes_per_s:
        return None
    moved = (row.least_bytes or 0) * _OF_DOUBLES[precision]
    return max(row.flop / peaks.rates[precision], moved / peaks.memory_bytes_per_s) * NS_PER_S


def _without_doubles(context: Context, rows: Sequence[LimitRow]) -> Remedy | None:
    """Return the change of a program to bfloat16 (likely, high) or single precision with TF32 (low)."""
    if context.peaks is None or not {"tf32", "bf16"} <= context.peaks.rates.keys():
        return None

    def time(row: LimitRow, assumed: Assumed) -> float:
        precision = "tf32" if assumed is Assumed.LOW else "bf16"
        limit = _ideal_in(context, row, precision)
        return row.call_ns if limit is None else reach_of(reach_kind(row, precision), assumed).time_ns(limit)

    # What else works on doubles passes over half or a quarter of the bytes.
    others = [row for row in context.rows if not row.product and '"double"' in (row.input_types or "")]
    passing = taking(
        context, others, lambda row, assumed: row.call_ns * _OF_DOUBLES["tf32" if assumed is Assumed.LOW else "bf16"]
    )
    return Remedy(
        f"products in bfloat16 at {reaches('product_16')}; in single precision with TF32 (low); other work on doubles "
        "in proportion to its bytes",
        all_of(taking(context, rows, time), passing),
    )


def _doubles(context: Context, rows: Sequence[LimitRow]) -> Draft:
    first = _costliest(rows)

    def in_bfloat16(row: LimitRow) -> float:
        ideal = _ideal_in(context, row, "bf16")
        return row.call_ns if ideal is None else ideal

    return Draft(
        rule=Rule.SLOW_PRODUCT_KERNEL,
        title=_DOUBLES.title.format(time=format_ns(_time(context, rows)), words=context.words),
        where=context.where_of_row(first),
        saving=context.of_device(0.0, _lost(context, rows, in_bfloat16, _BF16_OF_DOUBLES)),
        derivation=f"their time less what bfloat16 takes at {percent(_BF16_OF_DOUBLES)} of its limit (high); single "
        "precision without TF32 may gain nothing on this device (low)",
        evidence=(
            measured(
                f"{_sizes(first)} takes ",
                nanoseconds(first.call_ns),
                f" with inputs {first.input_types}",
                source=Source.ACTIVITIES,
            ),
            measured(
                share_of(_time(context, rows), context.busy_ns), " of the device's busy time", source=Source.ACTIVITIES
            ),
        ),
        todo=_DOUBLES.todo,
        action=_DOUBLES.action,
        wrong_if=_DOUBLES.wrong_if,
        claims=claims_of(rows),
        remedy=_without_doubles(context, rows),
    )


def _is_slow(context: Context, row: LimitRow) -> bool:
    if not row.flop or row.share is None or row.precision not in ("bf16", "fp16", "tf32", "fp8"):
        return False
    # Small grids and unaligned sizes have rules of their own.
    enough = row.thread_blocks is None or row.thread_blocks >= _SMALL_GRID_SHARE * _multiprocessors(context)
    is_product = decode_name(row.kernel).operation in (Operation.GEMM, Operation.GEMV, None) and row.product is not None
    return (
        is_product
        and enough
        and row.share < _POOR_SHARE
        and row.call_ns > 5 * _LEAST_CALL_NS
        and not _is_unaligned(row)
    )


def _multiprocessors(context: Context) -> int:
    return (context.properties.multiprocessors if context.properties else None) or 0


@states(
    RuleDescription(
        Rule.SMALL_GRID,
        f"kernels of {5 * _LEAST_CALL_NS / _NS_PER_US:.0f} us and more with thread blocks for less than "
        f"{percent(_SMALL_GRID_SHARE)} of the multiprocessors, below {percent(_SMALL_GRID_SHARE)} of their limit",
        "0 to the limit",
    ),
)
def small_grid(context: Context) -> Iterator[Draft]:
    """Find kernels with too few thread blocks for the device."""
    available = _multiprocessors(context)
    rows = [row for row in context.rows if _is_small(row, available)]
    if not rows or not available:
        return
    first, time = _costliest(rows), _time(context, rows)
    # Without a model, the share of multiprocessors in use stands for the share of the limit.
    reached = ((row.thread_blocks or 1) / available if row.share is None else row.share for row in rows)
    most = sum(row.device_ns * (1 - min(share, 1.0)) for row, share in zip(rows, reached, strict=True))
    yield Draft(
        rule=Rule.SMALL_GRID,
        title=f"Kernels with few thread blocks leave most of the {available} multiprocessors idle",
        where=context.where_of_row(first),
        saving=Range(0.0, context.of_device(0.0, most / context.steps).high),
        derivation="their time less what the device's limit allows if all multiprocessors share the work (high)",
        evidence=(
            measured(
                f"{or_unknown(first.operator or first.kernel)} runs ",
                count_of(first.thread_blocks),
                " thread blocks for ",
                nanoseconds(first.call_ns),
                source=Source.ACTIVITIES,
            ),
            measured(
                share_of(time, context.busy_ns),
                " of the device's busy time is spent in such kernels",
                source=Source.ACTIVITIES,
            ),
            general("one thread block runs on one multiprocessor"),
        ),
        todo="give each kernel more work",
        action="give the kernel more independent work: larger batches, several such calls at once (batched operators, "
        "streams), or a split along the reduced dimension",
        wrong_if="other kernels run beside these on other streams",
        claims=claims_of(rows),
        alone=True,
        remedy=Remedy(
            f"such kernels at {_OF_GRID[1]:.0%} ({_OF_GRID[0]:.0%} to {_OF_GRID[2]:.0%}) of their limit; without a "
            "model, of the time that all multiprocessors together need",
            taking(context, rows, lambda row, assumed: _on_all(row, available) / _OF_GRID[assumed]),
            context.activities_of(rows),
        ),
    )


# Of the limit, in kernels that share the work of few thread blocks out: before they can, they meet once more.
_OF_GRID: Final = (0.2, 0.5, 0.85)


def _on_all(row: LimitRow, available: int) -> float:
    """Return the least time of a call on all multiprocessors, in nanoseconds."""
    return row.call_ns * (row.thread_blocks or 1) / available if row.ideal_ns is None else row.ideal_ns


def _is_small(row: LimitRow, available: int) -> bool:
    if row.thread_blocks is None or row.call_ns < 5 * _LEAST_CALL_NS:
        return False
    # How a library cuts its algorithm into kernels no program changes.
    if row.category in OF_LIBRARIES:
        return False
    far = row.share is None or row.share < _SMALL_GRID_SHARE
    return row.thread_blocks < _SMALL_GRID_SHARE * available and far and not communicates(row.kernel)
