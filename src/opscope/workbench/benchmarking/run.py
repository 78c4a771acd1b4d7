"""Benchmarks a case: is it right, how long does it take, and is it still right afterwards?"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import Final

import torch
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import OpscopeError
from opscope.base.processes import waited_for_cpu_ns
from opscope.documents.bench import BenchResult, Correct, Correctness, Duration, LimitShare, Measure, Steady
from opscope.measuring.rounds import Calls, MeasuringLimits, Prepared, Series, Timer, in_turns
from opscope.measuring.verdicts import at_precision
from opscope.record.capture import Clocks
from opscope.torch_support.tensors import tensors_of
from opscope.workbench.benchmarking import host_timing
from opscope.workbench.benchmarking.case import Case, Function, TimedInputs, tf32
from opscope.workbench.benchmarking.correctness import Inputs, check_timed, check_variants, refused, tampered
from opscope.workbench.benchmarking.device_timing import Flush, KernelTimer, captured, events
from opscope.workbench.benchmarking.instruments import ClockSampler, Instruments
from opscope.workbench.benchmarking.ran import least_work, limit_share, what_ran
from opscope.workbench.benchmarking.steady import steady_time

NOT_A_GPU: Final = "not measured: the device is not a GPU"
_WRONG: Final = "not measured: its result is wrong"
_SLOWED: Final = 0.03  # by this fraction the clock may fall
_HARD_LIMITS: Final = (
    *("hardware slowdown", "thermal slowdown (software)", "thermal slowdown (hardware)", "power brake", "power cap"),
)
_SPOT_CHECKS: Final = 4  # of the calls that were timed, after each kind of duration
_CALLS_ALONE: Final = 50  # by which the one is found that replaces what it is judged by
_BELOW_LIMIT: Final = 1.05  # more than this share of a limit is impossible
_WAITED: Final = 0.05  # more than this fraction of the time, summed over threads, is contention
_ODD: Final = {"size": 1021, "rows": 1021, "columns": 509}  # primes, so that no tile or vector divides them
_Progress = Callable[[str], None]


def bench_case(
    case: Case,
    parameters: Mapping[str, object],
    device: torch.device,
    limits: MeasuringLimits,
    progress: _Progress,
    instruments: Instruments | None = None,
) -> tuple[BenchResult, ...]:
    """Benchmark all variants of a case.

    Args:
        case: the variants and their inputs.
        parameters: the parameters of the inputs that differ from the case's own.
        device: where the variants run.
        limits: how long to measure each.
        progress: called with a line of text on what goes on.
        instruments: as they were before any code of the variants ran; None takes them as they are now.

    Returns:
        One result per variant, the baseline's first. Samples with the same index are of the same round in all results.

    Raises:
        UsageError: the inputs cannot be made, or a variant does not take them.
        OpscopeError: while all were timed, something was replaced by which they are judged, and it is unknown by which.
    """
    instruments = instruments or Instruments()
    torch.manual_seed(0)
    inputs = case.make_inputs(device, parameters)
    case.refuse_unfit(inputs)
    progress(f"{case.name}: checking results")
    checked = check_variants(case, inputs, odd_inputs(case, parameters, device), instruments=instruments)
    # What is wrong is not timed: its duration would say nothing.
    right = {name: function for name, function in case.variants.items() if not _is_wrong(checked[name])}
    calls: Calls = {name: functools.partial(function, *inputs) for name, function in right.items()}
    lower = _at_lower_precision(case, inputs, checked) if case.baseline in right else {}
    watched = _Watched(case, inputs, {**calls, **{name: one.call for name, one in lower.items()}}, instruments)
    calls = watched.calls
    reasons: dict[str, dict[str, str]] = {name: {} for name in (*case.variants, *lower)}
    durations = _Durations(calls, device, limits, reasons, watched)
    waited, began = waited_for_cpu_ns(), perf_counter_ns()
    with ClockSampler(device) as sampler, watched.changes:
        if calls:
            progress(f"{case.name}: warming up")
            watched.warm_up(device)
            progress(f"{case.name}: measuring")
            durations.measure()
    busy = _contention(waited, perf_counter_ns() - began) if device.type != "cuda" else None
    # After many calls a function may return other results, such as ones that it kept.
    again = check_variants(case, inputs, None, only=[name for name in right if name in calls], instruments=instruments)
    checked |= {name: after for name, after in again.items() if _is_wrong(after)}
    text = shown_parameters(case, parameters)
    steady: dict[str, Steady] = {}
    if device.type != "cuda":
        progress(f"{case.name}: beside a yardstick")
        steady = watched.steady(limits.seconds)
    tools = _Tools(case, inputs, durations, sampler.clocks, text, busy, steady)
    checked |= {name: one.checked for name, one in lower.items()}
    checked |= watched.wrong
    results = _without_work([watched.whole(tools, name, checked[name]) for name in checked])
    instruments.note("")
    instruments.settle()
    return (*results, *(tools.result(name, refused(why), None) for name, why in case.refused.items()))


def _without_work(results: Sequence[BenchResult]) -> tuple[BenchResult, ...]:
    """Add a doubt to variants that run nothing although the baseline does: they may return a kept result."""
    if not (results[0].operators or results[0].launched):
        return tuple(results)
    doubt = "it runs no operator and no kernel where the baseline does: a result that was kept?"
    return tuple(
        replace(one, doubts=(*one.doubts, doubt))
        if one.wall_ns is not None and not (one.operators or one.launched)
        else one
        for one in results
    )


class _Lower(Struct, frozen=True):
    """The baseline at a lower precision, which tells a gain by precision from one by the implementation."""

    call: Callable[[], object]
    checked: Correctness


def _at_lower_precision(case: Case, inputs: Inputs, checked: Mapping[str, Correctness]) -> dict[str, _Lower]:
    """Return the baseline at each lower precision at which a variant computes, by the name that comparisons use."""
    baseline = case.variants[case.baseline]
    results: dict[str, _Lower] = {}
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
        results[at_precision(case.baseline, one.precision)] = _Lower(call, about)
    return results


def _baseline_at(precision: str, baseline: Function, inputs: Inputs) -> Callable[[], object] | None:
    """Return a call of the baseline at a precision; None if it cannot compute at that, or sets its own."""
    if precision == "tf32":
        # Equal to the last bit: TF32 made no difference, so the baseline is not at a lower precision.
        same = _alike(baseline(*inputs), _as_tf32(baseline, inputs))
        return None if same else functools.partial(_as_tf32, baseline, inputs)
    dtype = getattr(torch, precision, None)
    if not isinstance(dtype, torch.dtype):
        return None
    cast = tuple(v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs)
    try:
        baseline(*cast)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return functools.partial(baseline, *cast)


def _alike(one: object, other: object) -> bool:
    """Tell whether two results are the same to the last bit."""
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _as_tf32(function: Function, inputs: Inputs) -> object:
    with tf32(allowed=True):
        return function(*inputs)


def _contention(before: int | None, elapsed_ns: int) -> str | None:
    """Return a sentence if the process had to wait for a CPU core; None if it had not, or the system does not tell."""
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


def _described(value: object) -> str:
    """Describe an input: a tensor's data type and shape, with its strides if it is not contiguous; else its type."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    strides = ""
    if value.layout is torch.strided and not value.is_contiguous():
        strides = f" with strides {list(value.stride())}"
    return f"{_shown(value.dtype)}{list(value.shape)}{strides}"


