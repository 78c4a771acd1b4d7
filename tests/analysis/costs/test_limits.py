"""How far work is from what its device allows: by hand, on recorded traces, and against Nsight Compute."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.costs.limits import totals_by_module, totals_by_name, totals_by_step
from opscope.analysis.measured import Measured
from opscope.base.files import cache_folder
from opscope.documents.limits import LimitRow
from opscope.knowledge.devices import device_called, known_devices, peaks_called, peaks_file
from opscope.readers.reading import read
from opscope.record.codec import encode
from opscope.record.machine import MeasuredPeaks
from opscope.report.limits_document import limits_entry
from tests.command import opscope
from tests.conftest import ROOT
from tests.kineto import KinetoTrace

TRACES = ROOT / "tests" / "data" / "traces"
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
US, MS = 1_000, 1_000_000
FFMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
)
Analyze = Callable[[KinetoTrace], Analysis]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))


def product(device: dict[str, object] | None = None, kernel: str = FFMA) -> KinetoTrace:
    """One 4096^3 product of float32 in 2.5 ms, and an addition of 2^24 elements in 50 us."""
    trace = KinetoTrace(deviceProperties=[device or H200])
    trace.step(1, 0, 4_000 * US)
    sizes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"]}
    trace.operator("aten::mm", 0, 20 * US, **sizes)
    trace.launched_kernel(kernel, (5 * US, 5 * US), (20 * US, 2_500 * US), grid=[32, 32, 1], block=[128, 1, 1])
    sizes = {"Input Dims": [[1 << 24], [1 << 24], []], "Input type": ["float", "float", "Scalar"]}
    trace.operator("aten::add", 30 * US, 20 * US, **sizes)
    trace.launched_kernel("add", (35 * US, 5 * US), (2_600 * US, 50 * US))
    trace.launch(60 * US, 3_900 * US, name="cudaDeviceSynchronize")
    return trace


def rows(analysis: Analysis) -> dict[str, LimitRow]:
    return {str(row.operator): row for row in analysis.limits}


def test_a_product_and_an_addition_by_hand(analyzed: Analyze) -> None:
    found = rows(analyzed(product()))
    mm, add = found["aten::mm"], found["aten::add"]
    assert (mm.flop, mm.least_flop, mm.least_bytes) == (2 * 4096**3, 2 * 4096**3, 3 * 4 * 4096**2)
    assert (mm.precision, mm.limited_by, mm.lower_precision) == ("fp32", "compute", "tf32")
    assert mm.ideal_ns == pytest.approx(2 * 4096**3 / 66.9e12 * 1e9)
    assert mm.lower_ideal_ns == pytest.approx(2 * 4096**3 / 494.7e12 * 1e9)
    assert mm.share == pytest.approx(2_054.4 / 2_500, rel=1e-3)
    assert mm.lost_ns == pytest.approx((2_500 - 2_054.4) * US, rel=1e-3)
    assert (add.flop, add.least_bytes, add.limited_by, add.precision) == (0, 3 * 4 << 24, "memory", None)
    assert add.ideal_ns == pytest.approx((3 * 4 << 24) / 4.8e12 * 1e9)


@pytest.mark.parametrize(("time", "tensors"), [(50 * US, 3), (30 * US, 2)])
def test_inputs_that_must_be_one_tensor_are_read_once(analyzed: Analyze, time: int, tensors: int) -> None:
    """3 x 64 MiB need 42 us: a shorter call multiplied a tensor by itself."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.operator("aten::mul", 0, 20 * US, **{"Input Dims": [[1 << 24], [1 << 24]], "Input type": ["float", "float"]})
    trace.launched_kernel("mul", (5 * US, 5 * US), (20 * US, time))
    assert rows(analyzed(trace))["aten::mul"].least_bytes == tensors * 4 << 24


def test_a_device_that_is_not_known_has_no_limits(analyzed: Analyze) -> None:
    for device in ({"id": 0, "name": "Some GPU"}, {**H200, "numSms": 66}, {**H200, "name": "NVIDIA H200 MIG 1g.18gb"}):
        found = rows(analyzed(product(device)))
        assert found["aten::mm"].flop == 2 * 4096**3
        assert found["aten::mm"].ideal_ns is found["aten::mm"].share is None
        assert "known" in (found["aten::mm"].reason or "")


