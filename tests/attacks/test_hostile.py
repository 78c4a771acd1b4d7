"""Inputs that somebody made to do harm: refused with a sentence, or read at a cost that grows with their size."""

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from opscope.analysis.analyzed import analyze
from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.knowledge.kernels.installed import library_index
from opscope.readers import parquet
from opscope.readers.native import library as native
from opscope.readers.reading import read
from opscope.record.counters import OperatorCall
from opscope.trace.schema import SCHEMAS
from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

RUN = DATA / "runs"


def trace_with(tmp_path: Path, build: Callable[[KinetoTrace], None]) -> Path:
    trace = KinetoTrace()
    build(trace)
    return trace.write(tmp_path / "trace.json")


def refused(*words: str | Path, code: int = 4) -> str:
    result = opscope(*map(str, words))
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


# ---------------------------------------------------------------- what is small until it is unpacked


def packed(tmp_path: Path, event: bytes, count: int) -> Path:
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb", 9) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(count // 1000):
            file.write(event * 1000)
        file.write(b"{}]}")
    return path


@pytest.mark.skipif(native.load_kineto() is None, reason="the compiled reader was not built")
@pytest.mark.parametrize("event", [b'{"a":xyz},', b'{"\\u0061":1},', b'{"a" 1},'])
def test_very_many_events_that_no_profiler_writes_are_refused(event: bytes, tmp_path: Path) -> None:
    path = packed(tmp_path, event, 200_000)
    assert "too many events are not written as profilers write them" in refused("analyze", path)
    assert "too many events" not in opscope("analyze", str(path), "--max-input", "64GiB").stderr


@pytest.mark.parametrize("value", ["inf", "-nan", "Infinity"])
def test_values_that_are_no_numbers_cost_little_and_lose_nothing(value: str, tmp_path: Path) -> None:
    args = f'"correlation": 3, "est. achieved occupancy %": {value}, "bytes": {value}'
    event = f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {{{args}}}}},'
    count = 150_000 if native.load_kineto() is not None else 1_000
    path = packed(tmp_path, event.encode(), count)
    trace = read(path)
    assert trace.activities.height == count
    assert trace.activities["theoretical_occupancy_percent"].null_count() == count
    assert trace.source.odd_events == trace.source.unreadable_bytes == 0


def test_what_unpacks_to_very_much_more_than_it_is_has_to_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 30_000
    path = packed(tmp_path, b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1},', count)
    assert read(path).operators.height == count
    monkeypatch.setattr("opscope.readers.unpacked.UNSUSPICIOUS_BYTES", 1 << 20)
    monkeypatch.setattr("opscope.readers.unpacked.MAX_RATIO", 50)
    with pytest.raises(BadInputError, match="unpacks to more than 50 times its size"):
        read(path)
    assert read(path, max_bytes=1 << 30).operators.height == count


# ---------------------------------------------------------------- depth and number


def test_a_hundred_thousand_nested_operators_of_one_name_are_one_call(tmp_path: Path) -> None:
    count = 100_000

    def build(trace: KinetoTrace) -> None:
        for depth in range(count):
            trace.operator("aten::add", depth, 4 * count - 2 * depth)
        for number in range(1_000):  # after the inner half has ended
            trace.launched_kernel("k", (3 * count + 1_000 + 10 * number, 5), (9 * count + 100 * number, 50))

    analysis = analyze(trace_with(tmp_path, build))
    (row,) = analysis.operators.iter_rows(named=True)
    assert (row["calls"], row["activities"], row["self_device_ns"]) == (1, 1_000, 50_000)
    assert row["total_device_ns"] == 50_000


def test_identical_operators_are_one_call(tmp_path: Path) -> None:
    path = trace_with(tmp_path, lambda trace: [trace.operator("aten::add", 0, 1_000) for _ in range(50_000)] and None)
    assert analyze(path).operators["calls"].to_list() == [1]


