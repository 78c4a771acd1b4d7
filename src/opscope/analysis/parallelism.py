"""Over which dimensions an operator can run in parallel, from its schema and the recorded shapes.

What is parallel follows from the operator's mathematics: elements of the result that do not depend on each other. The
rules below say for each group of operators which inputs these dimensions are read from.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """What an operator computes, and over which dimensions that is independent.

    Attributes:
        parallel: dimensions of the result, by name; all their combinations are independent of each other.
        reduced: dimensions that are added up (or otherwise combined) for each element of the result.
        reason: why, in a sentence.
        unit: what is independent of each other, in words.
        flop: floating-point operations, a multiplication and an addition counted as two; None where no product is made.
        least_bytes: bytes that must at least be read and written, each input and the result once; None if unknown.
    """

    parallel: Mapping[str, int]
    reduced: Mapping[str, int]
    reason: str
    unit: str = "elements of the result"
    flop: int | None = None
    least_bytes: int | None = None

    @property
    def elements(self) -> int:
        """How many elements of the result are independent."""
        return math.prod(self.parallel.values())


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The inputs of one call as recorded: ``dims`` and ``types`` per argument, ``values`` of what is no tensor."""

    dims: tuple[Shape | None, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    strides: tuple[Shape | None, ...] = ()

    @classmethod
    def read(
        cls, dims: str | None, types: str | None, values: str | None, strides: str | None = None
    ) -> "RecordedCall | None":
        """Read what the tables hold as JSON text; None where shapes were not recorded or are not plain."""
        try:
            read_dims = json.loads(dims or "null")
            read_types, read_values = json.loads(types or "null"), json.loads(values or "null")
            read_strides = json.loads(strides or "null")
        except ValueError:
            return None
        if not isinstance(read_dims, list) or not isinstance(read_types, list):
            return None
        shapes = tuple(tuple(d) if _is_shape(d) else None for d in read_dims)
        values_known, strides_known = isinstance(read_values, list), isinstance(read_strides, list)
        return cls(
            shapes,
            tuple(read_types),
            tuple(read_values) if values_known else (),
            tuple(tuple(s) if _is_shape(s) else None for s in read_strides) if strides_known else (),
        )

    def shape(self, position: int) -> Shape | None:
        """Return an argument's shape; None where it is no tensor."""
        return self.dims[position] if position < len(self.dims) and self.dims[position] else None

    def says_no(self, position: int) -> bool:
        """Tell whether an argument was recorded as False or 0."""
        return position < len(self.values) and self.values[position] in ("False", "0")

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return an argument that is an integer or a list of them."""
        try:
            value = json.loads(self.values[position])
        except (IndexError, ValueError):
            return None
        if isinstance(value, int):
            return (value,)
        return tuple(value) if isinstance(value, list) and all(isinstance(item, int) for item in value) else None

    def bytes_of(self, position: int) -> int | None:
        """Return how many bytes a tensor argument takes in memory; an expanded side takes no more than one element."""
        shape, size = (
            self.shape(position),
            ELEMENT_BYTES.get(self.types[position] if position < len(self.types) else ""),
        )
        if shape is None or size is None:
            return None
        steps = self.strides[position] if position < len(self.strides) else None
        expanded = steps is not None and len(steps) == len(shape)
        return size * math.prod(1 if expanded and steps and steps[i] == 0 else side for i, side in enumerate(shape))


Rule = Callable[[RecordedCall], Parallelism | None]
ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "short int": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(side, int) and side >= 0 for side in value)


def parallelism(operator: str, category: str, call: RecordedCall) -> Parallelism | None:
    """Return over which dimensions a call is parallel; None where no rule knows the operator.

    Args:
        operator: its name, ``aten::addmm``.
        category: what kind of work it is, as `opscope.knowledge.categories.Category` names it.
        call: its recorded inputs.
    """
    name = operator.removeprefix("aten::").removesuffix("_")
    rule = _RULES.get(name) or (None if _combines(name) else _BY_CATEGORY.get(category))
    return None if rule is None else rule(call)


def _combines(name: str) -> bool:
    """Tell what combines elements, or gives elements of another size, from what works on each alone."""
    return any(part in name for part in ("softmax", "glu", "prelu", "logical", "cross")) or name in _OTHER_RESULTS


def _product(first: int, second: int) -> Rule:
    def rule(call: RecordedCall) -> Parallelism | None:
        a, b = call.shape(first), call.shape(second)
        if a is None or b is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            return None
        batch = math.prod(a[:-2])
        parallel = {"batch": batch} if batch > 1 else {}
        rows, depth, columns = a[-2], a[-1], b[-1]
        size = ELEMENT_BYTES.get(call.types[first])
        least = None if size is None else batch * (rows * depth + depth * columns + rows * columns) * size
        return Parallelism(
            {**parallel, "rows": rows, "columns": columns},
            {"depth": depth},
            "each element of the result is a sum of its own products over the depth",
            flop=2 * batch * rows * columns * depth,
            least_bytes=least,
        )

    return rule


def _linear(call: RecordedCall) -> Parallelism | None:
    a, weight = call.shape(0), call.shape(1)
    if a is None or weight is None or len(weight) != 2 or a[-1] != weight[1]:
        return None
    rows = math.prod(a[:-1])
    return Parallelism(
        {"rows": rows, "columns": weight[0]},
        {"depth": weight[1]},
        "each element of the result is a sum of its own products over the depth",
        flop=2 * rows * weight[0] * weight[1],
    )


def _convolution(stride_at: int, padding_at: int, dilation_at: int, transposed_at: int = 0) -> Rule:
    def rule(call: RecordedCall) -> Parallelism | None:
        image, weight = call.shape(0), call.shape(1)
        stride, padding, dilation = (call.integers(place) for place in (stride_at, padding_at, dilation_at))
        if image is None or weight is None or len(image) != len(weight) or len(image) < 3:
            return None
        if stride is None or padding is None or dilation is None or (transposed_at and not call.says_no(transposed_at)):
            return None
        return _convolved(image, weight, (stride, padding, dilation))

    return rule


def _convolved(image: Shape, weight: Shape, settings: tuple[Shape, Shape, Shape]) -> Parallelism:
    stride, padding, dilation = settings
    space = len(image) - 2
    sides = [
        (image[2 + i] + 2 * _at(padding, i) - _at(dilation, i) * (weight[2 + i] - 1) - 1) // _at(stride, i) + 1
        for i in range(space)
    ]
    parallel = {"batch": image[0], "output channels": weight[0], "output positions": math.prod(sides)}
    reduced = {"input channels": weight[1], "filter positions": math.prod(weight[2:])}
    return Parallelism(
        parallel,
        reduced,
        "each element of the result is a sum of its own products over input channels and filter positions",
        flop=2 * math.prod(parallel.values()) * math.prod(reduced.values()),
    )


def _at(values: Sequence[int], position: int) -> int:
    return values[position] if position < len(values) else values[-1]


def _along(position: int, tensors: int = 2) -> Rule:
    """Rows that are combined along one dimension each, such as softmax, reading and writing so many tensors."""

    def rule(call: RecordedCall) -> Parallelism | None:
        shape, dims = call.shape(0), call.integers(position)
        if not shape or dims is None or len(dims) != 1 or not -len(shape) <= dims[0] < len(shape):
            return None
        length = shape[dims[0]]
        return Parallelism(
            {"rows": math.prod(shape) // max(length, 1)},
            {"row length": length},
            "rows do not depend on each other; within a row all elements are combined first",
            unit="rows",
            least_bytes=_times(call, tensors),
        )

    return rule


def _times(call: RecordedCall, tensors: int) -> int | None:
    size = call.bytes_of(0)
    return None if size is None else tensors * size


def _layer_norm(call: RecordedCall) -> Parallelism | None:
    shape, normalized = call.shape(0), call.integers(1)
    if not shape or not normalized or shape[-len(normalized) :] != normalized:
        return None
    length = math.prod(normalized)
    return Parallelism(
        {"rows": math.prod(shape) // max(length, 1)},
        {"row length": length},
        "rows do not depend on each other; within a row mean and variance are added up first",
        unit="rows",
        least_bytes=_times(call, 2),
    )


def _attention(heads: int, queries: int, causal_at: int) -> Rule:
    def rule(call: RecordedCall) -> Parallelism | None:
        query, key = call.shape(0), call.shape(1)
        if query is None or key is None or len(query) != 4 or len(key) != 4:
            return None
        parallel = {"batch": query[0], "heads": query[heads], "query positions": query[queries]}
        inner = key[queries] * query[3]
        return Parallelism(
            parallel,
            {"key positions": key[queries], "head dimension": query[3]},
            "each query attends to the keys of its own batch and head (a mask may leave some out); the softmax over "
            "keys is combined as they pass",
            unit="rows of the result",
            # A causal mask leaves keys out.
            flop=4 * math.prod(parallel.values()) * inner if call.says_no(causal_at) else None,
        )

    return rule


def _embedding(call: RecordedCall) -> Parallelism | None:
    weight, indices = call.shape(0), call.shape(1)
    if weight is None or indices is None or len(weight) != 2:
        return None
    size = ELEMENT_BYTES.get(call.types[0])
    count = math.prod(indices)
    return Parallelism(
        {"indices": count, "row length": weight[1]},
        {},
        "each index copies its own row",
        least_bytes=None if size is None else count * weight[1] * size,  # rows that are read may be the same
    )


def _elementwise(call: RecordedCall) -> Parallelism | None:
    shapes = [shape for shape in call.dims if shape]
    result = _broadcast(shapes)
    if result is None:
        return None
    sizes = [call.bytes_of(i) for i, shape in enumerate(call.dims) if shape]
    size = ELEMENT_BYTES.get(next((t for t, shape in zip(call.types, call.dims, strict=False) if shape), ""))
    known = [value for value in sizes if value is not None]
    count = math.prod(result)
    return Parallelism(
        {"elements": count},
        {},
        "each element of the result depends on the elements at its own place only",
        unit="elements",
        least_bytes=None if size is None or len(known) != len(sizes) else sum(known) + count * size,
    )


def _copy(call: RecordedCall) -> Parallelism | None:
    shape, written, read = call.shape(0), call.bytes_of(0), call.bytes_of(1)
    if shape is None:
        return None
    return Parallelism(
        {"elements": math.prod(shape)},
        {},
        "each element is copied on its own",
        unit="elements",
        least_bytes=None if written is None or read is None else written + read,
    )


def _written(call: RecordedCall) -> Parallelism | None:
    shape = call.shape(0)
    if shape is None:
        return None
    return Parallelism(
        {"elements": math.prod(shape)},
        {},
        "each element is written on its own",
        unit="elements",
        least_bytes=call.bytes_of(0),
    )


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    if not shapes:
        return None
    sides = []
    for place in range(1, max(map(len, shapes)) + 1):
        found = {shape[-place] for shape in shapes if len(shape) >= place} - {1}
        if len(found) > 1:
            return None
        sides.append(found.pop() if found else 1)
    return tuple(reversed(sides))


def _reduction(call: RecordedCall) -> Parallelism | None:
    shape, dims = call.shape(0), call.integers(1)
    if not shape:
        return None
    if dims is None or not all(-len(shape) <= d < len(shape) for d in dims):
        dims = tuple(range(len(shape))) if len(call.dims) < 3 else None
    if dims is None:
        return None
    along = {d % len(shape) for d in dims} or set(range(len(shape)))
    reduced = math.prod(shape[d] for d in along)
    return Parallelism(
        {"results": math.prod(shape) // max(reduced, 1)},
        {"elements per result": reduced},
        "each result combines its own elements; that is done as a tree, so it is parallel too",
        unit="results",
        least_bytes=call.bytes_of(0),
    )


_RULES: Final[Mapping[str, Rule]] = {
    "mm": _product(0, 1),
    "bmm": _product(0, 1),
    "addmm": _product(1, 2),
    "baddbmm": _product(1, 2),
    "_addmm_activation": _product(1, 2),
    "linear": _linear,
    "convolution": _convolution(3, 4, 5, transposed_at=6),
    "_convolution": _convolution(3, 4, 5, transposed_at=6),
    "cudnn_convolution": _convolution(3, 2, 4),
    "copy": _copy,
    "_softmax": _along(1),
    "_log_softmax": _along(1),
    "_softmax_backward_data": _along(2, tensors=3),
    "_log_softmax_backward_data": _along(2, tensors=3),
    "native_layer_norm": _layer_norm,
    "_scaled_dot_product_flash_attention": _attention(1, 2, causal_at=4),
    "_scaled_dot_product_efficient_attention": _attention(1, 2, causal_at=6),
    "_scaled_dot_product_cudnn_attention": _attention(1, 2, causal_at=6),
    "_flash_attention_forward": _attention(2, 1, causal_at=8),
    "_efficient_attention_forward": _attention(2, 1, causal_at=9),
    "embedding": _embedding,
    **dict.fromkeys(("fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential"), _written),
}
_OTHER_RESULTS: Final = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "where"}
    | {"vander", "div", "true_divide"}
)
_BY_CATEGORY: Final[Mapping[str, Rule]] = {
    "Elementwise": _elementwise,
    "Activation": _elementwise,
    "Reduction": _reduction,
}
