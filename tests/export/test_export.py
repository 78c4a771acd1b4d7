"""Traces written for viewers: nothing that they would drop, nothing that is lost, in parts if asked."""

import contextlib
import gzip
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opscope.analysis.analyzed import analyze
from opscope.analysis.structure import nesting as native
from opscope.analysis.structure.selection import select_steps
from opscope.analysis.structure.streams import lanes_of
from opscope.base.errors import UsageError
from opscope.export.chrome import chrome_parts
from opscope.knowledge.categories import Classifier
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.reading import read
from opscope.trace.model import Trace
from tests import tiny
from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

TRACES = sorted((DATA / "traces").glob("*.json.gz"))
Load = Callable[[KinetoTrace], Trace]


def files(trace: Trace, max_bytes: int | None = None) -> list[bytes]:
    """Put the pieces of every part together."""
    pieces = chrome_parts(trace, Classifier(NativeFunctions.shipped()), max_bytes)
    parts = itertools.groupby(pieces, key=lambda piece: piece.part)
    return [b"".join(piece.content for piece in part) for _, part in parts]


def exported(trace: Trace, max_bytes: int | None = None) -> list[dict[str, Any]]:
    return [json.loads(part) for part in files(trace, max_bytes)]


def assert_drawable(events: list[dict[str, Any]]) -> None:
    """Within a track, slices nest or do not touch: what viewers need in order to show them."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for slices in tracks.values():
        stack: list[int] = []
        for start, end in sorted(slices, key=lambda item: (item[0], -item[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or stack[-1] >= end
            stack.append(end)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 15)), max_size=30))
def test_lanes_hold_only_slices_that_nest(slices: list[tuple[int, int, int]]) -> None:
    track, start, length = (
        np.array(values, np.int64) for values in (zip(*slices, strict=True) if slices else ((), (), ()))
    )
    lanes = lanes_of(track, start, start + length)
    events = [
        {"ph": "X", "pid": a, "tid": lane, "ts": b / 1000, "dur": c / 1000}
        for (a, b, c), lane in zip(slices, lanes.tolist(), strict=True)
    ]
    assert_drawable(events)


@pytest.mark.parametrize("compiled", [False, True])
@given(slices=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 15)), max_size=40))
def test_every_slice_goes_to_the_first_lane_in_which_it_fits(
    compiled: bool, slices: list[tuple[int, int, int]]
) -> None:
    if compiled and native.load_nesting() is None:
        pytest.skip("the compiled pass was not built")
    track, start, length = np.array(slices, np.int64).reshape(-1, 3).T
    end, expected = start + length, np.zeros(len(slices), np.int64)
    open_ends: dict[int, list[list[int]]] = defaultdict(list)
    for row in np.lexsort((-end, start, track)):
        lanes = [[last for last in lane if last > start[row]] for lane in open_ends[track[row]]]
        fits = [not lane or lane[-1] >= end[row] for lane in lanes]
        expected[row] = [*fits, True].index(True)
        lanes += [[]] * all(not fit for fit in fits)
        lanes[expected[row]] = [*lanes[expected[row]], end[row]]
        open_ends[track[row]] = lanes
    with contextlib.nullcontext() if compiled else mock.patch.object(native, "load_nesting", return_value=None):
        assert lanes_of(track, start, end).tolist() == expected.tolist()


def test_thousands_of_lanes_do_not_reach_the_next_track(load: Load) -> None:
    trace = KinetoTrace()
    for number in range(1_200):
        trace.operator("aten::async", number * 10, 100_000, tid=1)
    trace.operator("aten::other", 5_000, 200_000, tid=2)
    (content,) = exported(load(trace))
    assert_drawable(content["traceEvents"])


def test_slices_that_nest_stay_in_one_lane() -> None:
    lanes = lanes_of(np.zeros(4, np.int64), np.array([0, 10, 12, 60]), np.array([50, 40, 20, 70]))
    assert lanes.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_real_traces_come_back_with_every_figure(path: Path, tmp_path: Path) -> None:
    trace = read(path)
    (content,) = exported(trace)
    assert_drawable(content["traceEvents"])
    target = tmp_path / "exported.json"
    target.write_text(json.dumps(content))
    before, after = analyze(trace), analyze(read(target))
    columns = ("name", "calls", "self_device_ns", "total_device_ns", "self_cpu_ns", "total_cpu_ns")
    assert before.operators.select(columns).equals(after.operators.select(columns))
    names = pl.col("name").cast(pl.String)
    rows = [analysis.kernels.select(names, "device", "calls", "total_ns").rows() for analysis in (before, after)]
    assert rows[0] == rows[1]
    assert [d.idle_ns for d in before.devices] == [d.idle_ns for d in after.devices]
    assert [use.peak_allocated_bytes for use in before.memory] == [use.peak_allocated_bytes for use in after.memory]
    assert before.trace.activities.drop("kind").equals(after.trace.activities.drop("kind"))
    assert {c.name: c.verdict for c in before.trust.checks} == {c.name: c.verdict for c in after.trust.checks}


def test_overlapping_slices_get_lanes_of_their_own_and_say_so(load: Load) -> None:
    trace = KinetoTrace()
    trace.operator("aten::a", 0, 50_000)
    trace.operator("aten::b", 30_000, 50_000)
    trace.kernel("k", 0, 10_000)
    trace.kernel("early", 9_000, 10_000)
    (content,) = exported(load(trace))
    assert_drawable(content["traceEvents"])
    names = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "thread_name"]
    assert names == ["process 100, thread 100", "process 100, thread 100 (lane 2)", "stream 7", "stream 7 (lane 2)"]


def test_kernels_carry_their_operator_and_category_and_an_arrow(load: Load) -> None:
    (content,) = exported(load(tiny.inference()))
    events = content["traceEvents"]
    gemm = next(event for event in events if event["name"] == "gemm")
    assert gemm["args"]["operator"] == "aten::addmm"
    assert gemm["args"]["category"] == "Matrix Operations"
    assert gemm["args"]["grid"] == [8, 12, 1]
    arrows = {event["id"]: event for event in events if event["ph"] == "s"}
    assert len(arrows) == 4
    ends = {event["id"]: (event["pid"], event["ts"]) for event in events if event["ph"] == "f"}
    assert (gemm["pid"], gemm["ts"]) in ends.values()


def test_parts_are_split_by_time_and_hold_everything_once(load: Load) -> None:
    trace = load(tiny.inference())
    (whole,) = exported(trace)
    parts = exported(trace, 2_000)
    assert len(parts) > 2
    assert all(len(part) <= 2_000 for part in files(trace, 2_000))
    with pytest.raises(UsageError, match="a part of this trace takes at least"):
        exported(trace, 100)
    joined = [event for part in parts for event in part["traceEvents"] if event["ph"] != "M"]
    assert sorted(map(json.dumps, joined)) == sorted(json.dumps(e) for e in whole["traceEvents"] if e["ph"] != "M")
    times = [[event["ts"] for event in part["traceEvents"] if event["ph"] != "M"] for part in parts]
    assert all(max(earlier) <= min(later) for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("at_once", [1, 7])
def test_how_many_events_are_encoded_at_once_does_not_matter(
    load: Load, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    trace = load(tiny.inference())
    expected = files(trace), files(trace, 2_000)
    monkeypatch.setattr("opscope.export.chrome._EVENTS_AT_ONCE", at_once)
    assert (files(trace), files(trace, 2_000)) == expected


def test_times_are_exact_before_zero_too(load: Load) -> None:
    trace = load(tiny.inference())
    times = [-1_000_001, -999, -1, 0, 1, 1_234_567]
    rows = trace.operators.head(1).select(pl.all().repeat_by(len(times)).explode())
    operators = rows.with_columns(pl.Series("start_ns", times, dtype=pl.Int64))
    (content,) = files(replace(trace, operators=operators))
    found = re.findall(rb'"cat": "cpu_op".*"ts": (-?\d+\.\d{3}), ', content)
    assert found == [b"-1000.001", b"-0.999", b"-0.001", b"0.000", b"0.001", b"1234.567"]


def test_steps_are_what_they_launched(load: Load) -> None:
    """The kernel that step 1 launched and step 2 saw running belongs to step 1."""
    built = KinetoTrace()
    built.step(1, 0, 100_000)
    built.step(2, 100_000, 100_000)
    built.operator("aten::a", 80_000, 15_000)
    built.launched_kernel("late", (90_000, 1_000), (110_000, 30_000))
    built.operator("aten::b", 120_000, 15_000)
    built.launched_kernel("k", (125_000, 1_000), (150_000, 1_000))
    first = select_steps(load(built), 1, 1)
    assert first.activities["name"].to_list() == ["late"]
    assert first.operators["name"].to_list() == ["aten::a"]
    with pytest.raises(UsageError, match="marks no such step; it marks 1, 2"):
        select_steps(load(built), 7, 9)


def test_names_of_all_kinds_are_escaped(load: Load) -> None:
    trace = KinetoTrace()
    trace.operator('quote" back\\slash \x00\x1b[2J new\nline \u2028 \u00e9', 0, 1_000)
    (file,) = files(load(trace))
    assert all(line.decode("ascii").isprintable() for line in file.splitlines())
    (name,) = (event["name"] for event in json.loads(file)["traceEvents"] if event["ph"] == "X")
    assert name == load(trace).operators["name"].item()


def test_the_command_writes_parts_packed_and_chosen_steps(tmp_path: Path) -> None:
    path = str(DATA / "traces" / "gpt2_train_amp_stacks.json.gz")
    out = tmp_path / "out.json.gz"
    result = opscope("export", path, "--chrome", str(out), "--steps", "2", "--max-size", "1MB")
    assert result.returncode == 0, result.stderr
    written = sorted(file.name for file in tmp_path.iterdir())
    assert len(written) > 2
    assert written == ["out.json.gz", *(f"out.part{number}.json.gz" for number in range(2, len(written) + 1))]
    assert all(len(gzip.decompress(file.read_bytes())) <= 1_000_000 for file in tmp_path.iterdir())
    content = json.loads(gzip.decompress(out.read_bytes()))
    assert any(event["name"] == "ProfilerStep#2" for event in content["traceEvents"])
    assert not any(event["name"] == "ProfilerStep#1" for event in content["traceEvents"])
    assert opscope("export", path, "--chrome", str(out), "--steps", "nine").returncode == 2
    assert opscope("export", path, "--chrome", "/proc/none/x.json").returncode == 3
