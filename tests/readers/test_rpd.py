"""Databases of rocmProfileData, made by hand with the tables and columns of its schema."""

import gzip
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from opscope.analysis.analyzed import analyze
from opscope.base.errors import BadInputError
from opscope.readers.formats import format_named
from opscope.readers.reading import read

_SCHEMA: Mapping[str, Sequence[str]] = {
    "rocpd_string": ("id", "string"),
    "rocpd_api": ("id", "pid", "tid", "start", "end", "apiName_id", "args_id"),
    "rocpd_op": ("id", "gpuId", "queueId", "sequenceId", "start", "end", "description_id", "opType_id"),
    "rocpd_api_ops": ("id", "api_id", "op_id"),
    "rocpd_kernelapi": ("api_ptr_id", "gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ"),
    "rocpd_copyapi": ("api_ptr_id", "size"),
    "ext_autogradapi": ("api_ptr_id", "autogradName_id", "seq", "sizes"),
}
_TEXTS = (
    *("", "hipLaunchKernel", "hipMemcpyWithStream", "hipExtModuleLaunchKernel", "UserMarker", "KernelExecution"),
    *("CopyHostToDevice", "_Z3addPfi", "Cijk_Ailk", "aten::mm", "training step", "FillBuffer", "Barrier"),
)
_NUMBER = {text: number for number, text in enumerate(_TEXTS, 1)}


def _database(path: Path, tables: Mapping[str, Sequence[Sequence[object]]]) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for table, rows in {"rocpd_string": list(enumerate(_TEXTS, 1)), **tables}.items():
            columns = _SCHEMA[table]
            connection.execute(f'CREATE TABLE "{table}" ({", ".join(columns)})')
            marks = ", ".join("?" for _ in columns)
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
        connection.commit()
    return path


def _call(number: int, start: int, end: int, name: str, args: str = "") -> tuple[int, ...]:
    return (number, 40, 41, start, end, _NUMBER[name], _NUMBER[args])