def test_peaks_that_were_measured_count_before_the_datasheets(analyzed: Analyze, tmp_path: Path) -> None:
    kept = MeasuredPeaks(
        device="NVIDIA H200", torch="2.11", created="2026-11-22T00:00:00", flop_per_s={"fp32": 50e12},
        memory_bytes_per_s=4e12, seconds=1.0, samples=(),
    )  # fmt: skip
    path = peaks_file("NVIDIA H200")
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(kept))
    peaks = peaks_called("NVIDIA H200", 132)
    assert peaks is not None
    assert (peaks.origin, peaks.rates["fp32"], peaks.rates["bf16"]) == ("measured 2026-11-22", 50e12, 989.4e12)
    assert rows(analyzed(product()))["aten::mm"].ideal_ns == pytest.approx(2 * 4096**3 / 50e12 * 1e9)
    cache = {"OPSCOPE_CACHE": str(cache_folder())}
    shown = " ".join(opscope("limits", str(product().write(tmp_path / "t.json")), env=cache).stdout.split())
    assert "peaks (measured 2026-11-22): fp32 50.0 TFLOP/s (dense)" in shown
    assert "bf16 989.4" in shown.partition("Datasheet: ")[2]
    path.write_bytes(b"{}")  # damaged: the datasheet again
    again = peaks_called("NVIDIA H200", 132)
    assert again is not None
    assert again.origin == "datasheet"


def test_work_faster_than_its_limit_is_a_failed_check(tmp_path: Path) -> None:
    trace = product()
    for event in trace.events:
        if event["name"] == FFMA:
            event["dur"] /= 2
    path = str(trace.write(tmp_path / "t.json"))
    result = opscope("limits", path)
    assert result.returncode == 1
    assert "FAIL: faster than the limit" in result.stdout
    assert json.loads(opscope("limits", "--format", "json", path).stdout)["limits"]["over_limit"] == ["aten::mm"]


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".json.gz") for path in TRACES.glob("*.json.gz")))
def test_models_cover_what_operators_launched_and_none_beats_its_limit(name: str) -> None:
    analysis = analyze(read(TRACES / f"{name}.json.gz"))
    linked = [row for row in analysis.limits if row.operator is not None and row.device_ns]
    to_host = sum(row.device_ns for row in linked if row.reason in ("data move to or from the host",
                                                                     "data move between devices"))  # fmt: skip
    whole = sum(row.device_ns for row in linked) - to_host
    modelled = sum(row.device_ns for row in linked if row.ideal_ns is not None)
    assert modelled >= 0.97 * whole
    assert all(row.share is None or row.share <= 1.05 for row in linked)
    assert sum(row.device_ns for row in analysis.limits) == analysis.accounting.activities_ns


# Bytes of device memory by Nsight Compute on an H200 (dram__bytes.sum), of such calls.
COUNTED = [
    ("aten::mul", [[16384, 16384], []], ["float", "double"], 2_123_181_312),
    ("aten::mul", [[16384, 16384], [16384, 16384]], ["float", "float"], 3_203_636_736),
    ("aten::add", [[16384, 16384], [16384, 16384], []], ["float", "float", "Scalar"], 3_203_280_896),
    ("aten::tanh", [[16384, 16384]], ["float"], 2_123_009_536),
    ("aten::gelu", [[16384, 16384], []], ["float", ""], 2_123_368_448),
    ("aten::_softmax", [[16384, 16384], [], []], ["float", "Scalar", "Scalar"], 2_128_787_968),
    ("aten::mm", [[4096, 4096], [4096, 4096]], ["c10::BFloat16", "c10::BFloat16"], 107_612_416),
]


@pytest.mark.parametrize(("operator", "dims", "types", "counted"), COUNTED)
def test_least_bytes_are_never_above_what_was_counted_and_the_cache_could_hold(
    operator: str, dims: list[object], types: list[str], counted: int
) -> None:
    from tests.knowledge.test_costs import cost

    values = ["", "-1", "False"] if operator == "aten::_softmax" else None
    found = cost(operator, dims, types, values)
    device = device_called("NVIDIA H200", 132)
    assert found is not None
    assert found.least_bytes is not None
    assert device is not None
    assert found.least_bytes <= counted + (device.l2_bytes or 0)
    assert found.least_bytes >= 0.9 * counted


