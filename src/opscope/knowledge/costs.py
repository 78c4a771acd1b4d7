"""What a call of an operator must do at least: floating-point operations and bytes, from its recorded inputs.

FLOPs count a multiplication and an addition as two, and equal those of ``torch.utils.flop_counter`` where that knows
the operator. Least bytes count each element of an input that is read once and each of the result once, so they are a
lower bound: repeated reads are not counted, and gathers count only what they touch.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern
from opscope.knowledge.calls import RecordedCall, Shape
from opscope.knowledge.categories import Category
from opscope.knowledge.dtypes import DataType, promoted, recorded_dtype


class Cost(Struct, frozen=True):
    """What one call must do at least.

    Attributes:
        least_bytes: bytes to be read and written; None if unknown.
        shared_bytes: the least bytes if inputs that look alike are one tensor, as in ``x * x``: profilers do not record
            whether they are. None where no two inputs look alike.
        flop: floating-point operations of matrix products, convolutions and attention; 0 for what makes none, None if
            unknown.
        least_flop: those that must really be done: a causal mask leaves half of them out. 0 where it is not known how
            many a mask leaves out.
        product: the sizes of a matrix product; None for other work.
        dtype: the data type of the operands of products, convolutions and attention; None if unknown.
    """

    least_bytes: int | None
    flop: int | None = 0
    least_flop: int | None = 0
    product: "Product | None" = None
    dtype: DataType | None = None
    shared_bytes: int | None = None


class Product(Struct, frozen=True):
    """The sizes of a matrix product: ``batch`` times ``rows`` x ``depth`` by ``depth`` x ``columns``."""

    rows: int
    columns: int
    depth: int
    batch: int = 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and depth."""
        return self.rows, self.columns, self.depth

    @property
    def text(self) -> str:
        """The sizes as people read them: ``8 x 128 x 64 by 64 x 128``."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.rows} x {self.depth} by {self.depth} x {self.columns}"

    @property
    def flop(self) -> int:
        """Floating-point operations: a multiplication and an addition per term."""
        return 2 * self.batch * self.rows * self.columns * self.depth


_Rule = Callable[[RecordedCall], Cost | None]


def cost_of(operator: str, category: Category, call: RecordedCall) -> Cost | None:
    """Return what a call must do at least; None where no rule knows the operator or its inputs were not recorded.

    Args:
        operator: its name, ``aten::addmm``.
        category: what kind of work it is.
        call: its recorded inputs, with the names of its schema.
    """
    if operator.startswith("triton_"):
        return _triton(call)
    name = operator.removeprefix("aten::")
    rule = _RULES.get(name) or _RULES.get(name.removesuffix("_"))
    if rule is None and not _other_result(name):
        rule = _BY_CATEGORY.get(category)
        if rule is _elementwise and name.endswith("_"):
            rule = _elementwise_in_place
    if rule is None or not call.is_strided():
        return None
    # Tensors without dimensions are single numbers: they move a byte at least.
    single = all(shape in (None, ()) for shape in call.dims) and not any(call.lists)
    return Cost(1) if single and any(recorded_dtype(name) for name in call.types) else rule(call)


def _other_result(name: str) -> bool:
    """Tell whether the rules for categories do not hold for an operator: its result is of another size than theirs."""
    return name.startswith("_foreach_") or any(
        part in name for part in ("glu", "prelu", "softmax", "cross", "cum", "trace")
    )


def _moved(dtype: DataType | None, *counts: int) -> int | None:
    return None if dtype is None else dtype.size_bytes * sum(counts)


def _total(sizes: Sequence[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)


# ---------------------------------------------------------------- matrix products


def _product(first: str, second: str, added: str | None = None) -> _Rule:
    def rule(call: RecordedCall) -> Cost | None:
        a, b = call.shape(first), call.shape(second)
        if a is None or b is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            return None
        product = Product(a[-2], b[-1], a[-1], math.prod(a[:-2]))
        dtype = call.dtype(first)
        written = product.batch * product.rows * product.columns
        parts = [call.bytes_of(first), call.bytes_of(second), _moved(dtype, written)]
        # With a beta of 0 the third matrix is not read.
        if added is not None and call.shape(added) is not None and call.number("beta") != 0:
            parts.append(call.bytes_of(added))
        total = _total(parts)
        # Both may be one tensor, as in x.T @ x, where its sides come in another order.
        same = sorted(a) == sorted(b) and call.dtype(second) == dtype and parts[0] == parts[1]
        shared = total - (parts[1] or 0) if same and total is not None else None
        return Cost(total, product.flop, product.flop, product, dtype, shared)

    return rule


def _linear(call: RecordedCall) -> Cost | None:
    a, weight = call.shape("input"), call.shape("weight")
    if a is None or weight is None or len(weight) != 2 or a[-1] != weight[1]:
        return None
    product = Product(math.prod(a[:-1]), weight[0], weight[1])
    dtype = call.dtype("input")
    parts = [call.bytes_of("input"), call.bytes_of("weight"), _moved(dtype, product.rows * product.columns)]
    return Cost(_total(parts), product.flop, product.flop, product, dtype)


def _matrix_vector(matrix: str, vector: str) -> _Rule:
    def rule(call: RecordedCall) -> Cost | None:
        a, x = call.shape(matrix), call.shape(vector)
        if a is None or x is None or len(a) != 2 or a[-1] != x[-1]:
            return None
        product = Product(a[0], 1, a[1])
        dtype = call.dtype(matrix)
        parts = [call.bytes_of(matrix), call.bytes_of(vector), _moved(dtype, a[0])]
        return Cost(_total(parts), product.flop, product.flop, product, dtype)

    return rule


def _scaled_product(call: RecordedCall) -> Cost | None:
    """Return the cost of a product of 8-bit operands: its result may be of any type, so one byte each is counted."""
    a, b = call.shape("self"), call.shape("mat2")
    if a is None or b is None or len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        return None
    product = Product(a[0], b[1], a[1])
    parts = [call.bytes_of("self"), call.bytes_of("mat2"), product.rows * product.columns]
    return Cost(_total(parts), product.flop, product.flop, product, call.dtype("self"))


# ---------------------------------------------------------------- convolutions


def _convolution(call: RecordedCall) -> Cost | None:
    image, weight = call.shape("input") or call.shape("self"), call.shape("weight")
    stride, padding, dilation = (call.integers(name) for name in ("stride", "padding", "dilation"))
    if image is None or weight is None or len(image) != len(weight) or len(image) < 3:
        return None
    if not stride or not padding or not dilation or 0 in stride:
        return None
    transposed = _is_transposed(call)
    if transposed is None:
        return None
    if transposed:
        return _convolution_transpose(call)
    sides = output_sides(image, weight, stride, padding, dilation)
    # Shapes of the weight: output channels, input channels of one group, then the sides of the filter.
    # Where steps are longer than the filter, not all of the image is read.
    read = math.prod(map(min, image[2:], [out * filter_ for out, filter_ in zip(sides, weight[2:], strict=True)]))
    image_bytes = call.bytes_of("input") or call.bytes_of("self")
    pixels: int = math.prod(image[2:])
    if image_bytes is not None and pixels:
        image_bytes = image_bytes * max(read, 0) // pixels
    written = image[0] * weight[0] * math.prod(sides)
    flop = 2 * image[0] * math.prod(sides) * math.prod(weight)
    dtype = call.dtype("weight")
    parts = [image_bytes, call.bytes_of("weight"), _moved(dtype, written)]
    return Cost(_total(parts), flop, flop, dtype=dtype)


def _is_transposed(call: RecordedCall) -> bool | None:
    """Tell whether a convolution is a transposed one; None where that was not recorded."""
    if "transposed" not in call.names or call.says_no("transposed"):
        return False
    return True if call.says_yes("transposed") else None


def _convolution_transpose(call: RecordedCall) -> Cost | None:
    """Return the cost of a transposed convolution: each element of the image meets every filter, at any stride."""
    # Shapes of the weight: input channels, output channels of one group, then the sides of the filter.
    image, weight = call.shape("input") or call.shape("self"), call.shape("weight")
    stride, padding, dilation, added = (
        call.integers(name) for name in ("stride", "padding", "dilation", "output_padding")
    )
    groups = call.number("groups")
    if image is None or weight is None or len(image) != len(weight) or len(image) < 3:
        return None
    if not stride or not padding or not dilation or not added or not groups:
        return None
    sides = [
        (image[2 + i] - 1) * _at(stride, i) - 2 * _at(padding, i) + _at(dilation, i) * (weight[2 + i] - 1)
        + _at(added, i) + 1
        for i in range(len(image) - 2)
    ]  # fmt: skip
    flop = 2 * image[0] * math.prod(image[2:]) * math.prod(weight)
    dtype = call.dtype("weight")
    written = image[0] * weight[1] * groups * math.prod(sides)
    parts = [call.bytes_of("input") or call.bytes_of("self"), call.bytes_of("weight"), _moved(dtype, written)]
    return Cost(_total(parts), flop, flop, dtype=dtype)


def output_sides(image: Shape, weight: Shape, stride: Shape, padding: Shape, dilation: Shape) -> list[int]:
    """Return the sides of what a convolution writes, without batch and channels.

    Args:
        image: the input's shape: batch, channels, sides.
        weight: the weight's shape, its last dimensions the sides of the filter.
        stride: per side; the last number holds for further sides, here and in the next two.
        padding: on both ends of each side.
        dilation: per side.
    """
    return [
        (image[2 + i] + 2 * _at(padding, i) - _at(dilation, i) * (weight[2 + i] - 1) - 1) // _at(stride, i) + 1
        for i in range(len(image) - 2)
    ]


def _at(values: Sequence[int], position: int) -> int:
    # One number may stand for all sides.
    return values[position] if position < len(values) else values[-1]


def _convolution_backward(call: RecordedCall) -> Cost | None:
    grad, image, weight = (call.shape(name) for name in ("grad_output", "input", "weight"))
    wanted = call.booleans("output_mask")
    if grad is None or image is None or weight is None or len(grad) < 3 or wanted is None or len(wanted) != 3:
        return None
    transposed = _is_transposed(call)
    if transposed is None:
        return None
    # Each of the two gradients takes as many operations as the forward pass. The mask: input, weight, bias.
    once = 2 * grad[0] * math.prod((image if transposed else grad)[2:]) * math.prod(weight)
    # PyTorch counts the gradient of the weight as if there were no groups.
    flop = once * (wanted[0] + wanted[1] * (call.number("groups") or 1))
    dtype = call.dtype("weight")
    grad_bytes, image_bytes, weight_bytes = (call.bytes_of(name) for name in ("grad_output", "input", "weight"))
    parts: list[int | None] = [grad_bytes]
    parts += [weight_bytes, image_bytes] if wanted[0] else []  # read the weight, write the image's gradient
    parts += [image_bytes, weight_bytes] if wanted[1] else []
    return Cost(_total(parts), flop, once * (wanted[0] + wanted[1]), dtype=dtype)


# Before PyTorch 1.11, backward passes of convolutions had operators of their own, and strides and paddings were not
# recorded. The sizes of one backward pass are all there: what goes in, the filters, and the gradient of what came out;
# so they give the costs of the forward pass and of both gradients.
_OLD_BACKWARD: Final = lazy_pattern(r"^aten::(?:cudnn|miopen|mkldnn)_convolution_backward$")
_OLD_PARTS: Final = lazy_pattern(r"^aten::(?:cudnn|miopen|mkldnn)_convolution(_backward_input|_backward_weight)?$")


class ConvolutionSizes(Struct, frozen=True):
    """What goes into a convolution, its filters, and what comes out."""

    image: Shape
    weight: Shape
    result: Shape

    @property
    def is_plain(self) -> bool:
        """Tell whether these can be the sizes of one that is not transposed, with any number of groups."""
        same = len(self.image) == len(self.weight) == len(self.result) >= 3
        return same and self.image[0] == self.result[0] and self.weight[0] == self.result[1]


def old_backward(operator: str, call: RecordedCall) -> ConvolutionSizes | None:
    """Return the sizes of the convolution whose backward pass is an operator of PyTorch before 1.11; else None."""
    if not _OLD_BACKWARD.search(operator) or len(call.dims) < 3:
        return None
    image, result, weight = call.dims[:3]
    sizes = ConvolutionSizes(image or (), weight or (), result or ())
    return sizes if sizes.is_plain else None


def old_convolution_cost(operator: str, call: RecordedCall, known: Iterable[ConvolutionSizes]) -> Cost | None:
    """Return the cost of a part of a convolution as PyTorch before 1.11 has them; None for other operators.

    Args:
        operator: its name, ``aten::cudnn_convolution_backward_weight``.
        call: its recorded inputs.
        known: the convolutions of the trace, by `old_backward`. One of them, and only one, must have these sizes.
    """
    part = _OLD_PARTS.search(operator)
    if part is None or len(call.dims) < 3 or len(call.types) < 2:
        return None
    first, second = (call.dims[0], call.dims[1]) if part[1] is None else (call.dims[1], call.dims[2])
    names = {None: ("image", "weight"), "_backward_input": ("result", "weight")}.get(part[1], ("result", "image"))
    fitting = {sizes for sizes in known if (getattr(sizes, names[0]), getattr(sizes, names[1])) == (first, second)}
    if len(fitting) != 1:
        return None
    (sizes,) = fitting
    dtype = recorded_dtype(call.types[1])
    flop = 2 * sizes.result[0] * math.prod(sizes.result[2:]) * math.prod(sizes.weight)
    moved = _moved(dtype, *(math.prod(shape) for shape in (sizes.image, sizes.weight, sizes.result)))
    return Cost(moved, flop, flop, dtype=dtype)


# ---------------------------------------------------------------- attention


# Arguments of calls on sequences of several lengths, and of calls that look at a part of the keys only.
_VARIABLE: Final = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "seqlen_k")
_WINDOWS: Final = ("window_size_left", "window_size_right", "window_size")


def _attention(queries: int = 2, heads: int = 1, *, products: int = 2, causal: str = "is_causal") -> _Rule:
    """Return the rule for attention.

    Args:
        queries: which dimension of query, key and value is the length of the sequence.
        heads: which one is the number of heads.
        products: how many matrix products it makes: two, or five in the backward pass.
        causal: the argument that says whether the mask is causal.
    """

    def rule(call: RecordedCall) -> Cost | None:
        query, key, value = (call.shape(name) for name in ("query", "key", "value"))
        if query is None or key is None or value is None or not len(query) == len(key) == len(value) == 4:
            return None
        pairs = query[0] * query[heads] * query[queries] * key[queries]
        with_keys, with_values = query[3], value[3]
        # Forward: scores and their product with the values. Backward: the scores again, and four gradients.
        flop = 2 * pairs * (with_keys + with_values if products == 2 else 3 * with_keys + 2 * with_values)
        read = [call.bytes_of(name) for name in ("query", "key", "value")]
        dtype = call.dtype("query")
        written = _moved(dtype, query[0] * query[heads] * query[queries] * value[3])
        # Backward: the inputs are read and their gradients written; the result and its gradient are read.
        moved = [*read, written] if products == 2 else [*read, *read, written, written]
        if any(call.gives(name) for name in _VARIABLE) or any((call.number(n) or -1) >= 0 for n in _WINDOWS):
            return Cost(_total(moved), None, 0, dtype=dtype)  # sequences of several lengths, or part of the keys
        # A query sees the keys up to its own place: (n + 1) / 2 of n on average.
        masked = not call.says_no(causal) and causal in call.names
        least = flop * (query[queries] + 1) // (2 * max(query[queries], 1)) if masked else flop
        if masked and query[queries] != key[queries]:
            least = 0  # how much such a mask leaves out depends on how it is aligned
        return Cost(_total(moved), flop, least, dtype=dtype)

    return rule


# ---------------------------------------------------------------- rows and elements


def _read_and_written(first: str, *, reads: int = 1, writes: int = 1) -> _Rule:
    """Return the rule for work that reads and writes tensors of the size of one argument."""

    def rule(call: RecordedCall) -> Cost | None:
        size = call.bytes_of(first)
        return None if size is None else Cost((reads + writes) * size)

    return rule


def _softmax_backward(call: RecordedCall) -> Cost | None:
    """Return the cost: two tensors are read, and one is written whose elements may have 16 bits only."""
    shape, size = call.shape("grad_output"), call.bytes_of("grad_output")
    if shape is None or size is None:
        return None
    return Cost(2 * size + min(size, 2 * math.prod(shape)))


def _read(name: str) -> _Rule:
    return _read_and_written(name, reads=1, writes=0)


def _written(call: RecordedCall) -> Cost | None:
    size = call.bytes_of("self")
    return None if size is None else Cost(size)


def _of_all(names: Sequence[str], written: str | None = None) -> _Rule:
    """Return the rule for work that moves each of these arguments once, and writes a tensor of the size of another."""

    def rule(call: RecordedCall) -> Cost | None:
        parts = [call.bytes_of(name) for name in names]
        parts += [] if written is None else [call.bytes_of(written)]
        total = _total(parts)
        return None if total is None else Cost(total)

    return rule


def _elementwise(call: RecordedCall) -> Cost | None:
    tensors = call.tensors()
    result = broadcast([shape for shape, _, _ in tensors])
    read = _total([size for _, _, size in tensors])
    dtype = promoted([dtype for _, dtype, _ in tensors])
    if result is None or read is None or dtype is None:
        return None
    # The type of the result is not recorded: where inputs have several, the smallest is counted.
    # A condition, or a mask, says nothing of the result.
    kinds = {d for _, d, _ in tensors if d is not None and (d.torch != "bool" or dtype.torch == "bool")}
    each = min(dtype.size_bytes, *(d.size_bytes for d in kinds))
    if len(kinds) == 1:
        each = dtype.size_bytes
    if not dtype.is_floating_point:  # of whole numbers the result may be float32, of complex ones real
        each = min(each, each // 2 if dtype.torch.startswith("complex") else 4)
    written = each * math.prod(result)
    different = sum(size for _, _, size in set(tensors) if size is not None)
    return Cost(read + written, shared_bytes=different + written if different < read else None)


def _elementwise_in_place(call: RecordedCall) -> Cost | None:
    """Return the cost of an in-place operator: what it writes has shape and type of the first tensor."""
    tensors = call.tensors()
    read = _total([size for _, _, size in tensors])
    if read is None or not tensors or tensors[0][2] is None:
        return None
    different = sum(size for _, _, size in set(tensors) if size is not None)
    written = tensors[0][2]
    return Cost(read + written, shared_bytes=different + written if different < read else None)


def _compared(call: RecordedCall) -> Cost | None:
    """Return the cost of a comparison: its result has one byte an element."""
    tensors = call.tensors()
    result, read = broadcast([shape for shape, _, _ in tensors]), _total([size for _, _, size in tensors])
    if result is None or read is None:
        return None
    different = sum(size for _, _, size in set(tensors) if size is not None)
    shared = different + math.prod(result) if different < read else None
    return Cost(read + math.prod(result), shared_bytes=shared)


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that tensors of these shapes broadcast to; None where they do not fit, or there are none."""
    if not shapes:
        return None
    # Shapes are aligned at their last sides, so they are walked from the end.
    sides = []
    for place in range(1, max(map(len, shapes)) + 1):
        result = {shape[-place] for shape in shapes if len(shape) >= place} - {1}
        if len(result) > 1:
            return None
        sides.append(result.pop() if result else 1)
    return tuple(reversed(sides))


