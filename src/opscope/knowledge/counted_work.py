"""What Nsight Compute's metrics say that a launch did: arithmetic operations by unit, and bytes of the device's memory.

Which metrics a device has is what NVIDIA's metric library lists for its chip (CUPTI 13.0, Nsight Compute 2026.3).
``sm__ops_path_tensor_..`` counts operations of Tensor Cores, a multiplication and an addition as two. The others count
instructions; their weights are those of Nsight Compute's own rooflines, whose derived metrics end in ``_x2`` and
``_x4``: a fused multiply-add is two operations, and half-precision instructions work on two numbers.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern
from opscope.record.counters import UPPER_BOUND

_INSTRUCTION: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on"
# Instruction -> the unit, as peaks of devices name it, and operations of a thread's instruction.
_INSTRUCTIONS: Final[Mapping[str, tuple[str, int]]] = {
    **{"dadd": ("fp64", 1), "dmul": ("fp64", 1), "dfma": ("fp64", 2)},
    **{"fadd": ("fp32", 1), "fmul": ("fp32", 1), "ffma": ("fp32", 2)},
    **{"hadd": (UPPER_BOUND, 2), "hmul": (UPPER_BOUND, 2), "hfma": (UPPER_BOUND, 4)},
    # Instructions on two and on four numbers, which only some devices have.
    **{"fadd2": ("fp32", 2), "fmul2": ("fp32", 2), "ffma2": ("fp32", 4)},
    **{"qadd4": ("fp8_vector", 4), "qmul4": ("fp8_vector", 4), "qfma4": ("fp8_vector", 8)},
}
_ON_SEVERAL: Final = frozenset({"fadd2", "fmul2", "ffma2", "qadd4", "qmul4", "qfma4"})
# The operands of Tensor Cores -> the unit. For products of 4 and 6 bits no device of the table has a peak.
_OPERANDS: Final[Mapping[str, str]] = {
    **{"fp64": "fp64_tensor", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp4": "fp4"},
    **{"fp4_fp6_fp8": "fp8", "fp4_fp6": "fp6", "int8": "int8", "int4": "int4", "int1": "int1"},
}
_ONE_RESULT: Final = frozenset({"bf16", "tf32", "fp4"})  # whatever their metrics name as such
INTEGER_UNITS: Final = frozenset({"int8", "int4", "int1"})
_AMPERE: Final = ("bf16", "fp16", "fp64", "int1", "int4", "int8", "tf32")
_BLACKWELL: Final = ("bf16", "fp16", "fp4", "fp4_fp6", "fp64", "fp8", "int8", "tf32")
_DATA_CENTRE: Final = ("bf16", "fp16", "fp4", "fp4_fp6_fp8", "fp64", "int8", "tf32")
# Compute capability -> the operands that its Tensor Cores have counters for. Only of these is known what all is.
_OPERANDS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("8.0", "8.6", "8.7"), _AMPERE),
    "8.9": (*_AMPERE, "fp8"),
    "9.0": ("bf16", "fp16", "fp64", "fp8", "int1", "int8", "tf32"),
    **dict.fromkeys(("10.0", "11.0"), _DATA_CENTRE),
    **dict.fromkeys(("10.3", "12.0", "12.1"), _BLACKWELL),
}
_HAVE_ON_SEVERAL: Final = frozenset({"10.0", "10.3"})
_TENSOR: Final = lazy_pattern(
    r"sm__ops_path_tensor(?:_op_(?P<op>[a-z0-9]+))?_src_(?P<src>[a-z0-9_]+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?"
)
# Instructions of warps and of groups of warps, which compute capability 9.0 counts apart.
_OPS: Final = ({"hmma", "hgmma"}, {"imma", "igmma"}, {"bmma", "bgmma"})
_HALF: Final = "_acc16"  # of units that add up in 16 bits, as peaks of devices name them
# The cycles that rates "per cycle" refer to: counted, or the clock over the duration.
_CYCLES: Final = ("smsp__cycles_elapsed", "sm__cycles_elapsed")
_DURATION: Final = "gpu__time_duration.sum"
# Bytes read and written; devices spell them one way or the other.
READ: Final = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
WRITTEN: Final = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
# These share the host's memory, and have no counters of bytes.
WITHOUT_BYTES: Final = frozenset({"8.7", "11.0", "12.1"})
_MOVED: Final = "dram__bytes.sum"
# What Nsight Compute is asked for. These are patterns, because devices differ in what they count; they fit names with
# and without suffix.
WORK_METRICS: Final = tuple(
    f"regex:^{pattern}([.]sum)?$"
    for pattern in (
        _INSTRUCTION.format("[dfhq](add|mul|fma)[24]?"),
        f"sm__ops_path_tensor_src_({'|'.join(_OPERANDS)})(_dst_fp(16|32))?",
        "dram__bytes(_op)?_(read|write)",
    )
)


class CountedOperations(Struct, frozen=True):
    """Operations of one launch.

    Attributes:
        by_unit: operations by the unit that did them, named as peaks of devices are: ``fp32``, ``bf16``,
            ``fp16_vector``. Units that did none, and those that were not counted, are left out.
        not_counted: what was not counted, or only in part: units of instructions (``fp32``), and operands of Tensor
            Cores (``Tensor Cores on fp16``). Empty if all operations that the device can do were counted.
        any_counted: whether any operations were counted, even if there were none.
        sparse: whether Tensor Cores multiplied sparse matrices, of which it is not known what is counted.
    """

    by_unit: dict[str, float]
    not_counted: tuple[str, ...]
    any_counted: bool
    sparse: bool = False

    @property
    def total(self) -> float:
        """All operations but those of half-precision instructions, of which only an upper bound is known."""
        return sum(count for unit, count in self.by_unit.items() if unit != UPPER_BOUND)


class _Limits(Struct, frozen=True):
    """What a metric of Tensor Cores is limited to; None where it counts all."""

    op: str | None
    dst: str | None
    sparsity: str | None

    def covers(self, other: "_Limits") -> bool:
        """Tell whether everything that another metric counts is counted in this one too."""
        return all(own in (None, its) for own, its in zip(self._all(), other._all(), strict=True))

    def overlaps(self, other: "_Limits") -> bool:
        """Tell whether something can be counted in both."""
        return all(own is None or its is None or own == its for own, its in zip(self._all(), other._all(), strict=True))

    def without(self, name: str) -> "_Limits":
        """Return the metric that counts the same without one of the limits."""
        return _Limits(**{field: None if field == name else getattr(self, field) for field in self.__struct_fields__})

    def _all(self) -> tuple[str | None, ...]:
        return self.op, self.dst, self.sparsity


def counted_operations(metrics: Mapping[str, float], compute_capability: str | None) -> CountedOperations:
    """Return the operations of a launch.

    Counts (``.sum``) are taken as they are; rates (``.sum.per_cycle_elapsed``, which ``--set roofline`` measures) are
    multiplied by the cycles. Metrics that contain each other are not added up.

    Args:
        metrics: values by name; rates per second in units per second.
        compute_capability: ``9.0``; None if not known. Only of a known one is known what all operations are.
    """
    counts = _counts(metrics)
    by_unit: dict[str, float] = defaultdict(float)
    missing: list[str] = []
    for unit in dict.fromkeys(unit for unit, _ in _INSTRUCTIONS.values()):
        by_unit[unit] += sum(_counted_instructions(unit, counts))
        if not _has_all(unit, counts, on_several=compute_capability in _HAVE_ON_SEVERAL):
            missing.append(unit)
    tensor = _of_tensor_cores(counts)
    for operands, parts in tensor.items():
        for part, count in parts.items():
            by_unit[_unit_of(operands, part)] += count
    known = _OPERANDS_OF.get(compute_capability or "")
    if known is None:
        missing.append(f"devices of compute capability {compute_capability or 'unknown'}")
    partly = (one for one in known or () if one not in tensor or not _is_whole(frozenset(tensor[one])))
    missing += (f"Tensor Cores on {operands}" for operands in partly)
    any_counted = bool(tensor) or any(_INSTRUCTION.format(name) in counts for name in _INSTRUCTIONS)
    results = {unit: count for unit, count in by_unit.items() if count}
    return CountedOperations(results, tuple(missing), any_counted, _is_sparse(counts))


def counted_bytes(metrics: Mapping[str, float]) -> float | None:
    """Return the bytes that a launch read from and wrote to the device's memory; None if they were not counted."""
    read, written = first_of(metrics, READ), first_of(metrics, WRITTEN)
    if read is not None and written is not None:
        return _count(read + written)
    if _MOVED in metrics:
        return _count(metrics[_MOVED])
    rate, duration_ns = metrics.get(f"{_MOVED}.per_second"), metrics.get(_DURATION)
    return None if rate is None or duration_ns is None else _count(rate * duration_ns / 1e9)


