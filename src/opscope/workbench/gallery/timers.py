"""One function, timed in the ways that people time GPU code: what does each of them measure?"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils.benchmark import Timer

from opscope.base.units import NS_PER_MS, NS_PER_S, NS_PER_US
from opscope.documents.bench import BenchResult, Measure
from opscope.measuring.clock import synchronize
from opscope.measuring.rounds import MeasuringLimits, duration_of
from opscope.workbench.benchmarking.case import Case
from opscope.workbench.benchmarking.run import bench_case
from opscope.workbench.gallery.available import has_triton

_CALLS = 30
_NAME = "timers"


def measure(device: torch.device, limits: MeasuringLimits, progress: Callable[[str], None]) -> tuple[BenchResult, ...]:
    """Time GELU in every way that is available here, opscope's last: a million elements on a GPU, 16,384 on a CPU.

    Args:
        device: where the function runs.
        limits: for opscope's own measurement.
        progress: called with a line of text on what goes on.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(1 << 20 if device.type == "cuda" else 1 << 14, device=device).to(dtype)

    def call() -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    for _ in range(3):
        call()
    synchronize(device)
    progress(f"{_NAME}: other ways")
    others = list(_others(call, device))
    (own,) = bench_case(Case(_NAME, {"opscope": torch.nn.functional.gelu}, lambda: x), {}, device, limits, progress)
    return (*others, own)


def _result(name: str, measure: Measure, samples: Sequence[float], about: str) -> BenchResult:
    results = {measure: duration_of(samples)}
    return BenchResult(
        name=name,
        case=_NAME,
        kernel_ns=results.get(Measure.KERNEL),
        event_ns=results.get(Measure.EVENT),
        issue_ns=results.get(Measure.ISSUE),
        wall_ns=results.get(Measure.WALL),
        about=about,
    )


def _others(call: Callable[[], object], device: torch.device) -> Iterator[BenchResult]:
    if device.type == "cuda":
        yield _result(
            "perf_counter alone", Measure.ISSUE, [_clocked(call, device, waits=False) for _ in range(_CALLS)],
            "how long the host takes to issue it: the device may not even have begun",
        )  # fmt: skip
    yield _result(
        "perf_counter and synchronize", Measure.WALL, [_clocked(call, device, waits=True) for _ in range(_CALLS)],
        "issuing, the device's work, and finding out that it has ended",
    )  # fmt: skip
    # Timer measures with one thread unless it is told otherwise; all ways are to use as many.
    timed = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    yield _result(
        "torch.utils.benchmark.Timer", Measure.WALL,
        [seconds * NS_PER_S for seconds in timed.blocked_autorange(min_run_time=0.2).times],
        "many calls and one synchronise: the longer of issuing and the device's work, per call",
    )  # fmt: skip
    if device.type != "cuda":
        return
    yield _result(
        "one pair of events", Measure.EVENT, [_one_pair(call) for _ in range(_CALLS)],
        "from the first event to the last on the device: the host's delay in between counts",
    )  # fmt: skip
    for name, profiler, measure, about in (
        (
            "autograd.profiler", torch.autograd.profiler.profile(use_device="cuda"), Measure.EVENT,
            "the operator's device time in its table; measured on an H200 it is as long as between a pair of events",
        ),
        (
            "torch.profiler", torch.profiler.profile(), Measure.KERNEL,
            "the operator's device time in its table: the kernels' own durations, as CUPTI records them; a mean",
        ),
    ):  # fmt: skip
        with profiler as recorded:
            for _ in range(_CALLS):
                call()
            torch.cuda.synchronize(device)
        # The operator's row: rows of kernels stand beside it, and adding both up gives twice the time.
        total = sum(row.self_device_time_total for row in recorded.key_averages() if row.key == "aten::gelu")
        yield _result(name, measure, [total / _CALLS * NS_PER_US], about)
    if has_triton(device):
        from triton.testing import do_bench

        yield _result(
            "triton.testing.do_bench", Measure.EVENT,
            [milliseconds * NS_PER_MS for milliseconds in do_bench(call, return_mode="all")],
            "events around each call, with the cache flushed: launching counts where the kernel is short",
        )  # fmt: skip


def _clocked(call: Callable[[], object], device: torch.device, *, waits: bool) -> float:
    synchronize(device)
    began = time.perf_counter_ns()
    call()
    if waits:
        synchronize(device)
    return float(time.perf_counter_ns() - began)


def _one_pair(call: Callable[[], object]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * NS_PER_MS