def _dropout(call: RecordedCall) -> Cost | None:
    """Return the cost: the result and a mask of one byte an element are written."""
    shape, size = call.shape("input"), call.bytes_of("input")
    return None if shape is None or size is None else Cost(2 * size + math.prod(shape))


def _embedding(call: RecordedCall) -> Cost | None:
    weight, indices, dtype = call.shape("weight"), call.shape("indices"), call.dtype("weight")
    if weight is None or indices is None or len(weight) != 2 or dtype is None:
        return None
    rows = math.prod(indices)
    # Equal indices read one row; what is written is certain.
    return Cost((rows + min(rows, 1)) * weight[1] * dtype.size_bytes + (call.bytes_of("indices") or 0))


def _selected(call: RecordedCall) -> Cost | None:
    """Return the cost of ``index_select``: one slice per index is written; all indices may read the same one."""
    shape, index, dtype, dim = call.shape("self"), call.shape("index"), call.dtype("self"), call.number("dim")
    if shape is None or index is None or dtype is None or dim is None or not -len(shape) <= dim < len(shape):
        return None
    slices = math.prod(side for place, side in enumerate(shape) if place != dim % len(shape))
    rows = math.prod(index)
    return Cost((rows + min(rows, 1)) * slices * dtype.size_bytes + (call.bytes_of("index") or 0))


