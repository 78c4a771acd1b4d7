"""What producers record in ways of their own: copies as kernels, intercepted calls, other makers' launches."""

from pathlib import Path

import pytest

from opscope.analysis.analyzed import Analysis
from opscope.documents.verdict import BoundKind, Verdict
from tests.analysis.trust.test_trust import Analyze, check
from tests.command import opscope
from tests.kineto import KinetoTrace

DIMS = {"Input Dims": [[512, 64], [64, 64]], "Input type": ["float", "float"]}
SHARD = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}


def of_operator(analysis: Analysis, name: str) -> dict[str, object]:
    return next(row for row in analysis.operators.iter_rows(named=True) if row["name"] == name)


# ---------------------------------------------------------------- modes and subclasses


def intercepted(between: str, inner: dict[str, object], *, times: int = 1) -> KinetoTrace:
    """Ten calls of aten::mm, each intercepted and made anew ``times`` times."""
    trace = KinetoTrace()
    for number in range(10):
        begin = number * 100_000
        trace.operator("aten::mm", begin, 80_000, **DIMS)
        trace.operator(between, begin + 1_000, 78_000)
        for call in range(times):
            start = begin + 5_000 + 30_000 * call
            trace.operator("aten::mm", start, 20_000, **inner)
            trace.launched_kernel("gemm", (start + 1_000, 2_000), (start + 5_000, 10_000))
    return trace


@pytest.mark.parametrize("between", ["PythonDispatchMode", "PythonSubclass"])
def test_a_call_that_is_intercepted_and_made_anew_is_one_call(analyzed: Analyze, between: str) -> None:
    analysis = analyzed(intercepted(between, DIMS))
    row = of_operator(analysis, "aten::mm")
    assert (row["calls"], row["total_cpu_ns"], row["self_device_ns"]) == (10, 800_000, 100_000)
    (shape,) = (
        analysis.shapes.iter_rows(named=True)
        if analysis.shapes.height == 1
        else analysis.shapes.filter(analysis.shapes["name"].cast(str) == "aten::mm").iter_rows(named=True)
    )
    assert (shape["calls"], shape["input_dims"]) == (10, "[[512, 64], [64, 64]]")


def test_what_a_subclass_computes_on_a_shard_has_the_shards_inputs(analyzed: Analyze) -> None:
    """As DTensor does: the outer call has the whole tensor's inputs, and the kernel works on a part."""
    shapes = analyzed(intercepted("PythonSubclass", SHARD)).shapes
    rows = {row["input_dims"]: row["calls"] for row in shapes.iter_rows(named=True) if row["name"] == "aten::mm"}
    assert rows == {"[[64, 64], [64, 64]]": 10}


def test_a_call_that_becomes_two_stays_one(analyzed: Analyze) -> None:
    shapes = analyzed(intercepted("PythonSubclass", SHARD, times=2)).shapes
    rows = {row["input_dims"]: row["calls"] for row in shapes.iter_rows(named=True) if row["name"] == "aten::mm"}
    assert rows == {"[[512, 64], [64, 64]]": 10}


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize(
    "name",
    ["CopyHostToDevice", "MEMORY_COPY_HOST_TO_DEVICE", "__amd_rocclr_copyBuffer", "__amd_rocclr_copyBufferRect.kd"],
)
def test_a_copy_that_is_recorded_as_a_kernel_moves_data(analyzed: Analyze, name: str) -> None:
    bars = []
    for category, named in (("gpu_memcpy", "Memcpy HtoD"), ("kernel", name)):
        trace = KinetoTrace()
        trace.operator("aten::copy_", 0, 20_000)
        correlation = trace.launch(1_000, 2_000, name="hipMemcpyWithStream")
        trace.kernel(named, 5_000, 700_000, correlation, category=category)
        trace.operator("aten::mm", 30_000, 20_000)
        trace.launched_kernel("Cijk_Ailk_Bljk", (31_000, 2_000), (705_000, 300_000))
        device = analyzed(trace).devices[0]
        bars.append((device.exposed_memcpy_ns, device.compute_ns))
    assert bars == [(700_000, 300_000)] * 2


