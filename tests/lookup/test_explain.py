"""``opscope explain``: what is said of operators and kernels, and what it rests on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.costs.occupancy import Occupancy, Parallelism, dimensions, occupancy, parallelism
from opscope.analysis.measured import Measured
from opscope.base.errors import EnvironmentLacksError
from opscope.collect.nsight_compute import read_counters
from opscope.documents.statements import Basis
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.categories import Category
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions
from opscope.lookup.dossier import build_dossier, statements_on
from opscope.lookup.explain import Lookup
from opscope.readers.reading import read
from opscope.record.counters import Counters, OperatorCall
from opscope.trace.model import DeviceProperties
from tests.command import PYTHONPATH, WITHOUT_TORCH, opscope
from tests.conftest import DATA

TRACE = DATA / "traces" / "bert_fp32_eager_bs8_seq128.json.gz"
RUN = DATA / "h200_bert_small"
H200 = DeviceProperties(0, "NVIDIA H200", "9.0", 132, 150_109_880_320)


def explained(*args: str) -> list[dict[str, Any]]:
    result = opscope("explain", *args, "--format", "json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---------------------------------------------------------------- explain


def test_an_operator_of_a_trace_is_explained_with_its_cost_and_launches() -> None:
    (found,) = explained("aten::gelu", "--in", str(TRACE), "--torch", "2.11.0+cu130")
    analysis = analyze(read(TRACE))
    row = analysis.operators.filter(pl.col("name") == "aten::gelu").row(0, named=True)
    assert (found["schema"], found["kind"], found["category"]) == ("opscope.explain/1", "operator", "Activation")
    assert found["cost"]["self_device_ns"] == row["self_device_ns"]
    assert sum(launch["total_ns"] for launch in found["launches"]) == row["self_device_ns"]
    assert found["source"]["file"] == "aten/src/ATen/native/cuda/ActivationGeluKernel.cu"
    assert found["source"]["how"] == "verified"
    assert found["native_function"]["detail"]["cpp_function"] == "at::native::structured_gelu_out_cuda::impl"
    assert found["native_function"]["derivatives"] == {"self": "gelu_backward(grad, self, approximate)"}
    (launch,) = found["launches"]
    assert (launch["grid"], launch["block"], launch["occupancy"]["limiter"]) == (
        "3072,1,1", "128,1,1", "threads and registers",
    )  # fmt: skip


def test_launches_add_up_for_every_operator_and_kernel_of_a_trace() -> None:
    analysis = analyze(read(TRACE))
    lookup = Lookup(SourceResolver(), NativeFunctions.shipped(), measured=Measured(analysis))
    for name, self_device in analysis.operators.select("name", "self_device_ns").rows():
        document = lookup.explain(name)
        assert sum(launch.total_ns for launch in document.launches) == self_device
        assert document.kind == "operator"
    for name, total in analysis.kernels.select(pl.col("name").cast(pl.String), "total_ns").rows():
        document = lookup.explain(name)
        assert document.cost is not None
        assert (document.kind, document.cost.self_device_ns) == ("kernel", total)


def test_a_composite_operator_names_what_it_called() -> None:
    (found,) = explained("linear", "--in", str(TRACE))
    assert found["name"] == "aten::linear"
    assert found["native_function"]["calls"]["aten::addmm"] == 219
    assert found["native_function"]["host_file"]["file"] == "aten/src/ATen/native/Linear.cpp"


def test_names_come_from_standard_input_one_object_each() -> None:
    names = "aten::addmm\n\nampere_sgemm_128x64_tn\n"
    result = subprocess.run(
        [sys.executable, "-m", "opscope", "explain", "-", "--torch", "2.11.0", "--format", "json"],
        input=names, capture_output=True, text=True, check=True, env={"PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(item["kind"], item["name"]) for item in found] == [
        ("operator", "aten::addmm"),
        ("kernel", "ampere_sgemm_128x64_tn"),
    ]
    assert found[1]["decoded"]["summary"] == "FP32 GEMM 128x64, no Tensor Cores"
    assert found[1]["source"] | {"basis": ""} == found[1]["source"] | {"basis": "", "how": "library", "file": None}


def test_a_run_is_explained_with_the_pytorch_that_ran() -> None:
    (found,) = explained("aten::add", "--in", str(RUN), "--configuration", "bs8_seq128")
    assert found["context"]["torch"] == "2.11.0+cu130"
    assert found["source"]["how"] == "verified"
    assert found["source"]["git"] == "70d99e998b4955e0049d13a98d77ae1b14db1f45"


def test_another_version_than_the_recorded_one_verifies_nothing() -> None:
    """The run was recorded with 2.11.0; what 2.6.0 has under the same names is likely at most."""
    for item in explained("aten::add", "aten::copy_", "--in", str(RUN), "--torch", "2.6.0"):
        assert item["source"]["how"] in ("likely", "unknown")
        host = item["native_function"]["host_file"]
        assert host is None or host["how"] == "likely"
    (unknown,) = explained("aten::copy_", "--in", str(TRACE))
    assert unknown["native_function"]["host_file"]["how"] == "likely"


@pytest.mark.parametrize(
    ("recorded", "how"), [("2.11.0+cu128", "verified"), ("2.11.0a0+git70d99e9", "likely"), ("2.11.0+rocm6.4", "likely")]
)
def test_a_release_is_certain_for_traces_of_that_release_only(tmp_path: Path, recorded: str, how: str) -> None:
    from tests.kineto import KinetoTrace

    trace = KinetoTrace(opscope={"torch": recorded})
    trace.kernel("void at::native::(anonymous namespace)::fill_reverse_indices_kernel<int>(long*, int, x)", 0, 1_000)
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
        "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
    )
    trace.kernel(name, 5_000, 1_000)
    path = tmp_path / "t.json"
    path.write_text(trace.text())
    (found,) = explained(name, "--in", str(path), "--torch", "2.11.0")
    assert found["source"]["how"] == how


def test_bytes_that_are_no_text_are_a_name_like_any_other() -> None:
    code = "import sys; sys.argv[1] = 'x\\udcff'; from opscope.cli import main; sys.argv.insert(1, 'explain'); main()"
    result = opscope("name", "--format", "json", code=code)
    assert result.returncode == 1, result.stderr
    assert "nothing is known of 'x?'" in result.stderr
    assert json.loads(result.stdout)["source"]["how"] == "unknown"


def test_generated_kernels_are_in_their_python_files() -> None:
    trace = DATA / "traces" / "bert4_bf16_compiled.json.gz"
    name = "triton_per_fused_add_native_layer_norm_view_6"
    kernel, operator = explained(name, name, "--in", str(trace))
    assert kernel["source"]["how"] == "verified"
    assert kernel["source"]["file"].endswith(".py")
    assert operator["source"]["file"] == kernel["source"]["file"]


@pytest.mark.parametrize("form", ["table", "csv", "md"])
def test_every_form_names_the_file(form: str) -> None:
    result = opscope("explain", "aten::gelu", "--in", str(TRACE), "--torch", "2.11.0", "--format", form)
    assert "ActivationGeluKernel.cu" in result.stdout
    assert result.returncode == 0


@pytest.mark.torch
def test_a_pytorch_without_cuda_says_so_and_the_shipped_index_answers() -> None:
    pytest.importorskip("torch")
    from opscope.knowledge.kernels.installed import installed_torch

    installed = installed_torch()
    assert installed is not None
    if installed.libraries:
        pytest.skip("the installed PyTorch has CUDA kernels")
    name = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(x)"
    result = opscope("explain", name, "--format", "json")
    assert "has no CUDA kernels: answers come from the shipped indexes" in result.stderr
    assert json.loads(result.stdout)["source"]["how"] != "verified"


def test_copies_and_fills_are_the_runtimes() -> None:
    (found,) = explained("Memcpy HtoD (Pageable -> Device)", "--torch", "2.11.0")
    assert (found["source"]["how"], found["source"]["library"], found["category"]) == ("library", "CUDA", "Memory")


def test_it_needs_no_pytorch() -> None:
    result = opscope("explain", "gelu", "--torch", "2.11.0", code=WITHOUT_TORCH)
    assert (result.returncode, "structured_gelu_out_cuda" in result.stdout) == (0, True)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["gelu", "--torch", "newest"], 2, "not a version of PyTorch"),
        (["gelu", "--torch", "9.9"], 2, "no index of PyTorch 9.9 is shipped; there are 2.10.0+cu128"),
        (["gelu", "--configuration", "bs1"], 2, "name it with --in"),
        (["gelu", "--in", str(RUN), "--configuration", "bs77"], 2, "there are bs1_seq128, bs8_seq128, bs16_seq128"),
        (["gelu", "--in", str(TRACE), "--configuration", "bs8"], 2, "belongs to a run directory"),
        ([" "], 2, "an empty name"),
        (["gelu", "--in", "nowhere.json"], 4, "nowhere.json"),
        (["k", "--library", str(TRACE)], 4, "is not an ELF library"),
    ],
)
def test_wrong_use_ends_with_one_line(args: list[str], code: int, message: str) -> None:
    result = opscope("explain", *args)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


# ---------------------------------------------------------------- occupancy


@pytest.mark.parametrize("path", sorted((DATA / "traces").glob("*.json.gz")), ids=lambda path: path.name)
def test_occupancy_is_that_of_the_profiler_where_it_computes_one(path: Path) -> None:
    """Kineto's figure is the theoretical occupancy, lowered where the grid does not fill the device; 0 is none."""
    trace = read(path)
    devices = {device.index: device for device in trace.devices}
    launches = trace.activities.filter(pl.col("theoretical_occupancy_percent") > 0).unique(
        ["device", "grid", "block", "registers_per_thread", "shared_memory_bytes"]
    )
    assert launches.height
    for row in launches.iter_rows(named=True):
        grid, block = dimensions(row["grid"]), dimensions(row["block"])
        assert grid
        assert block
        found = occupancy(grid, block, row["registers_per_thread"], row["shared_memory_bytes"], devices[row["device"]])
        assert found is not None
        assert found.waves is not None
        assert found.percent * min(1, found.waves) == pytest.approx(row["theoretical_occupancy_percent"], abs=1)


