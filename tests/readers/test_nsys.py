"""Nsight Systems' SQLite exports: databases with the tables of its schema, of several versions, and broken ones."""

import gzip
import lzma
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.analysis.costs.cuda_stats import report_of
from opscope.analysis.trust.checks import check_recording
from opscope.base.errors import BadInputError
from opscope.documents.stats import Report
from opscope.documents.verdict import CheckName, Verdict
from opscope.readers.ncu import read_kernel_counters
from opscope.readers.reading import read
from opscope.trace.schema import SCHEMAS
from tests.budget import examples
from tests.command import fresh_opscope
from tests.conftest import DATA

# The columns that these tests need, of the schema of 2024.6 (3.16.1), by the names of NVIDIA's reference.
_SCHEMA: Mapping[str, Sequence[str]] = {
    "StringIds": ("id", "value"),
    "TARGET_INFO_GPU": (
        *("id", "name", "computeMajor", "computeMinor", "smCount", "totalMemory", "maxWarpsPerSm", "threadsPerWarp"),
        *("maxRegistersPerSm", "maxShmemPerSm"),
    ),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "utcTime", "localTime"),
    "META_DATA_EXPORT": ("name", "value"),
    "DIAGNOSTIC_EVENT": ("timestamp", "timestampType", "source", "severity", "text", "globalPid"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *(
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
        ),
        *("registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory"),
        *("dynamicSharedMemory", "graphNodeId", "mangledName"),
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        *("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *(
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            "bytes",
            "copyKind",
            "srcKind",
            "dstKind",
        ),
        *("virtualAddress", "migrationCause"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "value", "bytes", "memKind"),
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "syncType", "eventId"),
    ),
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": ("start", "globalPid", "address", "CpuInstruction"),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": (
        *("start", "end", "globalPid", "deviceId", "address", "numberOfPageFaults", "faultAccessType"),
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "rangeId", "text", "globalTid", "textId", "domainId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId", "graphExecId"),
    ),
}
_TEXTS = {"name", "value", "text", "utcTime", "localTime"}
_PROCESS, _OTHER = (1 << 48 | pid << 24 for pid in (100, 200))


def _database(path: Path, rows: Mapping[str, Sequence[Sequence[object]]], without: Sequence[str] = ()) -> Path:
    """Write an export. Tables without rows are left out, as Nsight Systems does."""
    with closing(sqlite3.connect(path)) as connection:
        for table, entries in {"StringIds": [], **rows}.items():
            columns = [name for name in _SCHEMA[table] if name not in without]
            kept = [
                [value for name, value in zip(_SCHEMA[table], row, strict=True) if name in columns] for row in entries
            ]
            types = (
                f'"{name}" {"TEXT" if name in _TEXTS and table != "CUPTI_ACTIVITY_KIND_MEMSET" else "INTEGER"}'
                for name in columns
            )
            connection.execute(f'CREATE TABLE "{table}" ({", ".join(types)})')
            marks = ", ".join("?" for _ in columns)
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', kept)
        connection.commit()
    return path


def _kernel(
    start: int,
    end: int,
    correlation: int,
    process: int,
    name: int = 1,
    graph: int | None = None,
    mangled: int | None = None,
) -> tuple[object, ...]:
    return (start, end, 0, 1, 7, correlation, process, name, 2, 32, 4, 1, 1, 256, 1, 1, 16, 32, graph, mangled)


