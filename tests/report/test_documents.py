"""Documents of every earlier version are read as today's, and the keys of statistics files that others read stay."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.documents.history import CURRENT
from opscope.documents.trace import TraceDocument
from opscope.documents.upgrade import read_trace_document
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions
from opscope.lookup.explain import Lookup
from opscope.readers import read
from opscope.record.capture import CaptureRecord
from opscope.record.codec import decode_bytes
from opscope.record.sweep import Manifest
from opscope.report.trace_document import build_trace_document
from tests.command import ROOT, opscope
from tests.conftest import DATA

DOCUMENTS = DATA / "documents"
RUN = DATA / "h200_bert_small"


def test_a_document_of_version_1_is_read_with_defaults_for_what_it_lacks() -> None:
    """The recorded one is of gelu_variants, whose figures today's version must have too."""
    old = json.loads((DOCUMENTS / "analysis-1.1.json").read_text())
    document = read_trace_document((DOCUMENTS / "analysis-1.1.json").read_bytes())
    assert document.version == 1
    today = analyze(read(DATA / "traces" / "gelu_variants.json.gz"))
    functions = NativeFunctions.shipped()
    measured = Measured(today)
    new = build_trace_document(measured, functions, lookup=Lookup(SourceResolver(), functions, measured=measured))
    assert new.version == CURRENT
    figures = ("name", "calls", "self_device_ns", "total_device_ns", "self_cpu_ns", "category", "cpp_function")
    assert [[getattr(row, name) for name in figures] for row in document.operators] == [
        [getattr(row, name) for name in figures] for row in new.operators
    ]
    assert [(row.name, row.total_ns) for row in document.kernels] == [(row.name, row.total_ns) for row in new.kernels]
    # The steps of this trace do not wait for their work: only from version 4 on they are measured by it.
    assert [(d.busy_ns, d.sum_ns, d.activities) for d in document.devices] == [
        (d.busy_ns, d.sum_ns, d.activities) for d in new.devices
    ]
    assert (document.bound.kind, new.bound.kind) == ("unknown", "device")  # for the same reason
    assert old.keys() <= json.loads(msgspec.json.encode(new)).keys()


def test_statistics_of_before_the_one_document_are_read_to_the_nanosecond() -> None:
    old = json.loads((DOCUMENTS / "profile-1.json").read_text())
    document = read_trace_document((DOCUMENTS / "profile-1.json").read_bytes())
    assert old["schema"] == "opscope.profile/1"
    assert document.step_count == old["summary"]["steps"]
    assert sum(row.self_device_ns for row in document.operators) + document.unlinked.device_ns == round(
        old["summary"]["total_cuda_time_ms"] * 1e6
    )
    for row, was in zip(document.operators, old["operators"], strict=True):
        assert (row.name, row.calls) == (was["name"], was["calls"])
        assert row.self_device_ns == round((was["self_cuda_time_ms"] or 0) * 1e6)
    (device,) = document.devices
    assert device.sum_ns == sum(kernel.total_ns for kernel in document.kernels)
    assert "host wait" in device.idle_by_cause_ns
    parts = device.compute_ns + device.exposed_communication_ns + device.exposed_memcpy_ns + device.idle_ns
    assert parts == device.window.duration_ns
    assert document.capture is not None
    assert document.capture.configuration.target == old["configuration"]["target"]
    assert document.capture.configuration.count("seq_len") == old["configuration"]["seq_len"]


def test_the_keys_in_milliseconds_are_what_they_were(tmp_path: Path) -> None:
    """The same run, reported by the version before (the fixture) and by this one."""
    old = json.loads((DOCUMENTS / "profile-1.json").read_text())
    shutil.copytree(RUN, tmp_path / "run")
    assert opscope("report", str(tmp_path / "run")).returncode == 0
    new = json.loads((tmp_path / "run" / "profiling_stats_bs1_seq128.json").read_text())
    assert old["summary"]["bound"].pop("idle_cause") == "host late"
    assert new["summary"]["bound"].pop("idle_cause") == "dispatch"  # what is known of the same time now
    for summary in (old["summary"], new["summary"]):
        summary["bound"].pop("sentence")  # names shares of causes
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


def test_records_and_manifests_of_version_1_are_read() -> None:
    old = json.loads((DOCUMENTS / "capture-1.json").read_text())
    record = decode_bytes((DOCUMENTS / "capture-1.json").read_bytes(), CaptureRecord)
    assert record.configuration.count("batch_size") == old["configuration"]["batch_size"]
    assert record.machine.cpu == old["environment"]["cpu"]
    assert [gpu.name for gpu in record.machine.gpus] == [gpu["name"] for gpu in old["environment"]["gpus"]]
    assert record.framework is not None
    assert record.framework.torch == old["environment"]["torch"]
    assert record.rank is None
    manifest = decode_bytes((DOCUMENTS / "sweep-1.json").read_bytes(), Manifest)
    assert [entry.configuration.id for entry in manifest.entries] == ["bs1_seq128", "bs8_seq128", "bs16_seq128"]
    assert [entry.files.cycles[0].trace for entry in manifest.entries] == [
        entry["trace"] for entry in json.loads((DOCUMENTS / "sweep-1.json").read_text())["entries"]
    ]


def test_documents_of_today_fit_their_schema_and_come_back_equal() -> None:
    functions, measured = NativeFunctions.shipped(), Measured(analyze(read(DATA / "traces" / "cdist.json.gz")))
    document = build_trace_document(measured, functions, lookup=Lookup(SourceResolver(), functions, measured=measured))
    content = msgspec.json.encode(document)
    assert read_trace_document(content) == msgspec.json.decode(content, type=TraceDocument)
    jsonschema.validate(json.loads(content), json.loads((ROOT / "docs" / "schema" / "analysis-1.json").read_text()))


@pytest.mark.parametrize("configuration", ["bs1_seq128", "bs8_seq128", "bs16_seq128"])
def test_report_and_analyze_say_the_same_of_a_run(configuration: str, tmp_path: Path) -> None:
    """A trace and its record are joined once: no share, verdict, check or figure may differ."""
    shutil.copytree(RUN, tmp_path / "run")
    assert opscope("report", str(tmp_path / "run")).returncode == 0
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