@pytest.mark.parametrize(
    ("block", "registers", "shared", "expected"),
    [
        # 128 threads are 4 warps of 218 -> 224 registers x 32 = 7,168 a warp: 9 warps fit, 8 by fours: 2 blocks.
        ((128, 1, 1), 218, 19_200, (2, 12.5, "registers")),
        # 32 blocks of one warp are 32 of 64 warps.
        ((32, 1, 1), 16, 0, (32, 50.0, "blocks")),
        # 100 KiB + 1 KiB a block: two fit into 228 KiB.
        ((256, 1, 1), 32, 102_400, (2, 25.0, "shared memory")),
        ((1024, 1, 1), 32, 0, (2, 100.0, "threads and registers")),
    ],
)
def test_occupancy_by_hand(
    block: tuple[int, int, int], registers: int, shared: int, expected: tuple[int, float, str]
) -> None:
    found = occupancy((264, 1, 1), block, registers, shared, H200)
    assert isinstance(found, Occupancy)
    assert (found.blocks_per_multiprocessor, found.percent, found.limiter) == expected
    assert found.waves == 264 / (132 * expected[0])


def test_occupancy_is_unknown_where_the_device_is() -> None:
    assert occupancy((1, 1, 1), (32, 1, 1), 16, 0, DeviceProperties(0, "?")) is None
    assert occupancy((1, 1, 1), (32, 1, 1), 16, 10**9, H200) is None
    assert dimensions("1,2") is None


