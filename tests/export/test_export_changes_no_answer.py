"""An export is analysed as the trace was that it was made of: the same tables, the same document, the same checks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured
from opscope.base.errors import BadInputError
from opscope.base.text import shell_path
from opscope.documents.verdict import CheckName
from opscope.export.chrome import chrome_parts
from opscope.knowledge.categories import Classifier
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.reading import read
from opscope.report.trace_document import build_trace_document
from opscope.trace.model import Trace
from opscope.trace.schema import SCHEMAS
from tests.budget import examples
from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace
from tests.readers.test_reader_kineto import ODD_EVENT

Load = Callable[[KinetoTrace], Trace]
FUNCTIONS = NativeFunctions.shipped()
TRACES = sorted((DATA / "traces").glob("*.json.gz"))


def exported_bytes(trace: Trace) -> bytes:
    return b"".join(piece.content for piece in chrome_parts(trace, Classifier(FUNCTIONS), None))


def exported(trace: Trace, folder: Path) -> Trace:
    target = folder / "exported.json"
    target.write_bytes(exported_bytes(trace))
    return read(target)


def document(analysis: Analysis) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(build_trace_document(Measured(analysis), FUNCTIONS))
    path = built.pop("source")["path"]
    if built["device_memory"] is not None:
        assert built["device_memory"].pop("snapshot") == path
    for finding in [*built["findings"], *built["first_screen"]["findings"]]:
        finding["prove"] = finding["prove"].replace(shell_path(path), "TRACE")  # the command names the file
    return built


def assert_changes_nothing(trace: Trace, folder: Path) -> None:
    back = exported(trace, folder)
    assert (back.threads, back.devices) == (trace.threads, trace.devices)
    for table in SCHEMAS:
        assert getattr(back, table).rows() == getattr(trace, table).rows(), table
    mine, theirs = trace.source, back.source
    for name in ("replaced_bytes", "odd_events", "unreadable_bytes", "damage", "not_understood"):
        assert getattr(mine, name) == getattr(theirs, name), name
    try:
        before = analyze(trace)
    except BadInputError as error:
        with pytest.raises(BadInputError, match=str(error).split(": ")[1][:40]):
            analyze(back)
        return
    after = analyze(back)
    for one, other in zip(before.trust.checks, after.trust.checks, strict=True):
        assert (one.name, one.verdict, one.sentence) == (other.name, other.verdict, other.sentence)
    assert document(replace(before, trust=after.trust)) == document(after)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_of_recorded_traces(path: Path, tmp_path: Path) -> None:
    assert_changes_nothing(read(path), tmp_path)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ODD_EVENT, max_size=12))
def test_of_any_events(tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, object]]) -> None:
    folder = tmp_path_factory.mktemp("t")
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    try:
        trace = read(folder / "trace.json")
    except BadInputError:
        return
    assert_changes_nothing(trace, folder)


TIME, LENGTH = st.integers(0, 400), st.integers(-3, 200)
THREAD, PROCESS = st.sampled_from([1, 2, "main", "2"]), st.sampled_from([100, 100, 100, 7])
SLICE = st.tuples(
    st.sampled_from(["cpu_op", "cuda_runtime", "user_annotation", "python_function", "overhead", "privateuse1_op"]),
    st.sampled_from(["aten::mm", "cudaLaunchKernel", "cudaDeviceSynchronize", "ProfilerStep#1", "ProfilerStep#2"]),
    TIME, LENGTH, PROCESS, THREAD, st.integers(0, 5),
)  # fmt: skip
KERNEL = st.tuples(
    st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]), TIME, LENGTH, st.none() | st.integers(0, 2),
    st.none() | st.sampled_from([7, 20]), st.integers(0, 5),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(st.lists(SLICE, max_size=25), st.lists(KERNEL, max_size=12))
def test_of_slices_that_cross_on_threads_of_several_processes(
    tmp_path_factory: pytest.TempPathFactory, slices: list[tuple[Any, ...]], kernels: list[tuple[Any, ...]]
) -> None:
    folder, built = tmp_path_factory.mktemp("t"), KinetoTrace()
    for category, name, start, length, process, thread, number in slices:
        args = {"correlation" if category == "cuda_runtime" else "External id": number}
        built.slice(category, name, start * 1000, length * 1000, pid=process, tid=thread, **args)
    for category, start, length, device, stream, number in kernels:
        where = {"device": device, "stream": stream, "correlation": number}
        built.slice(category, "k", start * 1000, length * 1000, pid=0, tid=7, **where)
    assert_changes_nothing(read(built.write(folder / "trace.json")), folder)


def crossing() -> KinetoTrace:
    """An operator that ends within another one of its thread, and launches from there."""
    trace = KinetoTrace()
    trace.operator("aten::outer", 0, 50_000)
    trace.operator("aten::crossing", 30_000, 50_000)
    trace.launched_kernel("k", (60_000, 1_000), (62_000, 9_000))
    return trace


def test_operators_in_further_lanes_keep_their_launches(load: Load, tmp_path: Path) -> None:
    back = analyze(exported(load(crossing()), tmp_path))
    assert dict(back.operators.select("name", "self_device_ns").rows()) == {"aten::outer": 0, "aten::crossing": 9_000}


def test_an_export_of_an_export_is_the_same(load: Load, tmp_path: Path) -> None:
    once = exported(load(crossing()), tmp_path)
    first = (tmp_path / "exported.json").read_bytes()
    exported(once, tmp_path)
    assert (tmp_path / "exported.json").read_bytes() == first


def test_a_trace_that_was_cut_stays_cut(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(crossing().text().encode()[:-30])
    analysis = analyze(exported(read(path), tmp_path))
    failed = analysis.trust.failed(CheckName.FILE_IS_VALID)
    assert failed is not None
    assert "ends in the middle of its events" in failed.sentence
    assert opscope("analyze", str(tmp_path / "exported.json")).returncode == 4


def test_a_file_with_much_that_is_unreadable_stays_so(tmp_path: Path) -> None:
    text = crossing().text().replace('"cat": "kernel"', '"cat": [[[')
    (tmp_path / "trace.json").write_text(text)
    assert_changes_nothing(read(tmp_path / "trace.json"), tmp_path)
    assert analyze(read(tmp_path / "exported.json")).trust.failed(CheckName.FILE_IS_VALID)


def test_parts_say_that_they_are_parts(tmp_path: Path, load: Load) -> None:
    path = crossing().write(tmp_path / "trace.json")
    size = len(exported_bytes(load(crossing()))) - 300
    split = opscope("export", str(path), "--chrome", str(tmp_path / "out.json"), "--max-size", f"{size}B")
    assert split.returncode == 0
    parts = sorted(tmp_path.glob("out*.json"))
    assert len(parts) > 1
    for number, part in enumerate(parts, 1):
        assert read(part).source.damage == f"it is part {number} of a trace that was exported in parts"
        assert opscope("analyze", str(part)).returncode == 4
    assert opscope("export", str(path), "--chrome", str(tmp_path / "whole.json"), "--max-size", "1MB").returncode == 0
    assert read(tmp_path / "whole.json").source.damage is None


def test_a_measurement_that_is_not_to_be_trusted_stays_so(tmp_path: Path) -> None:
    """What the record beside a trace says, its events do not."""
    run = shutil.copytree(DATA / "h200_bert_small", tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["entries"] = manifest["entries"][:1]
    (run / "manifest.json").write_text(json.dumps(manifest))
    record = run / manifest["entries"][0]["files"]["record"]
    content = json.loads(record.read_text())
    content["benchmark"]["waited_for_cpu_ns"] = sum(content["benchmark"]["wall_ns"])
    record.write_text(json.dumps(content))
    target = tmp_path / "out.json.gz"
    result = opscope("export", str(run), "--chrome", str(target))
    assert result.returncode == 0
    assert "FAIL cpu_contention" in result.stderr
    (failed,) = analyze(read(target)).trust.failures()
    assert failed.name is CheckName.CPU_CONTENTION
    assert "those of a busy machine" in failed.sentence


@pytest.mark.parametrize(
    "change", [{"schema": "opscope.export/2"}, {"threads": 7}, {"threads": [["1"]]}, {"unreadable_bytes": -9}, None]
)
def test_a_header_that_is_not_ours_changes_nothing(change: Any, load: Load, tmp_path: Path) -> None:
    exported(load(crossing()), tmp_path)
    content = json.loads((tmp_path / "exported.json").read_text())
    content["opscope_export"] = {**content["opscope_export"], **change} if change else "text"
    (tmp_path / "exported.json").write_text(json.dumps(content))
    trace = read(tmp_path / "exported.json")
    assert trace.operators.height == 2
    assert trace.threads == (("1", "0"), ("1", "1"))


def test_tracks_that_were_added_are_threads_of_their_own(load: Load, tmp_path: Path) -> None:
    exported(load(crossing()), tmp_path)
    content = json.loads((tmp_path / "exported.json").read_text())
    for tid in (5_000_000, -1, "99999999999999999999999", 1.5):
        content["traceEvents"].append({**content["traceEvents"][-1], "ph": "X", "cat": "cpu_op", "name": "added",
                                       "pid": 1, "tid": tid, "dur": 1})  # fmt: skip
    (tmp_path / "exported.json").write_text(json.dumps(content))
    trace = read(tmp_path / "exported.json")
    assert trace.threads[0] == ("100", "100")
    assert trace.operators["thread"].n_unique() == 5


def test_threads_that_are_listed_twice_are_one(load: Load, tmp_path: Path) -> None:
    exported(load(crossing()), tmp_path)
    content = json.loads((tmp_path / "exported.json").read_text())
    content["opscope_export"]["threads"] = [["100", "100"]] * 3
    (tmp_path / "exported.json").write_text(json.dumps(content))
    trace = read(tmp_path / "exported.json")
    assert trace.threads == (("100", "100"),)
    assert trace.operators["thread"].to_list() == [0, 0]
    assert analyze(trace).operators.height == 2


def test_the_header_that_other_tools_read_is_kept_and_nothing_else(load: Load, tmp_path: Path) -> None:
    built = crossing()
    built.header |= {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "trace_id": "{no object"}
    trace = load(built)
    poisoned = {**trace.source.metadata, "traceEvents": "[]", "HF_TOKEN": "hf_secret"}
    content = json.loads(exported_bytes(replace(trace, source=replace(trace.source, metadata=poisoned))))
    assert content["distributedInfo"] == {"backend": "nccl", "rank": 3, "world_size": 8}
    assert content["trace_id"] == "{no object"
    assert len(content["traceEvents"]) > 3
    assert "hf_secret" not in json.dumps(content)
    assert exported(trace, tmp_path).source.metadata["distributedInfo"] == trace.source.metadata["distributedInfo"]