def shown_parameters(case: Case, parameters: Mapping[str, object]) -> dict[str, str]:
    """Return the parameters of a case's inputs, as results show them."""
    return {name: _shown(value) for name, value in {**case.parameters, **parameters}.items()}


def odd_inputs(case: Case, parameters: Mapping[str, object], device: torch.device) -> Inputs | None:
    """Return inputs of an odd size; None if their size cannot be chosen, or has to be another."""
    odd = {name: size for name, size in _ODD.items() if case.accepts(name)}
    if not odd:
        return None
    try:
        return case.make_inputs(device, {**parameters, **odd})
    except Exception:  # inputs may need an even size, or one that divides another
        return None


class _Watched(Struct):
    """Calls that are timed: their inputs change from call to call, and what they are judged by is looked after.

    Attributes:
        case: the case.
        inputs: the arguments of the calls.
        calls: the callables, by name; those that are found to be wrong are taken out.
        instruments: what they are judged by.
        wrong: what was found, by name.
    """

    case: Case
    inputs: Inputs
    calls: dict[str, Callable[[], object]]
    instruments: Instruments
    wrong: dict[str, Correctness] = field(default_factory=dict)
    changes: TimedInputs = field(default_factory=lambda: TimedInputs(()))

    def __post_init__(self) -> None:
        self.changes = TimedInputs(self.inputs)

    def prepared(self, calls: Calls) -> Prepared:
        """Return callables whose inputs differ from call to call."""
        return Prepared(calls, lambda name: self.before(name)())

    def before(self, name: str) -> Callable[[], None]:
        """Return what comes before each call of one name."""

        def prepare() -> None:
            self.instruments.note(name)
            self.instruments.settle()
            self.changes.nudge()

        return prepare

    def warm_up(self, device: torch.device) -> None:
        """Warm up each callable, and find those that replace what they are judged by."""
        for name, call in tuple(self.calls.items()):
            host_timing.warm_up(self.prepared({name: call}), device)
            if (replaced := self.instruments.mended()) is not None:
                self._take_out({name: tampered(replaced)})

    def steady(self, seconds: float) -> dict[str, Steady]:
        """Return times at full speed, by name."""
        results: dict[str, Steady | None] = {}
        with self.changes:
            for name, call in tuple(self.calls.items()):
                results[name] = steady_time(call, seconds, self.before(name))
                if (replaced := self.instruments.mended()) is not None:
                    self._take_out({name: tampered(replaced)})
        return {name: one for name, one in results.items() if one is not None}

    def whole(self, tools: "_Tools", name: str, checked: Correctness) -> BenchResult:
        """Put a result together, for which it is called once more."""
        self.instruments.note(name)
        result = tools.result(name, checked, self.calls.get(name))
        replaced = self.instruments.mended()
        return result if replaced is None else tools.result(name, tampered(replaced), None)

    def look(self) -> None:
        """Find calls that are wrong after they were timed.

        Raises:
            OpscopeError: something was replaced, and it is unknown by which call.
        """
        if (replaced := self.instruments.mended()) is not None:
            results = {name: tampered(what) for name in self.calls if (what := self._replaced_by(name)) is not None}
            if not results:
                self.instruments.note("")  # it may not be the last one that ran
                raise OpscopeError(
                    f"while {', '.join(self.calls)} were timed, one of them replaced {replaced}, by which they are "
                    "judged: benchmark each of them alone beside the first"
                )
            self._take_out(results)
        for _ in range(_SPOT_CHECKS):
            own = {name: call for name, call in self.calls.items() if name in self.case.variants}
            self._take_out(check_timed(self.case, self.inputs, own, self.changes, self.instruments.note))
        self.changes.restore()

    def _replaced_by(self, name: str) -> str | None:
        """Call one alone; return what it replaces."""
        self.instruments.note(name)
        for _ in range(_CALLS_ALONE):
            self.calls[name]()
            if (replaced := self.instruments.mended()) is not None:
                return replaced
        return None

    def _take_out(self, wrong: Mapping[str, Correctness]) -> None:
        for name, result in wrong.items():
            self.wrong[name] = result
            del self.calls[name]


