"""What a training step would take under autocast to bfloat16: which of its float32 tensors would have half the size.

The types of operators' inputs are in the trace; which tensor an input is follows from its size and from what is alive.
Operators whose results keep float32: see ``AT_FORALL_FP32`` in ``aten/src/ATen/autocast_mode.h`` (PyTorch 2.6 to 2.13);
those that compute in bfloat16: ``AT_FORALL_LOWER_PRECISION_FP``, by the names under which they allocate.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from opscope.analysis.memory.allocator import SMALLEST
from opscope.analysis.memory.case import Case
from opscope.analysis.memory.owners import Phase
from opscope.documents.memory import Owner
from opscope.knowledge.calls import RecordedCall
from opscope.trace.snapshot import Ints

if TYPE_CHECKING:
    import polars as pl

_PRODUCT: Final = re.compile(
    r"aten::(?:(?:add)?(?:mm|mv|bmm)|baddbmm|addbmm|linear|matmul|einsum|_?(?:slow_)?conv\w*|\w+_convolution\w*"
    r"|\w*_attention_(?:forward|backward)|_scaled_dot_product_\w+|prelu)"
)
_IN_FLOAT32: Final = re.compile(
    r"aten::(?:(?:native_)?(?:layer|group)_norm\w*|_?(?:log_)?softmax|nll_loss\w*"
    r"|(?:binary_)?cross_entropy\w*|mse_loss\w*|l1_loss\w*|smooth_l1_loss\w*|huber_loss\w*|kl_div\w*|pow|rsqrt|reciprocal"
    r"|exp|expm1|log|log2|log10|log1p|sinh|cosh|tan|acos|asin|norm|linalg_vector_norm|renorm|dist|cdist|sum|prod|cumsum"
    r"|cumprod|softplus|erfinv|logsumexp)"
)
# Of those in float32, these keep a copy of what came in for the backward pass; of all, these keep their own result.
_KEEPS_INPUT: Final = re.compile(r"aten::(?:(?:native_)?(?:layer|group)_norm|pow|log\d*p?$|prod|softplus)")
_KEEPS_RESULT: Final = re.compile(r"aten::(?:_softmax|exp|rsqrt|reciprocal|tanh|sigmoid|relu|clamp_min|threshold|sqrt)")
_NORM_BACKWARD: Final = re.compile(r"aten::native_(?:layer|group)_norm_backward")
_OF_VIEWS: Final = re.compile(r"attention|bmm")
UNFUSED_ATTENTION: Final = "aten::_scaled_dot_product_attention_math"
_FUSED: Final = (
    "Attention is computed in parts in float32 (_scaled_dot_product_attention_math). In bfloat16 one kernel can "
    "compute it without keeping its scores, which is included."
)
_IN_PARTS: Final = (
    "Attention is computed in parts (_scaled_dot_product_attention_math), which stays so: its scores keep float32."
)
# What flash attention takes: see ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``.
_WIDEST_HEAD: Final = 256
_HEADS_BY: Final = 8
MOST_FOLLOWED: Final = 100_000  # events, which takes about two seconds
_MOST_ALIKE: Final = 256  # of one size that are looked at, the latest
_OF_16_BITS: Final = "BFloat16|Half"
_SOFTMAXES: Final = "^aten::(?:cross_entropy_loss|(?:log_)?softmax)$"
_TO_FLOAT32: Final = r'^\["", (?:"", )?"6"'  # the number of a data type, c10::ScalarType
_LIST: Final = "TensorList"
_FLOAT: Final = "float"  # as the profiler writes 32 bits
_MASKED: Final = "aten::native_dropout"  # its second result has one byte a number


class Halved(Struct, frozen=True):
    """What autocast would change.

    Attributes:
        sizes: the bytes of each life then.
        more: what there would be besides, 16-bit copies of parameters and of inputs: begin, end, bytes.
        bytes: how much less is alive at the peak of now, without ``more``.
        attention: a sentence on attention that is computed in parts; empty without.
    """

    sizes: Ints
    more: tuple[Ints, Ints, Ints]
    bytes: int
    attention: str


def halved(case: Case) -> Halved | None:
    """Follow the types of all tensors through the steps.

    None where the types of operators were not recorded, or the program sets 16 bits already, or the device has none.
    """
    if case.calls is None or not case.calls.has_bfloat16 or case.count > MOST_FOLLOWED:
        return None
    return None if _sets_types(case.calls.operators) else _Types(case).halved()


def _can_be_fused(attention: RecordedCall) -> bool:
    """Tell whether one kernel computes an attention in 16 bits: without a mask, and with heads of a fitting width."""
    shapes, mask = attention.dims[:3], attention.dims[3:4]
    width = (
        shapes[0][-1] if len(shapes) == 3 and all(shape and len(shape) == 4 for shape in shapes) and shapes[0] else 0
    )
    return 0 < width <= _WIDEST_HEAD and width % _HEADS_BY == 0 and not any(mask)


def _sets_types(operators: "pl.DataFrame") -> bool:
    """Tell whether some operator takes 16 bits already."""
    return bool(operators["input_types"].cast(str).unique().str.contains(_OF_16_BITS).any())


class _Types:
    """Follows what each tensor would be."""

    def __init__(self, case: Case) -> None:
        assert case.calls is not None
        self._case, self._calls, self._lives = case, case.calls, case.lives
        count = len(case.lives)
        self._is_narrow, self._shares = np.zeros(count, dtype=bool), np.ones(count)
        self._of_size: dict[int, list[int]] = {}  # the lives of as many bytes so far
        self._kept: list[int] = []  # in order
        self._last = -1  # the event of the life before
        self._copies: Counter[int] = Counter()  # of parameters of a size, in this step
        self._casts: dict[int, bool] = {}  # by the event that a product's backward pass begins with
        self._nodes: list[int] | None = None
        self._fused: dict[int, bool] = {}  # by the row of an attention in parts
        self._products: dict[int, int] = {}  # of these, in the forward pass
        self._more: list[tuple[int, int, int]] = []
        self._read: dict[int, tuple[int, ...] | None] = {}
        self._parameters = case.owned.of(Owner.PARAMETER)
        self._is_input = case.owned.of(Owner.INPUT)
        self._is_made = case.owned.of(Owner.ACTIVATION, Owner.TEMPORARY, Owner.KEPT)
        self._is_kept = self._parameters | case.owned.of(Owner.ACTIVATION) | self._is_input
        names = self._calls.operators["name"].cast(str)
        self._softmaxes: list[int] = names.str.contains(_SOFTMAXES).fill_null(value=False).arg_true().to_list()
        to = (names == "aten::to") & self._calls.operators["concrete_inputs"].cast(str).str.contains(_TO_FLOAT32)
        self._to_float32: list[int] = to.fill_null(value=False).arg_true().to_list()
        self._softmax_takes_narrow = False
        self._number = 0

    def halved(self) -> Halved:
        """Return what changes."""
        lives = self._lives
        numbers = np.searchsorted(np.array(self._case.steps.ends), lives.begin, "left")
        for life in np.argsort(lives.begin, kind="stable").tolist():
            row = int(lives.begin[life])
            call = int(self._calls.operator[row]) if row >= 0 else -1
            sizes = self._float_inputs(call) if call >= 0 else None
            if int(numbers[life]) != self._number:
                self._number = int(numbers[life])
                self._copies.clear()
            is_float = sizes != ()
            if row >= 0 and self._calls.attention[row] >= 0:
                self._in_parts(life, row)
            elif sizes and self._is_made[life]:
                is_float = self._follow(life, row, self._calls.name(call), sizes)
            self._last = row
            if is_float:
                self._of_size.setdefault(int(lives.requested[life]), []).append(life)
                if self._is_kept[life]:
                    self._kept.append(life)
        then: Ints = (self._case.sizes * self._shares).astype(np.int64)
        more = np.array(self._more, dtype=np.int64).reshape(-1, 3)
        less = int((self._case.sizes - then)[self._case.alive].sum())
        attention = {True: _FUSED, False: _IN_PARTS, None: ""}[any(self._fused.values()) if self._fused else None]
        return Halved(then, (more[:, 0], more[:, 1], more[:, 2]), less, attention)

    def _follow(self, life: int, row: int, name: str, sizes: Sequence[int]) -> bool:
        """Tell what a tensor would be; False if it holds no floating-point numbers."""
        backward, again = self._case.owned.phase[row] == Phase.BACKWARD, self._is_second(life)
        if (again and name.endswith("_with_indices")) or (
            name == _MASKED and self._lives.requested[life] <= sizes[0] // 4 + SMALLEST
        ):
            return False
        if _PRODUCT.fullmatch(name):
            self._is_narrow[life] = not backward or not self._was_cast(row)
            if not backward and not again:
                self._cast(name, life, row, sizes)
        elif "softmax_backward" in name:
            self._is_narrow[life] = self._softmax_takes_narrow
        elif backward:  # autocast is over by then: types follow from the forward pass
            self._is_narrow[life] = not _NORM_BACKWARD.match(name) and self._latest_is_narrow(sizes[0], row)
        elif _IN_FLOAT32.fullmatch(name):
            self._widen(name, row, sizes[0])
        else:
            self._is_narrow[life] = self._takes_narrow(name, row, sizes)
        if self._is_narrow[life]:
            self._shares[life] = 0.5
        return True

    def _was_cast(self, row: int) -> bool:
        """Tell whether a product of the backward pass is of one whose input was cast: its gradient is cast back."""
        if self._nodes is None:
            self._nodes = sorted(self._casts)
        at = bisect_right(self._nodes, row) - 1
        return at >= 0 and self._casts[self._nodes[at]]

    def _in_parts(self, life: int, row: int) -> None:
        """Follow a part of an attention that no single kernel computes.

        If one kernel can compute it in 16 bits, it makes no scores; it keeps queries, keys and values for the backward
        pass, and its result. Else the parts are computed in 32 bits also where inputs have 16
        (``aten/src/ATen/native/transformers/attention.cpp``).
        """
        attention = int(self._calls.attention[row])
        inputs = self._float_inputs(attention) or (0,)
        backward = self._case.owned.phase[row] == Phase.BACKWARD
        fused = self._is_fused(attention)
        if fused and attention not in self._products and not backward:
            self._more += [(row, max(int(self._calls.needed_until[row]), row), size // 2) for size in inputs[:3]]
        before = self._products.setdefault(attention, 0)
        is_product = _PRODUCT.fullmatch(self._calls.name(int(self._calls.operator[row]))) is not None
        self._products[attention] += is_product and not backward
        is_result = is_product and not backward and before > 0  # the first product makes the scores
        keeps = is_result or (backward and fused and self._lives.requested[life] <= inputs[0])
        if self._is_made[life]:
            self._shares[life] = 0.5 if keeps else 0.0 if fused else 1.0
            self._is_narrow[life] = keeps

    def _is_fused(self, attention: int) -> bool:
        if attention not in self._fused:
            call = RecordedCall.read(*self._calls.inputs(attention), None)
            self._fused[attention] = call is not None and _can_be_fused(call)
        return self._fused[attention]

    def _is_second(self, life: int) -> bool:
        """Tell whether the allocation before was of the same call."""
        operator = self._calls.operator
        return self._last >= 0 and bool(operator[self._last] == operator[int(self._lives.begin[life])])

    def _widen(self, name: str, row: int, size: int) -> None:
        """Let an operator compute in 32 bits; what it keeps of a 16-bit input is a copy."""
        source = self._latest(size, row)
        is_narrow = source >= 0 and bool(self._is_narrow[source])
        if "softmax" in name:
            self._softmax_takes_narrow = is_narrow and not self._is_cast_between(source, row, size)
        elif is_narrow and _KEEPS_INPUT.match(name):
            self._shares[source] = 1.0  # what came in was kept for it alone

    def _is_cast_between(self, source: int, row: int, size: int) -> bool:
        """Tell whether the program asks for 32 bits of a softmax's input; what the softmax casts itself comes later."""
        operator = self._calls.operator
        first, last = int(operator[int(self._lives.begin[source])]), int(operator[row])
        own = bisect_left(self._softmaxes, first)
        last = min(last, self._softmaxes[own]) if own < len(self._softmaxes) else last
        between = self._to_float32[bisect_left(self._to_float32, first) : bisect_left(self._to_float32, last)]
        return any(self._float_inputs(call) == (size,) for call in between)

    def _cast(self, name: str, life: int, row: int, sizes: Sequence[int]) -> None:
        """Make what a product takes 16 bits wide, which it then keeps for the backward pass."""
        until = int(self._calls.needed_until[row])
        whole = self._of_whole(row, until) if _OF_VIEWS.search(name) else -1
        weight = None if _OF_VIEWS.search(name) else 1 if "conv" in name else len(sizes) - 1
        taken: list[int] = []
        copied: list[int] = []
        was_cast = False
        for at, size in enumerate(sizes):
            if whole >= 0 and self._lives.requested[whole] in (2 * size, 3 * size):
                continue  # a view of what one product made for queries, keys and values
            kept = [
                one
                for one in self._alive(size, row)
                if self._is_kept[one] and self._lives.end[one] >= until and one not in taken
            ]
            kept = [one for one in kept if self._parameters[one] == (at == weight)] or kept
            if not kept:
                continue
            source = kept[-1]
            taken.append(source)
            was_cast |= not self._parameters[source] and not self._is_narrow[source]
            if self._is_copied(source, kept):
                copied.append(int(self._case.sizes[source]) // 2)
        end = max(int(self._lives.end[one]) for one in (life, *taken) if not self._parameters[one])
        self._more += [(row, end, size) for size in copied]
        if until >= 0:
            self._casts[until] = was_cast
            self._nodes = None

    def _of_whole(self, row: int, until: int) -> int:
        """Return the latest activation that is kept for the backward pass; -1 if that is not 16 bits wide."""
        while self._kept and self._lives.end[self._kept[-1]] <= row:
            self._kept.pop()
        for life in self._kept[: -_MOST_ALIKE - 1 : -1]:
            if self._lives.end[life] >= max(until, row):
                return life if self._is_narrow[life] else -1
        return -1

    def _is_copied(self, source: int, alike: Sequence[int]) -> bool:
        """Make an input of a product 16 bits wide; True if that is a copy beside it."""
        if self._parameters[source]:
            size = int(self._lives.requested[source])
            self._copies[size] += 1
            return self._copies[size] <= sum(bool(self._parameters[one]) for one in alike)
        if self._is_narrow[source]:
            return False
        if self._made_by(source) and self._shares[source] == 1.0:
            self._shares[source] = 0.5  # it was there for that alone
            return False
        return True

    def _made_by(self, source: int) -> bool:
        """Tell whether a tensor was made by an operator of the step that does not keep it itself."""
        row = int(self._lives.begin[source])
        call = int(self._calls.operator[row]) if row >= 0 else -1
        return call >= 0 and not self._is_input[source] and _KEEPS_RESULT.match(self._calls.name(call)) is None

    def _takes_narrow(self, name: str, row: int, sizes: Sequence[int]) -> bool:
        """Tell whether an operator that computes in the widest type of its inputs takes 16 bits alone."""
        if len(sizes) == 1 or "batch_norm" in name:
            return self._latest_is_narrow(sizes[0], row)
        return all(self._all_narrow(self._alive(size, row)) for size in sizes)

    def _all_narrow(self, alive: Sequence[int]) -> bool:
        """Tell whether whatever of these an operator takes has 16 bits."""
        made = [one for one in alive if self._is_made[one]] or alive
        return bool(made) and bool(self._is_narrow[made].all())

    def _latest_is_narrow(self, size: int, row: int) -> bool:
        latest = self._latest(size, row)
        return latest >= 0 and bool(self._is_narrow[latest])

    def _alive(self, size: int, row: int) -> list[int]:
        """Return what is alive of a size, in the order of allocation."""
        alive = [one for one in self._of_size.get(size, ()) if self._lives.end[one] > row]
        self._of_size[size] = alive = alive[-_MOST_ALIKE:]
        return alive

    def _latest(self, size: int, row: int) -> int:
        return next(reversed(self._alive(size, row)), -1)

    def _float_inputs(self, call: int) -> tuple[int, ...] | None:
        """Return the bytes of an operator's inputs of 32 bits, as blocks have them; None if it takes no tensor."""
        if call not in self._read:
            recorded = RecordedCall.read(*self._calls.inputs(call), None)
            self._read[call] = None if recorded is None else self._sizes(recorded)
        return self._read[call]

    def _sizes(self, call: RecordedCall) -> tuple[int, ...] | None:
        pairs = list(zip(call.dims, call.types, call.lists, strict=False))
        # The types of a list's tensors are not recorded: they are recognised by their sizes alone.
        shapes = [dims for dims, kind, _ in pairs if dims and kind == _FLOAT]
        shapes += [dims for _, kind, dimss in pairs if kind == _LIST for dims in dimss or ()]
        if not shapes and not any(dims for dims, _, _ in pairs):
            return None
        return tuple(self._rounded(4 * math.prod(dims)) for dims in shapes)

    def _rounded(self, size: int) -> int:
        """Round up as blocks are, where no other size is known than the block's."""
        return size if self._case.memory.traced is None else -(-size // SMALLEST) * SMALLEST