def test_thousands_of_threads_and_devices_are_told_apart(tmp_path: Path) -> None:
    def build(trace: KinetoTrace) -> None:
        for number in range(20_000):
            trace.operator("aten::add", number * 10, 5, tid=1_000 + number)
        for number in range(300):
            trace.step(number, 1_000 * number, 1_000)
            trace.kernel("k", 1_000 * number + 10, 100, trace.launch(1_000 * number + 5, 2), device=number)

    analysis = analyze(trace_with(tmp_path, build))
    assert len(analysis.trace.threads) >= 20_000
    assert len(analysis.devices) == 300
    # Of 90,000 pairs of step and device those are listed that worked.
    assert [(step.number, step.device, step.device_sum_ns) for step in analysis.steps] == [
        (number, number, 100) for number in range(300)
    ]


def test_sums_that_leave_64_bits_are_refused(tmp_path: Path) -> None:
    month = 29 * 24 * 3_600 * 10**9
    path = trace_with(tmp_path, lambda trace: [trace.operator("a", n, month, tid=n) for n in range(4_000)] and None)
    assert "more than a century" in refused("analyze", path)


# ---------------------------------------------------------------- stores


@pytest.fixture
def store(tmp_path: Path) -> Path:
    def build(trace: KinetoTrace) -> None:
        trace.operator("aten::mm", 0, 10_000, **{"Input Dims": [[2, 2]], "Input type": ["float"]})
        trace.launched_kernel("gemm", (1_000, 1_000), (3_000, 7_000))

    directory = tmp_path / "store"
    parquet.write(read(trace_with(tmp_path, build)), directory)
    return directory


def poisoned(store: Path, table: str, **columns: Any) -> None:
    path = store / f"{table}.parquet"
    frame = pl.read_parquet(path)
    frame.with_columns(pl.lit(value, dtype=SCHEMAS[table][name]).alias(name) for name, value in columns.items()).select(
        frame.columns
    ).write_parquet(path)
    manifest = json.loads((store / "store.json").read_text())
    manifest["digests"][table] = hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
    (store / "store.json").write_text(json.dumps(manifest))


POISON = {
    "threads that are not listed": ("operators", {"thread": 999}),
    "threads before the first": ("launches", {"thread": -1}),
    "no threads": ("annotations", {}),
    "names that are missing": ("operators", {"name": None}),
    "kinds that are missing": ("activities", {"kind": None}),
    "unknown kinds": ("activities", {"kind": "dream"}),
    "starts that are missing": ("activities", {"start_ns": None}),
    "durations that are missing": ("operators", {"duration_ns": None}),
    "shapes that are not JSON": ("operators", {"input_dims": "[[["}),
    "shapes without end": ("operators", {"input_dims": "[" * 100_000}),
    "types that are not list": ("operators", {"input_types": "{}"}),
}


@pytest.mark.parametrize("command", ["analyze", "explain", "export"])
@pytest.mark.parametrize("poison", [name for name in POISON if POISON[name][1]])
def test_values_that_no_trace_has_are_refused_in_stores(poison: str, command: str, store: Path, tmp_path: Path) -> None:
    table, columns = POISON[poison]
    poisoned(store, table, **columns)
    more = {"export": ["--chrome", str(tmp_path / "out.json")], "explain": ["aten::mm", "--in"]}.get(command, [])
    assert f"{table}.parquet has other" in refused(command, *more, store)


def test_a_store_whose_threads_are_gone_is_refused(store: Path) -> None:
    manifest = json.loads((store / "store.json").read_text())
    (store / "store.json").write_text(json.dumps({**manifest, "threads": []}))
    assert "has other threads" in refused("analyze", store)


def test_a_store_whose_files_were_changed_is_refused(store: Path) -> None:
    path = store / "operators.parquet"
    pl.read_parquet(path).with_columns(start_ns=pl.col("start_ns") + 1).write_parquet(path)
    assert "has other content than its manifest says" in refused("analyze", store)


def test_of_stores_written_at_once_one_is_there_whole(tmp_path: Path) -> None:
    traces = []
    for number in range(2):
        trace = KinetoTrace()
        for call in range(2_000 * (number + 1)):
            trace.operator(f"aten::op{number}", 100 * call, 50)
        traces.append(read(trace.write(tmp_path / f"{number}.json")))
    target = tmp_path / "store"
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(parquet.write, traces[number % 2], target) for number in range(40)]:
            done.result()
    assert read(target).operators.height in (2_000, 4_000)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["store"]


