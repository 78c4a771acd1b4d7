"""The collector's own code, under the sanitizers, against a CUPTI that hands it records of known figures."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from opscope.analysis.trust.checks import check_recording
from opscope.documents.verdict import Verdict
from opscope.trace.model import Trace
from tests import collector
from tests.collector import FakeCuda

_BEGIN = 1_700_000_000_000_000_000


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCuda]:
    before = os.environ.get("ASAN_OPTIONS")
    # A process that is killed or forks has threads that the leak check cannot stop; nothing else is loosened.
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=0"
    yield collector.build(tmp_path_factory.mktemp("fake"))
    if before is None:
        del os.environ["ASAN_OPTIONS"]
    else:
        os.environ["ASAN_OPTIONS"] = before


def _one(traces: tuple[Trace, ...]) -> Trace:
    (trace,) = traces
    return trace


def _rows(table: pl.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    text = pl.col(pl.Categorical).cast(pl.String)
    return table.with_columns(text).select(columns).rows()


@pytest.mark.slow
def test_every_kind_of_record_becomes_its_row(cuda: FakeCuda, tmp_path: Path) -> None:
    played = cuda.play(tmp_path, "everything")
    assert (played.code, played.errors) == (0, "")
    trace = _one(played.traces)
    assert _rows(trace.launches, "name", "start_ns", "duration_ns", "correlation", "status") == [
        ("cudaMalloc", _BEGIN + 1_000, 500, 1, 2),
        ("cudaLaunchKernel", _BEGIN + 2_000, 100, 2, 0),
        ("cuMemcpyHtoD_v2", _BEGIN + 2_030, 20, 4, 0),  # cuKernelGetName is left out, _v2 is part of the name
        ("cudaLaunchKernel", _BEGIN + 4_000, 300, 5, 0),
    ]
    kernels = trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel")
    assert _rows(kernels, "name", "start_ns", "duration_ns", "correlation", "grid", "block", "graph_id") == [
        ("add(int, float*, float*)", _BEGIN + 3_000, 700, 2, "1,1,1", "256,1,1", None),
        ("add(int, float*, float*)", _BEGIN + 5_000, 900, 5, "2,1,1", "256,1,1", None),
        ("not mangled", _BEGIN + 6_000, 50, 7, "2,1,1", "256,1,1", 5),
    ]
    assert _rows(kernels, "registers_per_thread", "shared_memory_bytes", "device", "stream")[0] == (24, 48, 0, 7)
    assert kernels["graph_node_id"].to_list() == [None, None, 9]
    others = trace.activities.filter(pl.col("kind").cast(pl.String) != "kernel")
    assert _rows(others, "kind", "name", "duration_ns", "bytes") == [
        ("memcpy", "Memcpy HtoD (Pageable -> Device)", 1_000, 4_096),
        ("memcpy", "Memcpy DtoH (Device -> Pinned)", 250, 64),
        ("memset", "Memset (Device)", 40, 128),
    ]
    assert _rows(trace.synchronizations, "name", "device", "stream", "event", "duration_ns") == [
        ("Stream Sync", 0, 7, None, 60)
    ]
    assert _rows(trace.migrations, "name", "duration_ns", "bytes", "faults", "cause", "address") == [
        ("Unified memory HtoD", 500, 65_536, None, "coherence", 0x7F0000000000),
        ("Unified memory DtoH", 100, 4_096, None, "prefetch", 0x7F0000000000),
        ("CPU page fault", 0, None, 1, None, 0x7F0000000000),  # its value is where the program was, and no count
        ("GPU page fault", 900, None, 3, "read", 0x7F0000000000),
    ]
    assert trace.migrations["device"].to_list() == [0, 0, None, 0]
    assert _rows(trace.overheads, "name", "duration_ns") == [("Buffer Flush", 5)]
    (device,) = trace.devices
    assert (device.name, device.compute_capability, device.threads_per_multiprocessor) == ("NVIDIA Fake", "9.0", 2_048)
    assert trace.source.not_recorded == ("CUPTI could collect no times of 1 activities: they are left out.",)


def test_none_of_many_launches_is_lost(cuda: FakeCuda, tmp_path: Path) -> None:
    """More than all buffers hold at once: they are used again and again."""
    trace = _one(cuda.play(tmp_path, "launches", "300000").traces)
    assert (trace.launches.height, trace.activities.height) == (300_000, 300_000)
    assert trace.activities["correlation"].to_list() == list(range(1, 300_001))
    assert (trace.source.dropped_records, trace.source.not_recorded) == (0, ())
    assert trace.source.size_bytes < 100 * 300_000


@pytest.mark.parametrize("how", ["client", "client that looks up", "client with a copy"])
def test_another_client_gets_all_and_is_named(cuda: FakeCuda, tmp_path: Path, how: str) -> None:
    """Whether it is linked to CUPTI, looks its functions up, or brings a copy: it is led to the one in use."""
    copy = shutil.copy(cuda.program.with_name("libcupti.so.13"), tmp_path / "libcupti.so.13")
    played = cuda.play(tmp_path, how, OTHER_CUPTI=str(copy))
    # Its subscription succeeds, no kind of ours is left on, no buffer of ours is out, and it gets its record.
    assert played.out.strip() == "subscribe 0, kinds 0, buffers 0, records of the client 1"
    trace = _one(played.traces)
    assert trace.activities.height == 10
    check = check_recording(trace.source)
    assert (check.verdict, check.count) == (Verdict.WARN, 1)
    assert check.sentence.startswith("program began to use CUPTI ")


def test_a_client_that_is_refused_all_the_same_is_told_of(cuda: FakeCuda, tmp_path: Path) -> None:
    trace = _one(cuda.play(tmp_path, "client", FAKE_REFUSES_LATER="1").traces)
    stepped, refused = trace.source.not_recorded
    assert "results are whole" not in stepped
    assert refused == "program could not use CUPTI (error 39): run it without opscope exec."


def test_a_client_that_was_there_before_keeps_cupti(cuda: FakeCuda, tmp_path: Path) -> None:
    trace = _one(cuda.play(tmp_path, "launches", "5", FAKE_TAKEN="1").traces)
    assert trace.activities.height == 0
    assert "Another client of CUPTI was there before (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS" in trace.source.not_recorded[0]


@pytest.mark.parametrize(("end", "code"), [("kill", -9), ("_exit", 3), ("exec", 0)])
def test_what_was_flushed_outlives_the_process(cuda: FakeCuda, tmp_path: Path, end: str, code: int) -> None:
    played = cuda.play(tmp_path, end)
    trace = _one(played.traces)
    assert played.code == code
    assert trace.activities.height == 3  # of five: two came after the last flush
    (said,) = trace.source.not_recorded
    assert said.startswith("The process ended without a last flush")
    assert check_recording(trace.source).verdict is Verdict.WARN


def test_a_child_process_leaves_its_parents_file_alone(cuda: FakeCuda, tmp_path: Path) -> None:
    played = cuda.play(tmp_path, "fork")
    trace = _one(played.traces)
    assert (played.code, trace.activities.height, trace.source.not_recorded) == (0, 5, ())


def test_processes_that_begin_to_use_cuda_apart_have_files_of_their_own(cuda: FakeCuda, tmp_path: Path) -> None:
    traces = cuda.play(tmp_path, "fork first").traces
    assert [trace.activities.height for trace in traces] == [5, 5]
    first, second = (trace.source.metadata for trace in traces)
    assert {first["process"], second["process"]} >= {second["parent"]} or first["parent"] in {second["process"]}


def test_lost_records_are_a_failure(cuda: FakeCuda, tmp_path: Path) -> None:
    trace = _one(cuda.play(tmp_path, "dropped").traces)
    assert trace.source.dropped_records == 41
    check = check_recording(trace.source)
    assert (check.verdict, check.count) == (Verdict.FAIL, 41)


def test_kinds_that_may_not_be_recorded_are_said(cuda: FakeCuda, tmp_path: Path) -> None:
    """Without copies (kind 1); without kernels (kind 10) nothing is recorded, and another client may."""
    without_copies = _one(cuda.play(tmp_path, "everything", FAKE_REFUSED_KIND="1").traces)
    said = [sentence for sentence in without_copies.source.not_recorded if sentence.startswith("Not recorded")]
    assert said[0].startswith(
        "Not recorded: copies (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); the driver lets administrators"
    )
    kinds = without_copies.activities["kind"].cast(pl.String).to_list()
    assert kinds.count("kernel") == 3
    assert "memcpy" not in kinds
    (tmp_path / "second").mkdir()
    played = cuda.play(tmp_path / "second", "client", FAKE_REFUSED_KIND="10")
    assert played.out.startswith("subscribe 0")
    (said, *_) = _one(played.traces).source.not_recorded
    assert said.startswith("Not recorded: kernels (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)")


def test_threads_are_told_apart(cuda: FakeCuda, tmp_path: Path) -> None:
    trace = _one(cuda.play(tmp_path, "threads").traces)
    assert trace.launches["thread"].n_unique() == 2
    assert len({process for process, _ in trace.threads}) == 1


def test_another_clock_is_brought_to_the_real_one(cuda: FakeCuda, tmp_path: Path) -> None:
    """CUPTI's clock may be another than the system's: by an hour, here."""
    trace = _one(cuda.play(tmp_path, "launches", "1", FAKE_CLOCK_BEHIND_S="3600").traces)
    shift = int(trace.launches["start_ns"][0]) - _BEGIN - 1_000
    assert abs(shift - 3_600_000_000_000) < 1_000_000_000


def test_ranges_of_nvtx_without_cuda(cuda: FakeCuda, tmp_path: Path) -> None:
    played = cuda.play(tmp_path, "nvtx")
    assert played.out.strip() == "levels 0 1 1, of nothing -1"
    trace = _one(played.traces)
    nested = {
        str(name): (start, length)
        for name, start, length in _rows(trace.annotations, "name", "start_ns", "duration_ns")
    }
    assert list(nested) == ["outer", "inner \u03b1", "mine:registered", "never closed"]
    outer, inner = nested["outer"], nested["inner \u03b1"]
    assert outer[0] <= inner[0]
    assert inner[0] + inner[1] <= outer[0] + outer[1]
    assert _rows(trace.ranges, "name") == [("whole",)]
    assert "main thread" in trace.source.metadata.values()


def test_older_cupti_always_gets_a_buffer(cuda: FakeCuda, tmp_path: Path) -> None:
    """Before CUDA 12.9 it crashes without."""
    trace = _one(cuda.play(tmp_path, "launches", "2000", FAKE_VERSION="18").traces)
    assert (trace.activities.height, trace.source.dropped_records) == (2_000, 0)


def test_a_program_that_closes_all_descriptors_keeps_its_own_file(cuda: FakeCuda, tmp_path: Path) -> None:
    """The collector's number is then that of the program's file, and it writes to its own all the same."""
    own = tmp_path / "own"
    played = cuda.play(tmp_path, "descriptors", str(own))
    assert (played.code, own.read_text()) == (0, "mine")
    assert _one(played.traces).activities.height == 3


def test_signals_are_for_the_program(cuda: FakeCuda, tmp_path: Path) -> None:
    assert cuda.play(tmp_path, "signals").out == "got 15\n"


def test_ranges_in_destructors_and_after_the_first_thread(cuda: FakeCuda, tmp_path: Path) -> None:
    """The program ends when its last thread does: nothing of the collector's keeps it."""
    played = cuda.play(tmp_path, "destructors")
    assert played.code == 0, played.errors
    names = _one(played.traces).annotations["name"].cast(pl.String).to_list()
    assert {"of a thread", "late"} <= set(names)


@pytest.mark.parametrize("how", ["forks by itself", "looks elsewhere"])
def test_what_goes_around_the_library_goes_on(cuda: FakeCuda, tmp_path: Path, how: str) -> None:
    """A child without the library's fork handlers ends; CUPTI is found nowhere but where it is."""
    assert cuda.play(tmp_path, how).code == 0