def _embedding_backward(call: RecordedCall) -> Cost | None:
    """Return the cost: a gradient is written for every row, zeros where no index asked for one."""
    grad, rows, dtype = call.shape("grad_output"), call.number("num_weights"), call.dtype("grad_output")
    read = _total([call.bytes_of("grad_output"), call.bytes_of("indices")])
    if grad is None or rows is None or dtype is None or read is None:
        return None
    return Cost(read + rows * grad[-1] * dtype.size_bytes)


def _gathered(call: RecordedCall) -> Cost | None:
    """Return the cost of ``gather``: one element per index is written; all indices may read the same one."""
    index, dtype, size = call.shape("index"), call.dtype("self"), call.bytes_of("index")
    if index is None or dtype is None or size is None:
        return None
    return Cost(size + math.prod(index) * dtype.size_bytes)


def _loss_of_classes(call: RecordedCall) -> Cost | None:
    """Return the cost: in each row, the one element that the target names is read or written."""
    target, dtype, size = call.shape("target"), call.dtype("self"), call.bytes_of("target")
    return (
        None if target is None or dtype is None or size is None else Cost(size + math.prod(target) * dtype.size_bytes)
    )


def _pooling(call: RecordedCall) -> Cost | None:
    """Return the cost of pooling: what it reads; None where windows lie apart, so that it does not read everything."""
    size = call.bytes_of("self")
    kernel, stride = call.integers("kernel_size"), call.integers("stride")
    if size is None or not kernel:
        return None
    skips = any(step > side for step, side in zip(stride or kernel, kernel, strict=False))
    return None if skips else Cost(size)