class _Durations(Struct):
    """Measures every duration that a device has, and notes why others are missing.

    Attributes:
        calls: the callables, by name.
        device: where they run.
        limits: how long to measure each.
        reasons: per name, by measure, why a duration is missing.
        watched: watches the calls.
        series: the durations, by measure.
        kernels: what the calls launched; None without a GPU.
    """

    calls: Calls
    device: torch.device
    limits: MeasuringLimits
    reasons: Mapping[str, dict[str, str]]
    watched: "_Watched"
    series: dict[Measure, Series] = field(default_factory=dict)
    kernels: KernelTimer | None = None

    def measure(self) -> None:
        """Measure every duration, the host's first."""
        self._add(Measure.WALL, host_timing.wall(self.device), self.calls)
        if self.device.type != "cuda":
            self.series[Measure.ISSUE] = self.series[Measure.WALL]  # on a CPU a call returns when its work is done
            for measure in (Measure.KERNEL, Measure.KERNEL_WARM, Measure.EVENT, Measure.GRAPH):
                self._missing(measure, self.calls, NOT_A_GPU)
            return
        self._add(Measure.ISSUE, host_timing.issue(self.device), self.calls)
        flush = Flush(self.device)
        self._kernels(flush)
        # How many launches can be queued depends on the call that makes most; 64 if that is unknown.
        launches = max((max(counts) for counts in self.kernels.launched.values()), default=64) if self.kernels else 64
        self._add(Measure.EVENT, events(self.device, flush, launches), self.calls)
        self._add(Measure.GRAPH, events(self.device, flush, 1), self._replays())

    def _kernels(self, flush: Flush) -> None:
        # A round of its own: one call that launches nothing would make the others' rounds fail.
        launched = KernelTimer(self.device, flush).launches(self.calls)
        idle = [name for name, count in launched.items() if not count]
        for measure in (Measure.KERNEL, Measure.KERNEL_WARM):
            self._missing(measure, idle, "not measured: nothing that it launches was recorded")
        working = {name: call for name, call in self.calls.items() if name not in idle}
        self.kernels = KernelTimer(self.device, flush)
        self._add(Measure.KERNEL, self.kernels.rounds, working)
        self._add(Measure.KERNEL_WARM, KernelTimer(self.device, None).rounds, working)

    def _replays(self) -> Calls:
        replays: dict[str, Callable[[], object]] = {}
        for name, call in self.watched.prepared(self.calls).items():
            try:
                replays[name] = captured(call, self.device).replay
            except RuntimeError as error:
                torch.cuda.synchronize(self.device)
                reason = (str(error).splitlines() or [""])[0][:120]
                text = f"not measured: it cannot be captured in a CUDA graph ({reason})"
                self._missing(Measure.GRAPH, [name], text)
        return replays

    def _add(self, measure: Measure, timer: Timer, calls: Calls) -> None:
        if not calls:
            return
        try:
            self.series[measure] = in_turns(timer, self.watched.prepared(calls), self.limits)
        except OpscopeError as error:
            self._missing(measure, calls, f"not measured: {error}")
        self.watched.look()

    def _missing(self, measure: Measure, names: Iterable[str], reason: str) -> None:
        for name in names:
            self.reasons[name][measure] = reason


