"""Reading Kineto files: exact times, odd fields, broken input."""

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.base.errors import BadInputError, NotATraceError
from opscope.readers.content import repaired
from opscope.readers.native import library as native
from opscope.readers.reading import read
from opscope.readers.unpacked import InputFile
from opscope.trace.model import Trace
from opscope.trace.schema import SCHEMAS
from tests.budget import examples
from tests.conftest import DATA
from tests.kineto import KinetoTrace


@pytest.fixture(params=["compiled", "python"], autouse=True)
def reader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with both ways of cutting a file into events; not by monkeypatch, which hypothesis dislikes."""
    if request.param == "compiled" and native.load_kineto() is None:
        pytest.skip("the compiled reader was not built")
    with mock.patch.object(native, "load_kineto", native.load_kineto if request.param == "compiled" else lambda: None):
        yield


def event_text(category: str, ts: str, dur: str, args: str = "{}") -> str:
    event = f'"ph": "X", "cat": "{category}", "name": "n", "pid": 0, "tid": 7, "ts": {ts}, "dur": {dur}, "args": {args}'
    return f'{{"traceEvents": [{{{event}}}]}}'


def read_text(tmp_path: Path, text: str) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    return read(path)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 9 * 10**15), st.integers(0, 10**12))
def test_times_are_exact_to_the_nanosecond(tmp_path_factory: pytest.TempPathFactory, start: int, duration: int) -> None:
    """Also beyond 2**43 microseconds, where a double no longer holds single nanoseconds."""
    ts, dur = (str(Decimal(value) / 1000) for value in (start, duration))
    trace = read_text(tmp_path_factory.mktemp("t"), event_text("kernel", ts, dur))
    assert trace.activities.select("start_ns", "duration_ns").row(0) == (start, duration)


@pytest.mark.parametrize("start", [1_763_712_000_000_000_001, 8_796_093_022_208_001, 4_368_200_671_837_723])
def test_unix_time_keeps_its_nanoseconds(tmp_path: Path, start: int) -> None:
    trace = read_text(tmp_path, event_text("kernel", f"{start // 1000}.{start % 1000:03d}", "1.001"))
    assert trace.activities["start_ns"][0] == start
    assert trace.activities["duration_ns"][0] == 1001


def test_waits_say_for_what(load: Callable[[KinetoTrace], Trace]) -> None:
    built = KinetoTrace()
    event = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 41, "wait_on_cuda_event_id": 3}
    built.slice("cuda_sync", "Stream Wait Event", 1_000, 10, tid=20, device=0, stream=20, correlation=42, **event)
    built.slice("cuda_sync", "Context Sync", 2_000, 900, tid=-1, device=1, stream=0xFFFFFFFF, correlation=43)
    built.slice("cuda_sync", "Event Sync", 3_000, 900, tid=-1, device=0, stream=-1, correlation=44)
    built.slice("cuda_sync", "Stream Sync", 4_000, 900, tid=0, device=0, stream=0)
    assert load(built).synchronizations.rows() == [
        ("Stream Wait Event", 0, 20, 3, 1_000, 10, 42, 7, 41),
        ("Context Sync", 1, None, None, 2_000, 900, 43, None, None),
        ("Event Sync", 0, None, None, 3_000, 900, 44, None, None),
        ("Stream Sync", 0, 0, None, 4_000, 900, None, None, None),
    ]


def test_every_category_goes_to_its_table(load: Callable[[KinetoTrace], Trace]) -> None:
    built = KinetoTrace()
    used = "cpu_op Operator cuda_runtime cuda_driver hip_runtime Runtime kernel Kernel gpu_memcpy Memcpy gpu_memset"
    for category in (*used.split(), "user_annotation", "python_function", "overhead", "cuda_sync"):
        built.slice(category, category, 1000, 10)
    # None of these is work, an operator or a launch.
    for category in ("gpu_user_annotation", "Trace", "ac2g", "fwdbwd"):
        built.slice(category, category, 1000, 10)
    trace = load(built)
    assert sorted(trace.operators["name"].to_list()) == ["Operator", "cpu_op"]
    assert sorted(trace.launches["name"].to_list()) == ["Runtime", "cuda_driver", "cuda_runtime", "hip_runtime"]
    assert sorted(trace.activities["kind"].to_list()) == ["kernel", "kernel", "memcpy", "memcpy", "memset"]
    assert trace.annotations["name"].to_list() == ["user_annotation"]
    assert trace.frames["name"].to_list() == ["python_function"]
    assert trace.overheads["name"].to_list() == ["overhead"]
    assert trace.synchronizations["name"].to_list() == ["cuda_sync"]


def test_old_profilers_wrote_steps_as_operators(load: Callable[[KinetoTrace], Trace]) -> None:
    built = KinetoTrace()
    built.slice("Operator", "ProfilerStep#3", 1000, 500)
    trace = load(built)
    assert trace.operators.height == 0
    assert trace.annotations["name"].to_list() == ["ProfilerStep#3"]


def test_a_kernel_keeps_its_launch_geometry(load: Callable[[KinetoTrace], Trace]) -> None:
    built = KinetoTrace()
    extra = {"registers per thread": 32, "shared memory": 4096, "est. achieved occupancy %": 62.5, "graph node id": 4}
    built.kernel("k", 1000, 10, 5, device=1, stream=20, grid=[8, 2, 1], block=[128, 1, 1], **extra)
    row = load(built).activities.row(0, named=True)
    assert (row["device"], row["stream"], row["correlation"], row["graph_node_id"]) == (1, 20, 5, 4)
    assert (row["grid"], row["block"]) == ("8,2,1", "128,1,1")
    assert (row["registers_per_thread"], row["shared_memory_bytes"]) == (32, 4096)
    assert row["theoretical_occupancy_percent"] == 62.5


def test_tables_have_their_schema_even_when_empty(load: Callable[[KinetoTrace], Trace]) -> None:
    trace = load(KinetoTrace())
    assert dict(trace.operators.schema) == dict(SCHEMAS["operators"])
    assert dict(trace.launches.schema) == dict(SCHEMAS["launches"])
    assert dict(trace.activities.schema) == dict(SCHEMAS["activities"])
    assert dict(trace.allocations.schema) == dict(SCHEMAS["allocations"])


def test_rows_are_sorted_by_time_whatever_the_file_order(load: Callable[[KinetoTrace], Trace]) -> None:
    built = KinetoTrace()
    for start in (3000, 1000, 2000):
        built.operator(f"op{start}", start, 10)
    assert load(built).operators["name"].to_list() == ["op1000", "op2000", "op3000"]


def test_missing_and_textual_fields_are_read_or_left_unknown(tmp_path: Path) -> None:
    args = '{"correlation": "12", "device": "0", "stream": "Stream 7", "External id": 18446744073709551615}'
    row = read_text(tmp_path, event_text("kernel", "1", "2", args)).activities.row(0, named=True)
    assert (row["correlation"], row["device"]) == (12, 0)
    assert row["stream"] == 7  # from the event's thread, as the argument is not a number
    assert row["external_id"] is None  # an unset id, written as 2**64 - 1


_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.lists(st.integers(-5, 5) | st.text(max_size=3), max_size=4),
)  # fmt: skip
ODD_EVENT = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "i", "M", "s", 3]),
        "cat": st.sampled_from(["kernel", "Kernel", "cpu_op", "Operator", "cuda_runtime", "Runtime", "user_annotation",
                                "python_function", "overhead"]),
        "name": st.sampled_from(["aten::mm", "ProfilerStep#1", "cudaLaunchKernel", "[memory]"]) | _ODD,
        "pid": _ODD,
        "tid": _ODD,
        "ts": st.integers(-100, 100) | _ODD,
        "dur": st.integers(-10, 100) | _ODD,
        "args": st.dictionaries(
            st.sampled_from(["correlation", "External id", "external id", "device", "stream", "grid", "Input Dims",
                             "Input dims", "Input type",
                             "Sequence number", "graph id", "graph node id", "bytes", "Bytes", "Device Type",
                             "In msg nelems", "Out msg nelems", "dtype", "Collective name", "Seq", "Rank",
                             "Process Group Ranks", "Group size", "Src Rank", "In split size"]),
            st.integers(0, 3) | st.sampled_from(["Float", "Half"]) | _ODD,
            max_size=5,
        ) | _ODD,
    },
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ODD_EVENT, max_size=12))
def test_whatever_the_events_hold_they_are_refused_or_add_up(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("t") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    try:
        trace = read(path)
    except BadInputError:
        return
    analysis = analyze(trace)
    accounting = analysis.accounting
    assert accounting.holds
    assert accounting.activities_ns == sum(device.sum_ns for device in analysis.devices)
    for device in analysis.devices:
        assert 0 <= device.busy_ns <= device.sum_ns
        assert device.idle_ns + device.busy_in_window_ns == device.window.duration_ns


@pytest.mark.parametrize("args", ["null", "{}", '{"grid": {"x": 1}, "Input Dims": 3}'])
def test_odd_arguments_are_unknown_arguments(tmp_path: Path, args: str) -> None:
    row = read_text(tmp_path, event_text("kernel", "1", "2", args)).activities.row(0, named=True)
    assert row["correlation"] is None
    assert row["grid"] is None


def test_events_without_times_are_left_out(tmp_path: Path) -> None:
    text = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}, {"ph": "M", "name": "process_name"}]}'
    assert read_text(tmp_path, text).activities.height == 0


def test_devices_and_metadata_come_from_the_header(load: Callable[[KinetoTrace], Trace]) -> None:
    properties = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    trace = load(KinetoTrace(deviceProperties=[properties], opscope={"torch": "2.11"}, trace_id="X"))
    (device,) = trace.devices
    assert (device.name, device.compute_capability, device.multiprocessors) == ("NVIDIA H200", "9.0", 132)
    assert trace.source.metadata["trace_id"] == "X"
    assert trace.source.metadata["opscope"] == '{"torch": "2.11"}'


def test_a_wrong_checksum_costs_no_event(tmp_path: Path) -> None:
    content = bytearray((DATA / "traces" / "cudagraph_replay.json.gz").read_bytes())
    whole = read(DATA / "traces" / "cudagraph_replay.json.gz")
    content[-6] ^= 1
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    trace = read(path)
    assert (trace.source.event_count, trace.source.size_bytes) == (whole.source.event_count, whole.source.size_bytes)
    assert trace.source.damage is not None
    assert "incorrect data check" in trace.source.damage


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_of_damaged_gzip_data_all_before_the_damage_is_read(tmp_path: Path, part: float) -> None:
    content = bytearray((DATA / "traces" / "gelu_variants.json.gz").read_bytes())
    at = int(part * len(content))
    before = zlib.decompressobj(wbits=31).decompress(bytes(content[:at]))
    content[at : at + 8] = b"\xff" * 8
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    trace = read(path)
    assert trace.source.damage is not None
    assert trace.source.size_bytes >= len(before)
    assert trace.source.event_count >= before.count(b'"ph":') - 1


def test_damage_after_an_unreadable_stretch_is_read_in_one_piece(tmp_path: Path) -> None:
    # Pieces of some bytes each would make the reader look at the stretch anew with every one of them.
    letters = bytes(random.Random(1).choices(b"abcdefgh", k=100_000))
    content = bytearray(gzip.compress(f'{{"traceEvents": [{WHOLE},\nx'.encode() + letters))
    content[-6] ^= 1
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    pieces = mock.Mock(**{"feed.return_value": []})
    assert list(InputFile(path).feed(lambda _: pieces)) == []
    assert pieces.feed.call_count == 1
    trace = read(path)
    assert (trace.activities.height, trace.source.unreadable_bytes) == (1, len(letters) + 1)


def test_what_follows_the_trace_is_counted_whole(tmp_path: Path) -> None:
    rest = " " * 10 + "x" * (70 << 20)
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}]{rest}')
    assert trace.source.unreadable_bytes == len(rest)


def test_a_list_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    damaged = event_text("cpu_op", "1", "2", '{"Input Dims": [[2048 2050], [2050, 2048]]}')
    trace = read_text(tmp_path, damaged.replace("[{", f"[{WHOLE}, {{", 1))
    assert trace.source.unreadable_bytes >= len("[[2048 2050], [2050, 2048]]")
    assert trace.operators["input_dims"].to_list() in ([None], [])  # without the list, or left out


def test_replaced_bytes_in_lists_are_counted_per_event(tmp_path: Path) -> None:
    args = '{"Concrete Inputs": ["\x01"]}'
    event = f'{{"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {args}}}'
    trace = read_text(tmp_path, f'{{"traceEvents": [{event}, {event}]}}')
    assert trace.source.replaced_bytes == 2
    assert trace.operators["concrete_inputs"].to_list() == ['["?"]', '["?"]']


def test_half_a_surrogate_pair_in_the_header_is_a_question_mark(tmp_path: Path) -> None:
    trace = read_text(tmp_path, '{"trace_id": "\\ud800", "traceEvents": []}')
    assert trace.source.metadata["trace_id"] == "?"


def test_a_file_that_ends_in_its_header_is_not_taken_for_another_kind(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cut off before it"):
        read_text(tmp_path, '\n {\n "schemaVersion": 1,\n "deviceProperties": [')


def test_gzip_is_recognised_by_content_and_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(event_text("kernel", "1", "2").encode()))
    assert read(path).activities.height == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"traceEvents": 5}', "without a list 'traceEvents'"),
        (b'{"traceEvents": [5]}', "not a trace that opscope knows"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1', "not a trace that opscope knows"),
        (b'{"metadata": {"traceEvents": []}}', "without a list 'traceEvents'"),
        (b'{"a": 1}', "not a trace that opscope knows"),
        (b"", "is empty"),
        (b"\x7fELF", "a program or library"),
        (b"SQLite format 3\x00", "Nsight Systems"),
        (b"some,values\n1,2\n", "no JSON object"),
        (b"\x1f\x8b garbage", "gzip data are damaged"),
        (b'{"a": ' + b"[" * 100_000, "without a list 'traceEvents'"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=expected) as caught:
        read(path)
    assert "\n" not in str(caught.value)


DEEP = "[" * 900 + "]" * 900
WHOLE = '{"ph": "X", "cat": "kernel", "name": "whole", "pid": 0, "tid": 7, "ts": 1, "dur": 2}'


@pytest.mark.parametrize("cut", [1, 20, 60, len(WHOLE)])
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_whole_in_a_file_cut_short_is_read_and_said(tmp_path: Path, cut: int, packed: bool) -> None:
    text = f'{{"deviceProperties": [{{"id": 3, "name": "GPU"}}], "traceEvents": [{WHOLE}, {WHOLE}, {WHOLE}'
    content = text[: len(text) - cut].encode()
    path = tmp_path / "cut.json"
    path.write_bytes(gzip.compress(content)[:-4] if packed else content)
    trace = read(path)
    assert trace.activities["name"].to_list() == ["whole", "whole"]
    assert trace.source.damage is not None
    assert trace.devices[0].index == 3
    (check,) = (check for check in analyze(trace).trust.checks if check.name == "file_is_valid")
    assert check.verdict == "fail"


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ('{"ph": "X", "cat": "kernel", "name": "a"b"c", "pid": 0, "tid": 7, "ts": 1, "dur": 2}', 'a"b"c'),
        ('{"ph": "X", "cat": "kernel", "name": "C:\\path\\x", "pid": 0, "tid": 7, "ts": 1, "dur": 2}', "C:\\path\\x"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": "1.000", "dur": "2", "args": {"stream": "7"}}', "k"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e0, "dur": 2.0, "args": {"x": NaN, "y": -Infinity}}', "k"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"correlation": NaN}}', "k"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"deep": ' + DEEP + "}}", "k"),
        ('{"dur": 2, "name": "k", "ts": 1, "cat": "kernel", "ph": "X", "args": 7}', "k"),
        ('{"ph": "X", "cat": "kernel", "name": 17, "ts": 1, "dur": 2}', "17"),
        ('{"ph": "X", "cat": "kernel", "name": "\\ud800", "ts": 1, "dur": 2}', "?"),
    ],
)  # fmt: skip
def test_events_that_are_not_quite_json_are_understood(tmp_path: Path, event: str, name: str) -> None:
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}, {event}, {WHOLE}]}}')
    assert sorted(trace.activities["name"].to_list()) == sorted(["whole", name, "whole"])
    assert set(trace.activities["duration_ns"]) == {2_000}
    assert trace.source.odd_events == trace.source.unreadable_bytes == 0


@pytest.mark.parametrize("ts", ["NaN", "Infinity", '"soon"', "true", "[1]", "1e30", "9" * 5_000])
def test_events_whose_times_are_none_are_left_out_and_counted(tmp_path: Path, ts: str) -> None:
    odd = f'{{"ph": "X", "cat": "kernel", "name": "odd", "ts": {ts}, "dur": 2}}'
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}, {odd}, {WHOLE}]}}')
    assert trace.activities["name"].to_list() == ["whole", "whole"]
    assert trace.source.odd_events + trace.source.unreadable_bytes > 0
    (check,) = (check for check in analyze(trace).trust.checks if check.name == "file_is_valid")
    assert check.verdict != "pass"


def test_stretches_that_are_no_events_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}, {{"ph" "X" garbage}}, {WHOLE}], "record_shapes": 1}}')
    assert trace.activities["name"].to_list() == ["whole", "whole"]
    assert trace.source.unreadable_bytes > 10
    assert trace.source.metadata["record_shapes"] == "1"


@pytest.mark.parametrize("blanks", [0, 10, 1_100_000])
def test_a_byte_order_mark_is_skipped(tmp_path: Path, blanks: int) -> None:
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + b" " * blanks + f'{{"traceEvents": [{WHOLE}]}}'.encode())
    assert read(path).activities.height == 1


def test_what_is_no_trace_is_not_read_from_its_middle(tmp_path: Path) -> None:
    """The second piece of the file begins where a list of events could begin."""
    path = tmp_path / "no.json"
    path.write_bytes(b"x" * (1 << 20) + f"[{WHOLE}]".encode())
    with pytest.raises(BadInputError, match="no JSON object"):
        read(path)


@pytest.mark.parametrize(
    ("tail", "unreadable"),
    [
        (f', "traceEvents": [{WHOLE}]}}', True),
        (f'}}{{"traceEvents": [{WHOLE}]}}', True),
        (', "deviceProperties": [{"id": 0', True),
        (', "note": 1}', False),
        ("}\n\n", False),
    ],
)
def test_what_follows_the_events_is_understood_or_counted(tmp_path: Path, tail: str, unreadable: bool) -> None:
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}]{tail}')
    assert trace.activities.height == 1
    assert (trace.source.unreadable_bytes > 0) == unreadable


@pytest.mark.parametrize(
    "event",
    [
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "dur": 1}',
        '{"ph": "B", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "pid": 1, "tid": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 110680464442257310}',
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1e99999999999999999999}',
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": "1e99999999999999999999"}',
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 07}',
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "z": garbage}',
    ],
)
def test_events_that_are_lost_are_counted(tmp_path: Path, event: str) -> None:
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}, {event}, {WHOLE}]}}')
    assert trace.activities["name"].to_list() == ["whole", "whole"]
    assert trace.source.odd_events + trace.source.unreadable_bytes > 0


def test_a_broken_last_event_does_not_swallow_what_follows(tmp_path: Path) -> None:
    last = '{"ph": "X", "cat": "kernel", "name": "k"1"", "ts": 1, "dur": 2}'
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}, {last}], "record_shapes": 1}}')
    assert sorted(trace.activities["name"].to_list()) == ['k"1"', "whole"]
    assert trace.source.damage is None
    assert trace.source.metadata["record_shapes"] == "1"


@pytest.mark.parametrize(("first", "second"), [("5", "5.0"), ('"caf\u00e9"', '"caf\\u00e9"')])
def test_one_thread_is_one_however_it_is_written(tmp_path: Path, first: str, second: str) -> None:
    text = ", ".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "op", "pid": {item}, "tid": {item}, "ts": {ts}, "dur": 2}}'
        for item, ts in ((first, "1"), (second, "5"), (first, '"9"'))
    )
    assert read_text(tmp_path, f'{{"traceEvents": [{text}]}}').operators["thread"].to_list() == [0, 0, 0]


@pytest.mark.parametrize(("text", "nanoseconds"), [("1.0005", 1_000), ("1.0015", 1_002), ("1.00051", 1_001)])
def test_more_than_three_decimals_are_rounded_to_the_nearest_even_nanosecond(
    tmp_path: Path, text: str, nanoseconds: int
) -> None:
    assert read_text(tmp_path, event_text("kernel", "1", text)).activities["duration_ns"][0] == nanoseconds


def test_a_bare_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    assert read_text(tmp_path, f"[{WHOLE}, {WHOLE}]").activities.height == 2


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 10_000_000))
    assert path.stat().st_size < 20_000
    with pytest.raises(BadInputError, match="unpacks to more than 1,000,000 bytes"):
        read(path, max_bytes=1_000_000)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No such file"):
        read(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("name", "read_as", "count"),
    [
        (b"f.py(0): \x04", "f.py(0): ?", 1),
        (b"f.py(0): \xff\x90x", "f.py(0): \ufffd\ufffdx", 2),
        (b"\x00\xc3\xa9", "?\u00e9", 1),
        (b"a\n\x04b\tc", "a ?b c", 1),
        (b"tab\there", "tab here", 0),
    ],
)
def test_names_from_memory_that_was_no_text_are_read_and_counted(
    tmp_path: Path, name: bytes, read_as: str, count: int
) -> None:
    """PyTorch 2.6 writes such names of Python frames; the rest of the file is whole."""
    path = tmp_path / "trace.json"
    text = event_text("python_function", "1", "2").encode()
    path.write_bytes(text.replace(b'"n"', b'"' + name + b'"'))
    trace = read(path)
    assert trace.frames["name"].to_list() == [read_as]
    assert trace.source.replaced_bytes == count


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_repaired_content_is_text_without_control_characters(content: bytes) -> None:
    clean, count = repaired(content)
    text = clean.decode()
    assert not set(text) & {chr(code) for code in range(0x20)}
    assert (count == 0) == (clean == content.translate(bytes.maketrans(b"\t\n\r", b"   ")))


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-nan", "Infinity", "NaN", "INF"])
def test_a_number_that_is_none_costs_no_event(tmp_path: Path, value: str) -> None:
    """Profilers print such values of arguments as C does."""
    event = (
        '{"ph": "X", "cat": "kernel", "name": "k \\"nan\\" inf", "pid": 0, "tid": 7, "ts": 1.000, "dur": 2.000, '
        f'"args": {{"device": 0, "stream": 7, "est. achieved occupancy %": {value}, "more": [1, {value}]}}}}'
    )
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{event}]}}')
    trace = read(path)
    assert trace.activities["duration_ns"].to_list() == [2_000]
    assert trace.activities["name"].to_list() == ['k "nan" inf']
    assert trace.source.unreadable_bytes == 0


@pytest.mark.parametrize("escaped", ['"c\\u0061t": "kernel"', '"cat": "k\\u0065rnel"', '"\\u0063at": "\\u006bernel"'])
def test_keys_and_values_may_be_spelled_with_escapes(tmp_path: Path, escaped: str) -> None:
    event = f'{{"\\u0070h": "\\u0058", {escaped}, "name": "k", "pid": 0, "tid": 7, "ts": 1.000, "d\\u0075r": 2.000}}'
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{event}]}}')
    assert read(path).activities["duration_ns"].to_list() == [2_000]


# ---------------------------------------------------------------- begins and ends apart, other tools, open ends


def apart(*events: tuple[str, str, float], cat: str | None = "cpu_op") -> str:
    """Return a trace of begins (B) and ends (E) of one thread: phase, name, microseconds."""
    written = [
        {"ph": ph, "name": name, "ts": ts, "pid": 1, "tid": 1, **({"cat": cat} if cat and (ph == "B" or name) else {})}
        for ph, name, ts in events
    ]
    return json.dumps({"traceEvents": written})


@pytest.mark.parametrize("named", [True, False])
def test_a_begin_and_its_end_are_one_slice(tmp_path: Path, named: bool) -> None:
    outer, inner = ("outer", "inner") if named else ("", "")
    trace = read_text(
        tmp_path,
        apart(
            ("B", "outer", 1), ("B", "inner", 2.5), ("E", inner, 4), ("B", "next", 4), ("E", "next", 5), ("E", outer, 9)
        ),
    )
    rows = trace.operators.select("name", "start_ns", "duration_ns").rows()
    assert rows == [("outer", 1_000, 8_000), ("inner", 2_500, 1_500), ("next", 4_000, 1_000)]
    assert trace.source.odd_events == 0


def test_a_slice_of_no_time_ends_where_it_begins(tmp_path: Path) -> None:
    """As whole microseconds make them; in the order of the file."""
    for name in ("inner", ""):
        events = (("B", "outer", 0.0), ("B", "inner", 5.0), ("E", name, 5.0), ("E", "outer" if name else "", 100.0))
        rows = read_text(tmp_path, apart(*events)).operators.select("name", "duration_ns").rows()
        assert rows == [("outer", 100_000), ("inner", 0)]


def test_many_begins_without_an_end_are_read_in_time_that_grows_with_their_number(tmp_path: Path) -> None:
    events = [("B", f"open {number}", float(number)) for number in range(20_000)]
    events += [("E", f"other {number}", 30_000.0 + number) for number in range(20_000)]
    assert read_text(tmp_path, apart(*events)).source.odd_events == 40_000


def test_a_begin_without_an_end_is_counted(tmp_path: Path) -> None:
    trace = read_text(tmp_path, apart(("B", "open", 1), ("B", "whole", 2), ("E", "whole", 3), ("E", "other", 4)))
    assert trace.operators["name"].to_list() == ["whole"]
    assert trace.source.odd_events == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"name": "k", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]', "1 slices, none of a kind that torch"),
        ('{"traceEvents": [{"name": "f", "ph": "X", "cat": "FEE", "ts": 1, "dur": 2}]}', "a trace of VizTracer"),
        ('{"traceEvents": [{"name": "MatMul", "ph": "X", "cat": "Op", "ts": 1, "dur": 2}]}', "a trace of TensorFlow"),
        ('{"metadata": {"highres-ticks": true}, "traceEvents": [{"name": "f", "ph": "X", "ts": 1, "dur": 2}]}', "JAX"),
        ('[{"children": [], "frame": {"name": "ROOT"}}]', "a profile of Proton"),
        ('{"schemaVersion": "1.1.1-chakra", "nodes": []}', "an execution trace (Chakra)"),
        ('{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "a profile for speedscope"),
        ('{"version": "2.9", "entries": [{"profiling_name": "nccl:all_reduce"}]}', "flight recorder"),
        ("NVIDIA Tegra Profiler Report \x00", "nsys export --type sqlite"),
        ("NVR\x00", "ncu --import FILE --csv"),
    ],
)
def test_files_of_other_tools_are_refused_by_name(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(NotATraceError) as error:
        read(path)
    assert says in str(error.value)
    assert "doctor" not in str(error.value)


def test_slices_of_a_device_that_opscope_does_not_know_are_no_other_tools(tmp_path: Path) -> None:
    event = '{"name": "k", "cat": "neuron_compute", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
    trace = read_text(tmp_path, f'{{"schemaVersion": 1, "traceEvents": [{event}]}}')
    assert trace.source.not_understood == {"neuron_compute": 1}


def test_slices_without_a_category_beside_others_are_counted(tmp_path: Path) -> None:
    event = '{"name": "k", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
    trace = read_text(tmp_path, f'{{"traceEvents": [{WHOLE}, {event}, {event}]}}')
    assert trace.source.not_understood == {"": 2}


def test_a_list_that_is_not_closed_is_whole_as_far_as_anyone_knows(tmp_path: Path) -> None:
    trace = read_text(tmp_path, f"[{WHOLE},\n{WHOLE},\n")
    assert trace.activities.height == 2
    assert trace.source.damage is None
    assert "not closed" in trace.source.not_recorded[0]
    cut = read_text(tmp_path, f"[{WHOLE},\n{WHOLE[:-9]}")
    assert cut.source.damage == "it ends in the middle of its events"


def test_what_follows_the_end_of_packed_data_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(f'{{"traceEvents": [{WHOLE}]}}'.encode()) + b"garbage")
    trace = read(path)
    assert (trace.source.damage, trace.source.unreadable_bytes, trace.activities.height) == (None, 7, 1)


# ---------------------------------------------------------------- ids in arrows, lanes, and what PyTorch 2.15 renames


def arrow(end: str, number: int, pid: int, tid: int, start: int) -> dict[str, object]:
    where = {"pid": pid, "tid": tid, "ts": start / 1000}
    return {"ph": end, "id": number, **where, "cat": "ac2g", "name": "ac2g", "bp": "e"}


def without_ids(*, arrows: bool) -> KinetoTrace:
    """Two launches on one thread, and their kernels on one stream, in the other order; no ids but those of arrows."""
    trace = KinetoTrace()
    trace.slice("cuda_runtime", "cudaLaunchKernel", 1_000, 500)
    trace.slice("cuda_runtime", "cudaLaunchKernel", 2_000, 500)
    trace.kernel("second", 5_000, 100)
    trace.kernel("first", 6_000, 100)
    if arrows:
        trace.events += [arrow("s", 11, 100, 100, 1_000), arrow("s", 12, 100, 100, 2_000)]
        trace.events += [arrow("f", 12, 0, 7, 5_000), arrow("f", 11, 0, 7, 6_000)]
    return trace


def test_arrows_hold_the_ids_where_arguments_have_none(tmp_path: Path) -> None:
    trace = read(without_ids(arrows=True).write(tmp_path / "t.json"))
    assert trace.launches.select("start_ns", "correlation").rows() == [(1_000, 11), (2_000, 12)]
    assert trace.activities.select("name", "correlation").rows() == [("second", 12), ("first", 11)]


def test_arrows_are_found_at_any_place_of_a_long_file(tmp_path: Path) -> None:
    made = without_ids(arrows=True)
    filler = [{"ph": "M", "name": "x" * 700, "pid": 1, "args": {"ac2g": "ac2g"}} for _ in range(9_000)]
    made.events = [*filler[:5_990], *made.events[:5], *filler[5_990:], *made.events[5:]]
    assert read(made.write(tmp_path / "t.json")).activities["correlation"].to_list() == [12, 11]


def test_without_arrows_nothing_is_linked(tmp_path: Path) -> None:
    trace = read(without_ids(arrows=False).write(tmp_path / "t.json"))
    assert trace.launches["correlation"].to_list() == [None, None]


def test_ids_in_arguments_are_not_replaced_by_those_of_arrows(tmp_path: Path) -> None:
    made = KinetoTrace()
    made.launched_kernel("kernel", (1_000, 500), (5_000, 100))
    made.events += [arrow("s", 99, 100, 100, 1_000), arrow("f", 99, 0, 7, 5_000)]
    assert read(made.write(tmp_path / "t.json")).activities["correlation"].to_list() == [1]


@pytest.mark.parametrize("original", [0, 21])
def test_the_stream_is_the_one_beside_the_lane(tmp_path: Path, original: int) -> None:
    made = KinetoTrace()
    made.slice("kernel", "k", 0, 10, pid=0, tid=900, device=0, stream=900, original_stream=original)
    assert read(made.write(tmp_path / "t.json")).activities["stream"].to_list() == [original]


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ({"copy kind": "HtoD", "src kind": "pinned", "dst kind": "device"}, "Memcpy HtoD (Pinned -> Device)"),
        (
            {"copy kind": "DtoD", "src kind": "device_static", "dst kind": "managed"},
            "Memcpy DtoD (Device Static -> Managed)",
        ),
        ({"copy kind": "HtoD", "src kind": 9, "dst kind": "device"}, "Memcpy HtoD"),
        ({"copy kind": 77, "src kind": "pinned", "dst kind": "device"}, "Memcpy"),
        ({}, "Memcpy"),
    ],
)
def test_a_copy_is_named_by_its_arguments(tmp_path: Path, kinds: dict[str, object], name: str) -> None:
    made = KinetoTrace()
    made.kernel("Memcpy", 0, 10, category="gpu_memcpy", **kinds)
    made.kernel("Memcpy DtoH (Device -> Pageable)", 20, 10, category="gpu_memcpy", **kinds)
    names = read(made.write(tmp_path / "t.json")).activities["name"].to_list()
    assert names == [name, "Memcpy DtoH (Device -> Pageable)"]


def test_a_function_that_a_graph_calls_is_a_range_of_its_thread(tmp_path: Path) -> None:
    made = KinetoTrace()
    where = {"host process": 100, "host thread": 77, "graph id": 3, "graph node id": 5}
    made.slice("graph_host_node", "HostNode: save", 5_000, 300, pid=0, tid=7, **where)
    made.slice("graph_event_node", "EventRecord", 6_000, 0, pid=0, tid=7)
    trace = read(made.write(tmp_path / "t.json"))
    assert trace.ranges.select("name", "start_ns", "duration_ns").rows() == [("HostNode: save", 5_000, 300)]
    assert trace.threads == (("100", "77"),)
    assert trace.source.not_understood == {}
    assert trace.activities.height == 0


def counter(name: str, time: int, pid: object, **values: object) -> dict[str, object]:
    return {"ph": "C", "name": name, "pid": pid, "ts": time / 1000, "args": values}


def test_samples_of_counters_are_read_with_their_device(tmp_path: Path) -> None:
    made = KinetoTrace()
    made.kernel("k", 0, 10)
    made.events += [
        counter("SM Clock (MHz)", 3_000, "GPU 1 Counters", **{"": 1980}),
        counter("Power (W)", 2_000, "GPU 0 Counters", **{"": 351.5}),
        counter("Memory", 1_000, 40, used=7, free=2.5),  # of several numbers, as other programs have them
        counter("Queue", 4_000, "GPU x Counters", value=3),
        counter("No number", 5_000, "GPU 0 Counters", **{"": "high"}),
        counter("Far", 6_000, "GPU 1234567890 Counters", **{"": 1}),
        counter("Escaped", 7_000, "GP\u00dc 0 Counters", **{"": -2.5e-3}),
    ]
    trace = read(made.write(tmp_path / "t.json"))
    assert trace.counters.rows() == [
        (2_000, 0, "Power (W)", 351.5),
        (3_000, 1, "SM Clock (MHz)", 1980.0),
        (4_000, None, "Queue", 3.0),
        (6_000, None, "Far", 1.0),
        (7_000, None, "Escaped", -0.0025),
    ]


def test_very_many_counters_of_others_cost_no_trace(tmp_path: Path) -> None:
    # Python may be handed some 130,000 events that are odd; these are not among them.
    one = '{"ph":"C","cat":"gpu_pm_counter","name":"m","pid":0,"ts":7,"args":{"a":1,"b":2}},'
    many = (one * 150_000).rstrip(",")
    slice_ = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2}'
    trace = read_text(tmp_path, f'{{"traceEvents":[{many},{slice_}]}}')
    assert (trace.operators.height, trace.counters.height) == (1, 0)


def test_counters_alone_make_no_trace_of_pytorch(tmp_path: Path) -> None:
    other = '{"ph":"X","cat":"devtools.timeline","name":"a","pid":1,"tid":1,"ts":1,"dur":2}'
    with pytest.raises(NotATraceError, match="of another tool"):
        read_text(tmp_path, f'{{"traceEvents":[{json.dumps(counter("m", 1_000, 1, a=1))},{other}]}}')


def test_samples_are_summed_up_over_the_steps(tmp_path: Path) -> None:
    made = KinetoTrace()
    made.step(1, 0, 10_000)
    made.launched_kernel("k", (1_000, 500), (2_000, 3_000))
    made.events += [counter("Power (W)", time, "GPU 0 Counters", **{"": power}) for time, power in
                    ((1_000, 300.0), (5_000, 400.0), (20_000, 90.0))]  # fmt: skip
    made.events.append(counter("Cycles (Current Kernel)", 2_000, "GPU 0 Counters", **{"": 5_940}))
    (power,) = analyze(read(made.write(tmp_path / "t.json"))).counters
    assert (power.device, power.samples, power.least, power.mean, power.most) == (0, 2, 300.0, 350.0, 400.0)
    assert power.sentence == "Power (W) 300 to 400 (mean 350, 2 samples)"
