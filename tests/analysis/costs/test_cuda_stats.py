"""The sums of ``analyze --stats``: worked out by hand, by the definitions of nsys' own tables, over any durations."""

import math
import statistics
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.costs.cuda_stats import report_of
from opscope.analysis.structure.origin import process_name
from opscope.documents.stats import Report, TimeRow, UnifiedMemoryRow
from opscope.readers.events import Rows, build_trace, empty_trace
from opscope.readers.reading import read
from opscope.report.stats_document import build_stats, stats_table
from opscope.trace.model import Migration, Trace
from opscope.trace.schema import SCHEMAS
from tests.command import fresh_opscope
from tests.conftest import DATA

RECORDED = DATA / "exec"


def _trace(**tables: list[dict[str, object]]) -> Trace:
    rows = Rows([("1", "1")])
    for table, entries in tables.items():
        for entry in entries:
            thread = {"thread": 0} if "thread" in SCHEMAS[table] else {}
            rows.add(table, **thread, **entry)
    frames = {name: rows.frame(name) for name in SCHEMAS}
    return build_trace(empty_trace().source, (), rows.threads(), frames)


def _kernel(name: str, duration: int, start: int = 0) -> dict[str, object]:
    return {"kind": "kernel", "name": name, "start_ns": start, "duration_ns": duration, "device": 0}


def _times(report: Report, *traces: Trace) -> dict[str, TimeRow]:
    return {row.name: row for row in report_of(report, traces).times}


def test_kernels_by_hand() -> None:
    """Two kernels: 10, 20 and 60 ns, and one of 10: shares 90 and 10 %; deviations of a sample, 0 of a single value."""
    trace = _trace(activities=[_kernel("a", 10), _kernel("b", 10), _kernel("a", 60), _kernel("a", 20)])
    entry = report_of(Report.KERNELS, [trace])
    assert [row.name for row in entry.times] == ["a", "b"]
    found = _times(Report.KERNELS, trace)
    first, second = found["a"], found["b"]
    assert (first.time_percent, second.time_percent) == (90.0, 10.0)
    assert (first.duration_ns.total, first.duration_ns.count, first.duration_ns.min, first.duration_ns.max) == (
        90,
        3,
        10,
        60,
    )
    assert (first.duration_ns.mean, first.duration_ns.median) == (30.0, 20.0)
    assert first.duration_ns.stddev == pytest.approx(math.sqrt(((10 - 30) ** 2 + (20 - 30) ** 2 + (60 - 30) ** 2) / 2))
    assert second.duration_ns.stddev == 0.0
    cells = stats_table(entry, None)
    assert cells.columns == (
        *("Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)"),
        "Name",
    )
    assert cells.rows[0] == ("90.0", "90", "3", "30.0", "20.0", "10", "60", "26.5", "a")


def test_deviation_is_that_of_nsys() -> None:
    """Two durations that nsys printed with the deviation 233,376,198.5."""
    trace = _trace(
        launches=[
            {"name": "cudaMalloc", "start_ns": at, "duration_ns": duration}
            for at, duration in enumerate((2_971_823, 333_015_608))
        ]
    )
    row = _times(Report.API, trace)["cudaMalloc"]
    assert f"{row.duration_ns.stddev:,.1f}" == "233,376,198.5"


def test_kernels_and_memory_operations_in_one_table() -> None:
    copies = [
        {
            "kind": "memcpy",
            "name": "Memcpy HtoD (Pageable -> Device)",
            "start_ns": 1,
            "duration_ns": 30,
            "bytes": 134_217_728,
        },
        {
            "kind": "memcpy",
            "name": "Memcpy HtoD (Pinned -> Device)",
            "start_ns": 2,
            "duration_ns": 10,
            "bytes": 8_388_608,
        },
        {"kind": "memcpy", "name": "Memcpy HtoA (Pageable -> Array)", "start_ns": 3, "duration_ns": 5},
        {"kind": "memset", "name": "Memset (Device)", "start_ns": 4, "duration_ns": 5, "bytes": 2_097_152},
    ]
    moved = [{"name": str(Migration.TO_HOST), "start_ns": 5, "duration_ns": 10, "bytes": 4_096, "address": 0}]
    trace = _trace(activities=[_kernel("k", 40), *copies], migrations=moved)
    found = _times(Report.GPU, trace)
    assert {name: (row.category, row.time_percent) for name, row in found.items()} == {
        "k": ("CUDA_KERNEL", 40.0),
        "[CUDA memcpy Host-to-Device]": ("MEMORY_OPER", 40.0),
        "[CUDA memcpy Unified Device-to-Host]": ("MEMORY_OPER", 10.0),
        "[CUDA memcpy Host-to-Array]": ("MEMORY_OPER", 5.0),
        "[CUDA memset]": ("MEMORY_OPER", 5.0),
    }
    sizes = report_of(Report.MEMORY_SIZE, [trace])
    assert [row.name for row in sizes.sizes] == [
        "[CUDA memcpy Host-to-Device]", "[CUDA memset]", "[CUDA memcpy Unified Device-to-Host]"
    ]  # fmt: skip
    # As nsys prints 128 MiB and 8 MiB: in millions of bytes.
    assert stats_table(sizes, None).rows[0][:2] == ("142.606", "2")
    assert stats_table(sizes, None).rows[1][0] == "2.097"


