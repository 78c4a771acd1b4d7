"""Over which dimensions an operator can run in parallel, from its schema and the recorded shapes.

What is parallel follows from the operator's mathematics: elements of the result that do not depend on each other. Each
rule below reads the dimensions of a group of operators from their inputs, and returns None if they do not fit it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from opscope.knowledge.calls import RecordedCall, Shape
from opscope.knowledge.categories import Category
from opscope.knowledge.costs import broadcast, output_sides


class Parallelism(Struct, frozen=True):
    """What an operator computes, and over which dimensions that is independent.

    Attributes:
        parallel: dimensions of the result, by name; all their combinations are independent of each other.
        reduced: dimensions that are added up (or otherwise combined) for each element of the result.
        reason: why these are independent, in a sentence.
        unit: what the independent parts are, in words.
    """

    parallel: Mapping[str, int]
    reduced: Mapping[str, int]
    reason: str
    unit: str = "elements of the result"

    @property
    def elements(self) -> int:
        """How many elements of the result are independent."""
        return math.prod(self.parallel.values())


_Rule = Callable[[RecordedCall], Parallelism | None]


def parallelism(operator: str, category: Category, call: RecordedCall) -> Parallelism | None:
    """Return over which dimensions a call is parallel; None where no rule knows the operator.

    Args:
        operator: its name, such as ``aten::addmm``.
        category: what kind of work it does.
        call: its recorded inputs, with the argument names of its schema.
    """
    name = operator.removeprefix("aten::").removesuffix("_")
    # By name first: a category also holds operators that its rule does not fit.
    rule = _RULES.get(name) or (None if _combines(name) else _BY_CATEGORY.get(category))
    return None if rule is None else rule(call)


def _combines(name: str) -> bool:
    """Tell whether an operator combines elements or changes what they are, so that its category's rule does not fit."""
    return any(part in name for part in ("softmax", "glu", "prelu", "logical", "cross")) or name in _OTHER_RESULTS


def _product(first: str, second: str) -> _Rule:
    def rule(call: RecordedCall) -> Parallelism | None:
        a, b = call.shape(first), call.shape(second)
        if a is None or b is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            return None
        batch = math.prod(a[:-2])
        parallel = {"batch": batch} if batch > 1 else {}
        rows, depth, columns = a[-2], a[-1], b[-1]
        return Parallelism(
            {**parallel, "rows": rows, "columns": columns},
            {"depth": depth},
            "each element of the result is a sum of its own products over the depth",
        )

    return rule


def _linear(call: RecordedCall) -> Parallelism | None:
    a, weight = call.shape("input"), call.shape("weight")
    if a is None or weight is None or len(weight) != 2 or a[-1] != weight[1]:
        return None
    rows = math.prod(a[:-1])
    return Parallelism(
        {"rows": rows, "columns": weight[0]},
        {"depth": weight[1]},
        "each element of the result is a sum of its own products over the depth",
    )


def _convolution(call: RecordedCall) -> Parallelism | None:
    image, weight = call.shape("input") or call.shape("self"), call.shape("weight")
    stride, padding, dilation = (call.integers(name) for name in ("stride", "padding", "dilation"))
    if image is None or weight is None or len(image) != len(weight) or len(image) < 3:
        return None
    if stride is None or padding is None or dilation is None:
        return None
    # The output of a transposed convolution has other sizes than `output_sides` computes.
    if "transposed" in call.names and not call.says_no("transposed"):
        return None
    return _convolved(image, weight, (stride, padding, dilation))


def _convolved(image: Shape, weight: Shape, settings: tuple[Shape, Shape, Shape]) -> Parallelism:
    sides = output_sides(image, weight, *settings)
    parallel = {"batch": image[0], "output channels": weight[0], "output positions": math.prod(sides)}
    reduced = {"input channels": weight[1], "filter positions": math.prod(weight[2:])}
    return Parallelism(
        parallel,
        reduced,
        "each element of the result is a sum of its own products over input channels and filter positions",
    )


