"""Why a device was idle, worked out by hand: the cause, the call, and where the host was."""

import itertools
from collections.abc import Callable

import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.documents.trace import GapRow
from opscope.documents.verdict import BoundKind, IdleCause
from opscope.readers.reading import read
from tests import tiny
from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]
MS, US = 1_000_000, 1_000


def first_kernel(trace: KinetoTrace) -> None:
    """A kernel from 10 to 20 us, launched at 5 us, within an operator."""
    trace.operator("aten::first", 0, 10 * US)
    trace.launched_kernel("first", (5 * US, 2 * US), (10 * US, 10 * US))


def last_kernel(trace: KinetoTrace, at: int, *, tid: int = 100) -> None:
    """A kernel that begins 5 us after its call, which lasts 2 us."""
    trace.launched_kernel("last", (at, 2 * US), (at + 5 * US, 10 * US), tid=tid)


def the_gap(analysis: Analysis) -> GapRow:
    (gap,) = analysis.gaps
    assert sum(gap.causes.values()) == gap.duration_ns
    assert gap.duration_ns == sum(device.idle_ns for device in analysis.devices)
    return gap


def test_a_blocking_read_names_its_call_operator_and_line(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.slice("python_function", "train.py(12): step", 0, 900 * US)
    trace.slice("python_function", "torch/_tensor.py(3): item", 8 * US, 500 * US)
    trace.operator("aten::item", 9 * US, 495 * US)
    trace.slice("cuda_runtime", "cudaStreamSynchronize", 15 * US, 485 * US)
    last_kernel(trace, 520 * US)
    gap = the_gap(analyzed(trace))
    # 20 .. 500 in the call, 500 .. 520 on the way to the launch, 520 .. 525 after it.
    assert gap.causes == {"blocking call": 480 * US, "dispatch": 20 * US, "launch latency": 5 * US}
    assert (gap.cause, gap.call, gap.operator) == ("blocking call", "cudaStreamSynchronize", "aten::item")
    assert (gap.python, gap.before, gap.after) == ("train.py(12): step", "first", "last")
    assert (gap.start_ns, gap.position, gap.step, gap.module) == (20 * US, "between activities", None, None)


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaFree", "cudaHostAlloc", "cuModuleLoadData", "hipMalloc"])
def test_allocations_and_loading_block_however_short(analyzed: Analyze, call: str) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.slice("cuda_runtime", call, 25 * US, 60 * US)
    last_kernel(trace, 90 * US)
    gap = the_gap(analyzed(trace))
    cause = "cold start" if call == "cuModuleLoadData" else "allocation"
    assert gap.causes == {cause: 60 * US, "dispatch": 10 * US, "launch latency": 5 * US}
    assert gap.call == call


def test_a_copy_of_pageable_memory_blocks_until_it_begins(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    number = trace.launch(40 * US, 700 * US, name="cudaMemcpyAsync")
    trace.kernel("Memcpy HtoD (Pageable -> Device)", 600 * US, 100 * US, number, category="gpu_memcpy")
    gap = the_gap(analyzed(trace))
    assert gap.causes == {"blocking call": 560 * US, "dispatch": 20 * US}
    assert gap.call == "cudaMemcpyAsync"


def test_python_that_launches_nothing_is_host_work(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.slice("python_function", "nn.Module: Net_0", 0, 6 * MS)
    trace.slice("python_function", "load.py(7): augment", 30 * US, 5 * MS)
    trace.operator("aten::next", 5_100 * US, 200 * US)
    last_kernel(trace, 5_150 * US)
    gap = the_gap(analyzed(trace))
    # Until the operator that launches: nothing begins or ends in 10 .. 5,100 us.
    assert gap.causes == {"host work": 5_080 * US, "dispatch": 50 * US, "launch latency": 5 * US}
    assert (gap.cause, gap.python, gap.module, gap.operator) == ("host work", "load.py(7): augment", "Net_0", None)


def test_an_operator_of_the_host_is_host_work(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.operator("aten::sort", 30 * US, 800 * US)
    last_kernel(trace, 850 * US)
    gap = the_gap(analyzed(trace))
    assert gap.causes == {"host work": 800 * US, "dispatch": 30 * US, "launch latency": 5 * US}
    assert (gap.operator, gap.python) == ("aten::sort", None)


def test_a_milliseconds_of_small_operators_in_a_loaders_range_is_loading(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 15 * US, 3 * MS)
    for start in range(20 * US, 3 * MS, 30 * US):
        trace.operator("aten::normal_", start, 25 * US)
    last_kernel(trace, 3_100 * US)
    gap = the_gap(analyzed(trace))
    assert gap.causes == {"data loading": 3_080 * US, "launch latency": 5 * US}
    assert gap.annotation == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_operators_and_launches_without_pause_are_dispatch(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(200):
        at = number * 40 * US
        trace.operator("aten::add", at, 35 * US)
        trace.launched_kernel("k", (at + 10 * US, 5 * US), (at + 18 * US, 2 * US))
    (device,) = analyzed(trace).devices
    # Per gap of 38 us: 30 until the call, 8 from it on.
    causes = {str(cause): time for cause, time in device.idle.by_cause().items() if time}
    assert causes == {"dispatch": 199 * 30 * US, "launch latency": 199 * 8 * US}


def test_a_thread_that_takes_over_is_not_blamed_for_what_came_before(analyzed: Analyze) -> None:
    """Autograd's thread begins at 300 us; until then the main thread dispatched (views, for one)."""
    trace = KinetoTrace()
    trace.operator("aten::old", 0, 5 * US, tid=200)  # long ago
    first_kernel(trace)
    for start in range(20 * US, 300 * US, 20 * US):
        trace.operator("aten::view", start, 15 * US)
    trace.operator("autograd::engine::evaluate_function: MmBackward0", 300 * US, 100 * US, tid=200)
    last_kernel(trace, 350 * US, tid=200)
    gap = the_gap(analyzed(trace))
    assert gap.causes == {"dispatch": 330 * US, "launch latency": 5 * US}


def test_a_main_thread_that_pauses_before_the_other_takes_over_is(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.annotation("loss on the host", 15 * US, 280 * US)
    trace.operator("autograd::engine::evaluate_function: MmBackward0", 300 * US, 100 * US, tid=200)
    last_kernel(trace, 350 * US, tid=200)
    gap = the_gap(analyzed(trace))
    assert gap.causes == {"host work": 280 * US, "dispatch": 50 * US, "launch latency": 5 * US}
    assert gap.annotation == "loss on the host"


def test_records_of_loaded_code_and_of_the_profiler_say_more(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.slice("overhead", "Lazy Function Loading", 110 * US, 300 * US)
    trace.slice("overhead", "Buffer Flush", 420 * US, 50 * US)
    trace.launched_kernel("last", (100 * US, 400 * US), (505 * US, 10 * US))
    gap = the_gap(analyzed(trace))
    # 20 .. 100 dispatch; in the call 100 .. 110, 410 .. 420 and 470 .. 500; 500 .. 505 latency.
    loading, rest = 300 * US, 50 * US
    assert gap.causes == {
        "cold start": loading, "blocking call": rest, "dispatch": 80 * US, "profiler": 50 * US,
        "launch latency": 5 * US,
    }  # fmt: skip
    assert (gap.cause, gap.call) == ("cold start", "Lazy Function Loading")


def test_a_launch_that_takes_long_is_named(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    trace.launched_kernel("last", (30 * US, 500 * US), (533 * US, 10 * US))
    gap = the_gap(analyzed(trace))
    assert gap.causes == {"blocking call": 500 * US, "dispatch": 10 * US, "launch latency": 3 * US}
    assert gap.call == "cudaLaunchKernel"


def test_hip_and_graphs(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    first_kernel(trace)
    number = trace.launch(40 * US, 60 * US, name="hipMemcpyWithStream")
    trace.kernel("CopyHostToDevice", 80 * US, 20 * US, number, category="gpu_memcpy")
    graph = trace.launch(105 * US, 10 * US, name="hipGraphLaunch")
    for start in (120 * US, 130 * US):
        trace.kernel("node", start, 5 * US, graph)
    first, second, third = analyzed(trace).gaps
    assert first.causes == {"blocking call": 40 * US, "dispatch": 20 * US}
    assert second.causes == {"launch latency": 15 * US, "dispatch": 5 * US}
    assert third.causes == {"dependency": 5 * US}


def test_every_device_has_its_own_gaps_and_the_ends_of_the_window_are_told(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(7, 0, 2 * MS)
    trace.annotation("preprocess", 0, 900 * US)
    trace.launched_kernel("a", (1_000 * US, 5 * US), (1_010 * US, 100 * US), device=0)
    trace.launched_kernel("b", (1_020 * US, 5 * US), (1_030 * US, 900 * US), device=1)
    gaps = analyzed(trace).gaps
    assert [(gap.device, gap.position, gap.duration_ns) for gap in gaps] == [
        (1, "before the first activity", 1_030 * US),
        (0, "before the first activity", 1_010 * US),
        (0, "after the last activity", 890 * US),
        (1, "after the last activity", 70 * US),
    ]
    assert [gap.cause for gap in gaps] == [*["host work"] * 2, *["after the last activity"] * 2]
    assert {gap.step for gap in gaps} == {7}
    assert gaps[1].annotation == "preprocess"


def test_the_table_and_the_document_list_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tiny.inference().write(tmp_path_factory.mktemp("t") / "t.json")
    result = opscope("analyze", "--by", "gap", "--format", "csv", str(path))
    assert result.returncode == 0
    header, *rows = [line.split(",") for line in result.stdout.splitlines()]
    lengths = [int(row[header.index("duration_ns")]) for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert sum(lengths) == 142 * US
    table = opscope("analyze", "--by", "gap", str(path)).stdout
    assert "after the last activity" in table
    assert all(one >= other for one, other in itertools.pairwise(lengths))


def test_a_step_time_that_is_given_decides_the_verdict(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tiny.inference().write(tmp_path_factory.mktemp("t") / "t.json"))
    without = opscope("analyze", "--why", path).stdout
    assert "between 29.0 % and 57.8 %" in without
    assert "faster kernels do not" not in without
    given = opscope("analyze", "--why", "--step-time", "0.1", path).stdout
    assert "29.0 % of the unprofiled step of 100.0 us" in given
    assert "[device]" in opscope("analyze", "--step-time", "0.03", path).stdout
    unmarked = str(tiny.training().write(tmp_path_factory.mktemp("t") / "t.json"))
    result = opscope("analyze", "--step-time", "1", unmarked)
    assert (result.returncode, "marks no steps" in result.stderr) == (2, True)
    assert opscope("analyze", "--step-time", "0", path).returncode == 2


RECORDED = {
    "sleeping": ("host work", None, "causes.py(81): <lambda>"),
    "counting": ("host work", None, "causes.py(85): count"),
    "host_sort": ("host work", "aten::sort", "causes.py(71): step"),
    "waiting_for_another_thread": ("host work", None, "causes.py(154): wait"),
    "allocating": ("allocation", "aten::empty", "causes.py(131): step"),
}


@pytest.mark.parametrize("program", RECORDED)
def test_programs_with_a_built_in_cause_are_seen_through(program: str) -> None:
    analysis = analyze(read(DATA / "causes" / f"{program}.json.gz"))
    cause, operator, line = RECORDED[program]
    (device,) = analysis.devices
    idle = device.idle.by_cause()
    assert str(max(idle, key=idle.__getitem__)) == cause
    assert sum(idle.values()) == device.idle_ns
    gap = analysis.gaps[0]
    assert (gap.cause, gap.operator, gap.python) == (cause, operator, line)


def test_a_recorded_loader_is_named_by_its_range() -> None:
    gap = analyze(read(DATA / "causes" / "loading_data.json.gz")).gaps[0]
    assert (gap.cause, gap.annotation) == (
        "data loading",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    )
    assert gap.python == "causes.py(167): __getitem__"


def test_recorded_programs_that_launch_all_the_time_and_that_keep_the_device_busy() -> None:
    (device,) = analyze(read(DATA / "causes" / "small_kernels.json.gz")).devices
    launching = device.idle.by_cause()[IdleCause.DISPATCH] + device.idle.by_cause()[IdleCause.LATENCY]
    assert launching > 0.95 * device.idle_ns
    busy = analyze(read(DATA / "causes" / "graph_replays.json.gz"))
    assert busy.bound.kind is BoundKind.DEVICE
    assert busy.gaps[0].duration_ns < 0.01 * busy.devices[0].window.duration_ns


def test_a_dependency_names_the_stream_that_waited_and_what_ended_elsewhere(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("first", (0, US), (10 * US, 50 * US))
    trace.launched_kernel("far", (2 * US, US), (20 * US, 470 * US), device=1, stream=3)
    trace.launched_kernel("second", (4 * US, US), (500 * US, 50 * US), stream=9)
    (gap,) = (gap for gap in analyzed(trace).gaps if gap.device == 0)
    assert (gap.cause, gap.stream, gap.duration_ns) == ("dependency", 9, 440 * US)
    assert gap.waited_for == "device 1, stream 3: far"