def _joined(call: RecordedCall) -> Cost | None:
    """Return the cost of joining tensors: their type is not recorded, so one byte an element is counted."""
    shapes = call.shapes("tensors")
    return None if shapes is None else Cost(2 * sum(math.prod(shape) for shape in shapes))


def _normalized_backward(call: RecordedCall) -> Cost | None:
    parts = [call.bytes_of("grad_out") or call.bytes_of("grad_output"), call.bytes_of("input")]
    wanted = call.booleans("output_mask")
    total = _total([*parts, parts[1]] if wanted is None or wanted[0] else parts)
    return None if total is None else Cost(total)


def _triton(call: RecordedCall) -> Cost | None:
    """Return the cost of Inductor's kernels: each tensor argument once, but no more of it than the kernel has elements.

    The last arguments are the sizes of its loops; a tensor that is larger is gathered from.
    """
    numbers = [value for value in call.values if isinstance(value, str) and value.isdecimal() and len(value) <= 12]
    sizes = [int(value) for value in numbers if int(value) > 0]
    most = math.prod(sizes) if sizes else None
    total = 0
    for _, dtype, size in call.tensors():
        if dtype is None or size is None:
            return None
        elements = size // dtype.size_bytes
        total += dtype.size_bytes * (elements if most is None else min(elements, most))
    return Cost(total) if total else None