def _along(first: str) -> _Rule:
    """Return the rule of operators that combine rows along one dimension, such as softmax."""

    def rule(call: RecordedCall) -> Parallelism | None:
        shape, dims = call.shape(first), call.integers("dim")
        if not shape or dims is None or len(dims) != 1 or not -len(shape) <= dims[0] < len(shape):
            return None
        length = shape[dims[0]]
        return Parallelism(
            {"rows": math.prod(shape) // max(length, 1)},
            {"row length": length},
            "rows do not depend on each other; within a row all elements are combined first",
            unit="rows",
        )

    return rule


def _layer_norm(call: RecordedCall) -> Parallelism | None:
    shape, normalized = call.shape("input"), call.integers("normalized_shape")
    if not shape or not normalized or shape[-len(normalized) :] != normalized:
        return None
    length = math.prod(normalized)
    return Parallelism(
        {"rows": math.prod(shape) // max(length, 1)},
        {"row length": length},
        "rows do not depend on each other; within a row mean and variance are added up first",
        unit="rows",
    )


def _attention(heads: int, queries: int) -> _Rule:
    """Return the rule of attention.

    Args:
        heads: the position of the heads among the four dimensions of queries and keys.
        queries: the position of the sequence among them.
    """

    def rule(call: RecordedCall) -> Parallelism | None:
        query, key = call.shape("query"), call.shape("key")
        if query is None or key is None or len(query) != 4 or len(key) != 4:
            return None
        parallel = {"batch": query[0], "heads": query[heads], "query positions": query[queries]}
        return Parallelism(
            parallel,
            # Keys have their dimensions in the same order as queries.
            {"key positions": key[queries], "head dimension": query[3]},
            "each query attends to the keys of its own batch and head (a mask may leave some out); the softmax over "
            "keys is combined as they pass",
            unit="rows of the result",
        )

    return rule


def _embedding(call: RecordedCall) -> Parallelism | None:
    weight, indices = call.shape("weight"), call.shape("indices")
    if weight is None or indices is None or len(weight) != 2:
        return None
    count = math.prod(indices)
    return Parallelism(
        {"indices": count, "row length": weight[1]},
        {},
        "each index copies its own row",
    )


def _elementwise(call: RecordedCall) -> Parallelism | None:
    tensors = call.tensors()
    result = broadcast([shape for shape, _, _ in tensors])
    if result is None:
        return None
    return Parallelism(
        {"elements": math.prod(result)},
        {},
        "each element of the result depends on the elements at its own place only",
        unit="elements",
    )


def _copy(call: RecordedCall) -> Parallelism | None:
    shape = call.shape("self")
    if shape is None:
        return None
    return Parallelism(
        {"elements": math.prod(shape)},
        {},
        "each element is copied on its own",
        unit="elements",
    )


def _written(call: RecordedCall) -> Parallelism | None:
    shape = call.shape("self")
    if shape is None:
        return None
    return Parallelism(
        {"elements": math.prod(shape)},
        {},
        "each element is written on its own",
        unit="elements",
    )


def _reduction(call: RecordedCall) -> Parallelism | None:
    shape, dims = call.shape("self"), call.integers("dim")
    if not shape:
        return None
    if dims is None or not all(-len(shape) <= d < len(shape) for d in dims):
        dims = tuple(range(len(shape))) if len(call.dims) < 3 else None
    if dims is None:
        return None
    # An empty list of dimensions reduces all of them.
    along = {d % len(shape) for d in dims} or set(range(len(shape)))
    reduced = math.prod(shape[d] for d in along)
    return Parallelism(
        {"results": math.prod(shape) // max(reduced, 1)},
        {"elements per result": reduced},
        "each result combines its own elements; that is done as a tree, so it is parallel too",
        unit="results",
    )


# Names without "aten::" and without the "_" at the end of in-place operators.
_RULES: Final[Mapping[str, _Rule]] = {
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "_addmm_activation": _product("mat1", "mat2"),
    "linear": _linear,
    "convolution": _convolution,
    "_convolution": _convolution,
    "cudnn_convolution": _convolution,
    "copy": _copy,
    "_softmax": _along("self"),
    "_log_softmax": _along("self"),
    "_softmax_backward_data": _along("grad_output"),
    "_log_softmax_backward_data": _along("grad_output"),
    "native_layer_norm": _layer_norm,
    "_scaled_dot_product_flash_attention": _attention(1, 2),
    "_scaled_dot_product_efficient_attention": _attention(1, 2),
    "_scaled_dot_product_cudnn_attention": _attention(1, 2),
    "_flash_attention_forward": _attention(2, 1),
    "_efficient_attention_forward": _attention(2, 1),
    "embedding": _embedding,
    **dict.fromkeys(("fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential"), _written),
}
_OTHER_RESULTS: Final = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "where"}
    | {"vander", "div", "true_divide"}
)
_BY_CATEGORY: Final[Mapping[Category, _Rule]] = {
    Category.ELEMENTWISE: _elementwise,
    Category.ACTIVATION: _elementwise,
    Category.REDUCTION: _reduction,
}
