"""Real H200 traces against PyTorch's own tables of the same captures, and against slow, obvious counting."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.trace.model import Trace
from tests.conftest import DATA

NAMES = sorted(path.name.removesuffix(".json.gz") for path in (DATA / "traces").glob("*.json.gz"))
TORCH_TABLES: dict[str, list[list[Any]]] = json.loads((DATA / "traces" / "torch_tables.json").read_text())
Recorded = Callable[[str], Trace]


@pytest.fixture(scope="module")
def analyses() -> dict[str, Analysis]:
    from opscope.readers.reading import read

    return {name: analyze(read(DATA / "traces" / f"{name}.json.gz")) for name in NAMES}


def raw_events(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / "traces" / f"{name}.json.gz") as file:
        events: list[dict[str, Any]] = json.load(file, parse_float=Decimal)["traceEvents"]
    return events


def nanoseconds(value: Any) -> int:
    return int(Decimal(value) * 1000)


def raw_activities(name: str) -> list[dict[str, Any]]:
    return [event for event in raw_events(name) if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


@pytest.mark.parametrize("name", NAMES)
def test_identity_holds_to_the_nanosecond(name: str, analyses: dict[str, Analysis]) -> None:
    analysis = analyses[name]
    total = sum(nanoseconds(event["dur"]) for event in raw_activities(name))
    unlinked = analysis.accounting.unlinked_ns
    assert analysis.operators["self_device_ns"].sum() + unlinked == total
    assert analysis.kernels["total_ns"].sum() == total
    assert analysis.categories["self_device_ns"].sum() == total
    assert sum(device.sum_ns for device in analysis.devices) == total
    assert analysis.shapes["self_device_ns"].sum() + unlinked == total
    assert analysis.kernels_of["total_ns"].sum() + unlinked == total


@pytest.mark.parametrize("name", NAMES)
def test_kernel_rows_equal_plain_counting(name: str, analyses: dict[str, Analysis]) -> None:
    durations = defaultdict(list)
    for event in raw_activities(name):
        durations[event["name"]].append(nanoseconds(event["dur"]))
    rows = analyses[name].kernels.select("name", "calls", "total_ns", "min_ns", "max_ns").rows()
    assert {row[0]: row[1:] for row in rows} == {
        kernel: (len(values), sum(values), min(values), max(values)) for kernel, values in durations.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_busy_time_equals_a_sweep_over_start_and_end_points(name: str, analyses: dict[str, Analysis]) -> None:
    points = []
    for event in raw_activities(name):
        start, duration = nanoseconds(event["ts"]), nanoseconds(event["dur"])
        points += [(start, 1), (start + duration, -1)]
    running, since, busy = 0, 0, 0
    for time, change in sorted(points, key=lambda point: (point[0], -point[1])):
        since = time if running == 0 else since
        running += change
        busy += time - since if running == 0 else 0
    (device,) = analyses[name].devices
    assert device.busy_ns == busy
    parts = device.compute_ns + device.exposed_communication_ns + device.exposed_memcpy_ns + device.idle_ns
    assert parts == device.window.duration_ns
    assert sum(device.idle.by_cause().values()) == device.idle_ns


def torch_rows(name: str) -> list[tuple[str, int, float, float]]:
    return [(row[0], row[1], row[2], row[4]) for row in TORCH_TABLES[name]]


@pytest.mark.parametrize("name", sorted(TORCH_TABLES))
def test_rows_equal_pytorchs_own_table(name: str, analyses: dict[str, Analysis]) -> None:
    """Kernel rows exactly; operator rows in calls, self device and self CPU time (PyTorch prints microseconds)."""
    analysis = analyses[name]
    compared = 0
    for row_name, calls, device_us, cpu_us in torch_rows(name):
        kernels = analysis.kernels.filter(pl.col("name").cast(pl.String) == row_name)
        operators = analysis.operators.filter(pl.col("name") == row_name)
        if kernels.height and cpu_us == 0:
            assert kernels["calls"].sum() == calls
            assert kernels["total_ns"].sum() == round(device_us * 1000)
        elif operators.height:
            assert operators["calls"].item() == calls
            assert operators["self_device_ns"].item() == round(device_us * 1000)
            assert operators["self_cpu_ns"].item() == pytest.approx(cpu_us * 1000, abs=2)
        else:  # ranges that PyTorch lists as if they were operators
            assert row_name.startswith(("ProfilerStep", "Optimizer.", "## Call", "cuda", "manual_gelu")), row_name
            continue
        compared += 1
    assert compared >= len(TORCH_TABLES[name]) - 5
    assert compared


def test_every_operator_of_a_training_step_has_totals_by_plain_recursion(recorded: Recorded) -> None:
    """Totals of ResNet-50, forward and backward, against walking the raw events one by one."""
    name = "resnet50_train_fp32"
    events = [event for event in raw_events(name) if event.get("ph") == "X"]
    operators = [event for event in events if event["cat"] == "cpu_op"]
    by_thread = defaultdict(list)
    for event in operators:
        start = nanoseconds(event["ts"])
        by_thread[event["tid"]].append((start, start + nanoseconds(event["dur"]), event["name"]))
    launches = {
        event["args"]["correlation"]: event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver")
    }
    totals: dict[str, int] = defaultdict(int)
    for activity in raw_activities(name):
        launch = launches.get(activity["args"].get("correlation"))
        if launch is None:
            continue
        time = nanoseconds(launch["ts"])
        around = {n for start, end, n in by_thread[launch["tid"]] if start <= time < end}
        for operator in around:
            totals[operator] += nanoseconds(activity["dur"])
    found = analyze(recorded(name)).operators.filter(pl.col("total_device_ns") > 0)
    assert dict(found.select("name", "total_device_ns").rows()) == dict(totals)
    assert len(totals) > 50


def test_backward_operators_have_the_forward_line_that_caused_them(analyses: dict[str, Analysis]) -> None:
    callers = analyses["gpt2_train_amp_stacks"].callers
    assert callers is not None
    mm = callers.filter(pl.col("name") == "aten::mm")
    assert mm["called_from"][0].startswith("transformers/models/gpt2/modeling_gpt2.py")
    softmax = callers.filter(pl.col("name") == "aten::_log_softmax_backward_data")
    assert softmax["called_from"].to_list()[0].startswith("transformers/loss/loss_utils.py")
    assert callers["self_device_ns"].sum() > 0.9 * analyses["gpt2_train_amp_stacks"].accounting.activities_ns


def test_allocations_are_charged_to_operators(analyses: dict[str, Analysis]) -> None:
    host, device = analyses["gpt2_train_amp_stacks"].memory
    assert (host.device, device.device) == (None, 0)
    raw = [e["args"] for e in raw_events("gpt2_train_amp_stacks") if e["name"] == "[memory]"]
    on_device = [args for args in raw if args["Device Type"] == 1]
    assert device.peak_allocated_bytes == max(args["Total Allocated"] for args in on_device)
    assert device.allocated_bytes == sum(args["Bytes"] for args in on_device if args["Bytes"] > 0)
    assert device.by_operator["allocated_bytes"].sum() == device.allocated_bytes


def test_training_has_phases_and_inference_has_none(analyses: dict[str, Analysis]) -> None:
    phases = analyses["resnet50_train_fp32"].phases
    assert phases is not None
    assert sum(phases.values()) == analyses["resnet50_train_fp32"].accounting.activities_ns
    assert phases["backward"] > phases["forward"] > phases["optimizer"] > 0
    assert analyses["bert_fp32_eager_bs8_seq128"].phases is None


def test_lost_launches_and_work_outside_the_window_are_found(analyses: dict[str, Analysis]) -> None:
    """What is known to be wrong with these captures: they began while earlier work was still running."""
    found = {
        (name, check.name): (str(check.verdict), check.count)
        for name, analysis in analyses.items()
        for check in analysis.trust.checks
    }
    assert found["bert_fp32_eager_bs8_seq128", "launch_recorded"] == ("warn", 6)
    assert found["gelu_variants", "launch_recorded"] == ("warn", 9)  # queued before, all of them
    assert found["square_variants", "work_outside_window"][0] == "warn"
    assert found["cudagraph_replay", "operator_recorded"] == ("warn", 27)
    assert found["cudagraph_replay", "repeated_correlations"] == ("pass", 0)
    assert found["bert4_bf16_compiled", "launch_recorded"] == ("pass", 0)


def test_nearly_every_recorded_call_tells_its_overload(analyses: dict[str, Analysis]) -> None:
    """Shape by shape, the recorded input types leave one overload."""
    from opscope.knowledge.native_functions import NativeFunctions, matching_overloads

    functions = NativeFunctions.shipped()
    total = unclear = 0
    for analysis in analyses.values():
        for row in analysis.shapes.filter(pl.col("name").str.starts_with("aten::")).iter_rows(named=True):
            types = json.loads(row["input_types"]) if row["input_types"] else None
            total += row["calls"]
            if types is None or len(matching_overloads(functions.overloads(row["name"]), types)) != 1:
                unclear += row["calls"]
    assert total > 13_000
    assert unclear / total < 0.001


# Mean duration (ns) of the same kernels on the same device by Nsight Compute (gpu__time_duration.sum, clocks free).
NSIGHT_COMPUTE = {
    "AUnaryFunctor<float, float, float": 502_155,
    "BinaryFunctor<float, float, float": 733_048,
    "CUDAFunctor_add<float>": 733_584,
    "tanh_kernel_cuda": 501_760,
    "CUDAFunctorOnSelf_add<float>": 502_064,
    "GeluCUDAKernelImpl": 501_184,
}


@pytest.mark.parametrize("part", NSIGHT_COMPUTE)
def test_kernel_durations_agree_with_nsight_compute_within_three_percent(
    part: str, analyses: dict[str, Analysis]
) -> None:
    names = pl.col("name").cast(pl.String)
    found = analyses["gelu_variants"].kernels.filter(names.str.contains(part, literal=True))
    assert found["mean_ns"].item() == pytest.approx(NSIGHT_COMPUTE[part], rel=0.03)


def test_backward_rows_hold_all_that_the_engine_launched(analyses: dict[str, Analysis]) -> None:
    compared = 0
    for analysis in analyses.values():
        engine = analysis.operators.filter(pl.col("name").str.starts_with("autograd::engine::evaluate_function: "))
        if engine.height:
            rows = analysis.backward
            assert rows["backward_device_ns"].sum() == engine["total_device_ns"].sum()
            assert rows.filter(pl.col("forward").is_not_null())["backward_device_ns"].sum() > 0
            compared += 1
    assert compared


def test_every_convolution_has_its_backward_pass(analyses: dict[str, Analysis]) -> None:
    """Two steps of a ResNet-50, which has 53 convolutions."""
    rows = analyses["resnet50_train_fp32"].backward
    assert rows.row(0, named=True) | {"forward_device_ns": 0, "backward_device_ns": 0} == {
        "forward": "aten::convolution",
        "backward": "ConvolutionBackward0",
        "calls": 106,
        "forward_device_ns": 0,
        "backward_device_ns": 0,
    }