def test_a_failed_conversion_leaves_the_store_that_was_there(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(store)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(EnvironmentLacksError, match="no space left"):
        parquet.write(before, store)
    assert read(store).operators.equals(before.operators)
    assert [path.name for path in store.parent.iterdir() if path.is_dir()] == ["store"]


def test_a_folder_of_something_else_is_no_place_for_a_store(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("all my work")
    with pytest.raises(UsageError, match=r"thesis\.txt"):
        parquet.write(read(store), other)
    assert (other / "thesis.txt").read_text() == "all my work"


def test_a_small_store_with_very_many_rows_is_refused_before_it_is_read(store: Path) -> None:
    rows = 50_000_000
    manifest = json.loads((store / "store.json").read_text())
    manifest["rows"]["overheads"] = rows
    (store / "store.json").write_text(json.dumps(manifest))
    assert "--max-input" in refused("analyze", store)
    # A limit that is set counts as it stands; then the rows are counted.
    assert "has other rows" in refused("analyze", "--max-input", "100GB", store)
    assert "--max-input" in refused("analyze", "--max-input", "1B", store)


# ---------------------------------------------------------------- run directories


@pytest.fixture
def run(tmp_path: Path) -> Path:
    source = next(path.parent for path in sorted(DATA.rglob("manifest.json")) if (path.parent / "raw").is_dir())
    return Path(shutil.copytree(source, tmp_path / "run"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def record_of(run: Path) -> Path:
    return next((run / "raw").glob("capture_*.json"))


@pytest.mark.parametrize("wall", [10**30, 2**63, -5, 0])
def test_step_times_that_cannot_be_true_are_refused(run: Path, wall: int) -> None:
    record = record_of(run)
    content = json.loads(record.read_text())
    content["benchmark"] = {**(content["benchmark"] or {}), "wall_ns": [wall] * 7}
    record.write_text(json.dumps(content))
    refused("analyze", run)


@pytest.mark.parametrize("kind", ["pipe", "loop", "NUL"])
def test_what_is_no_file_of_a_run_is_refused(run: Path, kind: str) -> None:
    record = record_of(run)
    if kind == "NUL":
        manifest = run / "manifest.json"
        manifest.write_text(manifest.read_text().replace(f"raw/{record.name}", "raw/\\u0000.json"))
    else:
        record.unlink()
        os.mkfifo(record) if kind == "pipe" else record.symlink_to(record.name)
    refused("analyze", run)


def test_a_table_of_operators_that_unpacks_to_too_much_is_refused(run: Path) -> None:
    table = next((run / "raw").glob("native_functions*.json.gz"), None)
    if table is None:
        pytest.skip("the recorded run has no table of its own")
    table.write_bytes(gzip.compress(b'{"functions":[' + b" " * (40 << 20) + b"]}", mtime=0))
    assert "unpacks to more than" in refused("analyze", run)


def test_a_pipe_in_a_folder_of_traces_is_left_alone(tmp_path: Path) -> None:
    trace_with(tmp_path, lambda trace: trace.operator("aten::mm", 0, 10_000))
    os.mkfifo(tmp_path / "pipe.json")
    result = opscope("analyze", str(tmp_path))
    assert result.returncode == 0
    assert "aten::mm" in result.stdout


# ---------------------------------------------------------------- libraries and names


def test_a_library_whose_names_overlap_is_refused(tmp_path: Path) -> None:
    count, text = 2_000, b"n" * 60_000 + b"\0"
    headers = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, len(text), 0, 0, 0, 0) * count
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(text), 0, 64, 0, 0, 64, count, 0)
    )
    path = tmp_path / "lib.so"
    path.write_bytes(head + text + headers)
    with pytest.raises(BadInputError, match="names overlap"):
        library_index(path, torch="", git=None)


def test_a_pipe_is_no_library(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lib.so")
    assert "not a regular file" in refused("explain", "aten::mm", "--library", tmp_path / "lib.so")


def test_a_name_of_digits_is_a_name(tmp_path: Path) -> None:
    name = "_ZN" + "9" * 5_000

    def build(trace: KinetoTrace) -> None:
        trace.operator("aten::mm", 0, 10_000)
        trace.launched_kernel(name, (1_000, 1_000), (3_000, 7_000))

    path = trace_with(tmp_path, build)
    for words in (("analyze",), ("explain", "--in"), ("explain", name, "--in")):
        assert opscope(*words, str(path)).returncode == 0


# ---------------------------------------------------------------- replays

CALLS = {
    "aten::mm": ("default", [[64, 64], [64, 64]], ["float", "float"], ["", ""], None),
    "aten::gelu": ("default", [[64], []], ["float", ""], ["", "tanh"], None),
    "aten::add_": ("Tensor", [[64], [64], []], ["float", "float", "Scalar"], ["", "", "1"], None),
    "aten::linear": ("default", [[8, 64], [64, 64], [64]], ["float"] * 3, [""] * 3, None),
    "aten::layer_norm": ("default", [[8, 64], [], [64], [64]], ["float", "ScalarList", "float", "float"],
                         ["", "[64]", "", ""], None),
    "aten::from_file": ("default", [[], [], []], ["", "", ""], ["/tmp/x", "True", "1000"], "behind a tensor"),
    "aten::empty": ("memory_format", [[]], ["ScalarList"], ["[8]"], "takes no tensor"),
    "aten::set_": ("source_Tensor", [[8], [8]], ["float", "float"], ["", ""], "behind a tensor"),
    "aten::resize_": ("default", [[8], []], ["float", "ScalarList"], ["", "[1000000]"], "behind a tensor"),
    "aten::record_stream": ("default", [[8]], ["float"], [""], "no kernel"),
    "aten::bernoulli": ("default", [[8], []], ["float", ""], ["", ""], "neither a tensor nor a plain value"),
    "aten::repeat": ("default", [[64], []], ["float", "ScalarList"], ["", "[100000, 10000000]"], "too much"),
    "aten::relu": ("default", [[1 << 20, 1 << 20]], ["float"], [""], "more than are built"),
    "aten::sum": ("default", [["x"], []], ["float", ""], ["", ""], "not recorded whole"),
    "prim::Print": ("default", [[8]], ["float"], [""], "not an operator of PyTorch itself"),
    "aten::div": ("Tensor_mode", [[8], [8], []], ["float", "float", ""], ["", "", "/etc/passwd"], "not an option"),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("operator", CALLS)
def test_only_calls_without_effects_are_made_again(operator: str) -> None:
    torch = pytest.importorskip("torch")
    from opscope.collect.replay import refuse

    overload, dims, kinds, values, why = CALLS[operator]
    namespace, _, name = operator.partition("::")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload) if namespace == "aten" else None
    call = OperatorCall(operator, overload, json.dumps(dims), json.dumps(kinds), None, json.dumps(values))
    with contextlib.nullcontext() if why is None else pytest.raises(UsageError, match=why):
        refuse(call, function, torch.device("cpu"))


@pytest.mark.torch
@pytest.mark.parametrize("strides", [[1 << 40, 1], [-1, 1], [1], "much", [0.5, 1]])
def test_strides_that_reach_too_far_are_refused(strides: Any) -> None:
    import torch

    from opscope.collect.replay import refuse

    kinds, dims = json.dumps(["float"]), json.dumps([[2, 2]])
    call = OperatorCall("aten::relu", "default", dims, kinds, json.dumps([strides]), json.dumps([""]))
    with pytest.raises(UsageError, match=r"bytes, more than are built|were not recorded whole"):
        refuse(call, torch.ops.aten.relu.default, torch.device("cpu"))


# ---------------------------------------------------------------- numbers and digits of all kinds


KERNEL = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"correlation": 3}}'