# ---------------------------------------------------------------- parallelism


def call(dims: object, types: list[str], values: list[str] | None = None) -> RecordedCall:
    found = RecordedCall.read(json.dumps(dims), json.dumps(types), json.dumps(values or [""] * len(types)))
    assert found is not None
    return found


def named(operator: str, recorded: RecordedCall) -> RecordedCall:
    return recorded.named(NativeFunctions.shipped().argument_names(operator, recorded.types))


@pytest.mark.parametrize(
    ("operator", "category", "recorded", "parallel", "reduced"),
    [
        ("aten::addmm", "Matrix Operations", call([[4], [2, 3], [3, 4]], ["float"] * 3), {"rows": 2, "columns": 4},
         {"depth": 3}),
        ("aten::bmm", "Matrix Operations", call([[5, 2, 3], [5, 3, 4]], ["c10::Half"] * 2),
         {"batch": 5, "rows": 2, "columns": 4}, {"depth": 3}),
        ("aten::_softmax", "Activation", call([[2, 3, 8], [], []], ["float", "Scalar", "Scalar"], ["", "-1", "False"]),
         {"rows": 6}, {"row length": 8}),
        ("aten::native_layer_norm", "Normalization",
         call([[2, 5, 8], [], [8], [8], []], ["float", "ScalarList", "float", "float", "Scalar"],
              ["", "[8]", "", "", "1e-05"]), {"rows": 10}, {"row length": 8}),
        ("aten::add", "Elementwise", call([[4, 1, 3], [2, 1], []], ["float", "float", "Scalar"]), {"elements": 24}, {}),
        ("aten::copy_", "Memory", call([[6], [6], []], ["c10::BFloat16", "float", "Scalar"]), {"elements": 6}, {}),
        ("aten::embedding", "Embedding", call([[100, 16], [2, 5], []], ["float", "long int", "Scalar"]),
         {"indices": 10, "row length": 16}, {}),
        ("aten::sum", "Reduction", call([[4, 6], [], [], []], ["float", "ScalarList", "Scalar", ""],
                                       ["", "[1]", "False", ""]), {"results": 4}, {"elements per result": 6}),
        ("aten::convolution", "Convolution",
         call([[2, 3, 8, 8], [4, 3, 3, 3], [4], [], [], [], [], [], []], ["float"] * 3 + ["ScalarList"] * 6,
              ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]),
         {"batch": 2, "output channels": 4, "output positions": 64}, {"input channels": 3, "filter positions": 9}),
        ("aten::_scaled_dot_product_flash_attention", "Attention",
         call([[2, 3, 10, 8], [2, 3, 20, 8], [2, 3, 20, 8], [], []], ["c10::Half"] * 3 + ["Scalar"] * 2,
              ["", "", "", "0.", "False"]),
         {"batch": 2, "heads": 3, "query positions": 10}, {"key positions": 20, "head dimension": 8}),
        ("aten::fill_", "Memory", call([[6], []], ["float", "Scalar"]), {"elements": 6}, {}),
    ],
)  # fmt: skip
def test_parallelism_by_hand(
    operator: str, category: str, recorded: RecordedCall, parallel: dict[str, int], reduced: dict[str, int]
) -> None:
    found = parallelism(operator, Category(category), named(operator, recorded))
    assert isinstance(found, Parallelism)
    assert (dict(found.parallel), dict(found.reduced)) == (parallel, reduced)