def test_a_fill_by_a_kernel_is_a_fill(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("__amd_rocclr_fillBufferAligned", (0, 1_000), (2_000, 5_000))
    assert analyzed(trace).trace.activities["kind"].to_list() == ["memset"]


def test_a_copy_by_a_kernel_within_the_device_has_a_model(analyzed: Analyze) -> None:
    """Its name does not say which way it goes: no word of the host."""
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}])
    args = {"Input Dims": [[1 << 20], [1 << 20]], "Input type": ["float", "float"]}
    trace.operator("aten::copy_", 0, 20_000, **args)
    trace.launched_kernel("__amd_rocclr_copyBuffer", (1_000, 2_000), (5_000, 10_000))
    (row,) = analyzed(trace).limits
    assert row.reason != "data move to or from the host"


def test_a_copy_of_a_graph_in_two_records_has_its_bytes_once(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for replay in range(2):
        graph = trace.launch(100_000 * replay, 5_000, name="cudaGraphLaunch")
        for node in range(3):
            for part, start in enumerate((10_000, 16_000)):
                place = {"graph id": 1, "graph node id": node + 1, "bytes": 1_000}
                begin = 100_000 * replay + 20_000 * node + start
                trace.kernel("Memcpy DtoD", begin, 5_000 - 4_000 * part, graph, category="gpu_memcpy", **place)
    activities = analyzed(trace).trace.activities
    assert (activities.height, activities["bytes"].sum()) == (12, 6_000)


@pytest.mark.parametrize(
    ("took", "moved"),
    [
        ((5_257, 900), 16_777_216),  # 18.6 TB/s, where the one before took 3.2: the same bytes once more
        ((5_257, 5_200), 2 * 16_777_216),  # two copies of one size
        ((900, 900), 2 * 16_777_216),  # neither is the other's repetition, whatever their durations are worth
    ],
)
def test_a_record_that_repeats_the_copy_before_it_moves_nothing_more(
    analyzed: Analyze, took: tuple[int, int], moved: int
) -> None:
    trace = KinetoTrace()
    graph = trace.launch(0, 5_000, name="cudaGraphLaunch")
    for node, (start, duration) in enumerate(zip((10_000, 16_000), took, strict=True)):
        place = {"graph id": 1, "graph node id": node + 1, "bytes": 16_777_216}
        trace.kernel("Memcpy DtoD (Device -> Device)", start, duration, graph, category="gpu_memcpy", **place)
    assert analyzed(trace).trace.activities["bytes"].sum() == moved


# ---------------------------------------------------------------- other makers' devices


def sycl(kernels: bool) -> KinetoTrace:
    trace = KinetoTrace()
    for number in range(30):
        begin = 20_000 * number
        trace.operator("aten::add", begin, 15_000)
        correlation = number + 1
        trace.slice("xpu_runtime", "urEnqueueKernelLaunch", begin + 2_000, 4_000, correlation=correlation)
        trace.slice("xpu_driver", "zeCommandListAppendLaunchKernel", begin + 3_000, 2_000, correlation=10_000 + number)
        if kernels or number == 0:
            args = {"device": 0, "context": "0x55d0", "sycl queue": 64, "correlation": correlation}
            trace.slice("kernel", "VectorizedElementwiseKernel", begin + 8_000, 5_000, pid=0, tid=64, **args)
    trace.step(1, 0, 615_000)
    trace.slice("xpu_runtime", "urQueueFinish", 600_000, 12_000, correlation=99_999)
    return trace


def test_launches_of_sycl_are_launches(analyzed: Analyze) -> None:
    analysis = analyzed(sycl(kernels=True))
    assert check(analysis, "launch_recorded").verdict is Verdict.PASS
    assert check(analysis, "launches_without_activity").verdict is Verdict.PASS
    assert of_operator(analysis, "aten::add")["activities"] == 30
    causes = {cause for cause, time in analysis.devices[0].idle.by_cause().items() if time}
    assert "launch not recorded" not in causes


def test_where_most_launches_have_no_kernel_nothing_is_said_of_the_host(analyzed: Analyze) -> None:
    analysis = analyzed(sycl(kernels=False))
    assert check(analysis, "launches_without_activity").verdict is Verdict.FAIL
    assert analysis.bound.kind is BoundKind.UNKNOWN
    assert analysis.bound.sentence == "Most launches have no recorded work: record fewer steps at once."


def test_work_of_apples_gpu_did_not_run_on_the_cpu(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::convolution", 0, 90_000)
    trace.operator("aten::_mps_convolution", 10_000, 70_000)
    bound = analyzed(trace).bound
    assert bound.kind is BoundKind.UNKNOWN
    assert "Apple's GPU" in bound.sentence


def test_an_export_without_cuda_says_so(tmp_path: Path) -> None:
    import sqlite3

    import opscope

    path = tmp_path / "cpu.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        connection.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
        connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100')")
    analysis = opscope.analyze(path)
    assert analysis.bound.kind is BoundKind.UNKNOWN
    assert "no table of CUDA" in check(analysis, "recording_complete").sentence


# ---------------------------------------------------------------- the first launch, and loaders by name


def test_a_first_launch_that_sets_the_device_up_is_cold_start(analyzed: Analyze) -> None:
    """347 ms in the first launch, before any work; then 200 ms of work, of which no step is marked."""
    trace = KinetoTrace()
    trace.operator("aten::ones", 0, 348_000_000)
    trace.launched_kernel("k", (500_000, 347_000_000), (347_600_000, 10_000))
    for number in range(1, 200):
        begin = 348_000_000 + 1_000_000 * number
        trace.operator("aten::mm", begin, 900_000)
        trace.launched_kernel("k", (begin + 1_000, 5_000), (begin + 10_000, 800_000))
    bound = analyzed(trace).bound
    assert bound.kind is BoundKind.COLD_START
    assert bound.sentence.startswith("The first calls take 347.0 ms to set the device up")


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        ("cpu_op", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        ("user_annotation", "[pl][profile][_TrainingEpochLoop].train_dataloader_next"),
        ("user_annotation", "get_train_batch"),
        ("user_annotation", "Data fetching"),
        ("user_annotation", "## next_batch ##"),
        ("user_annotation", "data loading"),
        ("python_function", "transformers/trainer.py(5000): get_batch_samples"),
    ],
)
def test_loading_is_known_by_its_name(analyzed: Analyze, category: str, name: str) -> None:
    others = ("something_else", "target_batch", "offload_batch", "load_batch_norm", "get_next_batch_to_run")
    for named, kind in ((name, BoundKind.INPUT), *((other, BoundKind.HOST_WORK) for other in others)):
        trace = KinetoTrace()
        for step in range(4):
            begin = 20_000_000 * step
            trace.step(step + 1, begin, 20_000_000)
            trace.slice(category, named, begin + 1_000, 18_000_000)
            for number in range(10):
                launched = begin + 18_010_000 + 20_000 * number
                trace.operator("aten::mm", launched, 15_000)
                trace.launched_kernel("k", (launched + 1_000, 3_000), (launched + 6_000, 100_000))
            trace.launch(begin + 18_300_000, 1_000_000, name="cudaDeviceSynchronize")
        assert analyzed(trace).bound.kind is kind


def test_kernels_of_a_thread_without_operators_are_said_to_be_of_it(analyzed: Analyze) -> None:
    """The profiler was started on another thread than the one that launches."""
    trace = KinetoTrace()
    for number in range(5):
        begin = number * 20_000
        trace.operator("aten::empty", begin, 2_000)
        trace.launched_kernel("k", (begin + 3_000, 4_000), (begin + 8_000, 6_000), tid=9999)
    sentence = check(analyzed(trace), "operator_recorded").sentence
    assert "5 launches were made by the thread `100 9999`, of which no operator was recorded" in sentence


# ---------------------------------------------------------------- steps


def test_a_step_that_two_threads_mark_is_one(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(3):
        trace.step(number, number * 1_000_000, 1_000_000)
        trace.annotation(f"ProfilerStep#{number}", number * 1_000_000 + 5_000, 990_000, tid=7)
        trace.launched_kernel("k", (number * 1_000_000 + 10_000, 4_000), (number * 1_000_000 + 20_000, 900_000))
    analysis = analyzed(trace)
    assert analysis.step_count == 3
    assert analysis.window.duration_ns == 3_000_000


def repeated(times: int, kernels: int, *, first: int = 0, within: str = "aten::_convolution") -> KinetoTrace:
    """The same kernels several times, without marks; the first time takes longer by ``first``, within an operator."""
    trace, now = KinetoTrace(), 0
    for time in range(times):
        for number in range(kernels):
            trace.operator(f"aten::op{number}", now, 9_000)
            trace.launched_kernel(f"kernel{number}", (now + 2_000, 4_000), (now + 8_000, 20_000))
            now += 30_000
        if time == 0 and first:
            (trace.operator if "::" in within else trace.annotation)(within, now, first)
            now += first
    return trace


def test_steps_that_nothing_marks_are_told_by_kernels_that_repeat(analyzed: Analyze) -> None:
    analysis = analyzed(repeated(4, 25))
    assert (analysis.step_count, analysis.steps_from) == (
        4,
        "No steps are marked: the same 25 kernels run 4 times.",
    )
    assert [step.activities for step in analysis.steps] == [25] * 4
    assert [step.span_ns for step in analysis.steps[:3]] == [750_000] * 3


@pytest.mark.parametrize(("times", "kernels"), [(10, 5), (1, 40)])
def test_what_repeats_within_a_step_or_not_at_all_makes_no_steps(analyzed: Analyze, times: int, kernels: int) -> None:
    analysis = analyzed(repeated(times, kernels))
    assert (analysis.step_count, analysis.steps_from) == (0, None)


def test_a_recording_that_is_mostly_its_first_step_is_a_cold_start(analyzed: Analyze) -> None:
    analysis = analyzed(repeated(3, 25, first=40_000_000))
    assert analysis.bound.kind is BoundKind.COLD_START
    assert analysis.bound.sentence == (
        "The first step takes 40.75 ms, most of the recording, and others 739.5 us: profile later steps."
    )
    (odd,) = analysis.odd_steps
    assert (odd.number, analysis.step_count, odd.where) == (1, 2, "aten::_convolution")
    # Each operator has its work: steps begin with the operator around their first launch.
    assert analysis.accounting.unlinked_ns == 0
    assert analysis.accounting.activities_ns == 50 * 20_000


def test_a_first_step_that_does_something_else_is_no_cold_start(analyzed: Analyze) -> None:
    analysis = analyzed(repeated(3, 25, first=40_000_000, within="save_checkpoint"))
    assert [step.where for step in analysis.odd_steps] == ["save_checkpoint"]
    assert analysis.bound.kind is not BoundKind.COLD_START


def training(steps: int) -> KinetoTrace:
    """Steps of 1 ms without marks, each with an optimizer's."""
    trace = KinetoTrace()
    for number in range(steps):
        begin = number * 1_000_000
        trace.operator("aten::mm", begin, 9_000)
        trace.launched_kernel("gemm", (begin + 2_000, 4_000), (begin + 8_000, 850_000))
        trace.operator("aten::add_", begin + 810_000, 100_000)
        trace.annotation("Optimizer.step#AdamW.step", begin + 800_000, 150_000)
    return trace


def test_an_optimizers_steps_end_steps_where_nothing_else_marks_them(analyzed: Analyze) -> None:
    analysis = analyzed(training(6))
    assert analysis.steps_from == "No steps are marked: each ends with `Optimizer.step#AdamW.step`."
    assert [step.number for step in analysis.steps] == [1, 2, 3, 4, 5, 6]
    # The first begins with the first launch, the others where the one before ends.
    assert [step.span_ns for step in analysis.steps] == [948_000, *[1_000_000] * 5]
    assert analysis.bound.kind is BoundKind.DEVICE


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        ((1_000, 1_000, 1_000, 1_000), 4),
        ((1_000, 5_000) * 5, 0),  # two optimizers of one class take turns: a step is two of them
        ((50_000, 1_000, 1_000), 0),  # most of the work comes before
        ((1_000, 1_000), 0),  # too few to tell
        ((600, *[1_000] * 14), 14),  # a recording that begins within a step
        ((600, *[1_000] * 6), 0),  # so much of its work that the others do not describe it
        ((1_800, *[1_000] * 6), 7),  # a first step that the profiler's start makes longer
    ],
)
def test_ranges_of_optimizers_make_steps_only_where_they_fit(
    analyzed: Analyze, lengths: tuple[int, ...], steps: int
) -> None:
    trace, begin = KinetoTrace(), 0
    for length in lengths:
        time = length * 1_000
        trace.operator("aten::mm", begin, 9_000)
        trace.launched_kernel("gemm", (begin, 4_000), (begin + 8_000, time - 150_000))
        trace.annotation("Optimizer.step#Adam.step", begin + time - 120_000, 100_000)
        trace.annotation("Optimizer.step#Adam.step", begin + time - 110_000, 50_000)  # of the base class
        begin += time
    assert analyzed(trace).step_count == steps


def test_unmarked_steps_can_be_compared_with_an_unprofiled_one(tmp_path: Path) -> None:
    file = training(6).write(tmp_path / "t.json")
    text = opscope("analyze", str(file), "--step-time", "0.95").stdout
    assert "6 steps, not marked" in text
    assert "unprofiled step 950.0 us" in text
    # Tables of a query hold the recorded ranges, and no steps that the file does not mark.
    names = opscope("sql", "select distinct name from annotations", str(file), "--format", "csv").stdout
    assert "ProfilerStep" not in names
    assert "Optimizer.step#AdamW.step" in names