@pytest.mark.parametrize("field", ['"ts": 1', '"dur": 2', '"correlation": 3', '"tid": 7'])
@pytest.mark.parametrize("reads", ["compiled", "python"])
def test_integers_beyond_all_numbers_are_no_times_and_no_ids(
    field: str, reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reads == "python":
        monkeypatch.setattr(native, "load_kineto", lambda: None)
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{KERNEL}, {KERNEL.replace(field, field + "0" * 400)}]}}')
    trace = read(path)
    lost = field.startswith(('"ts', '"dur'))
    assert (trace.activities.height, trace.source.odd_events) == ((1, 1) if lost else (2, 0))


def test_digits_of_other_scripts_number_no_step(tmp_path: Path) -> None:
    def build(trace: KinetoTrace) -> None:
        trace.annotation("ProfilerStep#\u0663", 0, 10_000)
        trace.operator("aten::mm", 1_000, 5_000)

    path = trace_with(tmp_path, build)
    assert analyze(read(path)).step_count == 0
    assert opscope("explain", "--in", str(path)).returncode == 0


@pytest.mark.parametrize("place", ["name", "thread", "damage", "failed"])
def test_half_a_surrogate_pair_in_an_exports_header_is_no_text(place: str, tmp_path: Path) -> None:
    origin: dict[str, Any] = {"schema": "opscope.export/1", "threads": [["1", "0"]], "devices": []}
    text = "\ud800"
    origin |= {
        "name": {"devices": [{"index": 0, "name": text}]},
        "thread": {"threads": [[text, "1"]]},
        "damage": {"damage": text},
        "failed": {"failed_checks": {"file_is_valid": text}},
    }[place]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"opscope_export": origin, "traceEvents": [json.loads(KERNEL)]}))
    for words in (("analyze", "--format", "json", path), ("export", path, "--parquet", tmp_path / "store")):
        result = opscope(*map(str, words))
        assert result.returncode in (0, 4), result.stderr
        assert "Traceback" not in result.stderr


