"""Which of Nsight Compute's metrics count operations, of which unit, and how many operations each count is.

The names are those of NVIDIA's metric library for compute capabilities 8.0 to 12.1, as `CUPTI` 13.0 and Nsight Compute
2026.3 have it. ``sm__ops_path_tensor_..`` counts the operations of Tensor Cores, a multiplication and an addition as
two. The others count instructions; their weights are those of Nsight Compute's own rooflines, whose derived metrics end
in ``_x2`` and ``_x4``: a fused multiply-add is two operations, and half-precision instructions work on two numbers.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from opscope.base.patterns import lazy_pattern

# Instruction -> the unit, as peaks of devices name it, and operations of a thread's instruction.
_INSTRUCTIONS: Final[Mapping[str, tuple[str, int]]] = {
    **{"dadd": ("fp64", 1), "dmul": ("fp64", 1), "dfma": ("fp64", 2)},
    **{"fadd": ("fp32", 1), "fmul": ("fp32", 1), "ffma": ("fp32", 2)},
    **{"hadd": ("fp16_vector", 2), "hmul": ("fp16_vector", 2), "hfma": ("fp16_vector", 4)},
}
# Only some devices of compute capability 10 and newer have them: instructions on two numbers.
_PAIRED: Final[Mapping[str, tuple[str, int]]] = {"fadd2": ("fp32", 2), "fmul2": ("fp32", 2), "ffma2": ("fp32", 4)}
_INSTRUCTION: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on"
# The operands of Tensor Cores -> the unit. Products of mixed 4, 6 and 8 bits run at the rate of 8 bits.
_OPERANDS: Final[Mapping[str, str]] = {
    **{"fp64": "fp64_tensor", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp4": "fp4"},
    **{"fp4_fp6_fp8": "fp8", "fp4_fp6": "fp8", "int8": "int8", "int4": "int4", "int1": "int1"},
}
_TENSOR: Final = lazy_pattern(
    r"sm__ops_path_tensor(?:_op_(?P<op>[a-z0-9]+))?_src_(?P<src>[a-z0-9_]+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?"
)
# What must be counted before a sum over units is one: these, and more where a device has more.
_ALWAYS: Final = ("fp64", "fp32", "fp16_vector", "fp64_tensor", "tf32", "bf16", "fp16", "int8")
_SINCE: Final[Mapping[str, tuple[int, int]]] = {"fp8": (8, 9), "fp4": (10, 0)}
_OLDEST: Final = (8, 0)  # before it, the library counts operations of Tensor Cores under other names
INTEGER_UNITS: Final = frozenset({"int8", "int4", "int1"})
# What Nsight Compute is asked for. These are patterns, because devices differ in what they count.
OPERATION_METRICS: Final = (
    "regex:smsp__sass_thread_inst_executed_op_[dfh](add|mul|fma)2?_pred_on",
    "regex:sm__ops_path_tensor_src_",
)
_HALF: Final = "_acc16"  # of units that add up in 16 bits, as peaks of devices name them
# The cycles that rates "per cycle" refer to: counted, or the clock, which is counted over the duration.
_CYCLES: Final = ("smsp__cycles_elapsed", "sm__cycles_elapsed")


class CountedOperations(Struct, frozen=True):
    """Operations of one launch.

    Attributes:
        by_unit: operations by the unit that did them, named as peaks of devices are: ``fp32``, ``bf16``,
            ``fp16_vector``. Units that did none, and those that were not counted, are left out.
        not_counted: units of the device whose operations were not counted, or only in part; sums over units are too
            small by what these did.
    """

    by_unit: dict[str, float]
    not_counted: tuple[str, ...]


class _TensorMetric(Struct, frozen=True):
    """What a metric of Tensor Cores is limited to; None where it counts all."""

    op: str | None
    dst: str | None
    sparsity: str | None

    def covers(self, other: "_TensorMetric") -> bool:
        """Tell whether everything that another metric counts is counted in this one too."""
        return all(mine in (None, its) for mine, its in zip(self._limits(), other._limits(), strict=True))

    def overlaps(self, other: "_TensorMetric") -> bool:
        """Tell whether something can be counted in both."""
        pairs = zip(self._limits(), other._limits(), strict=True)
        return all(mine is None or its is None or mine == its for mine, its in pairs)

    def _limits(self) -> tuple[str | None, ...]:
        return self.op, self.dst, self.sparsity


def counted_operations(metrics: Mapping[str, float], compute_capability: str | None) -> CountedOperations:
    """Return the operations of a launch.

    Counts (``.sum``) are taken as they are; rates (``.sum.per_cycle_elapsed``, which ``--set roofline`` and ``--set
    full`` measure) are multiplied by the cycles. Metrics that contain each other are not added up.

    Args:
        metrics: values by name; rates per second in units per second.
        compute_capability: ``9.0``; None if not known, which counts as 9.0.
    """
    counts = _counts(metrics)
    by_unit: dict[str, float] = defaultdict(float)
    whole: set[str] = set()
    capability = _version(compute_capability)
    for unit, value, complete in (*_of_instructions(counts, paired=capability[0] == 10), *_of_tensor_cores(counts)):
        by_unit[unit] += value
        if complete:
            whole.add(unit)
    needed = _ALWAYS + tuple(unit for unit, since in _SINCE.items() if capability >= since)
    # Names of older devices are not known well enough to say that all was counted.
    missing = tuple(unit for unit in needed if unit not in whole or capability < _OLDEST)
    return CountedOperations({unit: value for unit, value in by_unit.items() if value}, missing)


def _counts(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return counts by the metric's name without its suffix, from counts or from rates per cycle."""
    found: dict[str, float] = {}
    cycles = _cycles(metrics)
    for name, value in metrics.items():
        base, _, suffix = name.partition(".")
        if suffix == "sum":
            found[base] = value
        elif suffix == "sum.per_cycle_elapsed" and cycles is not None:
            found.setdefault(base, value * cycles)
    for name, (_, weight) in _INSTRUCTIONS.items():
        # Derived metrics are rates that were multiplied by the weight already.
        base, derived = _INSTRUCTION.format(name), f"derived__{_INSTRUCTION.format(name)}_x{weight}"
        if base not in found and derived in metrics and cycles is not None:
            found[base] = metrics[derived] * cycles / weight
    return found