@pytest.mark.parametrize(
    ("operator", "category", "recorded"),
    [
        ("aten::mm", "Matrix Operations", call([[2, 3], [4, 5]], ["float", "float"])),
        ("aten::add", "Elementwise", call([[3], [4]], ["float", "float"])),
        ("aten::_softmax", "Activation", call([[3], [], []], ["float", "Scalar", "Scalar"])),
        ("aten::sort", "Sort", call([[3]], ["float"])),
        ("aten::eq", "Elementwise", call([[3], [3]], ["float", "float"])),
        (
            "aten::convolution",
            "Convolution",
            call(
                [[2, 3, 8, 8], [3, 4, 3, 3], [4], [], [], [], [], [], []],
                ["float"] * 3 + ["ScalarList"] * 6,
                ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"],
            ),
        ),
    ],
)
def test_what_does_not_follow_from_the_shapes_is_not_said(operator: str, category: str, recorded: RecordedCall) -> None:
    assert parallelism(operator, Category(category), named(operator, recorded)) is None


# ---------------------------------------------------------------- dossier


def lookup_of(path: Path) -> Lookup:
    return Lookup(
        SourceResolver(), NativeFunctions.shipped(), trace_name=path.name, measured=Measured(analyze(read(path)))
    )


def test_the_dossier_of_a_product_says_what_can_be_worked_out_by_hand() -> None:
    """1024 x 768 by 768 x 768: 96 tiles of 128 x 64, 2 x 1024 x 768 x 768 operations in 45.87 us."""
    findings = build_dossier(lookup_of(TRACE), 1).operators[0].findings
    assert findings.parallel == {"rows": 1024, "columns": 768}
    assert findings.reduced == {"depth": 768}
    statements = (*findings.coverage, *findings.resources, *findings.gains)
    text = {statement.text: statement.basis for statement in statements}
    assert text["96 thread blocks (8 x 12 x 1) of 128 threads (128 x 1 x 1)."] is Basis.MEASURED
    tiles = "One thread block per tile of 128 x 64: 8 tiles along the rows by 12 along the columns."
    assert text[tiles] is Basis.DERIVED
    assert "It runs at 26.3 TFLOP/s." in text
    assert "It leaves 36 of 132 multiprocessors without work." in text
    assert any("FP32 cores" in sentence and basis is Basis.GENERAL for sentence, basis in text.items())
    assert (findings.counters, findings.counters_reason) == ((), "hardware counters were not asked for")


