"""What a device accepts of a launch, and how full it is then: limits of block and registers, theoretical occupancy.

Also over which dimensions an operator can run in parallel.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.costs.sums import LaunchShape
from opscope.documents.build import OccupancyEntry
from opscope.knowledge.calls import RecordedCall, Shape
from opscope.knowledge.categories import Category
from opscope.knowledge.costs import broadcast, output_sides
from opscope.knowledge.devices import ComputeCapability, MultiprocessorLimits, compute_capabilities
from opscope.trace.model import DeviceProperties

# ---------------------------------------------------------------- parallelism of operators
# Elements of the result that do not depend on each other can be computed in parallel. Each rule below reads the
# dimensions of a group of operators from their inputs, and returns None if they do not fit it.


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


# ---------------------------------------------------------------- occupancy


WARP: Final = 32  # threads
_REGISTER_UNIT = 256  # a warp gets registers in multiples of this
_WARPS_PER_PARTITION = 4  # registers suffice for warps in multiples of this, one per quarter of a multiprocessor
Dimensions = tuple[int, int, int]
_GRID: Final = (2**31 - 1, 65_535, 65_535)
_BLOCK: Final = (1024, 1024, 64)
_THREADS: Final = 1024
_REGISTERS: Final = 65_536
_REGISTERS_PER_THREAD: Final = 255
_WITHOUT_ASKING: Final = 48 << 10  # bytes of shared memory; for more a kernel has to opt in
_AXES: Final = "xyz"


class Occupancy(Struct, frozen=True):
    """How many thread blocks of a launch one multiprocessor holds at a time.

    Attributes:
        blocks_per_multiprocessor: the number of these blocks.
        warps_per_multiprocessor: the warps of these blocks.
        percent: these warps as a percentage of the most that the multiprocessor holds.
        limiter: what allows no further block: ``threads``, ``blocks``, ``registers`` or ``shared memory``; several are
            joined by " and ".
        waves: thread blocks of the launch per thread blocks that the whole device holds; None where the number of
            multiprocessors is unknown. Below 1 the device is not filled once.
    """

    blocks_per_multiprocessor: int
    warps_per_multiprocessor: int
    percent: float
    limiter: str
    waves: float | None

    @property
    def tail(self) -> float | None:
        """The share of the places in all waves that the last wave leaves empty; None where waves are unknown."""
        return None if self.waves is None else 1 - self.waves / math.ceil(self.waves)


def occupancy(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    registers_per_thread: int,
    shared_memory_bytes: int,
    device: DeviceProperties,
) -> Occupancy | None:
    """Compute the theoretical occupancy of a launch.

    Formulas: CUDA C++ Programming Guide, "Multiprocessor Level" and the occupancy calculator.

    Args:
        grid: thread blocks along x, y and z.
        block: threads of a block along x, y and z.
        registers_per_thread: below 1, registers set no limit.
        shared_memory_bytes: static and dynamic shared memory of a block together.
        device: what is known of it; its own figures replace those of its compute capability.

    Returns:
        The occupancy; None where the compute capability is not known, or the device cannot run the launch at all.
    """
    limits = _limits(device)
    threads = block[0] * block[1] * block[2]
    if limits is None or threads < 1:
        return None
    warps = -(-threads // WARP)
    most_warps = limits.threads // WARP
    bounds = {
        "threads": most_warps // warps,
        "blocks": limits.blocks,
        "registers": _by_registers(warps, registers_per_thread, limits),
        "shared memory": _by_shared_memory(shared_memory_bytes, limits),
    }
    blocks = min(bounds.values())
    if blocks < 1:
        return None
    resident = blocks * (device.multiprocessors or 0)
    return Occupancy(
        blocks_per_multiprocessor=blocks,
        warps_per_multiprocessor=blocks * warps,
        percent=100 * blocks * warps / most_warps,
        limiter=" and ".join(name for name, bound in bounds.items() if bound == blocks),
        waves=grid[0] * grid[1] * grid[2] / resident if resident else None,
    )


def entry_of(result: Occupancy | None) -> OccupancyEntry | None:
    """Return an occupancy as documents hold it."""
    if result is None:
        return None
    return OccupancyEntry(result.percent, result.blocks_per_multiprocessor, result.limiter, result.waves, result.tail)


def occupancy_of(launch: LaunchShape, device: DeviceProperties | None) -> Occupancy | None:
    """Compute the theoretical occupancy of a recorded launch; None where it cannot run or too little was recorded."""
    grid, block = dimensions(launch.grid), dimensions(launch.block)
    if device is None or grid is None or block is None or launch.registers_per_thread is None:
        return None
    return occupancy(grid, block, launch.registers_per_thread, launch.shared_memory_bytes or 0, device)


def _limits(device: DeviceProperties) -> MultiprocessorLimits | None:
    """Return the limits of a device: what the trace records of it, else those of its compute capability."""
    known = compute_capabilities().get(device.compute_capability or "")
    if known is None:
        return None
    limits = known.multiprocessor
    return replace(
        limits,
        threads=device.threads_per_multiprocessor or limits.threads,
        registers=device.registers_per_multiprocessor or limits.registers,
        shared_memory_bytes=device.shared_memory_per_multiprocessor_bytes or limits.shared_memory_bytes,
    )


def registers_of_warp(registers_per_thread: int) -> int:
    """Return how many registers a warp is given."""
    return -(-registers_per_thread * WARP // _REGISTER_UNIT) * _REGISTER_UNIT


def warps_by_registers(registers_per_thread: int, registers: int) -> int:
    """Return how many warps a multiprocessor's registers suffice for; each quarter of it has registers of its own."""
    return registers // registers_of_warp(registers_per_thread) // _WARPS_PER_PARTITION * _WARPS_PER_PARTITION


