"""Documents fit their schema and come back equal, and the keys of statistics files that others read stay."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.documents.trace import TraceDocument
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions
from opscope.lookup.explain import Lookup
from opscope.readers.reading import read
from opscope.report.overview import costliest_work, steps_note
from opscope.report.trace_document import build_trace_document
from tests.command import ROOT, opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

DOCUMENTS = DATA / "documents"
RUN = DATA / "h200_bert_small"


def test_the_keys_in_milliseconds_are_what_they_were(tmp_path: Path) -> None:
    """The same run, reported by the version before (the fixture) and by this one."""
    old = json.loads((DOCUMENTS / "first_statistics.json").read_text())
    shutil.copytree(RUN, tmp_path / "run")
    assert opscope("export", "--reports", str(tmp_path / "run")).returncode == 0
    new = json.loads((tmp_path / "run" / "profiling_stats_bs1_seq128.json").read_text())
    assert old["summary"]["bound"].pop("idle_cause") == "host late"
    assert new["summary"]["bound"].pop("idle_cause") == "dispatch"  # what is known of the same time now
    for summary in (old["summary"], new["summary"]):
        summary["bound"].pop("sentence")  # names shares of causes
    # A step is the mean of all that were timed now, and no median: 872.3 us, and no 860.7 us.
    shares = [summary["bound"].pop("device_share") for summary in (old["summary"], new["summary"])]
    assert shares[0] / shares[1] == pytest.approx(872.266 / 860.746, rel=1e-5)
    assert (old["summary"]["bound"].pop("kind"), new["summary"]["bound"].pop("kind")) == ("launch-bound", "dispatch")
    promised = {"name", "cuda_time_total_ms", "cpu_time_total_ms", "native_function", "potential_cuda_file", "source"}
    for was, row in zip(old["top_aten_operators"], new["top_aten_operators"], strict=True):
        assert promised <= row.keys()
        # The rest of what stood there is in 'operators', in nanoseconds. Where the source is, is told more often now.
        told = {"native_function", "potential_cuda_file", "source"}
        assert same({key: value for key, value in was.items() if key in row.keys() - told}, row), row["name"]
        for key in ("native_function", "potential_cuda_file"):
            assert was[key] in (None, row[key]), row["name"]
    for key in ("summary", "category_statistics"):
        assert same(old[key], new[key]), key


def same(old: Any, new: Any) -> bool:
    """Tell whether all that was there is there; what is new beside it does no harm."""
    if isinstance(old, dict):
        return all(key in new and same(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(same, old, new))
    return bool(old == (pytest.approx(new) if isinstance(new, float) else new))


def test_records_of_before_the_first_release_are_refused_in_a_sentence(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("opscope.sweep/1", "opscope.sweep/0"))
    refused = opscope("export", "--reports", str(tmp_path / "run"))
    assert refused.returncode == 4
    assert "is not what opscope wrote there" in refused.stderr


def test_documents_of_today_fit_their_schema_and_come_back_equal() -> None:
    functions, measured = NativeFunctions.shipped(), Measured(analyze(read(DATA / "traces" / "cdist.json.gz")))
    document = build_trace_document(measured, functions, lookup=Lookup(SourceResolver(), functions, measured=measured))
    content = msgspec.json.encode(document)
    assert msgspec.json.decode(content, type=TraceDocument) == document
    jsonschema.validate(json.loads(content), json.loads((ROOT / "docs" / "schema" / "analysis-1.json").read_text()))


@pytest.mark.parametrize("configuration", ["bs1_seq128", "bs8_seq128", "bs16_seq128"])
def test_report_and_analyze_say_the_same_of_a_run(configuration: str, tmp_path: Path) -> None:
    """A trace and its record are joined once: no share, verdict, check or figure may differ."""
    shutil.copytree(RUN, tmp_path / "run")
    assert opscope("export", "--reports", str(tmp_path / "run")).returncode == 0
    reported = json.loads((tmp_path / "run" / f"profiling_stats_{configuration}.json").read_text())
    result = opscope("analyze", str(tmp_path / "run"), "--format", "json")
    assert result.returncode == 0, result.stderr
    traces = json.loads(result.stdout)["traces"]
    analysed = next(one for one in traces if configuration in one["source"]["path"])
    assert analysed["bound"]["device_share"] is not None
    for key in ("bound", "trust", "measurement", "devices", "operators", "kernels", "categories", "steps", "window"):
        assert same(known(analysed[key]), reported[key]), key


def known(value: Any) -> Any:
    """Leave out what is null: 'analyze' looks up no sources."""
    if isinstance(value, dict):
        return {key: known(part) for key, part in value.items() if part is not None}
    return [known(part) for part in value] if isinstance(value, list) else value


def test_steps_whose_work_runs_in_a_later_one_have_a_note(tmp_path: Path) -> None:
    def note(start: int) -> str | None:
        trace = KinetoTrace()
        trace.step(1, 0, 1_000_000)
        trace.launched_kernel("first", (10_000, 5_000), (20_000, 100_000))
        trace.launched_kernel("long", (30_000, 5_000), (start, 400_000))
        trace.step(2, 1_000_000, 1_000_000)
        trace.launched_kernel("last", (1_010_000, 5_000), (1_900_000, 50_000))
        measured = Measured(analyze(read(trace.write(tmp_path / "t.json"))))
        return steps_note(build_trace_document(measured, NativeFunctions.shipped()))

    assert note(200_000) is None
    assert "may run in a later one" in (note(1_100_000) or "")


def test_a_kernel_that_no_operator_launched_is_among_what_costs_most(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(0, 0, 100_000)
    trace.operator("aten::fill_", 10_000, 10_000)
    trace.launched_kernel("fill", (12_000, 2_000), (20_000, 50_000))
    trace.operator("aten::mm", 22_000, 4_000)
    trace.launched_kernel("gemm", (23_000, 2_000), (70_000, 10_000))
    trace.launched_kernel("matmul_kernel", (30_000, 2_000), (80_000, 20_000))  # as Triton's launcher does
    trace.operator("aten::relu", 34_000, 4_000)
    trace.launched_kernel("relu", (35_000, 2_000), (100_000, 5_000))
    measured = Measured(analyze(read(trace.write(tmp_path / "t.json"))))
    document = build_trace_document(measured, NativeFunctions.shipped())
    assert ["".join(block.parts) for block in costliest_work(document)] == [
        "The operators and device work that cost most:",
        "  - aten::fill_: 50.00 us per profiled step, 58.8 % of the device sum (Memory)",
        "  - matmul_kernel (matrix product, likely): 20.00 us per profiled step, 23.5 % of the device sum "
        "(no operator was recorded)",
        "  - aten::mm: 10.00 us per profiled step, 11.8 % of the device sum (Matrix Operations)",
    ]


def test_what_a_graph_replays_is_among_what_costs_most() -> None:
    measured = Measured(analyze(read(DATA / "traces" / "cudagraph_replay.json.gz")))
    lines = ["".join(line.parts) for line in costliest_work(build_trace_document(measured, NativeFunctions.shipped()))]
    assert lines[0] == "The operators and device work that cost most:"
    assert all(line.endswith("(in a replayed CUDA graph)") for line in lines[1:])
    kernels = measured.analysis.kernels.sort("total_ns", descending=True)["total_ns"]
    assert f"{kernels[0] / 3 / 1e3:.2f} us per profiled step" in lines[1]  # three steps