def test_counters_are_measured_statements_and_their_absence_a_reason() -> None:
    asked: list[OperatorCall] = []
    (counters,) = read_counters((DATA / "counters" / "addmm.csv").read_text())

    def measure(call: OperatorCall) -> tuple[Counters, ...]:
        asked.append(call)
        if len(asked) > 1:
            raise EnvironmentLacksError("no counters today")
        return (counters,)

    first, second = (dossier.findings for dossier in build_dossier(lookup_of(TRACE), 2, measure).operators)
    assert (asked[0].operator, asked[0].overload) == ("aten::addmm", "")
    assert json.loads(asked[0].input_dims)[1] == [1024, 768]
    measured = [statement.text for statement in first.memory_access if statement.basis is Basis.MEASURED]
    assert (
        "Device memory: 5.320 MiB read, 0 B written, 2 % of its peak (counters, caches empty at the start)." in measured
    )
    assert second.counters_reason == "no counters today"


def test_operations_that_were_executed_are_compared_with_the_model() -> None:
    """An `addmm` of 1024 x 768 by 768 x 768 needs 2 x 1024 x 768 x 768 = 1,207,959,552 operations."""
    (counters,) = read_counters((DATA / "counters" / "addmm.csv").read_text())
    assert counters.operations == {}
    assert "Tensor Cores on bf16" in counters.operations_not_counted
    counted = replace(
        counters, operations={"fp32": 1_207_959_552.0, "tf32": 0.5 * 1_207_959_552}, operations_not_counted=()
    )
    (statement,) = (
        one
        for one in build_dossier(lookup_of(TRACE), 1, lambda _: (counted,)).operators[0].findings.memory_access
        if one.id == "executed_operations"
    )
    assert statement.basis is Basis.MEASURED
    assert statement.text == (
        "Operations executed: 1.21 G in fp32, 604 M in tf32; 325 a byte of the device's memory; 1.5 times those of the "
        "operator's model (counters)."
    )
    # Bytes are known only if both are.
    half = replace(counted, dram_write_bytes=None)
    findings = build_dossier(lookup_of(TRACE), 1, lambda _: (half,)).operators[0].findings
    assert "a byte of the device's memory" not in str([one.text for one in findings.memory_access])
    for other in (replace(counted, operations_not_counted=("bf16",)), replace(counted, operations={})):
        findings = build_dossier(lookup_of(TRACE), 1, lambda _, other=other: (other,)).operators[0].findings
        assert "executed_operations" not in {one.id for one in findings.memory_access}
    # Two launches of the kernel are not single launch that the model of the call could be compared with.
    both = build_dossier(lookup_of(TRACE), 1, lambda _: (counted, counted)).operators[0].findings
    assert not any("operator's model" in one.text for one in both.memory_access)


def test_counters_of_other_kernels_support_no_statement() -> None:
    (counters,) = read_counters((DATA / "counters" / "addmm.csv").read_text())
    other = replace(counters, kernel="another_kernel", dram_read_bytes=1.0)

    def measure(_: OperatorCall) -> tuple[Counters, ...]:
        return (other,)

    findings = build_dossier(lookup_of(TRACE), 1, measure).operators[0].findings
    assert findings.counters == (other,)
    assert "the replay ran other kernels" in (findings.counters_reason or "")
    assert not any(statement.basis is Basis.MEASURED for statement in findings.memory_access)
    both = build_dossier(lookup_of(TRACE), 1, lambda _: (other, counters)).operators[0].findings
    assert any("5.320 MiB read" in statement.text for statement in both.memory_access)