_STRINGS = [
    (1, "add(int, float *, float *)"),
    (2, "add"),
    (3, "cudaLaunchKernel_v7000"),
    (4, "cuMemcpyHtoD_v2"),
    (5, "registered"),
    (6, "mine"),
]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Return an export of two processes that both call their first call 1."""
    return _database(
        tmp_path / "report.sqlite",
        {
            "StringIds": _STRINGS,
            "TARGET_INFO_GPU": [(0, "NVIDIA H200", 9, 0, 132, 1000, 64, 32, 65536, 233472)],
            "TARGET_INFO_SESSION_START_TIME": [(1_700_000_000_000_000_000, "", "")],
            "META_DATA_EXPORT": [("EXPORT_SCHEMA_VERSION", "3.16.1"), ("EXPORT_PRODUCT_VERSION", "2024.6.2.225")],
            "DIAGNOSTIC_EVENT": [
                (0, 0, 0, 2, "Not all CUDA events might have been collected.", _PROCESS),
                (0, 0, 0, 1, "Number of CUDA events collected: 3.", _PROCESS),
            ],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                _kernel(3_000, 3_700, 1, _PROCESS),
                _kernel(5_000, 5_900, 1, _OTHER, graph=9),
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                (1_000, 1_100, 0, _PROCESS | 101, 1, 3, 0, None),
                (1_000, 1_100, 67, _PROCESS | 101, 1, 3, 0, 12),  # the same call with its stack
                (2_000, 2_300, 0, _OTHER | 201, 1, 3, 0, None),
                (2_500, 2_600, 1, _OTHER | 201, 2, 4, 700, None),
            ],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [
                (6_000, 6_500, 0, 7, 2, _OTHER, 4_096, 1, 0, 2, None, None),
                (7_000, 7_100, 0, 0, None, _PROCESS, 65_536, 11, 4, 4, 0x7F0000000000, 2),
            ],
            "CUPTI_ACTIVITY_KIND_MEMSET": [(8_000, 8_040, 0, 7, 3, _OTHER, 0, 128, 2)],
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [(9_000, 9_050, 0, 1, 0xFFFFFFFF, 4, _OTHER, 4, 0xFFFFFFFF)],
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS": [(9_100, _PROCESS, 0x7F0000000000, 1)],
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS": [(9_200, 9_300, _PROCESS, 0, 0x7F0000000000, 3, 2)],
            "NVTX_EVENTS": [
                (100, None, 75, None, "mine", _PROCESS | 101, None, 1),
                (1_000, 9_000, 59, None, "step", _PROCESS | 101, None, 0),
                (1_100, 1_200, 59, None, None, _PROCESS | 101, 5, 1),
                (1_050, 9_500, 60, 1, "whole", _PROCESS | 101, None, 0),
                (2_000, None, 59, None, "never closed", _OTHER | 201, None, 0),
                (2_100, None, 34, None, "a mark", _OTHER | 201, None, 0),
            ],
        },
    )


def _rows(table: pl.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return table.with_columns(pl.col(pl.Categorical).cast(pl.String)).select(columns).rows()


def test_every_table_is_read(export: Path) -> None:
    trace, begin = read(export), 1_700_000_000_000_000_000
    assert trace.threads == (("100", "100"), ("100", "101"), ("200", "201"))
    assert _rows(trace.launches, "name", "start_ns", "duration_ns", "thread", "status") == [
        ("cudaLaunchKernel", begin + 1_000, 100, 1, 0),
        ("cudaLaunchKernel", begin + 2_000, 300, 2, 0),
        ("cuMemcpyHtoD_v2", begin + 2_500, 100, 2, 700),
    ]
    assert _rows(trace.activities, "kind", "name", "duration_ns", "bytes") == [
        ("kernel", "add(int, float *, float *)", 700, None),
        ("kernel", "add(int, float *, float *)", 900, None),
        ("memcpy", "Memcpy HtoD (Pageable -> Device)", 500, 4_096),
        ("memset", "Memset (Device)", 40, 128),
    ]
    assert _rows(trace.activities, "grid", "block", "registers_per_thread", "shared_memory_bytes", "graph_node_id")[
        1
    ] == (*("4,1,1", "256,1,1", 32, 48, 9),)
    assert _rows(trace.synchronizations, "name", "stream", "event") == [("Context Sync", None, None)]
    assert _rows(trace.migrations, "name", "bytes", "faults", "cause") == [
        ("Unified memory HtoD", 65_536, None, "coherence"),
        ("CPU page fault", None, 1, None),
        ("GPU page fault", None, 3, "write"),
    ]
    assert _rows(trace.annotations, "name", "duration_ns") == [
        ("step", 8_000),
        ("mine:registered", 100),
        ("never closed", 7_500),
    ]
    assert _rows(trace.ranges, "name", "duration_ns") == [("whole", 8_450)]
    assert trace.source.metadata["profiler_version"] == "2024.6.2.225"
    assert trace.devices[0].multiprocessors == 132


def test_calls_of_one_process_launch_nothing_of_another(export: Path) -> None:
    """Both processes have a call 1: each kernel belongs to that of its own."""
    analysis = analyze(read(export))
    launched = analysis.links.activity_launch.tolist()
    assert launched[:2] == [0, 1]
    assert analysis.trust.failed(CheckName.ONE_PROCESS) is not None  # and is said


def test_its_own_warnings_are_passed_on(export: Path) -> None:
    check = check_recording(read(export).source)
    assert (check.verdict, check.sentence) == (
        Verdict.WARN, "Nsight Systems says: Not all CUDA events might have been collected."
    )  # fmt: skip


def test_sums_are_those_of_nsys(export: Path) -> None:
    trace = read(export)
    kernels = report_of(Report.KERNELS, [trace]).times
    assert [(row.name, row.duration_ns.total, row.duration_ns.count) for row in kernels] == [
        ("add(int, float *, float *)", 1_600, 2)
    ]
    assert fresh_opscope("analyze", str(export), "--stats", "all").returncode == 0
    assert fresh_opscope("analyze", str(export)).returncode == 0


@pytest.mark.parametrize(
    "without",
    [
        ("graphNodeId",),
        ("eventClass", "callchainId"),
        ("shortName", "registersPerThread"),
        ("returnValue", "domainId", "textId"),
    ],
)
def test_columns_that_a_version_does_not_have_are_unknown(tmp_path: Path, without: Sequence[str]) -> None:
    path = _database(
        tmp_path / "old.sqlite",
        {
            "StringIds": _STRINGS,
            "CUPTI_ACTIVITY_KIND_KERNEL": [_kernel(3_000, 3_700, 1, _PROCESS)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [(1_000, 1_100, 0, _PROCESS | 101, 1, 3, 0, None)],
            "NVTX_EVENTS": [(1, 2, 59, None, "step", _PROCESS | 101, None, 0)],
        },
        without,
    )
    trace = read(path)
    assert (trace.launches.height, trace.activities.height, trace.annotations.height) == (1, 1, 1)
    assert trace.launches["status"].to_list() == [None if "returnValue" in without else 0]


def test_graphs_that_were_recorded_as_wholes_are_said(tmp_path: Path) -> None:
    path = _database(
        tmp_path / "graph.sqlite", {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [(10, 30, 0, 7, 1, _PROCESS, 4, 5)]}
    )
    trace = read(path)
    assert trace.activities["duration_ns"].sum() == 20
    assert "recorded as wholes" in trace.source.not_recorded[0]


def test_packed_and_piped_exports_are_read(export: Path, tmp_path: Path) -> None:
    packed = tmp_path / "report.sqlite.gz"
    packed.write_bytes(gzip.compress(export.read_bytes()))
    assert read(packed).activities.equals(read(export).activities)


def test_numbers_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    rows = [
        _kernel(10, 5, 1, _PROCESS),  # ends before it begins
        _kernel(1 << 62, (1 << 62) + 5, 2, _PROCESS),
        (None, 5, *_kernel(1, 5, 3, _PROCESS)[2:]),
        ("text", "more", *_kernel(1, 5, 4, _PROCESS)[2:]),  # SQLite keeps what it is given: as numbers, both are 0
        _kernel(100, 200, -5, _PROCESS),
    ]
    trace = read(_database(tmp_path / "odd.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": rows}))
    assert sorted(trace.activities["duration_ns"].to_list()) == [0, 100]
    assert trace.source.odd_events == 3
    assert trace.activities["correlation"].to_list()[-1] is None


def _not_nsys(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE something (a)")


def _cut(path: Path) -> None:
    _database(
        path,
        {
            "StringIds": _STRINGS,
            "CUPTI_ACTIVITY_KIND_KERNEL": [_kernel(at, at + 5, at, _PROCESS) for at in range(2_000)],
        },
    )
    path.write_bytes(path.read_bytes()[:5_000])


@pytest.mark.parametrize("make", [_not_nsys, _cut])
def test_what_is_no_export_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "other.sqlite"
    make(path)
    with pytest.raises(BadInputError, match="Nsight Systems"):
        read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(at=st.integers(16, 20_000), value=st.integers(0, 255))
def test_any_damaged_byte_is_read_over_or_refused(export: Path, at: int, value: int) -> None:
    content = bytearray(export.read_bytes())
    content[at % len(content)] = value
    damaged = export.with_name("damaged.sqlite")
    damaged.write_bytes(content)
    try:
        trace = read(damaged)
    except BadInputError:
        return
    assert (trace.activities["duration_ns"] >= 0).all()


def test_names_of_kernels_are_those_of_pytorch(tmp_path: Path) -> None:
    """The names for display have T1 in place of types; demangled, the others are what torch.profiler writes."""
    counted = lzma.decompress((DATA / "counters" / "encoder_mangled.csv.xz").read_bytes()).decode()
    mangled = [one.kernel for one in read_kernel_counters(counted)]
    recorded = read(DATA / "counters" / "encoder.json.gz").activities.filter(pl.col("kind").cast(pl.String) == "kernel")
    export = _database(
        tmp_path / "report.sqlite",
        {
            "StringIds": [(1, "void k<(int)4>(T1)"), (2, "k"), *((10 + at, name) for at, name in enumerate(mangled))],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                _kernel(1_000 * at, 1_000 * at + 500, at + 1, _PROCESS, mangled=10 + at) for at in range(len(mangled))
            ],
        },
    )
    names = [name for (name,) in _rows(read(export).activities.sort("start_ns"), "name")]
    expected = [name for (name,) in _rows(recorded.sort("start_ns"), "name")]
    # A name that C++ did not mangle is the same in both columns of a real export.
    assert [name for name in names if name != "void k<(int)4>(T1)"] == [name for name in expected if "(" in name]


@pytest.mark.parametrize("mangled", [None, "_Znonsense", "k", ""])
def test_without_a_mangled_name_the_one_for_display_stays(tmp_path: Path, mangled: str | None) -> None:
    strings = [(1, "void k<(int)4>(T1)"), (2, "k"), *([] if mangled is None else [(3, mangled)])]
    export = _database(
        tmp_path / "report.sqlite",
        {
            "StringIds": strings,
            "CUPTI_ACTIVITY_KIND_KERNEL": [_kernel(0, 500, 1, _PROCESS, mangled=None if mangled is None else 3)],
        },
    )
    assert _rows(read(export).activities, "name") == [("void k<(int)4>(T1)",)]


# ---------------------------------------------------------------- PyTorch's own ranges, and rows in any order


def _marked(path: Path, texts: Sequence[tuple[int, int, str]]) -> Path:
    """An export of push/pop ranges on one thread (start, end, text), and of a kernel that one of them launched."""
    thread = _PROCESS | 101
    return _database(
        path,
        {
            "StringIds": _STRINGS,
            "TARGET_INFO_GPU": [(0, "NVIDIA H200", 9, 0, 132, 1000, 64, 32, 65536, 233472)],
            "CUPTI_ACTIVITY_KIND_KERNEL": [_kernel(3_000, 3_700, 1, _PROCESS)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [(1_300, 1_400, 0, thread, 1, 3, 0, None)],
            "NVTX_EVENTS": [(start, end, 59, None, text, thread, None, 0) for start, end, text in texts],
        },
    )


def test_ranges_of_emit_nvtx_are_operators(tmp_path: Path) -> None:
    texts = [
        (1_000, 2_000, "aten::linear, op_id = 11"),
        (1_100, 1_900, "aten::addmm, seq = 5, op_id = 12, sizes = [[4], [2, 8], [8, 4]], input_op_ids = [(11,0)]"),
        (2_000, 2_100, "aten::addmm, seq = 6, op_id = 13, sizes = [[4], [2, 8], [8, 4]]"),
        (2_200, 2_300, "autograd::engine::evaluate_function: AddmmBackward0, seq = 6, op_id = 14"),
        (2_210, 2_290, "AddmmBackward0, seq = 6"),
        (2_400, 2_500, "Optimizer.step#SGD.step, op_id = 15"),
        (2_600, 2_700, "my step, in two parts"),
        (2_800, 2_900, "Backward"),
        (3_000, 3_100, "MulBackward0, op_id = 16"),
        (3_200, 3_300, "odd" + ", sizes = [" * 90_000),
    ]
    trace = read(_marked(tmp_path / "t.sqlite", texts))
    assert _rows(trace.operators, "name", "start_ns", "sequence_number", "input_dims") == [
        ("aten::linear", 1_000, None, None),
        ("aten::addmm", 1_100, 5, "[[4], [2, 8], [8, 4]]"),
        ("aten::addmm", 2_000, 6, "[[4], [2, 8], [8, 4]]"),
        ("autograd::engine::evaluate_function: AddmmBackward0", 2_200, 6, None),
        ("AddmmBackward0", 2_210, 6, None),
        ("MulBackward0", 3_000, None, None),
    ]
    names = trace.annotations["name"].cast(pl.String).to_list()
    assert names[:3] == ["Optimizer.step#SGD.step", "my step, in two parts", "Backward"]
    assert names[3].startswith("odd, sizes = [")
    operators = analyze(trace).operators
    assert operators.filter(pl.col("name") == "aten::addmm").select("calls", "self_device_ns").row(0) == (2, 700)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(
    export: Path, tmp_path_factory: pytest.TempPathFactory, random: Random
) -> None:
    folder = tmp_path_factory.mktemp("shuffled")
    shuffled = folder / export.name
    shutil.copy(export, shuffled)
    with closing(sqlite3.connect(shuffled)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            random.shuffle(rows)
            connection.execute(f'DELETE FROM "{table}"')
            marks = ", ".join("?" for _ in rows[0]) if rows else ""
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
        connection.commit()
    before, after = read(export), read(shuffled)
    assert before.threads == after.threads
    for table in SCHEMAS:
        first, second = getattr(before, table), getattr(after, table)
        keys = [name for name in first.columns if name != "correlation"]  # numbers of processes, by appearance
        assert sorted(map(str, _rows(first, *keys))) == sorted(map(str, _rows(second, *keys))), table
    documents = [analyze(trace) for trace in (before, after)]
    for name in ("operators", "kernels", "devices"):
        assert str(getattr(documents[0], name)) == str(getattr(documents[1], name))