def test_totals_add_up_by_whatever(analyzed: Analyze) -> None:
    analysis = analyze(read(TRACES / "gpt2_train_amp_stacks.json.gz")) if (
        TRACES / "gpt2_train_amp_stacks.json.gz"
    ).is_file() else analyzed(product())  # fmt: skip
    whole = analysis.accounting.activities_ns
    every = [totals_by_name(analysis.limits, by) for by in ("operator", "category", "shape")]
    every.append(totals_by_step(analysis.trace, analysis.links, analysis.limits))
    modules = totals_by_module(analysis.trace, analysis.links, analysis.backward_pass, analysis.limits)
    for totals in (*every, *(() if modules is None else (modules,))):
        assert sum(total.device_ns for total in totals) == whole
        assert sum(total.lost_ns for total in totals) == pytest.approx(
            sum(row.lost_ns or 0 for row in analysis.limits), rel=0.02
        )


def test_the_command_by_step_and_its_use_of_the_device(tmp_path: Path) -> None:
    path = str(product().write(tmp_path / "t.json"))
    document = json.loads(opscope("limits", "--by", "step", "--step-time", "5", "--format", "json", path).stdout)
    assert [total["name"] for total in document["totals"]] == ["step 1"]
    (use,) = document["limits"]["utilisation"]
    assert use["unprofiled"]
    assert use["hfu"] == pytest.approx(2 * 4096**3 / 66.9e12 / 5e-3)
    assert opscope("limits", "--by", "module", path).returncode == 2
    assert "Device 0 (NVIDIA H200), peaks (datasheet)" in opscope("limits", path).stdout
    again = shutil.copy(path, tmp_path / "again.json")
    rows = list(csv.DictReader(io.StringIO(opscope("limits", "--format", "csv", path, str(again)).stdout)))
    assert [int(row["device_ns"]) for row in rows] == 2 * [row["device_ns"] for row in document["limits"]["rows"]]
    assert {row["trace"] for row in rows} == {path, str(again)}


MI300X = {"computeMajor": 9, "computeMinor": 4, "numSms": 304, "totalGlobalMem": 206_141_652_992, "warpSize": 64}


@pytest.mark.parametrize(
    ("listed", "name", "origin"),
    [
        # Kernels run on device 3, which the header does not list, or which has no name there.
        (
            [{"id": 0, "name": "AMD Instinct MI300X", **MI300X}],
            "AMD Instinct MI300X, inferred from the other devices",
            "datasheet",
        ),
        (
            [{"id": 3, "name": "", **MI300X}],
            "AMD Instinct MI300X, by its 304 multiprocessors and its memory",
            "datasheet",
        ),
        ([{**H200, "id": 0}, {**H200, "id": 1, "name": "NVIDIA A100-SXM4-80GB"}], "unknown device", None),
        # An A100 of 40 GB under a name that no table has.
        (
            [{"id": 3, "name": "NVIDIA A100-PG509-200", "computeMajor": 8, "computeMinor": 0, "numSms": 108,
              "totalGlobalMem": 42_297_524_224}],
            "NVIDIA A100-PG509-200",
            "datasheet of NVIDIA A100 SXM4 40GB, which is as large",
        ),
        # A part of a Hopper, of which no one has heard.
        (
            [{"id": 3, "name": "NVIDIA H100 X", "computeMajor": 9, "computeMinor": 0, "numSms": 66}],
            "NVIDIA H100 X",
            "estimated by 66 multiprocessors of compute capability 9.0",
        ),
    ],
)  # fmt: skip
def test_devices_without_a_name_and_names_that_nobody_knows(
    analyzed: Analyze, listed: list[dict[str, object]], name: str, origin: str | None
) -> None:
    trace = KinetoTrace(deviceProperties=listed)
    trace.launched_kernel("k", (0, 5 * US), (10 * US, 50 * US), device=3)
    analysis = analyzed(trace)
    (entry,) = limits_entry(Measured(analysis)).peaks
    assert (entry.name, entry.origin) == (name, origin)
    assert entry.device == 3


