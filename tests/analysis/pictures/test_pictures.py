"""What the page's pictures are drawn from: trees of time, slices of a part of a trace, memory that was alive."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import Analysis
from opscope.analysis.pictures.flame import Flame, FlameBy, flames
from opscope.analysis.pictures.live_memory import LiveMemory, live_memory
from opscope.analysis.pictures.slices import Slices, Track, TrackKind, merged_slices, slices_of, stacked_rows
from opscope.analysis.structure.call_tree import CallTree
from opscope.analysis.structure.modules import Origins
from opscope.base.errors import UsageError
from opscope.readers.reading import read
from opscope.trace.model import Trace
from tests.analysis.test_recorded_traces import NAMES
from tests.budget import examples
from tests.conftest import DATA
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]
CUDA = 1


def trees_of(analysis: Analysis, most: int = 100_000) -> dict[FlameBy, Flame]:
    origins = Origins.of(analysis.trace, analysis.backward_pass)
    found = flames(analysis.trace, analysis.links, CallTree.of(analysis.trace), origins, analysis.backward_pass, most)
    return {flame.by: flame for flame in found}


def paths_of(flame: Flame, own: Any) -> dict[tuple[str, ...], int]:
    """Return per path of names its own time; nodes without any are left out."""
    paths: list[tuple[str, ...]] = []
    for parent, name in zip(flame.parent.tolist(), flame.name.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), flame.names[name]))
    return {path: time for path, time in zip(paths, own.tolist(), strict=True) if time}


def memory_of(trace: Trace, analysis: Analysis) -> dict[int | None, LiveMemory]:
    origins = Origins.of(trace, analysis.backward_pass)
    return {memory.device: memory for memory in live_memory(trace, analysis.links, origins)}


def slices(analysis: Analysis, most: int = 1_000_000, steps: tuple[int, int] | None = None) -> Slices:
    tree = CallTree.of(analysis.trace)
    found = slices_of(analysis.trace, analysis.links, tree, analysis.devices, most=most, steps=steps)
    assert found is not None
    return found


# ---------------------------------------------------------------- trees


def nested() -> KinetoTrace:
    """A step with a range around a linear layer and a GELU, an allocation that launches nothing, and a lost launch."""
    trace = KinetoTrace()
    trace.step(7, 0, 100_000)
    trace.annotation("block", 5_000, 60_000)
    trace.operator("aten::linear", 10_000, 30_000)
    trace.operator("aten::addmm", 12_000, 20_000)
    trace.launched_kernel("gemm", (20_000, 4_000), (30_000, 15_000))
    trace.operator("aten::gelu", 50_000, 10_000)
    trace.launched_kernel("gelu", (52_000, 3_000), (60_000, 7_000))
    trace.kernel("Memset", 80_000, 2_000, None, category="gpu_memset")
    return trace


def test_device_time_stands_below_the_operators_that_launched_it(analyzed: Analyze) -> None:
    flame = trees_of(analyzed(nested()))[FlameBy.OPERATOR]
    assert paths_of(flame, flame.device_ns) == {
        ("ProfilerStep", "block", "aten::linear", "aten::addmm", "gemm"): 15_000,
        ("ProfilerStep", "block", "aten::gelu", "gelu"): 7_000,
        ("(no operator)", "Memset"): 2_000,
    }
    assert paths_of(flame, flame.cpu_ns) == {
        ("ProfilerStep",): 40_000,  # 100 less the range's 60
        ("ProfilerStep", "block"): 20_000,  # 60 less 30 and 10
        ("ProfilerStep", "block", "aten::linear"): 10_000,
        ("ProfilerStep", "block", "aten::linear", "aten::addmm"): 16_000,
        ("ProfilerStep", "block", "aten::linear", "aten::addmm", "cudaLaunchKernel"): 4_000,
        ("ProfilerStep", "block", "aten::gelu"): 7_000,
        ("ProfilerStep", "block", "aten::gelu", "cudaLaunchKernel"): 3_000,
    }


def test_backward_work_stands_with_the_module_of_its_forward_operator(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.slice("python_function", "model.py(3): forward", 0, 40_000)
    trace.slice("python_function", "nn.Module: Linear_0", 5_000, 30_000)
    trace.operator("aten::mm", 10_000, 10_000, **{"Sequence number": 4})
    trace.launched_kernel("forward", (12_000, 2_000), (20_000, 5_000))
    trace.operator(
        "autograd::engine::evaluate_function: MmBackward0", 60_000, 20_000, tid=200, **{"Sequence number": 4}
    )
    trace.operator("aten::mm", 62_000, 10_000, tid=200)
    trace.launched_kernel("backward", (64_000, 2_000), (70_000, 9_000), tid=200)
    trees = trees_of(analyzed(trace))
    assert paths_of(trees[FlameBy.MODULE], trees[FlameBy.MODULE].device_ns) == {
        ("Linear_0", "aten::mm", "forward"): 5_000,
        ("Linear_0", "aten::mm", "backward"): 9_000,
    }
    assert paths_of(trees[FlameBy.PYTHON], trees[FlameBy.PYTHON].device_ns) == {
        ("model.py(3): forward", "nn.Module: Linear_0", "aten::mm", "forward"): 5_000,
        ("model.py(3): forward", "aten::mm", "backward"): 9_000,
    }


def test_threads_that_only_wait_are_no_part_of_the_python_tree(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.slice("python_function", "train.py(3): step", 0, 100_000)
    trace.operator("aten::mm", 1_000, 5_000)
    trace.launched_kernel("gemm", (2_000, 1_000), (4_000, 2_000))
    # One waits for a lock, one for a queue by Python's own frames, and one computes.
    trace.slice("python_function", "threading.py(1002): _bootstrap", 0, 90_000, tid=200)
    trace.slice("python_function", "<built-in method acquire of _thread.lock object at 0x7f>", 100, 89_800, tid=200)
    trace.slice("python_function", "queue.py(171): get", 0, 80_000, tid=300)
    trace.slice("python_function", "threading.py(1002): _bootstrap", 0, 70_000, tid=400)
    trace.slice("python_function", "loader.py(9): decode", 1_000, 60_000, tid=400)
    # A file of the user's that is called like one of the standard library's is not a wait.
    trace.slice("python_function", "myapp/queue.py(40): get", 0, 30_000, tid=600)
    # What launches work is shown, however long it waits.
    trace.slice("python_function", "queue.py(171): get", 0, 50_000, tid=500)
    trace.operator("aten::mm", 50_100, 5_000, tid=500)
    flame = trees_of(analyzed(trace))[FlameBy.PYTHON]
    assert (flame.sleeping_threads, flame.sleeping_ns) == (2, 170_000)
    assert paths_of(flame, flame.cpu_ns) == {
        ("train.py(3): step",): 100_000,
        ("threading.py(1002): _bootstrap",): 10_000,
        ("threading.py(1002): _bootstrap", "loader.py(9): decode"): 60_000,
        ("queue.py(171): get",): 50_000,
        ("myapp/queue.py(40): get",): 30_000,
    }
    assert flame.device_ns.sum() == 2_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most", [100_000, 60])
def test_every_tree_adds_up_to_the_device_sum(recorded: Callable[[str], Trace], name: str, most: int) -> None:
    analysis = opscope_analysis(recorded(name))
    for flame in trees_of(analysis, most).values():
        assert flame.device_ns.sum() == analysis.accounting.activities_ns
        assert (flame.parent < np.arange(len(flame.parent))).all()  # nodes come after their parents
        assert flame.totals(flame.device_ns)[flame.parent < 0].sum() == analysis.accounting.activities_ns


def opscope_analysis(trace: Trace) -> Analysis:
    from opscope.analysis.analyzed import analyze

    return analyze(trace)


def test_small_nodes_are_put_together_without_changing_any_sum(recorded: Callable[[str], Trace]) -> None:
    analysis = opscope_analysis(recorded("gpt2_train_amp_stacks"))
    whole, small = (trees_of(analysis, most)[FlameBy.PYTHON] for most in (100_000, 300))
    assert len(small.parent) <= 300 < len(whole.parent)
    assert small.merged.sum() == len(whole.parent) - (small.merged == 0).sum()
    for own in ("device_ns", "cpu_ns", "calls"):
        assert getattr(small, own).sum() == getattr(whole, own).sum()
    # What stays has the time below it that it had before.
    before = Counter(dict(zip(paths(whole), whole.totals(whole.device_ns).tolist(), strict=True)))
    for path, time, many in zip(paths(small), small.totals(small.device_ns).tolist(), small.merged, strict=True):
        assert many or before[path] == time


def paths(flame: Flame) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for parent, name in zip(flame.parent.tolist(), flame.name.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), flame.names[name]))
    return found


def test_modules_of_the_tree_are_those_of_the_table(recorded: Callable[[str], Trace]) -> None:
    analysis = opscope_analysis(recorded("gpt2_train_amp_stacks"))
    flame = trees_of(analysis)[FlameBy.MODULE]
    totals = dict.fromkeys(flame.names, 0)
    for path, time in paths_of(flame, flame.device_ns).items():
        for name in set(path):
            totals[name] += time
    assert analysis.modules is not None
    for module, total in analysis.modules.select("module", "total_device_ns").iter_rows():
        assert totals[module] == total, module


# ---------------------------------------------------------------- slices


@pytest.mark.parametrize("name", NAMES)
def test_every_slice_of_the_chosen_part_is_there(recorded: Callable[[str], Trace], name: str) -> None:
    trace = recorded(name)
    analysis = opscope_analysis(trace)
    found = slices(analysis)
    assert found.steps == found.all_steps
    assert found.merged_below_ns == 0
    streams = [track for track in found.tracks if track.kind is TrackKind.STREAM]
    shown = {int(row) for track in streams for row in track.record}
    inside = (trace.activities["start_ns"] < found.end_ns) & (
        trace.activities["start_ns"] + trace.activities["duration_ns"] > found.start_ns
    )
    assert shown == set(np.flatnonzero(inside.to_numpy()).tolist())
    tables = {
        (TrackKind.RANGE,): trace.annotations,
        (TrackKind.OPERATOR,): trace.operators,
        (TrackKind.CALL,): trace.launches,
        (TrackKind.MODULE, TrackKind.PYTHON): trace.frames,
    }
    for kinds, table in tables.items():
        expected = table.filter(
            (pl.col("start_ns") < found.end_ns) & (pl.col("start_ns") + pl.col("duration_ns") > found.start_ns)
        )
        tracks = [track for track in found.tracks if track.kind in kinds]
        assert sum(map(len, tracks)) == expected.height
        times = sorted(time for track in tracks for time in track.start_ns.tolist())
        assert times == sorted(expected["start_ns"].to_list())
    for track in found.tracks:
        for row in np.unique(track.row)[:63]:
            mine = track.row == row
            assert (track.start_ns[mine][1:] >= track.end_ns[mine][:-1]).all()
    for track in streams:  # a kernel's operator is the one that the analysis links it to
        assert (track.operator == analysis.links.activity_operator[track.record]).all()


def test_python_is_merged_before_anything_else(recorded: Callable[[str], Trace]) -> None:
    analysis = opscope_analysis(recorded("gpt2_train_amp_stacks"))
    whole = slices(analysis, steps=(1, 2))
    python = sum(len(track) for track in whole.tracks if track.kind is TrackKind.PYTHON)
    few = slices(analysis, most=whole.slice_count - python // 2, steps=(1, 2))
    assert (few.merged_below_ns, few.python_merged_below_ns > 0) == (0, True)
    assert sum(map(len, few.tracks)) <= whole.slice_count - python // 2


def test_of_very_many_threads_the_outermost_slices_share_a_track(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number in range(230):
        trace.operator("aten::mm", number * 10, 5_000, tid=1_000 + number)
    for number in range(40):  # threads of Python alone
        trace.slice("python_function", "work.py(1): run", number * 10, 7_000, tid=5_000 + number)
        trace.slice("python_function", "work.py(2): inner", number * 10 + 1, 6_000, tid=5_000 + number)
    found = slices(analyzed(trace))
    (further,) = [track for track in found.tracks if track.kind is TrackKind.THREADS]
    assert further.folded == 70
    names = Counter(further.texts[name] for name in further.name.tolist())
    assert names == {"aten::mm": 30, "work.py(1): run": 40}
    for row in np.unique(further.row)[:63]:
        mine = further.row == row
        assert (further.start_ns[mine][1:] >= further.end_ns[mine][:-1]).all()


def test_many_lanes_of_many_threads_take_little_memory() -> None:
    threads = np.arange(2_000, dtype=np.int64).repeat(3)
    crowd = np.zeros(2_000, np.int64)
    track = np.concatenate([crowd, threads])
    start = np.concatenate([np.arange(2_000), np.tile(np.arange(3) * 100, 2_000)])
    row = stacked_rows(track, start, start + 2_500)  # the first thread has two thousand lanes
    assert row.max() == 63
    assert set(row[2_000 + 3 :].tolist()) == {0, 1, 2}


def test_each_kind_of_the_host_has_a_track_of_its_own(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 100_000)
    trace.slice("python_function", "train.py(9): step", 0, 90_000)
    trace.slice("python_function", "nn.Module: Linear_0", 1_000, 50_000)
    trace.operator("aten::linear", 5_000, 20_000)
    trace.operator("aten::mm", 6_000, 10_000)
    trace.launched_kernel("gemm", (7_000, 2_000), (20_000, 5_000))
    trace.operator("aten::mm", 30_000, 5_000, tid=200)
    trace.slice("python_function", "watchdog.py(31): watch", 0, 90_000, tid=1)  # of frames alone: comes last
    found = slices(analyzed(trace))
    kinds = [(str(track.kind), track.thread, [track.texts[name] for name in track.name]) for track in found.tracks]
    watching, first, second = sorted({thread for _, thread, _ in kinds if thread is not None})
    assert kinds == [
        ("idle", None, ["dispatch", "launch latency", "after the last activity"]),
        ("stream", None, ["gemm"]),
        ("range", first, ["ProfilerStep#1"]),
        ("module", first, ["Linear_0"]),
        ("operator", first, ["aten::linear", "aten::mm"]),
        ("call", first, ["cudaLaunchKernel"]),
        ("python", first, ["train.py(9): step"]),
        ("operator", second, ["aten::mm"]),
        ("python", watching, ["watchdog.py(31): watch"]),
    ]
    (operators, *_) = [track for track in found.tracks if track.kind is TrackKind.OPERATOR]
    assert operators.row.tolist() == [0, 1]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=50))
def test_slices_of_a_row_never_overlap(spans: list[tuple[int, int, int]]) -> None:
    track, start, length = (np.array(values, np.int64) for values in zip(*spans, strict=True))
    row = stacked_rows(track, start, start + length)
    for key in {*zip(track.tolist(), row.tolist(), strict=True)}:
        if key[1] >= 63:
            continue  # the last row takes what lies deeper
        mine = np.flatnonzero((track == key[0]) & (row == key[1]))
        mine = mine[np.lexsort((start[mine] + length[mine], start[mine]))]
        assert (start[mine][1:] >= (start + length)[mine][:-1]).all()


def test_merged_slices_are_named_by_what_takes_most_of_their_time() -> None:
    start = np.array([0, 10, 20, 30, 100, 1_000], np.int64)
    length = np.array([5, 9, 5, 6, 500, 3], np.int64)
    name = np.array([0, 1, 0, 0, 1, 1], np.int64)  # 16 ns of a, 9 ns of b in the first piece
    none, one = np.full(6, -1, np.int64), np.ones(6, np.int64)
    track = Track(
        TrackKind.CALL, None, None, 0, ("a", "b"), 0 * one, start, start + length, name, none, np.arange(6), one, length
    )  # fmt: skip
    few = merged_slices(track, 64, name)
    assert [few.texts[one] for one in few.name] == ["a", "b", "b"]
    assert few.count.tolist() == [4, 1, 1]
    assert few.covered_ns.tolist() == [25, 500, 3]
    assert (few.start_ns.tolist(), few.end_ns.tolist()) == ([0, 100, 1_000], [36, 600, 1_003])
    assert few.record.tolist() == [-1, 4, 5]


def test_few_enough_slices_stand_for_all(recorded: Callable[[str], Trace]) -> None:
    analysis = opscope_analysis(recorded("gpt2_train_amp_stacks"))
    whole, few = slices(analysis, steps=(1, 2)), slices(analysis, most=400, steps=(1, 2))
    assert few.merged_below_ns > 0
    assert sum(map(len, few.tracks)) <= 400
    for one, other in zip(whole.tracks, few.tracks, strict=True):
        assert other.count.sum() == len(one)
        long = one.end_ns - one.start_ns >= few.merged_below_ns
        kept = other.count == 1
        assert set(zip(one.row[long], one.start_ns[long], one.end_ns[long], strict=True)) <= set(
            zip(other.row[kept], other.start_ns[kept], other.end_ns[kept], strict=True)
        )
        assert (other.start_ns.min(), other.end_ns.max()) == (one.start_ns.min(), one.end_ns.max())


def test_as_many_steps_as_fit_are_chosen_around_the_median_one(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for number, (begin, length) in enumerate(((0, 30), (40, 10), (60, 20), (90, 50)), 1):
        trace.step(number, begin * 1_000, length * 1_000)
        for place in range(4):
            trace.operator("aten::add", begin * 1_000 + place * 1_000, 500)
    analysis = analyzed(trace)
    assert slices(analysis, most=5).steps == (3,)  # of lengths 10, 20, 30, 50 the lower middle
    assert slices(analysis, most=10).steps == (3, 4)
    assert slices(analysis, most=15).steps == (2, 3, 4)
    assert slices(analysis, steps=(1, 2)).steps == (1, 2)
    assert slices(analysis, steps=(4, 9)).start_ns == 90_000
    with pytest.raises(UsageError, match="marks no steps 5 to 9; it has 1 to 4"):
        slices(analysis, steps=(5, 9))


def test_a_step_ends_with_the_work_that_it_launched(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10_000)
    trace.operator("aten::mm", 1_000, 3_000)
    trace.launched_kernel("late", (2_000, 1_000), (30_000, 5_000))
    assert slices(analyzed(trace)).end_ns == 35_000


def test_a_trace_of_nothing_has_no_slices(analyzed: Analyze) -> None:
    analysis = analyzed(KinetoTrace())
    tree = CallTree.of(analysis.trace)
    assert slices_of(analysis.trace, analysis.links, tree, analysis.devices, most=10) is None
    assert trees_of(analysis)[FlameBy.OPERATOR].device_ns.sum() == 0


# ---------------------------------------------------------------- memory


def memory_event(trace: KinetoTrace, time: int, size: int, total: int, address: int, *, tid: int = 100) -> None:
    args = {"Device Type": CUDA, "Device Id": 0, "Bytes": size, "Total Allocated": total, "Addr": address}
    trace.events.append(
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 100,
            "tid": tid,
            "ts": time / 1000,
            "args": args,
        }
    )


def test_what_was_alive_at_the_peak_adds_up_to_it(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.slice("python_function", "train.py(9): step", 0, 100_000)
    trace.slice("python_function", "nn.Module: Linear_0", 1_000, 50_000)
    trace.operator("aten::mm", 5_000, 10_000, **{"Input Dims": [[4, 8], [8, 2]]})
    trace.operator("aten::empty_strided", 6_000, 1_000, **{"Input Dims": [[], []]})
    # 1,000 bytes were there before; one address is used twice, one allocation is released before the peak.
    memory_event(trace, 6_500, 300, 1_300, 0xA)
    memory_event(trace, 20_000, 500, 1_800, 0xB)
    memory_event(trace, 21_000, -500, 1_300, 0xB)
    memory_event(trace, 22_000, 900, 2_200, 0xB)
    memory_event(trace, 23_000, -300, 1_900, 0xA)
    analysis = analyzed(trace)
    (memory,) = memory_of(analysis.trace, analysis).values()
    assert (memory.device, memory.peak_bytes, memory.peak_ns, memory.before_bytes) == (0, 2_200, 22_000, 1_000)
    assert memory.alive.rows() == [
        (None, None, None, None, 1, 900),
        ("aten::mm", "[[4, 8], [8, 2]]", "Linear_0", "train.py(9): step", 1, 300),  # not the operator that allocates
    ]


def test_without_addresses_nobody_says_what_was_alive(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    memory_event(trace, 5_000, 300, 300, 1)
    del trace.events[-1]["args"]["Addr"]
    analysis = analyzed(trace)
    (memory,) = memory_of(analysis.trace, analysis).values()
    assert (memory.peak_bytes, memory.before_bytes, memory.alive.height) == (300, None, 0)


def test_the_live_set_of_a_recorded_step_is_that_of_a_plain_simulation(recorded: Callable[[str], Trace]) -> None:
    trace = recorded("gpt2_train_amp_stacks")
    analysis = opscope_analysis(trace)
    memory = memory_of(trace, analysis)[0]
    events = json.loads(gzip.decompress((DATA / "traces" / "gpt2_train_amp_stacks.json.gz").read_bytes()))[
        "traceEvents"
    ]
    mine = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == CUDA]
    mine.sort(key=lambda event: event["ts"])
    peak = max(event["args"]["Total Allocated"] for event in mine)
    assert memory.peak_bytes == peak
    alive: dict[int, int] = {}
    for args in (event["args"] for event in mine):
        if args["Bytes"] > 0:
            alive[args["Addr"]] = args["Bytes"]
        else:
            alive.pop(args["Addr"], None)
        if args["Total Allocated"] == peak:
            break
    assert memory.alive["bytes"].sum() == sum(alive.values())
    assert memory.alive["allocations"].sum() == len(alive)
    assert memory.before_bytes == peak - sum(alive.values())


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1_000)), min_size=1, max_size=40), st.integers(0, 5_000))
def test_any_sequence_of_allocations_adds_up(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], before: int
) -> None:
    trace, total = KinetoTrace(), before
    trace.operator("aten::mm", 0, 1_000_000)
    for time, (size, total, address) in enumerate(_allocator(steps, before), 1):
        memory_event(trace, time * 1_000, size, total, address)
    analysis = opscope_analysis(read(trace.write(tmp_path_factory.mktemp("m") / "t.json")))
    (memory,) = memory_of(analysis.trace, analysis).values()
    assert memory.peak_bytes == memory.allocated_bytes.max()
    assert memory.before_bytes == before
    assert memory.before_bytes + memory.alive["bytes"].sum() == memory.peak_bytes


def _allocator(steps: list[tuple[int, int]], total: int) -> Iterator[tuple[int, int, int]]:
    """Yield what an allocator with six addresses does: an address that is taken is released first."""
    taken: dict[int, int] = {}
    for address, size in steps:
        if address in taken:
            released = taken.pop(address)
            total -= released
            yield -released, total, address + 1
        else:
            taken[address] = size
            total += size
            yield size, total, address + 1