class _Tools(Struct, frozen=True):
    """What results are put together from.

    Attributes:
        case: the case.
        inputs: the arguments of its variants.
        durations: what was measured.
        clocks: the GPU's clocks meanwhile; None if there are none.
        parameters: of the inputs, as text.
        busy: that calls had to wait for a core, as a sentence; None if not, or on a GPU.
        steady: times at full speed by name; empty on a GPU.
    """

    case: Case
    inputs: Inputs
    durations: _Durations
    clocks: Clocks | None
    parameters: dict[str, str]
    busy: str | None
    steady: Mapping[str, Steady]

    @property
    def device(self) -> torch.device:
        return self.durations.device

    @property
    def kernels(self) -> KernelTimer | None:
        return self.durations.kernels

    def result(self, name: str, checked: Correctness, call: Callable[[], object] | None) -> BenchResult:
        results = {m: series.duration(name) for m, series in self.durations.series.items() if name in series.samples}
        wrong = _is_wrong(checked)
        if wrong:  # perhaps only after it was timed
            results, call = {}, None
        kernel = results.get(Measure.KERNEL)
        # For every variant, the limit is that of the baseline's work.
        limit = None if kernel is None or wrong else self._limit(kernel, checked)
        counts = self.kernels.launched.get(name) if self.kernels else None
        missing = {str(measure): _WRONG for measure in Measure if wrong and measure not in results}
        issue = results.get(Measure.ISSUE)
        operators, kernels = ((), ()) if wrong or call is None else what_ran(call, self.device)
        return BenchResult(
            name=name,
            case=self.case.name,
            parameters=self.parameters,
            inputs=tuple(_described(value) for value in self.inputs),
            kernel_ns=kernel,
            kernel_warm_ns=results.get(Measure.KERNEL_WARM),
            event_ns=results.get(Measure.EVENT),
            graph_ns=results.get(Measure.GRAPH),
            issue_ns=issue,
            wall_ns=results.get(Measure.WALL),
            reasons=missing | self.durations.reasons.get(name, {}),
            kernels=None if not counts else sum(counts) / len(counts),
            launch_bound=None if kernel is None or issue is None else issue.median > kernel.median,
            correctness=checked,
            limit=limit,
            clocks=self.clocks,
            doubts=tuple(self._doubts(name, limit)),
            operators=operators,
            launched=kernels,
            peak_memory_bytes=None if wrong or call is None else _peak_memory(call, self.device),
            contention=self.busy,
            steady=None if wrong else self.steady.get(name),
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
        doubts = []
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
        """Tell whether a call is faster than the device can be; data that fits into the L2 cache may beat memory."""
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