def test_unified_memory_by_address() -> None:
    events = [
        {"name": str(Migration.TO_DEVICE), "address": 4_096, "bytes": 8_000, "duration_ns": 2_000, "start_ns": 1},
        {"name": str(Migration.TO_HOST), "address": 4_096, "bytes": 2_000, "duration_ns": 500, "start_ns": 2},
        {"name": str(Migration.CPU_FAULT), "address": 8_192, "faults": 1, "duration_ns": 0, "start_ns": 3},
        {"name": str(Migration.GPU_FAULT), "address": 4_096, "faults": 3, "duration_ns": 9, "start_ns": 4},
        {"name": str(Migration.THRASHING), "address": 12_288, "bytes": 1, "duration_ns": 0, "start_ns": 5},
    ]
    entry = report_of(Report.UNIFIED_MEMORY, [_trace(migrations=events)])
    assert entry.rows == (
        UnifiedMemoryRow(4_096, 8_000, 2_000, 0, 3, 4e9),  # 10,000 bytes in 2.5 us
        UnifiedMemoryRow(8_192, 0, 0, 1, 0, None),
    )
    assert entry.totals is not None
    assert (entry.totals.to_device_bytes, entry.totals.cpu_faults, entry.totals.gpu_faults) == (8_000, 1, 3)
    assert (entry.totals.lowest_address, entry.totals.highest_address) == (4_096, 8_192)


def test_several_processes_are_added_up() -> None:
    one, other = _trace(activities=[_kernel("a", 30)]), _trace(activities=[_kernel("a", 10), _kernel("b", 60)])
    found = _times(Report.KERNELS, one, other)
    assert (found["a"].duration_ns.total, found["a"].duration_ns.count, found["a"].time_percent) == (40, 2, 40.0)


@pytest.mark.parametrize("report", list(Report))
def test_what_is_not_there_is_said(report: Report) -> None:
    entry = report_of(report, [empty_trace()])
    assert entry.rows == ()
    assert entry.empty is not None
    assert "was recorded" in entry.empty


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.lists(st.integers(0, 10**12), min_size=1, max_size=6),
        min_size=1,
        max_size=5,
    )
)
def test_any_durations_add_up(durations: dict[str, list[int]]) -> None:
    trace = _trace(activities=[_kernel(name, one) for name, values in durations.items() for one in values])
    found = _times(Report.KERNELS, trace)
    assert {name: row.duration_ns.total for name, row in found.items()} == {
        name: sum(v) for name, v in durations.items()
    }
    if sum(map(sum, durations.values())):
        assert sum(row.time_percent for row in found.values()) == pytest.approx(100)
    for name, values in durations.items():
        row = found[name].duration_ns
        assert row.median == statistics.median(values)
        assert row.stddev == pytest.approx(statistics.stdev(values) if len(values) > 1 else 0.0, rel=1e-9, abs=1e-3)
    totals = [row.duration_ns.total for row in found.values()]
    assert totals == sorted(totals, reverse=True)


def test_a_recorded_program_beside_what_it_did() -> None:
    """The three launch shapes of the seeds' add, each run twice: six launches of one kernel."""
    trace = read(RECORDED / "first.cudarec.xz")
    api = _times(Report.API, trace)
    assert api["cudaLaunchKernel"].duration_ns.count == 6
    assert api["cudaMallocManaged"].duration_ns.count == 2
    assert api["cudaEventRecord"].duration_ns.count == 12
    kernels = _times(Report.KERNELS, trace)
    assert list(kernels) == ["add(int, float const*, float*)"]
    assert kernels["add(int, float const*, float*)"].duration_ns.total == trace.activities["duration_ns"].sum()
    (process,) = build_stats([trace], ()).processes
    assert (process.kernels, process.devices, process.checks) == (6, ("0: NVIDIA H200",), ())


def test_ranges_have_their_style_and_domain() -> None:
    found = _times(Report.NVTX, read(RECORDED / "nvtx.cudarec.xz"))
    assert {name: (row.style, row.duration_ns.count) for name, row in found.items()} == {
        "whole": ("StartEnd", 1),
        "step": ("PushPop", 3),
        "mine:registered": ("PushPop", 3),
        "before cuda": ("PushPop", 1),
        "never closed": ("PushPop", 1),
    }
    assert found["whole"].duration_ns.total > found["step"].duration_ns.total


def test_traces_of_pytorch_have_sums_too(recorded: object) -> None:
    path = sorted((DATA / "traces").glob("*.json.gz"))[0]
    trace = read(path)
    kernels = trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel")
    found = _times(Report.KERNELS, trace)
    assert sum(row.duration_ns.total for row in found.values()) == kernels["duration_ns"].sum()
    assert process_name(trace.source) == str(path)


def test_the_command(tmp_path: Path) -> None:
    both = [str(RECORDED / "two0.cudarec.xz"), str(RECORDED / "two1.cudarec.xz")]
    shown = fresh_opscope("analyze", "--stats", "cuda_gpu_sum", *both, "--top", "1")
    assert shown.returncode == 0
    assert "(5 more rows: --top 0 shows all)" in shown.stdout
    assert "rank 1 of 2: nvtx (process " in shown.stdout
    assert "`cudaMalloc` failed once with error 2." in shown.stdout
    mistaken = fresh_opscope("analyze", both[0], "--stats", "cuda_api_sum", "um_sum")
    assert (mistaken.returncode, "names with commas between them" in mistaken.stderr) == (2, True)
    csv = fresh_opscope("analyze", both[0], "--stats", "cuda_gpu_kern_sum", "--format", "csv")
    lines = csv.stdout.splitlines()
    assert lines[0].startswith("Time (%),Total Time (ns),Instances,")
    assert all(cell.replace(".", "").isdecimal() for cell in lines[1].split(",")[:8])
    assert fresh_opscope("analyze", both[0], "--stats", "all", "--format", "csv").returncode == 2
    assert (
        "## NVTX ranges (nvtx_sum)" in fresh_opscope("analyze", *both, "--stats", "nvtx_sum", "--format", "md").stdout
    )