def test_parts_that_would_be_mostly_the_same_header_are_refused(tmp_path: Path) -> None:
    trace = KinetoTrace()
    for number in range(20_000):
        trace.operator("aten::mm", number, 1, tid=number)
    message = refused(
        "export", trace.write(tmp_path / "t.json"), "--chrome", tmp_path / "out.json", "--max-size", "3MB", code=2
    )
    assert "what every part of this trace begins with asks for at least" in message


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        ('"args": {"correlation": 3}, "args": {"stream": 1}', "correlation"),
        ('"args": {"correlation": 3}, "args": null', "correlation"),
    ],
)
def test_of_what_is_there_twice_the_last_counts(text: str, figure: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + KERNEL.replace('"args": {"correlation": 3}', text) + "]}")
    assert read(path).activities[figure].to_list() == [None]


def test_a_step_may_be_spelled_with_escapes_and_a_thread_with_a_sign(tmp_path: Path) -> None:
    event = '{"ph": "X", "cat": "cpu_op", "name": "Profiler\\u0053tep#3", "pid": 1, "tid": -0, "ts": 1, "dur": 2}'
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + event + "," + event.replace("-0", "0") + "]}")
    trace = read(path)
    assert (trace.operators.height, trace.annotations["thread"].to_list()) == (0, [0, 0])


def test_memory_of_unknown_devices_has_one_order(tmp_path: Path) -> None:
    events = [
        {
            "ph": "i",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": number,
            "args": {"Device Type": kind, "Device Id": -1},
        }
        for number, kind in enumerate([1, 0] * 20)
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    assert [use.device for use in analyze(read(tmp_path / "t.json")).memory] == [None, -1]


LOWEST = {"device": -(2**31), "correlation": -(2**63), "graph_id": -(2**63)}


@pytest.mark.parametrize("column", LOWEST)
def test_numbers_that_readers_never_keep_are_refused_in_stores(column: str, store: Path) -> None:
    poisoned(store, "activities", **{column: LOWEST[column]})
    assert "has other numbers than a trace has" in refused("analyze", store)


def test_counts_below_nothing_are_refused_in_stores(store: Path) -> None:
    manifest = json.loads((store / "store.json").read_text())
    manifest["source"]["unreadable_bytes"] = -5
    (store / "store.json").write_text(json.dumps(manifest))
    assert "has a negative row count" in refused("analyze", store)


def test_a_thread_per_launch_is_told_apart_at_a_cost_that_grows_with_their_number(tmp_path: Path) -> None:
    def build(trace: KinetoTrace) -> None:
        for number in range(1_500):
            at = 10_000 * number
            trace.operator("aten::a", at, 3_000, tid=number)
            trace.launched_kernel("k", (at + 1_000, 1_000), (at + 3_000, 1_000), tid=number)

    (device,) = analyze(read(trace_with(tmp_path, build))).devices
    assert {str(cause): time for cause, time in device.idle.by_cause().items() if time} == {
        "dispatch": 1_499 * 7_000, "launch latency": 1_499 * 2_000
    }  # fmt: skip