def _work(number: int, start: int, end: int, kind: str, name: str = "") -> tuple[int, ...]:
    return (number, 2, 1, 0, start, end, _NUMBER[name], _NUMBER[kind])


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A step of 10 us: a copy, an operator that launches a kernel, another kernel, a fill, and a barrier."""
    return _database(
        tmp_path / "trace.rpd",
        {
            "rocpd_api": [
                _call(1, 0, 10_000, "UserMarker", "training step"),
                _call(2, 100, 900, "hipMemcpyWithStream"),
                _call(3, 1_000, 2_000, "UserMarker", "aten::mm"),
                _call(4, 1_100, 1_200, "hipLaunchKernel"),
                _call(5, 2_100, 2_300, "hipExtModuleLaunchKernel"),
                _call(6, 2_400, 2_900, "UserMarker"),
            ],
            "rocpd_op": [
                _work(10, 300, 800, "CopyHostToDevice"),
                _work(11, 3_000, 5_000, "KernelExecution", "_Z3addPfi"),
                _work(12, 5_000, 9_000, "KernelExecution", "Cijk_Ailk"),
                _work(13, 9_000, 9_100, "FillBuffer"),
                _work(14, 9_100, 9_900, "Barrier"),
                _work(15, 9_950, 9_940, "KernelExecution", "Cijk_Ailk"),  # it ends before it begins
            ],
            "rocpd_api_ops": [(1, 2, 10), (2, 4, 11), (3, 5, 12)],
            "rocpd_kernelapi": [(4, 8, 2, 1, 256, 1, 1), (5, 4_096, 1, 1, 64, 1, 1)],
            "rocpd_copyapi": [(2, 4_096)],
            "ext_autogradapi": [(6, _NUMBER["aten::mm"], "7", "[[2, 3], [3, 4]]")],
        },
    )


def test_work_calls_and_ranges_are_read(recording: Path) -> None:
    trace = read(recording)
    assert trace.threads == (("40", "41"),)
    columns = ("kind", "name", "device", "stream", "start_ns", "duration_ns", "correlation", "bytes", "grid", "block")
    assert trace.activities.select(columns).rows() == [
        ("memcpy", "CopyHostToDevice", 2, 1, 300, 500, 2, 4_096, None, None),
        ("kernel", "add(float*, int)", 2, 1, 3_000, 2_000, 4, None, "8,2,1", "256,1,1"),
        # This call gives its size in threads, so its number of blocks is not known.
        ("kernel", "Cijk_Ailk", 2, 1, 5_000, 4_000, 5, None, None, "64,1,1"),
        ("memset", "FillBuffer", 2, 1, 9_000, 100, None, None, None, None),
    ]
    assert trace.source.odd_events == 1
    assert trace.launches["name"].to_list() == ["hipMemcpyWithStream", "hipLaunchKernel", "hipExtModuleLaunchKernel"]
    assert trace.annotations["name"].to_list() == ["training step"]
    assert trace.operators.select("name", "start_ns", "sequence_number", "input_dims").rows() == [
        ("aten::mm", 1_000, None, None),
        ("aten::mm", 2_400, 7, "[[2, 3], [3, 4]]"),
    ]


def test_kernels_are_charged_to_operators_and_the_device_is_amds(recording: Path) -> None:
    analysis = analyze(read(recording))
    row = analysis.operators.filter(pl.col("name") == "aten::mm")
    assert row.select("calls", "self_device_ns").row(0) == (2, 2_000)
    assert [(device.index, device.vendor) for device in analysis.trace.devices] == [(2, "amd")]
    assert sum(timeline.busy_ns for timeline in analysis.devices) == 6_600


def test_its_format_is_not_pytorchs(recording: Path) -> None:
    assert read(recording).source.format == "rocmProfileData"
    assert not format_named("rocmProfileData").is_pytorch


def test_a_packed_one_is_read(recording: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.rpd.gz"
    packed.write_bytes(gzip.compress(recording.read_bytes()))
    assert read(packed).activities.height == 4


def test_a_damaged_one_is_refused(recording: Path) -> None:
    content = recording.read_bytes()
    recording.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadInputError, match="database of rocmProfileData"):
        read(recording)


def test_tables_that_are_missing_are_empty(tmp_path: Path) -> None:
    trace = read(_database(tmp_path / "t.rpd", {"rocpd_op": [_work(1, 0, 10, "KernelExecution", "Cijk_Ailk")]}))
    assert trace.activities.select("name", "correlation").rows() == [("Cijk_Ailk", None)]
    assert trace.launches.height == 0


def test_the_order_of_rows_and_indexes_mix_no_calls_up(tmp_path: Path) -> None:
    calls = [_call(number, number * 100, number * 100 + 50, "UserMarker") for number in (9, 3, 5)]
    rows = [(number, _NUMBER["aten::mm"], str(number), f"[[{number}]]") for number in (9, 3, 5)]
    path = _database(tmp_path / "t.rpd", {"rocpd_api": calls, "rocpd_op": [], "ext_autogradapi": rows})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE INDEX calls ON ext_autogradapi(api_ptr_id, autogradName_id)")
        connection.commit()
    operators = read(path).operators
    assert operators.select("start_ns", "sequence_number", "input_dims").rows() == [
        (300, 3, "[[3]]"),
        (500, 5, "[[5]]"),
        (900, 9, "[[9]]"),
    ]


@pytest.mark.parametrize(
    "tables",
    [
        {"rocpd_string": [(99, None), (None, "x")]},
        {"rocpd_api_ops": [(1, None, 1), (2, 3, None)]},
        {"rocpd_op": [(1, 1 << 40, 0, 0, 5, 9, None, None), (2, None, None, 0, 5, 9, 1, 1)]},
        {"ext_autogradapi": [(1, None, "9" * 5_000, None)], "rocpd_api": [_call(1, 5, 9, "UserMarker")]},
        {"rocpd_kernelapi": [(None, None, 1, 1, "x", 1, 1)], "rocpd_copyapi": [(1, None)]},
    ],
)
def test_odd_values_are_unknown(tmp_path: Path, tables: Mapping[str, Sequence[Sequence[object]]]) -> None:
    made = {"rocpd_op": [_work(1, 0, 10, "KernelExecution", "Cijk_Ailk")], **tables}
    assert analyze(read(_database(tmp_path / "t.rpd", made))).trace.source.format == "rocmProfileData"


def test_a_database_of_another_profiler_of_rocm_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="ROCm's profilers"):
        read(_database(tmp_path / "t.db", {"rocpd_api": []}))
