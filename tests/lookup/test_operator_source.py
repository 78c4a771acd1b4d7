"""Statistics, reports and ``explain`` answer from one place where an operator's source is, and none says nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from opscope.knowledge.kernels.index import SourceLine
from opscope.knowledge.kernels.kernel_source import How, KernelSource, SourceResolver
from opscope.knowledge.native_functions import NativeFunctions, RecordedCalls, TorchVersion, matching_overloads
from opscope.lookup.explain import Lookup
from opscope.lookup.operator_source import file_text, source_entry, source_facts
from opscope.readers.reading import read
from opscope.render.markdown import render
from opscope.report.guide_keys import statistics_json
from opscope.report.kernel_report import kernel_report
from opscope.runs.inputs import measured_of, traces_below
from opscope.runs.pipeline import Result, with_document
from tests.conftest import DATA

RECORDED = (
    "h200_bert_small",
    "traces/bert_fp32_eager_bs8_seq128.json.gz",
    "traces/gpt2_train_amp_stacks.json.gz",
    "traces/resnet50_train_fp32.json.gz",
)


def results(name: str) -> Iterator[Result]:
    for file in traces_below([DATA / name]):
        yield with_document(*measured_of(file, read(file.path), NativeFunctions.shipped()))


@pytest.mark.parametrize("name", RECORDED)
def test_no_operator_of_the_recorded_runs_is_without_a_function_or_a_file(name: str) -> None:
    for result in results(name):
        rows = json.loads(statistics_json(result.document))["top_aten_operators"]
        assert rows
        for row in rows:
            assert row["native_function"], row["name"]
            assert row["potential_cuda_file"], row["name"]
        for operator in result.document.operators:
            assert operator.detail is not None
            assert operator.detail.source is not None
            if operator.name.startswith("aten::"):
                assert operator.native_function, operator.name
                assert operator.cpp_function, operator.name
            if "Backward" in operator.name or operator.name.endswith("AccumulateGrad"):
                assert operator.cpp_function, operator.name
                assert operator.cpp_function.endswith("::apply"), operator.name
            assert file_text(operator.detail.source, operator.detail.native_function)


@pytest.mark.parametrize("name", RECORDED)
def test_explain_and_the_statistics_give_one_answer(name: str) -> None:
    for result in results(name):
        functions = NativeFunctions.shipped()
        lookup = Lookup(SourceResolver(), functions, measured=result.measured)
        document = with_document(result.measured, functions).document
        for operator in document.operators[:15]:
            assert operator.detail is not None
            explained = lookup.explain(operator.name)
            if result.measured.record is None:  # a run has a table of operators of its own
                assert explained.source == operator.detail.source, operator.name


def test_the_dearest_operator_of_bert_names_its_file_and_its_library() -> None:
    (first, *_) = results("h200_bert_small")
    row = json.loads(statistics_json(first.document))["top_aten_operators"][0]
    assert (row["name"], row["potential_cuda_file"]) == (
        "aten::addmm",
        "aten/src/ATen/native/cuda/Blas.cpp (calls cuBLAS)",
    )
    assert row["source"]["library"] == "cuBLAS"
    assert "functions around it" in row["source"]["basis"]
    report = render(kernel_report(first.document))
    section = report[report.index("aten::addmm", report.index("4.1")) :]
    assert "which calls cuBLAS" in section
    gather = next(row for row in first.document.operators if row.name == "aten::gather")
    assert gather.native_function == "gather.out"


TABLE = NativeFunctions.shipped(TorchVersion.parse("2.11.0+cu130"))


@pytest.mark.parametrize(
    ("operator", "types", "overloads"),
    [
        ("gather", ["float", "Scalar", "long int", "Scalar"], ["gather"]),
        ("transpose", ["float", "Scalar", "Scalar"], ["transpose.int"]),
        ("select", ["float", "Scalar", "Scalar"], ["select.int"]),
        ("_foreach_div_", ["TensorList", ""], ["_foreach_div_.ScalarList"]),  # a list of over 30 numbers
        ("_foreach_div_", ["TensorList", "Scalar"], ["_foreach_div_.Scalar"]),
        ("index_select", ["float", "Scalar", "long int"], ["index_select"]),
        ("sum", ["float", ""], ["sum"]),
    ],
)
def test_recorded_inputs_tell_the_overload(operator: str, types: list[str], overloads: list[str]) -> None:
    found = matching_overloads(TABLE.overloads(f"aten::{operator}"), types)
    assert [one.yaml_name for one in found] == overloads


def test_a_required_tensor_that_was_not_defined_still_fits() -> None:
    found = matching_overloads(TABLE.overloads("aten::addmm"), ["", "float", "float", "Scalar", "Scalar"])
    assert [one.yaml_name for one in found] == ["addmm"]


@pytest.mark.parametrize(
    ("node", "function", "says"),
    [
        ("AddmmBackward0", "torch::autograd::generated::AddmmBackward0::apply", "gradient of addmm"),
        (
            "autograd::engine::evaluate_function: MmBackward0",
            "torch::autograd::generated::MmBackward0::apply",
            "gradient of mm",
        ),
        ("torch::autograd::AccumulateGrad", "torch::autograd::AccumulateGrad::apply", "adds up"),
        ("PowBackward0", "torch::autograd::generated::PowBackward0::apply", "gradient of pow"),
        ("detach", "at::native::detach", "detach"),
    ],
)
def test_nodes_of_autograd_have_a_function(node: str, function: str, says: str) -> None:
    found = TABLE.resolve(node, [RecordedCalls((), 1)], "CUDA")
    assert found.cpp_function == function
    assert says in found.how or node == "detach"


@pytest.mark.parametrize("name", ["myBackward0", "NoSuchThingBackward0", "step", "record_param_comms"])
def test_what_is_no_operator_is_said_to_be_none(name: str) -> None:
    found = TABLE.resolve(name, [], "CUDA")
    assert found.cpp_function is None
    assert "no operator of this name" in found.how


def test_a_file_of_a_function_says_how_it_is_known() -> None:
    resolver = SourceResolver(TorchVersion.parse("2.11.0+cu130"))
    linear = resolver.host_source("at::native::linear")
    assert linear is not None
    assert (linear.how, linear.file) == (How.VERIFIED, "aten/src/ATen/native/Linear.cpp")
    assert resolver.host_source("at::native::no_such_function") is None
    doubted = SourceResolver(TorchVersion.parse("2.11.0+cu130"), doubt="it may be another build")
    found = doubted.host_source("at::native::linear")
    assert found is not None
    assert found.how is How.LIKELY
    assert "it may be another build" in found.basis


def test_without_a_device_the_file_for_cuda_is_that_of_its_function(tmp_path: Path) -> None:
    from tests.kineto import KinetoTrace

    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    (file,) = traces_below([trace.write(tmp_path / "t.json")])
    result = with_document(*measured_of(file, read(file.path), NativeFunctions.shipped()))
    (row,) = json.loads(statistics_json(result.document, result.cuda_file))["top_aten_operators"]
    assert row["potential_cuda_file"] == "aten/src/ATen/native/cuda/Blas.cpp"
    assert row["cuda_time_total_ms"] is None


def facts(source: KernelSource) -> list[str]:
    return ["".join(inline) for inline in source_facts(source_entry(source))]


def test_a_kernels_places_are_said_as_far_as_they_are_known() -> None:
    file = "aten/src/ATen/native/cuda/Loops.cu"
    site, other = SourceLine(file, 12, "at::native::launch"), SourceLine("aten/src/ATen/Other.cu", 0)
    definition = SourceLine("aten/src/ATen/native/cuda/Loops.cuh", 0)
    source = KernelSource(How.VERIFIED, "its symbol", file, definition=definition, launch_sites=(site,), git="abc")
    link = "https://github.com/pytorch/pytorch/blob/abc/aten/src/ATen/native/cuda/Loops.cu"
    assert facts(source) == [
        f"Source: {file} line 12 (verified: its symbol)",
        f"At the exact commit: {link}#L12",
        f"Kernel template defined in {definition.file}",
        f"Launched from {file}:12 in at::native::launch",
    ]
    entry = source_entry(source)
    assert entry.launch_site == entry.launch_sites[0]
    assert entry.launch_site.line == 12
    assert entry.definition is not None
    assert entry.definition.line is None  # not line 0
    assert entry.definition.url == f"{link}h"
    several = source_entry(KernelSource(How.LIKELY, "its name", file, launch_sites=(other, site)))
    assert several.launch_site is None  # which of them, is not known
    assert [(one.line, one.function) for one in several.launch_sites] == [(None, None), (12, "at::native::launch")]
    assert several.url is None  # without a commit


def test_only_the_first_of_many_possible_files_are_named() -> None:
    files = tuple(f"file_{number:02}.cu" for number in range(40))
    entry = source_entry(KernelSource(How.CANDIDATE, "its name", candidates=files))
    assert entry.candidate_count == 40
    assert entry.candidates == files[: len(entry.candidates)]
    (said,) = facts(KernelSource(How.CANDIDATE, "its name", candidates=files))
    assert said.startswith("Source: one of file_00.cu, ")
    assert f" and {40 - len(entry.candidates)} more (candidate: its name)" in said
    (all_of_two,) = facts(KernelSource(How.CANDIDATE, "its name", candidates=files[:2]))
    assert all_of_two == "Source: one of file_00.cu, file_01.cu (candidate: its name)"
    assert facts(KernelSource(How.LIBRARY, "its name", library="cuDNN")) == ["Source: cuDNN (library: its name)"]
    assert facts(KernelSource(How.UNKNOWN, "nothing fits")) == ["Source: unknown (nothing fits)"]