_RULES: Final[Mapping[str, _Rule]] = {
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2", "self"),
    "baddbmm": _product("batch1", "batch2", "self"),
    "_addmm_activation": _product("mat1", "mat2", "self"),
    "_int_mm": _product("self", "mat2"),
    "_scaled_mm": _scaled_product,
    "linear": _linear,
    "mv": _matrix_vector("self", "vec"),
    "addmv": _matrix_vector("mat", "vec"),
    "dot": _read("self"),
    **dict.fromkeys(
        (
            *("convolution", "_convolution", "cudnn_convolution", "miopen_convolution", "convolution_overrideable"),
            *("_conv_depthwise2d", "conv_depthwise3d", "miopen_depthwise_convolution", "mkldnn_convolution"),
            *("_slow_conv2d_forward", "cudnn_convolution_relu"),
        ),
        _convolution,
    ),
    "cudnn_convolution_transpose": _convolution_transpose,
    "miopen_convolution_transpose": _convolution_transpose,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
            *("_scaled_dot_product_cudnn_attention", "_cudnn_attention_forward"),
            "_scaled_dot_product_flash_attention_for_cpu",
        ),
        _attention(),
    ),
    "_flash_attention_forward": _attention(1, 2),
    "_efficient_attention_forward": _attention(1, 2, causal="custom_mask_type"),
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward"),
            *("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward"),
            "_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        _attention(products=5),
    ),
    "_flash_attention_backward": _attention(1, 2, products=5),
    "_efficient_attention_backward": _attention(1, 2, products=5, causal="custom_mask_type"),
    "copy": _of_all(("self", "src")),
    **dict.fromkeys(("fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential"), _written),
    "_softmax": _read_and_written("self"),
    "_log_softmax": _read_and_written("self"),
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "native_layer_norm": _read_and_written("input"),
    "_fused_rms_norm": _read_and_written("input"),
    "native_group_norm": _read_and_written("input"),
    "native_batch_norm": _read_and_written("input"),
    "cudnn_batch_norm": _read_and_written("input"),
    "miopen_batch_norm": _read_and_written("input"),
    "_batch_norm_impl_index": _read_and_written("input"),
    **dict.fromkeys(
        (
            *("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"),
            *("cudnn_batch_norm_backward", "miopen_batch_norm_backward", "_fused_rms_norm_backward"),
        ),
        _normalized_backward,
    ),
    "native_dropout": _dropout,
    "native_dropout_backward": _of_all(("grad_output", "mask"), "grad_output"),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "gather": _gathered,
    "index_select": _selected,
    "nll_loss_forward": _loss_of_classes,
    "nll_loss_backward": _loss_of_classes,
    "max_pool2d_with_indices": _pooling,
    "avg_pool2d": _pooling,
    "max_pool2d_with_indices_backward": _of_all(("grad_output", "self", "indices")),
    "avg_pool2d_backward": _of_all(("grad_output", "self")),
    "cat": _joined,
    "cumsum": _read_and_written("self"),
    "cumprod": _read_and_written("self"),
    "sort": _read_and_written("self"),
    "topk": _read("self"),
    "_local_scalar_dense": lambda _: Cost(1),
    **dict.fromkeys(
        (
            *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"),
            *("logical_and", "logical_or", "logical_not", "logical_xor"),
        ),
        _compared,
    ),
}
_BY_CATEGORY: Final[Mapping[Category, _Rule]] = {
    Category.ELEMENTWISE: _elementwise,
    Category.ACTIVATION: _elementwise,
    Category.REDUCTION: _read("self"),
}