@pytest.mark.parametrize("namespace", ["at::native::<unnamed>::", "unnamed>::", "at::native::(anonymous namespace)::"])
def test_counters_are_found_by_the_function_whatever_its_spelling(namespace: str) -> None:
    """As Nsight Compute spells it: a template's parameters by their names, and another anonymous namespace."""
    trace = DATA / "traces" / "resnet50_train_fp32.json.gz"
    (counters,) = read_counters((DATA / "counters" / "addmm.csv").read_text())
    name = f"void {namespace}max_pool_backward_nchw<float, float, int>(const T1 *, const long *, T3, T1 *)"
    spelled = replace(counters, kernel=name)
    findings = statements_on(lookup_of(trace), "aten::max_pool2d_with_indices_backward", lambda _: (spelled,))
    assert findings.counters_reason is None
    assert any(statement.basis is Basis.MEASURED for statement in findings.memory_access)


def test_a_runs_dossier_takes_the_unprofiled_step_for_what_bounds_it() -> None:
    result = opscope("explain", "--in", str(RUN), "--configuration", "bs16_seq128", "--top", "1", "--format", "json")
    assert "of the unprofiled step" in json.loads(result.stdout)["bound"]


def test_counters_are_read_as_nsight_compute_wrote_them() -> None:
    """The figures of the recorded file, which was written on an H200."""
    (found,) = read_counters((DATA / "counters" / "addmm.csv").read_text())
    assert found.kernel.startswith("sm80_xmma_gemm_f32f32")
    assert (found.duration_ns, found.dram_read_bytes, found.dram_write_bytes) == (58_304, 5_578_240, 0)
    assert (found.load_sectors_per_request, found.threads_per_instruction) == (4, 32)
    assert found.achieved_occupancy_percent == 6.25
    assert next(iter(found.stalls)) == "no_instruction"
    assert list(read_counters("==ERROR== nothing\n")) == []


def test_the_command_prints_all_forms() -> None:
    result = opscope("explain", "--in", str(TRACE), "--top", "2", "--format", "json")
    document = json.loads(result.stdout)
    assert document["schema"] == "opscope.dossier/1"
    assert [dossier["explanation"]["name"] for dossier in document["operators"]] == ["aten::addmm", "aten::bmm"]
    for form in ("table", "csv", "md"):
        result = opscope("explain", "--in", str(RUN), "--format", form)
        assert result.returncode == 0
        assert "thread blocks" in result.stdout


def test_counters_without_nsight_compute_are_refused(tmp_path: Path) -> None:
    result = opscope("explain", "--in", str(TRACE), "--counters", env={"PATH": str(tmp_path)})
    assert result.returncode == 3
    assert "ncu (Nsight Compute) is not on the PATH" in result.stderr


def test_a_trace_without_device_work_has_no_dossier(analyses_of_cpu: Analysis) -> None:
    lookup = Lookup(SourceResolver(), NativeFunctions.shipped(), measured=Measured(analyses_of_cpu))
    assert build_dossier(lookup, 3).operators == ()


@pytest.fixture
def analyses_of_cpu(load: Any) -> Analysis:
    from tests.kineto import KinetoTrace

    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    return analyze(load(trace))


# ---------------------------------------------------------------- replay


@pytest.mark.torch
def test_a_recorded_call_can_be_built_again() -> None:
    torch = pytest.importorskip("torch")
    from opscope.collect.replay import arguments_of

    recorded = OperatorCall(
        "aten::embedding", "", "[[7, 4], [2, 3], [], [], []]",
        '["float", "long int", "Scalar", "Scalar", "Scalar"]', "[[4, 1], [3, 1], [], [], []]",
        '["", "", "-1", "False", "0."]',
    )  # fmt: skip
    weight, indices, padding, scaled, number = arguments_of(recorded, torch.device("cpu"))
    assert (tuple(weight.shape), weight.dtype, indices.dtype) == ((7, 4), torch.float32, torch.int64)
    assert 0 <= int(indices.min()) <= int(indices.max()) < 7
    assert (padding, scaled, number) == (-1, False, 0.0)
    transposed = OperatorCall("aten::t", "", "[[3, 5]]", '["float"]', "[[1, 3]]", '[""]')
    assert arguments_of(transposed, torch.device("cpu"))[0].stride() == (1, 3)
