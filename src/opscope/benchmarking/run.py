"""Benchmarks a case: is it right, how long does it take, and is it still right afterwards."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from opscope.benchmarking import host_timing
from opscope.benchmarking.case import Case, Function
from opscope.benchmarking.clocks import ClockSampler
from opscope.benchmarking.correctness import Inputs, check
from opscope.benchmarking.device_timing import Flush, KernelTimer, captured, events
from opscope.benchmarking.limit import least_work, limit_share
from opscope.benchmarking.ran import what_ran
from opscope.benchmarking.rounds import Calls, Series, in_turns
from opscope.benchmarking.steps import waited_for_cpu_ns
from opscope.benchmarking.stopping import Limits
from opscope.benchmarking.verdicts import at_precision
from opscope.documents.bench import BenchResult, Correct, Correctness, Duration, LimitShare, Measure
from opscope.errors import OpscopeError
from opscope.record.capture import Clocks

NOT_A_GPU: Final = "not measured: the device is not a GPU"
_WRONG: Final = "not measured: its result is wrong"
_SLOWED: Final = 0.03  # by so much the clock may fall
_HARD_LIMITS: Final = (
    *("hardware slowdown", "thermal slowdown (software)", "thermal slowdown (hardware)", "power brake", "power cap"),
)
_BELOW_LIMIT: Final = 1.05
_WAITED: Final = 0.05  # of the time
_ODD: Final = {"size": 1021, "rows": 1021, "columns": 509}
Progress = Callable[[str], None]


def bench_case(
    case: Case, parameters: Mapping[str, object], device: torch.device, limits: Limits, progress: Progress
) -> tuple[BenchResult, ...]:
    """Benchmark all variants of a case; the first result is the baseline's, and rounds have the same place in all.

    Args:
        case: the variants and their inputs.
        parameters: what the inputs are made with.
        device: where they run.
        limits: how long to measure each.
        progress: called with what goes on.
    """
    torch.manual_seed(0)
    inputs = case.make_inputs(device, parameters)
    case.refuse_unfit(inputs)
    progress(f"{case.name}: checking results")
    checked = check(case, inputs, _odd_inputs(case, parameters, device))
    right = {name: function for name, function in case.variants.items() if not _is_wrong(checked[name])}
    calls: Calls = {name: functools.partial(function, *inputs) for name, function in right.items()}
    lower = _at_lower_precision(case, inputs, checked) if case.baseline in right else {}
    calls = {**calls, **{name: one.call for name, one in lower.items()}}
    series: dict[Measure, Series] = {}
    reasons: dict[str, dict[str, str]] = {name: {} for name in (*case.variants, *lower)}
    kernels: KernelTimer | None = None
    waited, began = waited_for_cpu_ns(), time.perf_counter_ns()
    with ClockSampler(device) as sampler:
        if calls:
            progress(f"{case.name}: warming up")
            host_timing.warm_up(calls, device)
            progress(f"{case.name}: measuring")
            kernels = _measure(calls, device, limits, series, reasons)
    busy = _contention(waited, time.perf_counter_ns() - began) if device.type != "cuda" else None
    again = check(case, inputs, None, only=tuple(right))
    checked |= {name: after for name, after in again.items() if _is_wrong(after)}
    text = {name: _shown(value) for name, value in {**case.parameters, **parameters}.items()}
    tools = _Tools(case, inputs, device, series, reasons, kernels, sampler.clocks, text, busy)
    checked |= {name: one.checked for name, one in lower.items()}
    return _without_work([tools.result(name, checked[name], calls.get(name)) for name in checked])


def _without_work(results: Sequence[BenchResult]) -> tuple[BenchResult, ...]:
    """Doubt variants that run nothing where the baseline runs something: they may give what they kept."""
    if not (results[0].operators or results[0].launched):
        return tuple(results)
    doubt = "it runs no operator and no kernel where the baseline does: a result that was kept?"
    return tuple(
        replace(one, doubts=(*one.doubts, doubt))
        if one.wall_ns is not None and not (one.operators or one.launched)
        else one
        for one in results
    )


@dataclass(frozen=True, slots=True)
class _Lower:
    """The baseline at a lower precision: what of a gain is precision, and what the implementation."""

    call: Callable[[], object]
    checked: Correctness


def _at_lower_precision(case: Case, inputs: Inputs, checked: Mapping[str, Correctness]) -> dict[str, _Lower]:
    """Return the baseline at each precision at which a variant computes, under the name that comparisons look for."""
    baseline = case.variants[case.baseline]
    found: dict[str, _Lower] = {}
    for one in checked.values():
        if one.verdict is not Correct.LOWER_PRECISION or one.precision is None:
            continue
        call = _baseline_at(one.precision, baseline, inputs)
        if call is None:
            continue
        about = Correctness(
            verdict=Correct.NOT_CHECKED,
            sentence=f"the baseline at {one.precision}, beside which variants of that precision are held",
            reference=None,
            tolerance=None,
            precision=one.precision,
        )
        found[at_precision(case.baseline, one.precision)] = _Lower(call, about)
    return found


def _baseline_at(precision: str, baseline: Function, inputs: Inputs) -> Callable[[], object] | None:
    if precision == "tf32":
        return functools.partial(_as_tf32, baseline, inputs)
    dtype = getattr(torch, precision, None)
    if not isinstance(dtype, torch.dtype):
        return None
    cast = tuple(v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs)
    try:
        baseline(*cast)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return functools.partial(baseline, *cast)


def _as_tf32(function: Function, inputs: Inputs) -> object:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return function(*inputs)
    finally:
        torch.set_float32_matmul_precision(before)


def _contention(before: int | None, elapsed_ns: int) -> str | None:
    """Say that the process had to wait for a CPU core; None where it had not, or nobody knows."""
    after = waited_for_cpu_ns()
    if before is None or after is None or after - before <= _WAITED * elapsed_ns:
        return None
    return (
        f"its threads waited {(after - before) / elapsed_ns:.0%} of the time for a CPU core: something else was running"
    )


def _is_wrong(checked: Correctness) -> bool:
    return checked.verdict is Correct.WRONG


def _shown(value: object) -> str:
    return str(value).removeprefix("torch.")


def _odd_inputs(case: Case, parameters: Mapping[str, object], device: torch.device) -> Inputs | None:
    odd = {name: size for name, size in _ODD.items() if case.accepts(name)}
    if not odd:
        return None
    try:
        return case.make_inputs(device, {**parameters, **odd})
    except Exception:  # inputs may need an even size, or one that divides another
        return None


def _measure(
    calls: Calls,
    device: torch.device,
    limits: Limits,
    series: dict[Measure, Series],
    reasons: dict[str, dict[str, str]],
) -> KernelTimer | None:
    """Measure every duration that there is on a device, and say why others are missing."""
    series[Measure.WALL] = in_turns(host_timing.wall(device), calls, limits)
    if device.type != "cuda":
        series[Measure.ISSUE] = series[Measure.WALL]  # a call returns when its work is done
        for name in calls:
            for measure in (Measure.KERNEL, Measure.KERNEL_WARM, Measure.EVENT, Measure.GRAPH):
                reasons[name][measure] = NOT_A_GPU
        return None
    series[Measure.ISSUE] = in_turns(host_timing.issue(device), calls, limits)
    flush = Flush(device)
    kernels = KernelTimer(device, flush)
    launches = 64
    try:
        KernelTimer(device, flush).rounds(calls, [list(calls)])  # the profiler's first session takes seconds to begin
        series[Measure.KERNEL] = in_turns(kernels.rounds, calls, limits)
        series[Measure.KERNEL_WARM] = in_turns(KernelTimer(device, None).rounds, calls, limits)
        launches = max(max(counts) for counts in kernels.launched.values())
    except OpscopeError as error:
        for name in calls:
            reasons[name] |= dict.fromkeys((Measure.KERNEL, Measure.KERNEL_WARM), f"not measured: {error}")
    try:
        series[Measure.EVENT] = in_turns(events(device, flush, launches), calls, limits)
    except OpscopeError as error:
        for name in calls:
            reasons[name][Measure.EVENT] = f"not measured: {error}"
    _measure_graphs(calls, device, limits, series, reasons, flush)
    return kernels


def _measure_graphs(
    calls: Calls,
    device: torch.device,
    limits: Limits,
    series: dict[Measure, Series],
    reasons: dict[str, dict[str, str]],
    flush: Flush,
) -> None:
    replays: dict[str, Callable[[], object]] = {}
    for name, call in calls.items():
        try:
            replays[name] = captured(call, device).replay
        except RuntimeError as error:
            torch.cuda.synchronize(device)
            reason = (str(error).splitlines() or [""])[0][:120]
            reasons[name][Measure.GRAPH] = f"not measured: it cannot be captured in a CUDA graph ({reason})"
    if replays:
        try:
            series[Measure.GRAPH] = in_turns(events(device, flush, 1), replays, limits)
        except OpscopeError as error:
            for name in replays:
                reasons[name][Measure.GRAPH] = f"not measured: {error}"


@dataclass(frozen=True, slots=True)
class _Tools:
    """What results are put together from."""

    case: Case
    inputs: Inputs
    device: torch.device
    series: Mapping[Measure, Series]
    reasons: Mapping[str, dict[str, str]]
    kernels: KernelTimer | None
    clocks: Clocks | None
    parameters: dict[str, str]
    busy: str | None

    def result(self, name: str, checked: Correctness, call: Callable[[], object] | None) -> BenchResult:
        found = {m: series.duration(name) for m, series in self.series.items() if name in series.samples}
        wrong = _is_wrong(checked)
        if wrong:  # after it was timed
            found, call = {}, None
        kernel = found.get(Measure.KERNEL)
        limit = None if kernel is None or wrong else self._limit(kernel, checked)
        counts = self.kernels.launched.get(name) if self.kernels else None
        missing = {str(measure): _WRONG for measure in Measure if wrong and measure not in found}
        issue = found.get(Measure.ISSUE)
        operators, kernels = ((), ()) if wrong or call is None else what_ran(call, self.device)
        return BenchResult(
            name=name,
            case=self.case.name,
            parameters=self.parameters,
            kernel_ns=kernel,
            kernel_warm_ns=found.get(Measure.KERNEL_WARM),
            event_ns=found.get(Measure.EVENT),
            graph_ns=found.get(Measure.GRAPH),
            issue_ns=issue,
            wall_ns=found.get(Measure.WALL),
            reasons=missing | self.reasons[name],
            kernels=None if not counts else sum(counts) / len(counts),
            launch_bound=None if kernel is None or issue is None else issue.median > kernel.median,
            correctness=checked,
            limit=limit,
            clocks=self.clocks,
            doubts=tuple(self._doubts(name, limit)),
            operators=operators,
            launched=kernels,
            peak_memory_bytes=None if wrong or call is None else _peak_memory(call, self.device),
        )

    def _limit(self, kernel: Duration, checked: Correctness) -> LimitShare | None:
        try:
            flop, moved = least_work(self.case.variants[self.case.baseline], self.inputs)
        except (RuntimeError, TypeError):
            return None
        precision = checked.precision
        if precision == "float32" and torch.backends.cuda.matmul.allow_tf32:
            precision = "tf32"
        return limit_share(flop, moved, kernel.median, self.device, precision)

    def _doubts(self, name: str, limit: LimitShare | None) -> Sequence[str]:
        doubts = [] if self.busy is None else [self.busy]
        if self.clocks is not None:
            slowest, fastest = self.clocks.sm_mhz_min, self.clocks.sm_mhz_max
            hard = [reason for reason in self.clocks.limited_by if reason in _HARD_LIMITS]
            if hard and slowest < (1 - _SLOWED) * fastest:
                doubts.append(
                    f"the device was slowed down ({', '.join(hard)}): {slowest} to {fastest} MHz while it was measured"
                )
        streams = self.kernels.streams.get(name, set()) if self.kernels else set()
        if self.kernels is not None and streams - self.kernels.current:
            doubts.append("it works on other streams than the current one, which events do not see")
        if limit is not None and self._is_impossible(limit):
            doubts.append(
                f"its kernels take {1 / (limit.share or 1):.2f} of the least time that the device allows: part of the "
                "work is missing"
            )
        return doubts

    def _is_impossible(self, limit: LimitShare) -> bool:
        """Tell whether a call is faster than the device; what fits into its cache may be faster than its memory."""
        bound = limit.of_peak_flops if limit.least_bytes <= _cache(self.device) else limit.share
        return bound is not None and bound > _BELOW_LIMIT


def _cache(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


def _peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    del result
    return int(torch.cuda.max_memory_allocated(device) - before)