def _cycles(metrics: Mapping[str, float]) -> float | None:
    """Return the cycles of a launch; None if neither they nor the clock were measured."""
    for base in _CYCLES:
        for suffix in (".avg", ".max"):
            if f"{base}{suffix}" in metrics:
                return metrics[base + suffix]
    duration_ns = metrics.get("gpu__time_duration.sum")
    clock = next((metrics[name] for base in _CYCLES if (name := f"{base}.avg.per_second") in metrics), None)
    return None if duration_ns is None or clock is None else clock * duration_ns / 1e9


def _of_instructions(counts: Mapping[str, float], *, paired: bool) -> Iterator[tuple[str, float, bool]]:
    """Yield unit, operations, and whether all of the unit's instructions were counted.

    Args:
        counts: by metric.
        paired: whether the device has instructions on pairs of 32-bit numbers.
    """
    for unit in dict.fromkeys(unit for unit, _ in _INSTRUCTIONS.values()):
        all_of = {**_INSTRUCTIONS, **_PAIRED}
        weights = {_INSTRUCTION.format(name): weight for name, (of, weight) in all_of.items() if of == unit}
        needed = {
            _INSTRUCTION.format(name) for name, (of, _) in (all_of if paired else _INSTRUCTIONS).items() if of == unit
        }
        known = weights.keys() & counts.keys()
        yield unit, sum(counts[name] * weights[name] for name in known), needed <= known


def _of_tensor_cores(counts: Mapping[str, float]) -> Iterator[tuple[str, float, bool]]:
    """Yield unit, operations, and whether all operations on these operands were counted."""
    by_operands: dict[str, dict[_TensorMetric, float]] = defaultdict(dict)
    for name, value in counts.items():
        found = _TENSOR.fullmatch(name)
        if found is not None and found["src"] in _OPERANDS:
            by_operands[found["src"]][_TensorMetric(found["op"], found["dst"], found["sparsity"])] = value
    for operands, metrics in by_operands.items():
        parts = [one for one in metrics if not any(other != one and other.covers(one) for other in metrics)]
        # Of metrics that overlap without one containing the other, no sum is right.
        if any(one != other and one.overlaps(other) for one in parts for other in parts):
            continue
        unit = _OPERANDS[operands]
        for one in parts:
            yield f"{unit}{_HALF}" if one.dst == "fp16" else unit, metrics[one], False
        yield unit, 0, _is_whole(parts, operands)


def _is_whole(parts: Iterable[_TensorMetric], operands: str) -> bool:
    """Tell whether metrics together count every operation on some operands."""
    results, sparsities, ops = {one.dst for one in parts}, {one.sparsity for one in parts}, {one.op for one in parts}
    # bfloat16, TF32 and 4 bits have one kind of result; the others two, where results are told apart.
    one_result = None in results or {"fp16", "fp32"} <= results or operands in ("bf16", "tf32", "fp4")
    # Products of warps and of groups of warps are counted apart on compute capability 9.0 alone.
    of_all = None in ops or {"hmma", "hgmma"} <= ops
    return one_result and of_all and (None in sparsities or sparsities == {"on", "off"})


def _version(compute_capability: str | None) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,3})\.(\d)", compute_capability or "9.0")
    return (9, 0) if found is None else (int(found[1]), int(found[2]))


def rate_of(unit: str, rates: Mapping[str, float]) -> float | None:
    """Return the peak rate of a unit; None if not known.

    Args:
        unit: as `CountedOperations` names it.
        rates: operations per second by unit, as peaks of devices have them.
    """
    # Where adding up in 16 bits has no rate of its own, it is not faster.
    return rates.get(unit, rates.get(unit.removesuffix(_HALF)))
