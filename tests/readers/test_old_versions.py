"""Traces of old PyTorch versions: whole microseconds, other keys. Recorded ones against PyTorch's own tables."""

import json
from pathlib import Path

import polars as pl
import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.readers.native import library as native
from opscope.readers.reading import read
from tests.conftest import DATA

VERSIONS = ("1.13.1", "2.1.2", "2.3.1")
TRACES = DATA / "old_traces"


@pytest.fixture(scope="module", params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> tuple[Analysis, dict[str, tuple[int, float, float]]]:
    name = f"cpu_train_torch-{request.param}"
    table = json.loads((TRACES / f"{name}-table.json").read_text())
    operators = {key: tuple(row) for key, row in table.items() if not key.startswith(("ProfilerStep", "Optimizer."))}
    return analyze(read(TRACES / f"{name}.json.gz")), operators


def test_calls_equal_pytorchs_own_table(recorded: tuple[Analysis, dict[str, tuple[int, float, float]]]) -> None:
    # A quarter of these calls take 0 us: whichever of two begins in the same microsecond must not swallow the other.
    analysis, table = recorded
    assert dict(analysis.operators.select("name", "calls").rows()) == {name: row[0] for name, row in table.items()}


def test_cpu_times_equal_pytorchs_within_their_rounding(
    recorded: tuple[Analysis, dict[str, tuple[int, float, float]]],
) -> None:
    analysis, table = recorded
    for name, calls, total_ns in analysis.operators.select("name", "calls", "total_cpu_ns").rows():
        assert abs(total_ns / 1000 - table[name][2]) <= calls


def test_rounded_times_are_said(recorded: tuple[Analysis, dict[str, tuple[int, float, float]]]) -> None:
    check = next(check for check in recorded[0].trust.checks if check.name == "time_resolution")
    assert check.count > 190
    assert "whole microseconds" in check.sentence


def test_todays_traces_are_not_called_rounded() -> None:
    trust = analyze(read(DATA / "traces" / "cdist.json.gz")).trust
    assert [check.verdict for check in trust.checks if check.name == "time_resolution"] == ["pass"]


# The layout of PyTorch 1.8 and 1.9, as in a trace of Kineto's own tests (tb_plugin/test/gpu_metrics_input.json).
OLD_LAYOUT = """
{
  "schemaVersion": 1,
  "computeProperties": [
    {
      "id": 0, "name": "Tesla V100-DGXS-32GB", "totalGlobalMem": 34084028416,
      "major": 7, "minor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiProcessor": 2048,
      "regsPerBlock": 65536, "regsPerMultiprocessor": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "sharedMemPerMultiprocessor": 98304,
      "multiProcessorCount": 80, "sharedMemPerBlockOptin": 98304
    }
  ],
  "traceEvents": [
  {
    "ph": "X", "cat": "Operator", "name": "aten::empty", "pid": 24572, "tid": "24572",
    "ts": 1621401187223200, "dur": 0, "args": {"Device": 24572, "External id": 579}
  },
  {
    "ph": "X", "cat": "Operator", "name": "aten::add_", "pid": 24572, "tid": "24572",
    "ts": 1621401187223200, "dur": 40,
    "args": {"Device": 24572, "External id": 580, "Input dims": [[4, 4]], "Input type": ["float"]}
  },
  {
    "ph": "X", "cat": "Kernel", "name": "add_kernel", "pid": 0, "tid": "stream 7", "ts": 1621401187223230, "dur": 3,
    "args": {
      "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 577, "external id": 580,
      "registers per thread": 20, "shared memory": 0, "grid": [1, 1, 1], "block": [64, 1, 1],
      "theoretical occupancy %": 0
    }
  },
  {
    "ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 24572, "tid": "24572",
    "ts": 1621401187223210, "dur": 19,
    "args": {"cbid": 211, "correlation": 577, "external id": 580, "external ts": 1621401187223200}
  },
  {
    "ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 0, "tid": "stream 7",
    "ts": 1621401187223260, "dur": 2,
    "args": {"device": 0, "context": 1, "stream": 7, "correlation": 579, "external id": 579, "bytes": 64}
  },
  {
    "ph": "X", "cat": "Runtime", "name": "cudaMemsetAsync", "pid": 24572, "tid": "24572",
    "ts": 1621401187223250, "dur": 5,
    "args": {"cbid": 51, "correlation": 579, "external id": 579, "external ts": 0}
  }
]}
"""


@pytest.fixture(params=["compiled", "python"])
def old_layout(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysis:
    if request.param == "compiled" and native.load_kineto() is None:
        pytest.skip("the compiled reader was not built")
    if request.param == "python":
        monkeypatch.setattr(native, "load_kineto", lambda: None)
    path = tmp_path / "trace.json"
    path.write_text(OLD_LAYOUT)
    return analyze(read(path))


def test_old_categories_and_keys_are_understood(old_layout: Analysis) -> None:
    rows = old_layout.operators.select("name", "calls", "self_device_ns", "self_cpu_ns").sort("name").rows()
    # The launch takes 19 of the 40 us.
    assert rows == [("aten::add_", 1, 3000, 21_000), ("aten::empty", 1, 0, 0)]
    assert old_layout.trace.operators["input_dims"].cast(pl.String).to_list() == [None, "[[4, 4]]"]
    assert old_layout.trace.activities["external_id"].to_list() == [580, None]


def test_an_old_external_id_that_repeats_the_correlation_id_links_nothing(old_layout: Analysis) -> None:
    # 579 is the memset's correlation id, and by chance the number of aten::empty.
    assert old_layout.accounting.unlinked_ns == 2000
    assert old_layout.accounting.unlinked_activities == 1


def test_old_device_properties_are_understood(old_layout: Analysis) -> None:
    (device,) = old_layout.trace.devices
    assert (device.name, device.compute_capability, device.multiprocessors) == ("Tesla V100-DGXS-32GB", "7.0", 80)
    assert (device.threads_per_multiprocessor, device.shared_memory_per_multiprocessor_bytes) == (2048, 98304)


def test_an_architecture_of_amd_is_no_compute_capability(tmp_path: Path) -> None:
    devices = [
        {"id": 0, "name": "AMD Instinct MI250X", "computeMajor": 9, "computeMinor": 0},
        {"id": 1, "name": "", "computeMajor": 9, "computeMinor": 0, "warpSize": 64},
        {"id": 2, "name": "Radeon RX 7900 XTX", "computeMajor": 11, "computeMinor": 0, "warpSize": 32},
        {"id": 3, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "warpSize": 32},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": devices, "traceEvents": []}))
    assert [device.compute_capability for device in read(path).devices] == [None, None, None, "9.0"]