# ---------------------------------------------------------------- by the kernel, where no shapes are recorded

# template <template<class> class FunctorName, ...> multi_tensor_apply_kernel<TensorListMetadata<DEPTH>, Functor<...>>
_MULTI_TENSOR: Final = lazy_pattern(
    r"multi_tensor_apply_kernel<[^<]*Metadata<(?:[\w:]+, )?(?P<depth>\d)>,\s*(?:[^)]*\)::)?(?P<rest>.+)"
)
_CHUNK: Final = 65_536  # elements that a thread block works on (aten/src/ATen/native/cuda/MultiTensorApply.cuh)
# By depth, how many tensors one launch takes at most (the same file).
_MOST_TENSORS: Final = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_READ_LISTS: Final = lazy_pattern(r"Functor<(?P<type>[\w:]+), \d, (?P<read>\d), \d")
_FUSED: Final = lazy_pattern(r"Fused(?:Adam|Adagrad|Sgd)MathFunctor<(?P<type>[\w:]+), \d")


def multi_tensor_cost(kernel: str, blocks: int) -> Cost | None:
    """Return what one launch of a ``_foreach_`` or fused optimiser's kernel moves at least; None for other kernels.

    Profilers record no shapes of long lists of tensors. Each thread block works on a chunk of one tensor, and only the
    last chunk of a tensor can be less than full.

    Args:
        kernel: its name.
        blocks: thread blocks of the launch.
    """
    match = _MULTI_TENSOR.search(kernel)
    if match is None:
        return None
    # The depth is the number of lists. Each of the launch's tensors may have one chunk that is not full, so as many
    # thread blocks as it takes tensors are left out.
    depth = int(match["depth"])
    full = max(blocks - _MOST_TENSORS.get(depth, 0), 0)
    by_functor, fused = _READ_LISTS.search(match["rest"]), _FUSED.search(match["rest"])
    if fused is not None:
        # All are read, and all but the gradients are written.
        moved, element = 2 * depth - 1, _ELEMENT_BYTES.get(fused["type"])
    elif by_functor is not None:
        reads = 0 if "ZeroFunctor" in match["rest"] else int(by_functor["read"])
        moved, element = reads + 1, _ELEMENT_BYTES.get(by_functor["type"])
    else:
        return None
    return None if element is None else Cost(full * _CHUNK * moved * element)


_ELEMENT_BYTES: Final = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2}