def test_the_user_says_what_the_device_is(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("k", (0, 5 * US), (10 * US, 50 * US))
    path = str(trace.write(tmp_path / "t.json"))
    assert "Device 0 (NVIDIA H200, as --gpu says), peaks (datasheet)" in opscope("limits", "--gpu", "h200", path).stdout
    assert "NVIDIA H200, as --gpu says" in opscope("analyze", "--gpu", "H200", path).stdout
    assert opscope("page", "--gpu", "h200", path, "-o", str(tmp_path / "t.html")).returncode == 0
    # A name in full means that GPU, though others are called so and more: NVIDIA H200 NVL.
    assert "NVIDIA H200, as --gpu says" in opscope("analyze", "--gpu", "NVIDIA H200", path).stdout
    for wrong, reason in (("nothing", "no GPU with known peaks"), ("h100", "name one whole")):
        refused = opscope("analyze", "--gpu", wrong, path)
        assert (refused.returncode, reason in refused.stderr) == (2, True)


def test_peaks_need_a_gpu() -> None:
    from tests.conftest import gpu_is_missing

    if gpu_is_missing() is None:
        pytest.skip("there is a GPU here")
    result = opscope("gpus", "--measure")
    assert result.returncode == 3
    assert result.stderr.startswith("opscope: ")


def test_every_device_of_the_table_is_plausible() -> None:
    names = [
        (name, device.multiprocessors, device.memory_bytes) for device in known_devices() for name in device.matches
    ]
    assert len(names) == len(set(names))
    for device in known_devices():
        assert device.source
        assert device.vendor in ("nvidia", "amd")
        assert 5e10 < (device.memory_bytes_per_s or 2e11) < 1e13
        tensor, plain = device.peaks.get("bf16"), device.peaks.get("fp32")
        assert all(1e10 < rate < 2e16 for rate in device.peaks.values())
        assert tensor is None or plain is None or tensor >= plain
        if "tf32" in device.peaks and "fp8" in device.peaks:
            assert device.peaks["fp8"] >= 2 * device.peaks["tf32"]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),  # 1,979 is with sparsity
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12),  # half of the rate with 16-bit accumulation
        ("NVIDIA B200", "fp8", 4.5e15),
    ],
)
def test_peaks_are_dense(name: str, key: str, value: float) -> None:
    device = device_called(name)
    assert device is not None
    assert device.peaks[key] == pytest.approx(value, rel=0.01)


def test_products_whose_unit_is_not_known_count_at_the_fastest_one(analyzed: Analyze) -> None:
    """What the device is used for at least: 137 GFLOP at TF32's peak, though the kernel may have run at FP32's."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, 5 * MS)
    inputs = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["float"] * 2}
    trace.operator("aten::mm", 10 * US, 20 * US, **inputs)
    trace.launched_kernel("some_gemm", (12 * US, 3 * US), (20 * US, 3 * MS))
    row = rows(analyzed(trace))["aten::mm"]
    assert row.precision is None
    assert row.compute_ns == pytest.approx(2 * 4096**3 / 494.7e12 * 1e9)


def test_what_the_backward_pass_computes_again_counts_in_hfu_and_not_in_mfu(tmp_path: Path) -> None:
    """Three products of the same size, one of them within the backward pass as a forward operator."""
    trace = KinetoTrace(deviceProperties=[H200])
    trace.step(1, 0, 10 * MS)
    inputs = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["float"] * 2}
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    trace.operator(node, MS, 5 * MS, **{"Sequence number": 7, "Fwd thread id": 1})
    trace.operator("aten::linear", MS + 10 * US, 40 * US)
    for begin in (10 * US, MS + 20 * US, MS + 100 * US):
        trace.operator("aten::mm", begin, 20 * US, **inputs)
        trace.launched_kernel(FFMA, (begin + 2 * US, 3 * US), (begin + 10 * US, 2_500 * US))
    path = str(trace.write(tmp_path / "t.json"))
    (use,) = json.loads(opscope("limits", "--step-time", "10", "--format", "json", path).stdout)["limits"][
        "utilisation"
    ]
    one = 2 * 4096**3 / 66.9e12 / 10e-3
    assert use["hfu"] == pytest.approx(3 * one)
    assert use["mfu"] == pytest.approx(2 * one)


def test_calls_of_work_without_an_operator_are_its_activities(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(3):
        trace.launched_kernel("k", (number * 1_000, 10), (number * 1_000 + 100, 50))
    trace.operator("aten::mm", 10_000, 500)
    for number in range(2):
        trace.launched_kernel("gemm", (10_100 + number * 100, 10), (10_200 + number * 200, 50))
    rows = {row["name"]: row for row in analyzed(trace).launch_shapes.iter_rows(named=True)}
    assert (rows["k"]["operator"], rows["k"]["operator_calls"], rows["k"]["calls"]) == (None, 0, 3)
    assert (rows["gemm"]["operator"], rows["gemm"]["operator_calls"], rows["gemm"]["calls"]) == ("aten::mm", 1, 2)