def first_of(metrics: Mapping[str, float], names: Iterable[str]) -> float | None:
    """Return the value of the first metric that was measured; None if none was."""
    return next((metrics[name] for name in names if name in metrics), None)


def fastest_rate(unit: str, rates: Mapping[str, float]) -> float | None:
    """Return the highest rate at which a unit may have done its operations; None if not known.

    Args:
        unit: as `CountedOperations` names it.
        rates: operations per second by unit, as peaks of devices have them.
    """
    plain = unit.removesuffix(_HALF)
    # How 8-bit products were added up is not counted on every device, and block-scaled ones run at the rate of 16 bits
    # where the others do not (NVIDIA/CUDALibrarySamples#283).
    names = (plain, f"{plain}{_HALF}") if plain == "fp8" or unit != plain else (unit,)
    return max((rates[name] for name in names if name in rates), default=None)


def _counts(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return counts by the metric's name without its suffix, from counts or else from rates per cycle."""
    results: dict[str, float] = {}
    cycles = _cycles(metrics)
    for name, value in metrics.items():
        base, _, suffix = name.partition(".")
        if suffix == "sum":
            results[base] = value
    for name, value in metrics.items():
        base, _, suffix = name.partition(".")
        if suffix == "sum.per_cycle_elapsed" and cycles is not None:
            results.setdefault(base, value * cycles)
    for instruction, (_, weight) in _INSTRUCTIONS.items():
        # Derived metrics are rates that were multiplied by the weight already.
        base = _INSTRUCTION.format(instruction)
        if (derived := f"derived__{base}_x{weight}") in metrics and cycles is not None:
            results.setdefault(base, metrics[derived] * cycles / weight)
    return {name: value for name, value in results.items() if _count(value) is not None}


def _count(value: float) -> float | None:
    """Return a number that can be one of operations or bytes; None for others."""
    return value if math.isfinite(value) and value >= 0 else None


def _cycles(metrics: Mapping[str, float]) -> float | None:
    """Return the cycles of a launch; None if neither they nor the clock were measured."""
    measured = (metrics.get(f"{base}{suffix}") for base in _CYCLES for suffix in (".avg", ".max"))
    if (cycles := next((one for one in measured if one is not None and one > 0), None)) is not None:
        return cycles
    duration_ns, clock = metrics.get(_DURATION), first_of(metrics, (f"{base}.avg.per_second" for base in _CYCLES))
    return None if duration_ns is None or clock is None or clock <= 0 else clock * duration_ns / 1e9


def _counted_instructions(unit: str, counts: Mapping[str, float]) -> Iterator[float]:
    for instruction, (of, weight) in _INSTRUCTIONS.items():
        if of == unit:
            yield counts.get(_INSTRUCTION.format(instruction), 0) * weight


def _has_all(unit: str, counts: Mapping[str, float], *, on_several: bool) -> bool:
    """Tell whether all instructions of a unit were counted."""
    return all(
        _INSTRUCTION.format(instruction) in counts
        for instruction, (of, _) in _INSTRUCTIONS.items()
        if of == unit and (on_several or instruction not in _ON_SEVERAL)
    )


def _of_tensor_cores(counts: Mapping[str, float]) -> dict[str, dict[_Limits, float]]:
    """Return counts by operands: those that no other one contains."""
    results: dict[str, dict[_Limits, float]] = defaultdict(dict)
    for name, value in counts.items():
        metric = _TENSOR.fullmatch(name)
        if metric is not None and (operands := metric["src"]) in _OPERANDS:
            dst = None if operands in _ONE_RESULT else metric["dst"]
            results[operands][_Limits(metric["op"], dst, metric["sparsity"])] = value
    for operands, metrics in results.items():
        parts = [one for one in metrics if not any(other != one and other.covers(one) for other in metrics)]
        # Of metrics that overlap without one containing the other, no sum is right.
        overlap = any(one != other and one.overlaps(other) for one in parts for other in parts)
        results[operands] = {} if overlap else {one: metrics[one] for one in parts}
    return dict(results)


def _is_sparse(counts: Mapping[str, float]) -> bool:
    """Tell whether any products of sparse matrices were counted, where the metrics tell these apart."""
    result = ((_TENSOR.fullmatch(name), count) for name, count in counts.items())
    return any(metric is not None and metric["sparsity"] == "on" and count > 0 for metric, count in result)


def _unit_of(operands: str, part: _Limits) -> str:
    unit = _OPERANDS[operands]
    return f"{unit}{_HALF}" if part.dst == "fp16" else unit


def _is_whole(parts: frozenset[_Limits]) -> bool:
    """Tell whether metrics together count every operation on some operands.

    Parts that differ in one limit alone, and have all its values, are what they are parts of.
    """
    if parts == frozenset({_Limits(None, None, None)}):
        return True
    for name, values in (("sparsity", {"on", "off"}), ("dst", {"fp16", "fp32"}), *(("op", both) for both in _OPS)):
        merged = _merged(parts, name, values)
        if merged != parts:
            return _is_whole(merged)
    return False


def _merged(parts: frozenset[_Limits], name: str, values: Iterable[str]) -> frozenset[_Limits]:
    """Replace parts that have all values of a limit, and are alike else, by what they are parts of."""
    groups: dict[_Limits, set[str | None]] = defaultdict(set)
    for part in parts:
        groups[part.without(name)].add(getattr(part, name))
    return frozenset(
        one
        for whole, result in groups.items()
        for one in ((whole,) if result >= set(values) else (part for part in parts if part.without(name) == whole))
    )
