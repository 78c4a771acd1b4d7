"""Perfetto's binary traces: the file that PyTorch 2.15 wrote beside its JSON, a trace made by hand, and broken ones."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.base.errors import BadInputError, NotATraceError
from opscope.readers.reading import read
from opscope.trace.model import Trace
from opscope.trace.schema import SCHEMAS
from tests.budget import examples
from tests.conftest import DATA

WINDOW = DATA / "torch_2_15"


# ---------------------------------------------------------------- what PyTorch wrote


def rows(trace: Trace, table: str, *without: str) -> list[tuple[Any, ...]]:
    frame: pl.DataFrame = getattr(trace, table)
    return frame.drop(without).rows()


def test_the_binary_file_holds_what_the_json_of_its_run_holds() -> None:
    written, binary = read(WINDOW / "window.json.gz"), read(WINDOW / "window.pftrace")
    # What the format lacks: a copy's direction, and a kernel's shared memory. Of durations, see the next test.
    lost = {"activities": ("name", "duration_ns", "shared_memory_bytes"), "ranges": ("thread",)}
    for table in SCHEMAS:
        assert rows(binary, table, *lost.get(table, ())) == rows(written, table, *lost.get(table, ())), table
    assert binary.activities.height == 56
    kernels = [trace.activities.filter(pl.col("kind") == "kernel")["name"].to_list() for trace in (binary, written)]
    assert kernels[0] == kernels[1]


def test_an_activity_that_overlaps_the_next_one_of_its_lane_is_cut_off_by_pytorch() -> None:
    # Six kernels of 5 us begin 3 us apart; PyTorch ends all but the last when the next one on their lane begins.
    for name, total in (("window.json.gz", 30_000), ("window.pftrace", 20_000)):
        activities = read(WINDOW / name).activities
        assert activities.filter(pl.col("graph_id") == 3)["duration_ns"].sum() == total


def test_lanes_of_a_graph_are_told_from_its_streams() -> None:
    for name in ("window.json.gz", "window.pftrace"):
        activities = read(WINDOW / name).activities.filter(pl.col("graph_id") == 3)
        assert activities["stream"].to_list() == [20, 21] * 3
        assert activities["graph_node_id"].to_list() == [1, 2, 3, 4, 5, 6]


def test_copies_have_their_direction_and_host_functions_are_ranges() -> None:
    trace = read(WINDOW / "window.json.gz")
    copies = trace.activities.filter(pl.col("kind") == "memcpy")["name"].to_list()
    assert copies == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy DtoD (Device -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
    ]
    assert trace.ranges["name"].to_list() == ["HostNode: my_callback"]
    assert trace.source.not_understood == {}


@pytest.mark.parametrize("name", ["window.json.gz", "window.pftrace"])
def test_a_healthy_file_passes_its_checks(name: str) -> None:
    failed = [check.name for check in analyze(read(WINDOW / name)).trust.checks if check.verdict == "fail"]
    assert failed == []


def test_a_recording_by_pytorch_2_15_has_pytorchs_own_figures() -> None:
    table = json.loads((WINDOW / "cpu_train-table.json").read_text())
    operators = analyze(read(WINDOW / "cpu_train.json.gz")).operators
    expected = {name: row for name, row in table.items() if not name.startswith("Optimizer.")}
    assert dict(operators.select("name", "calls").rows()) == {name: row[0] for name, row in expected.items()}
    for name, total in operators.select("name", "total_cpu_ns").rows():
        assert total / 1000 == pytest.approx(expected[name][2], abs=0.002)


# ---------------------------------------------------------------- made by hand


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def packet(*fields: bytes) -> bytes:
    return field(1, b"".join(fields))


def interned(**kinds: list[str]) -> bytes:
    numbers = {"categories": 1, "names": 2, "stages": 24}
    entries = [
        field(numbers[kind], field(1, number) + field(2, text))
        for kind, texts in kinds.items()
        for number, text in enumerate(texts, 1)
    ]
    return packet(field(10, 1), field(13, 1), field(12, b"".join(entries)))


def half(time: int, kind: int, *rest: bytes) -> bytes:
    return packet(field(8, time), field(10, 1), field(11, b"".join((field(9, kind), field(11, 5), *rest))))


def begin(time: int, name: int, *arguments: bytes) -> bytes:
    return half(time, 1, field(10, name), field(3, 1), *(field(4, argument) for argument in arguments))


def end(time: int) -> bytes:
    return half(time, 2)


HEAD = (
    packet(field(8, 1_000), field(6, b""))  # the clock's zero
    + packet(field(60, field(1, 5) + field(4, field(1, 40) + field(2, 41))))  # a thread of a process
    + interned(categories=["cpu_op"], names=["aten::outer", "aten::inner", "my_kernel"], stages=["Kernel"])
)


def made(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "made.pftrace"
    path.write_bytes(content)
    return path


def test_begins_and_ends_become_slices_with_their_arguments(tmp_path: Path) -> None:
    dims = field(10, "Input Dims") + field(12, field(12, field(4, 2)) + field(12, field(4, 3))) + field(12, b"")
    content = HEAD + begin(11_000, 1, dims, field(10, "External id") + field(4, 7)) + begin(12_001, 2)
    trace = read(made(tmp_path, content + end(13_000) + end(21_500)))
    columns = ("name", "start_ns", "duration_ns", "external_id", "input_dims")
    assert trace.operators.select(columns).rows() == [
        ("aten::outer", 10_000, 10_500, 7, "[[2, 3], []]"),
        ("aten::inner", 11_001, 999, None, None),
    ]
    assert trace.threads == (("40", "41"),)


def test_a_stage_is_an_activity_on_its_stream(tmp_path: Path) -> None:
    said = {"stream id": "9", "correlation": "77", "device id": "1", "arch": "sm_90", "process_name": "python"}
    extra = b"".join(field(6, field(1, name) + field(2, text)) for name, text in said.items())
    sizes = field(1, field(1, 4) + field(2, 2) + field(3, 1)) + field(2, field(1, 128) + field(2, 1) + field(3, 1))
    stage = field(53, field(2, 5_000) + field(11, 1) + field(14, 1) + field(20, 3) + extra + field(21, sizes))
    trace = read(made(tmp_path, HEAD + packet(field(8, 4_250), field(10, 1), stage)))
    columns = ("kind", "name", "device", "stream", "start_ns", "duration_ns", "correlation", "grid", "block")
    assert trace.activities.select(columns).rows() == [
        ("kernel", "my_kernel", 1, 9, 3_250, 5_000, 77, "4,2,1", "128,1,1")
    ]
    assert [(device.index, device.compute_capability) for device in trace.devices] == [(1, "9.0")]


def test_a_trace_of_another_program_is_refused_by_its_name(tmp_path: Path) -> None:
    other = interned(categories=["gfx"], names=["Frame"]) + begin(1, 1) + end(5)
    with pytest.raises(NotATraceError, match="Perfetto trace, or like one"):
        read(made(tmp_path, other))


def test_text_that_begins_with_an_empty_line_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '\n{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
    )
    assert read(path).operators["name"].to_list() == ["a"]


def test_a_cut_off_file_gives_what_is_whole(tmp_path: Path) -> None:
    content = HEAD + begin(11_000, 1) + end(12_000) + begin(13_000, 2) + end(14_000)
    trace = read(made(tmp_path, content[:-3]))
    assert trace.operators["name"].to_list() == ["aten::outer"]
    assert trace.source.damage is not None


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_damage_is_reported_or_survived(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(gzip.decompress((WINDOW / "window.pftrace").read_bytes())[:20_000])
    for at in data.draw(st.lists(st.integers(50, len(content) - 1), min_size=1, max_size=8)):
        content[at] = data.draw(st.integers(0, 255))
    path = made(tmp_path_factory.mktemp("t"), bytes(content))
    with contextlib.suppress(BadInputError):
        read(path)


@pytest.mark.parametrize(
    "odd",
    [
        half(1, 1, field(4, field(10, "x") + field(5, (1 << 69) - 1))),  # a double that is a number without end
        half(1, 1, field(3, b"")),
        half(1, 1, field(10, b"x")),
        packet(field(8, b"x"), field(6, b"")),
        packet(field(8, 5), field(10, 1), field(53, field(11, b"x") + field(14, 1))),
        *(packet(field(8, 5), field(10, 1), field(53, field(14, 1) + field(6, field(1, "arch") + field(2, arch))))
          for arch in ("x9", "sm_9\u00b2", "sm_" + "9" * 5_000)),
    ],
)  # fmt: skip
def test_fields_of_odd_types_cost_their_packet_alone(tmp_path: Path, odd: bytes) -> None:
    content = packet(field(8, 1_000), field(6, b"")) if odd.startswith(b"\n\x05") else b""
    trace = read(made(tmp_path, content + HEAD + odd + begin(11_000, 2) + end(12_000)))
    assert "aten::inner" in trace.operators["name"].cast(pl.String).to_list()


def test_a_slice_without_an_end_is_counted(tmp_path: Path) -> None:
    trace = read(made(tmp_path, HEAD + begin(11_000, 1) + begin(12_000, 2) + end(13_000)))
    assert trace.operators["name"].to_list() == ["aten::inner"]
    assert trace.source.odd_events == 1


def test_one_long_name_of_many_slices_is_refused(tmp_path: Path) -> None:
    head = packet(field(8, 1_000), field(6, b"")) + interned(categories=["cpu_op"], names=["x" * (1 << 20)])
    slices = b"".join(begin(time, 1) + end(time + 1) for time in range(2_000, 2_400, 2))
    with pytest.raises(BadInputError, match="far more room than the file"):
        read(made(tmp_path, head + slices))


def test_lists_within_lists_without_end_are_no_argument(tmp_path: Path) -> None:
    nested = b""
    for _ in range(5_000):
        nested = field(12, nested)
    trace = read(made(tmp_path, HEAD + begin(1, 1, field(10, "x") + nested) + begin(11_000, 2) + end(12_000)))
    assert trace.operators["name"].to_list() == ["aten::inner"]
    assert trace.source.unreadable_bytes > 0