def _by_registers(warps: int, registers_per_thread: int, limits: MultiprocessorLimits) -> int:
    # Registers that are not known, or not used, set no limit of their own.
    if registers_per_thread < 1:
        return limits.blocks
    return warps_by_registers(registers_per_thread, limits.registers) // warps


def _by_shared_memory(used: int, limits: MultiprocessorLimits) -> int:
    # The system takes a part for each block, and a block gets whole units.
    per_block = used + limits.reserved_shared_memory_bytes
    if per_block < 1:
        return limits.blocks
    unit = limits.shared_memory_unit_bytes
    return limits.shared_memory_bytes // (-(-per_block // unit) * unit)


def dimensions(text: str | None) -> tuple[int, int, int] | None:
    """Read a grid or block of a table, ``x,y,z``; None for anything else, and where one of the three is 0."""
    parts = (text or "").split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        return None
    x, y, z = (int(part) for part in parts)
    return (x, y, z) if x * y * z else None


class LaunchConfiguration(Struct, frozen=True):
    """A launch configuration, and the resources that the kernel needs.

    Attributes:
        grid: thread blocks along x, y and z.
        block: threads of a block along x, y and z.
        registers_per_thread: as the compiler reports it.
        shared_memory_bytes: static and dynamic shared memory of a block together.
    """

    grid: Dimensions
    block: Dimensions
    registers_per_thread: int
    shared_memory_bytes: int

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


class LaunchCheck(Struct, frozen=True):
    """Whether a launch configuration is accepted, and how it fills the device.

    Attributes:
        problems: why the device refuses the launch; empty where it accepts it.
        remarks: what to keep in mind about an accepted launch.
        occupancy: how it fills the device; None where it cannot be launched.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    occupancy: Occupancy | None


def check_launch(
    launch: LaunchConfiguration, capability: ComputeCapability, multiprocessors: int | None
) -> LaunchCheck:
    """Check a launch configuration.

    Args:
        launch: the configuration and the kernel's needs.
        capability: the compute capability to launch on.
        multiprocessors: how many the device has; None without a particular device: then waves are unknown.
    """
    problems = tuple(_problems(launch, capability))
    if problems:
        return LaunchCheck(problems, (), None)
    device = DeviceProperties(0, capability.number, capability.number, multiprocessors)
    registers, shared = launch.registers_per_thread, launch.shared_memory_bytes
    return LaunchCheck((), tuple(_remarks(launch)), occupancy(launch.grid, launch.block, registers, shared, device))


def _problems(launch: LaunchConfiguration, capability: ComputeCapability) -> Iterator[str]:
    yield from _dimensions("grid", launch.grid, _GRID)
    yield from _dimensions("block", launch.block, _BLOCK)
    if launch.threads > _THREADS:
        yield f"a block of {launch.threads:,} threads: at most {_THREADS:,}"
    if launch.registers_per_thread > _REGISTERS_PER_THREAD:
        yield f"{launch.registers_per_thread} registers a thread: at most {_REGISTERS_PER_THREAD}"
    # A block starts whole warps, so the last one takes its registers even if it is not full.
    elif (warps := -(-launch.threads // WARP)) > (most := warps_by_registers(launch.registers_per_thread, _REGISTERS)):
        yield (
            f"{launch.threads:,} threads with {launch.registers_per_thread} registers: the {_REGISTERS:,} "
            f"registers of a block suffice for {most} warps, not for {warps} (__launch_bounds__({launch.threads}) "
            "makes the compiler use fewer)"
        )
    if launch.shared_memory_bytes > capability.block_shared_memory_bytes:
        yield (
            f"{launch.shared_memory_bytes:,} bytes of shared memory: a block has at most "
            f"{capability.block_shared_memory_bytes:,} on compute capability {capability.number}"
        )


def _dimensions(what: str, values: Dimensions, most: Dimensions) -> Iterator[str]:
    for axis, number, limit in zip(_AXES, values, most, strict=True):
        if not 1 <= number <= limit:
            yield f"the {what}'s {axis} is {number:,}: 1 to {limit:,} are allowed"


def _remarks(launch: LaunchConfiguration) -> Iterator[str]:
    if launch.shared_memory_bytes > _WITHOUT_ASKING:
        yield (
            "more than 48 KiB of shared memory has to be dynamic, and allowed by "
            "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)"
        )
    if launch.threads % WARP:
        yield (
            f"{launch.threads} threads are not a whole number of warps: {-launch.threads % WARP} lanes of the last idle"
        )
