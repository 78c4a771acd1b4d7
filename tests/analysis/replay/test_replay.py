"""Graphs of steps: worked out by hand, held to recorded traces, and tried on random ones."""

import json
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

from opscope.analysis.analyzed import analyze
from opscope.analysis.replay import changes
from opscope.analysis.replay import graph as native
from opscope.analysis.replay.batch import more_workers, other_batch
from opscope.analysis.replay.build import Steps, replayed_steps
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeBasis, EdgeKind, GraphBuilder, Span
from opscope.analysis.replay.path import (
    critical_operators,
    critical_path,
    host_speed,
    path_by_kind,
    residual_share,
    slack,
    unprofiled_step,
    unprofiled_steps,
)
from opscope.analysis.structure.arrays import Intervals
from opscope.analysis.structure.links import link
from opscope.api.whatif import whatif
from opscope.base.errors import UsageError
from opscope.export.chrome import replayed_events
from opscope.readers.reading import read
from opscope.report.whatif_document import build_whatif
from opscope.trace.model import Trace
from tests.budget import chance, examples
from tests.conftest import DATA
from tests.kineto import KinetoTrace

Load = Callable[[KinetoTrace], Trace]
US = 1_000
TRACES = sorted((DATA / "traces").glob("*.json.gz"))
PROGRAMS = sorted(path for path in (DATA / "findings").glob("*.json.xz") if ".light." not in path.name)


def steps_in(trace: Trace) -> Steps:
    found = replayed_steps(trace, link(trace))
    assert found is not None
    return found


def host_bound(count: int = 6) -> KinetoTrace:
    """Each step: an operator every 100 us, whose kernel takes 20 us, and a wait at the end. Two steps."""
    built = KinetoTrace()
    for number in range(2):
        begin = number * 2_000 * US
        built.step(number, begin, 1_900 * US)
        for place in range(count):
            at = begin + (50 + 100 * place) * US
            built.operator(f"aten::op{place}", at, 80 * US)
            built.launched_kernel(f"k{place}", (at + 40 * US, 5 * US), (at + 50 * US, 20 * US))
        last = begin + (50 + 100 * (count - 1) + 70) * US  # when the last kernel ends
        built.launch(last + 20 * US, 10 * US, name="cudaDeviceSynchronize")
    return built


def device_bound() -> KinetoTrace:
    """Each step: four launches at once, whose kernels take 300 us each, one after the other; the host waits."""
    built = KinetoTrace()
    for number in range(2):
        begin = number * 2_000 * US
        built.step(number, begin, 1_900 * US)
        for place in range(4):
            at = begin + (10 + 20 * place) * US
            built.operator(f"aten::op{place}", at, 15 * US)
            start = begin + (30 + 301 * place) * US
            built.launched_kernel(f"k{place}", (at + 5 * US, 5 * US), (start, 300 * US))
        built.launch(begin + 100 * US, (30 + 4 * 301 - 1 + 3 - 100) * US, name="cudaDeviceSynchronize")
    return built


# ---------------------------------------------------------------- by hand


def test_a_host_bound_step(load: Load) -> None:
    steps = steps_in(load(host_bound()))
    assert steps.synchronized
    # From the mark to the end of the wait: 50 + 5 * 100 + 70 + 20 + 10 us.
    assert steps.graph.step_ns == 650 * US
    plain = Edit(steps)
    assert plain.step_ns == 650 * US
    # Kernels twice as long delay nothing but the end of the step: the last one ends 20 us later, when the wait begins.
    slower = plain.copy()
    assert slower.scale(np.arange(12), 2.0) == 12
    assert slower.step_ns == 650 * US
    # Four times as long: 60 us more, so 40 us after the wait began, and 5 us to return from it.
    slower = plain.copy()
    slower.scale(np.arange(12), 4.0)
    assert 685 * US <= slower.step_ns <= 695 * US
    # Without one operator its 80 us are gone, and nothing else.
    shorter = plain.copy()
    assert changes.remove(steps, "aten::op2").apply(shorter) == 2
    assert shorter.step_ns == 570 * US
    parts = critical_path(plain)
    assert sum(part.ns for part in parts) == 650 * US
    assert path_by_kind(parts)["host"] > 500 * US


def test_a_device_bound_step(load: Load) -> None:
    steps = steps_in(load(device_bound()))
    plain = Edit(steps)
    assert steps.graph.step_ns == (30 + 4 * 301 - 1 + 3) * US
    # Launches that queue tell nothing of how long a launch takes: the first kernel may begin a little earlier.
    assert plain.step_ns == pytest.approx(steps.graph.step_ns, abs=10 * US)
    # Work of the host hides behind the device's: to remove an operator saves its kernel, and the pause after it.
    shorter = plain.copy()
    changes.remove(steps, "aten::op1").apply(shorter)
    assert plain.step_ns - shorter.step_ns == pytest.approx(301 * US, abs=2 * US)
    # Half the time of all kernels: 600 us less.
    faster = plain.copy()
    changes.scale(steps, "k*", 0.5).apply(faster)
    assert plain.step_ns - faster.step_ns == pytest.approx(600 * US, abs=US)
    # Without the launches nothing is gained beyond the first one's.
    graph = plain.copy()
    changes.no_launch_gaps().apply(graph)
    assert 0 <= plain.step_ns - graph.step_ns <= 30 * US
    assert path_by_kind(critical_path(plain))["activity"] == 1_200 * US


def test_a_wait_in_the_middle(load: Load) -> None:
    """The host waits for a kernel of 500 us before it launches the next one."""
    built = KinetoTrace()
    for number in range(2):
        begin = number * 2_000 * US
        built.step(number, begin, 1_900 * US)
        built.operator("aten::mm", begin + 10 * US, 20 * US)
        built.launched_kernel("first", (begin + 20 * US, 5 * US), (begin + 30 * US, 500 * US))
        built.operator("aten::item", begin + 40 * US, 500 * US)
        built.launch(begin + 50 * US, 485 * US, name="cudaStreamSynchronize")
        built.operator("aten::add", begin + 560 * US, 30 * US)
        built.launched_kernel("second", (begin + 570 * US, 5 * US), (begin + 580 * US, 400 * US))
        built.launch(begin + 600 * US, 385 * US, name="cudaDeviceSynchronize")
    steps = steps_in(load(built))
    plain = Edit(steps)
    assert plain.step_ns == 985 * US
    edit = plain.copy()
    assert changes.no_wait(steps, "aten::item").apply(edit) == 2
    # Both kernels one after the other: 30 + 500 + 400 us, a pause between them and 5 us to return.
    assert edit.step_ns == pytest.approx(936 * US, abs=4 * US)
    # The wait with which a step ends is not a wait that can go.
    edit = plain.copy()
    assert changes.no_wait(steps, "cudaDeviceSynchronize").apply(edit) == 0
    assert edit.step_ns == plain.step_ns


@pytest.mark.parametrize("recorded", [False, True])
def test_one_stream_waits_for_another(load: Load, recorded: bool) -> None:
    """A kernel on stream 9 waits for an event after the one on stream 7; with a record of that, or by the times."""
    built = KinetoTrace()
    built.step(1, 0, 1_900 * US)
    built.operator("aten::mm", 10 * US, 30 * US)
    built.launched_kernel("first", (20 * US, 5 * US), (30 * US, 500 * US))
    by = built.launch(30 * US, 2 * US, name="cudaEventRecord")
    waits = built.launch(35 * US, 2 * US, name="cudaStreamWaitEvent")
    if recorded:
        event = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": by, "wait_on_cuda_event_id": 1}
        built.slice("cuda_sync", "Stream Wait Event", 35 * US, 0, pid=0, tid=9, device=0, stream=9, correlation=waits,
                    **event)  # fmt: skip
    built.operator("aten::add", 40 * US, 30 * US)
    built.launched_kernel("second", (50 * US, 5 * US), (532 * US, 100 * US), stream=9)
    built.launch(80 * US, 557 * US, name="cudaDeviceSynchronize")
    steps = steps_in(load(built))
    graph = steps.graph
    (edge,) = np.flatnonzero(graph.kind == EdgeKind.EVENT)
    assert graph.basis[edge] == (EdgeBasis.RECORDED if recorded else EdgeBasis.SHOWN)
    plain = Edit(steps)
    assert plain.step_ns == pytest.approx(637 * US, abs=5 * US)
    faster = plain.copy()
    changes.scale(steps, "first", 0.5).apply(faster)
    assert plain.step_ns - faster.step_ns == pytest.approx(250 * US, abs=US)


def forked(first_ns: int, second: int, third: int) -> KinetoTrace:
    """Two streams each wait for an event after stream 7's work, by calls one after the other without a record."""
    built = KinetoTrace()
    built.step(1, -200 * US, 2_100 * US)
    for place in range(4):  # how long a launch into an empty stream takes
        at = (40 * place - 190) * US
        built.launched_kernel("quick", (at, 5 * US), (at + 10 * US, 5 * US))
    built.launched_kernel("first", (20 * US, 5 * US), (30 * US, first_ns))
    built.launch(30 * US, 2 * US, name="cudaEventRecord")
    for place in range(2):
        built.launch((35 + 5 * place) * US, 2 * US, name="cudaStreamWaitEvent")
    built.launched_kernel("second", (50 * US, 5 * US), (second, 100 * US), stream=9)
    built.launch(58 * US, US, name="cudaEventRecord")
    built.launch(60 * US, US, name="cudaStreamWaitEvent")
    built.launched_kernel("third", (70 * US, 5 * US), (third, 100 * US), stream=11)
    last = max(second, third) + 100 * US
    built.launch(80 * US, last + 5 * US - 80 * US, name="cudaDeviceSynchronize")
    return built


def test_several_streams_wait_for_one_event(load: Load) -> None:
    # Both began right after the first one: without the second wait, the third kernel would have had no reason to wait.
    steps = steps_in(load(forked(500 * US, 532 * US, 533 * US)))
    events = np.flatnonzero(steps.graph.kind == EdgeKind.EVENT)
    assert {int(row) for row in steps.graph.row[events]} == {5, 6}
    plain = Edit(steps)
    assert residual_share(plain) == 0
    faster = plain.copy()
    changes.scale(steps, "first", 0.5).apply(faster)
    assert plain.step_ns - faster.step_ns == pytest.approx(250 * US, abs=3 * US)


def test_work_waits_for_room_on_the_device(load: Load) -> None:
    """The third kernel could begin with the second one, but begins as that ends: it filled the device."""
    steps = steps_in(load(forked(500 * US, 532 * US, 625 * US)))
    graph = steps.graph
    (edge,) = np.flatnonzero(graph.kind == EdgeKind.ROOM)
    assert graph.row[edge] == 6
    assert graph.basis[edge] == EdgeBasis.SHOWN
    plain = Edit(steps)
    assert residual_share(plain) == 0
    # It began 7 us before the second one's end: the path goes through 93 us of that, and never back in time.
    parts = {(part.name, part.kind): part.ns for part in critical_path(plain)}
    assert parts["second", "activity"] == 93 * US
    assert min(parts.values()) > 0
    faster = plain.copy()
    changes.scale(steps, "second", 0.5).apply(faster)
    assert plain.step_ns - faster.step_ns == pytest.approx(50 * US, abs=2 * US)


def test_work_beside_work_that_runs_on_does_not_wait_for_it(load: Load) -> None:
    """A product that is late for an unknown reason beside a collective of 3 ms: it did not wait for that."""
    built = forked(100 * US, 140 * US, 800 * US)
    for event in built.events:
        if event["name"] == "second":
            event["dur"] = 3_000.0
    steps = steps_in(load(built))
    assert not (steps.graph.kind == EdgeKind.ROOM).any()
    assert (steps.graph.kept_residual_ns > 0).any()


def test_a_second_event_is_not_for_another_stream(load: Load) -> None:
    """Stream 9 waits for two events; stream 7's next work, long after, waits for none of them."""
    built = KinetoTrace()
    built.step(1, 0, 5_000 * US)
    built.launched_kernel("side", (10 * US, 5 * US), (20 * US, 100 * US), stream=11)
    for place in range(2):
        built.launch((20 + 5 * place) * US, 2 * US, name="cudaStreamWaitEvent")
    built.launched_kernel("waits", (30 * US, 5 * US), (123 * US, 50 * US), stream=9)
    built.launched_kernel("main", (900 * US, 5 * US), (910 * US, 500 * US))
    built.launch(920 * US, 500 * US, name="cudaDeviceSynchronize")
    graph = steps_in(load(built)).graph
    assert set(graph.row[graph.kind == EdgeKind.EVENT].tolist()) == {1}


def test_what_waits_for_room_beside_a_collective_overlaps_too(load: Load) -> None:
    built = forked(100 * US, 132 * US, 227 * US)
    for event in built.events:
        if event["name"] == "second":
            event["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)"
    steps = steps_in(load(built))
    assert (steps.graph.kind == EdgeKind.ROOM).any()
    edit = Edit(steps)
    assert changes.overlap_collectives(steps).apply(edit) == 1
    assert edit.step_ns < Edit(steps).step_ns


def test_autograd_hands_over(load: Load) -> None:
    """The main thread records nothing while autograd's thread launches; then it goes on."""
    built = KinetoTrace()
    built.step(1, 0, 1_900 * US)
    built.operator("aten::mm", 10 * US, 30 * US)
    built.launched_kernel("forward", (20 * US, 5 * US), (30 * US, 50 * US))
    for place in range(3):
        at = (100 + 100 * place) * US
        name = "autograd::engine::evaluate_function: MmBackward0"
        built.operator(name, at, 80 * US, tid=7)
        built.launched_kernel("backward", (at + 50 * US, 5 * US), (at + 60 * US, 20 * US), tid=7)
    built.operator("aten::add_", 420 * US, 30 * US)
    built.launched_kernel("optimizer", (430 * US, 5 * US), (440 * US, 20 * US))
    built.launch(470 * US, 10 * US, name="cudaDeviceSynchronize")
    steps = steps_in(load(built))
    assert np.count_nonzero(steps.graph.kind == EdgeKind.HANDOVER) == 2
    plain = Edit(steps)
    assert plain.step_ns == 480 * US
    # Without the second node, 80 us of the other thread's time are gone, and the main thread goes on so much earlier.
    shorter = plain.copy()
    rows = (steps.trace.operators["start_ns"] == 200 * US).to_numpy()
    assert shorter.remove_operators(rows) == 1
    assert shorter.step_ns == 400 * US


def test_nodes_of_a_graph_on_two_streams(load: Load) -> None:
    built = KinetoTrace()
    built.step(1, 0, 900 * US)
    launch = built.launch(10 * US, 20 * US, name="cudaGraphLaunch")
    for name, stream, start, duration in (("a", 7, 40, 100), ("b", 9, 141, 50), ("c", 7, 192, 100)):
        built.kernel(name, start * US, duration * US, launch, stream=stream)
    built.launch(40 * US, 257 * US, name="cudaDeviceSynchronize")
    steps = steps_in(load(built))
    assert np.count_nonzero(steps.graph.kind == EdgeKind.GRAPH) == 2
    plain = Edit(steps)
    faster = plain.copy()
    changes.scale(steps, "b", 0.0).apply(faster)
    assert plain.step_ns - faster.step_ns == pytest.approx(50 * US, abs=US)


def test_pageable_copies_hold_the_host(load: Load) -> None:
    built = KinetoTrace()
    built.step(1, 0, 900 * US)
    built.operator("aten::copy_", 10 * US, 420 * US)
    copy = built.launch(20 * US, 400 * US, name="cudaMemcpyAsync")
    built.kernel("Memcpy HtoD (Pageable -> Device)", 25 * US, 390 * US, copy, category="gpu_memcpy")
    built.operator("aten::add", 440 * US, 30 * US)
    built.launched_kernel("k", (450 * US, 5 * US), (460 * US, 50 * US))
    built.launch(480 * US, 35 * US, name="cudaDeviceSynchronize")
    steps = steps_in(load(built))
    plain = Edit(steps)
    faster = plain.copy()
    changes.scale(steps, "aten::copy_", 0.25).apply(faster)
    assert plain.step_ns - faster.step_ns == pytest.approx(0.75 * 390 * US, abs=6 * US)


def test_a_whole_recording_without_steps(load: Load) -> None:
    built = KinetoTrace()
    built.operator("aten::mm", 10 * US, 30 * US)
    built.launched_kernel("k", (20 * US, 5 * US), (30 * US, 500 * US))
    steps = steps_in(load(built))
    assert steps.graph.steps == ()
    assert not steps.synchronized
    assert steps.graph.step_ns == 520 * US  # from the first operator to the end of the kernel


def test_recordings_of_one_kind_alone(load: Load) -> None:
    assert replayed_steps(load(KinetoTrace()), link(load(KinetoTrace()))) is None
    device = KinetoTrace()
    device.kernel("k", 0, 10 * US)
    device.kernel("k", 12 * US, 10 * US)
    assert Edit(steps_in(load(device))).step_ns == 22 * US
    host = KinetoTrace()
    host.operator("aten::add", 0, 10 * US)
    assert steps_in(load(host)).graph.step_ns == 10 * US


def test_without_the_profiler_the_host_is_quicker(load: Load) -> None:
    steps = steps_in(load(host_bound()))
    edit = Edit(steps)
    edit.without_profiler()
    # Before the wait: six pauses with an operator each (2.2 us), six calls of 5 us (1.5 us less), the wait as it was.
    assert 650 * US - edit.step_ns == pytest.approx(6 * 2_200 + 6 * 1_500, abs=2 * US)


def test_a_measured_step_tells_how_fast_the_host_is(load: Load) -> None:
    steps = steps_in(load(host_bound()))
    speed = host_speed(steps, 450 * US)
    assert speed is not None
    assert 0.5 < speed < 1  # the replayed step without the profiler takes longer than that
    assert unprofiled_step(steps, 450 * US).step_ns == pytest.approx(450 * US, rel=0.001)
    slow, likely, fast = (edit.step_ns for edit in unprofiled_steps(steps, None))
    assert slow > likely > fast
    # A host slower than with a profiler is none; and what the device holds back says nothing of the host.
    assert host_speed(steps, 900 * US) is None
    busy = steps_in(load(device_bound()))
    assert host_speed(busy, 1_200 * US) is None
    slow, _, fast = (edit.step_ns for edit in unprofiled_steps(busy, 1_200 * US))
    assert slow - fast < 25 * US


def test_what_silence_holds_stays(load: Load) -> None:
    """300 us of the host without any record between two launches: a graph does not take them away."""
    built = KinetoTrace()
    built.step(1, 0, 1_900 * US)
    for begin in (10 * US, 400 * US):
        built.operator("aten::mm", begin, 30 * US)
        built.launched_kernel("k", (begin + 10 * US, 5 * US), (begin + 20 * US, 10 * US))
    built.launch(440 * US, 10 * US, name="cudaDeviceSynchronize")
    steps = steps_in(load(built))
    edit = Edit(steps)
    edit.launch_as_graph(1_300, 0)
    assert 360 * US <= edit.step_ns <= 400 * US


# ---------------------------------------------------------------- changes by name


def test_names_that_a_trace_does_not_have_are_refused(load: Load) -> None:
    steps = steps_in(load(host_bound()))
    for make in (
        lambda: changes.remove(steps, "aten::nothing"),
        lambda: changes.scale(steps, "aten::nothing", 0.5),
        lambda: changes.no_wait(steps, "aten::nothing"),
        lambda: changes.to_limit(steps, "aten::op1", ()),
    ):
        with pytest.raises(UsageError, match=r"^--"):
            make()


def test_to_the_limit_is_what_limits_say() -> None:
    analysis = analyze(read(DATA / "findings" / "fp32_inference.json.xz"))
    steps = replayed_steps(analysis.trace, analysis.links)
    assert steps is not None
    edit = Edit(steps)
    before = edit.step_ns
    changes.to_limit(steps, "aten::addmm", analysis.limits).apply(edit)
    rows = [row for row in analysis.limits if row.operator == "aten::addmm" and row.ideal_ns is not None]
    lost = sum(row.device_ns - row.ideal_ns * row.calls for row in rows if row.ideal_ns is not None)
    assert before - edit.step_ns == pytest.approx(lost / analysis.step_count, rel=0.02)


# ---------------------------------------------------------------- recorded traces


@pytest.mark.parametrize("path", [*TRACES, *PROGRAMS[::4]], ids=lambda path: path.name.split(".")[0])
def test_recorded_steps_are_replayed(path: Any) -> None:
    steps = steps_in(read(path))
    graph = steps.graph
    # With all residuals the recording comes back, to the nanosecond: so the order and all edges are possible.
    assert (graph.residual_ns >= 0).all()
    assert (graph.replayed(residual=graph.residual_ns) == graph.time_ns).all()
    plain = Edit(steps)
    assert sum(part.ns for part in critical_path(plain)) == pytest.approx(plain.step_ns)
    # The short step of three kernels' replays (0.1 ms) is 6 % off, all others less than 1 %.
    limit = 0.06 if path.name.startswith("cudagraph_replay") else 0.01
    assert abs(plain.step_ns / graph.step_ns - 1) < limit


def test_each_kind_of_edge_is_needed() -> None:
    """Without waits, or without the order of streams, steps that have them come out far too short."""
    for name, kind in (
        ("large_products", EdgeKind.STREAM),
        ("fp32_inference", EdgeKind.WAIT),
        ("one_buffer", EdgeKind.EVENT),
    ):
        edit = Edit(steps_in(read(DATA / "findings" / f"{name}.json.xz")))
        before = edit.step_ns
        edit.lag[edit.graph.kind == kind] = -(1 << 61)
        assert edit.step_ns < 0.8 * before, name


def test_what_only_a_quicker_host_leaves_unexplained_counts_too(load: Load) -> None:
    """The host takes a second; behind it a kernel is late for an unknown reason. Without the profiler that shows."""
    built = KinetoTrace()
    for number in range(2):
        begin = number * 400_000 * US
        built.step(number, begin, 390_000 * US)
        for place in range(3_000):
            built.operator("aten::a", begin + (10 + 100 * place) * US, 99 * US)
        built.launched_kernel("late", (begin + 5 * US, 5 * US), (begin + 299_000 * US, 500 * US))
        built.launch(begin + 300_020 * US, 5 * US, name="cudaDeviceSynchronize")
    steps = steps_in(load(built))
    assert residual_share(Edit(steps)) < 0.05
    assert build_whatif("trace.json", steps, (), None, as_recorded=True).no_promise is None
    document = build_whatif("trace.json", steps, (), None)
    assert document.residual_share > 0.05
    assert document.no_promise is not None
    assert document.base_low_ns <= document.base_ns <= document.base_high_ns <= document.replayed_ns


def test_a_step_of_what_was_launched_before_promises_nothing() -> None:
    plain = Edit(steps_in(read(DATA / "traces" / "gelu_variants.json.gz")))
    assert residual_share(plain) > 0.05


# ---------------------------------------------------------------- random traces


def random_trace(random_: random.Random) -> KinetoTrace:
    """Threads, streams and waits in any order, on one clock; nothing is launched after it began."""
    built = KinetoTrace()
    steps = random_.choice((0, 1, 3))
    time, free = 0, dict.fromkeys((7, 9, 11), 0)
    for number in range(max(steps, 1)):
        begin = time
        for _ in range(random_.randrange(1, 12)):
            time += random_.randrange(1, 200) * 100
            tid = random_.choice((100, 100, 100, 7))
            duration = random_.randrange(10, 400) * 100
            built.operator(random_.choice(("aten::a", "aten::b")), time, duration, tid=tid)
            what = random_.random()
            at = time + duration // 4
            if what < 0.7:
                stream = random_.choice(tuple(free))
                start = max(at + random_.randrange(1, 100) * 100, free[stream])
                length = random_.randrange(1, 900) * 100
                built.launched_kernel("k", (at, duration // 4), (start, length), tid=tid, stream=stream)
                free[stream] = start + length + random_.randrange(30) * 100
            elif what < 0.85:
                name = random_.choice(("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"))
                end = max(*free.values(), at + 1_000)
                built.launch(at, end - at, name=name, tid=tid)
                time = end
            else:
                built.launch(at, 1_000, name=random_.choice(("cudaEventRecord", "cudaStreamWaitEvent")), tid=tid)
            time += duration
        if steps:
            built.step(number, begin, time - begin + 100)
            time += 1_000
    return built


def test_random_steps_keep_the_rules(load: Load) -> None:
    random_ = chance("replay")
    for _ in range(examples(60)):
        trace = load(random_trace(random_))
        steps = steps_in(trace)
        graph = steps.graph
        assert (graph.residual_ns >= 0).all()
        assert (graph.replayed(residual=graph.residual_ns) == graph.time_ns).all()
        with mock.patch.object(native, "load_replay", return_value=None):
            slow = graph.replayed()
        assert (graph.replayed() == slow).all()
        plain = Edit(steps)
        assert sum(part.ns for part in critical_path(plain)) == pytest.approx(plain.step_ns)
        # What only goes away never makes a step longer.
        activities, calls = np.arange(trace.activities.height), np.arange(trace.launches.height)
        edits = [plain.copy() for _ in range(7)]
        edits[0].remove_operators((trace.operators["name"] == "aten::a").to_numpy())
        edits[1].remove_activities(activities[::2])
        edits[2].remove_calls(calls[::3])
        edits[3].cut_waits(calls)
        edits[4].scale(activities, 0.5)
        edits[5].without_profiler()
        edits[6].launch_as_graph(1_300, 0)
        assert max(edit.step_ns for edit in edits) <= plain.step_ns
        # And what takes longer never makes it shorter.
        longer = plain.copy()
        longer.scale(np.arange(trace.activities.height), 3.0)
        assert longer.step_ns >= plain.step_ns
        # Each edge may be longer by its slack, alone, and no more: then the end of a step comes later.
        spare = slack(plain)
        assert (spare >= 0).all()
        over = max_of_spans(plain)
        for edge in random_.sample(range(len(spare)), min(8, len(spare))):
            if spare[edge] < 1 << 60:
                for more, late in ((0, False), (1, True)):
                    longer = plain.copy()
                    longer.lag[edge] += spare[edge] + more
                    assert any(a > b for a, b in zip(max_of_spans(longer), over, strict=True)) == late


def max_of_spans(edit: Edit) -> list[int]:
    return [max(int(edit.times[end]) for end in span.ends) for span in edit.graph.spans]


def test_moments_that_wait_for_themselves_make_no_graph() -> None:
    builder = GraphBuilder()
    first, second = builder.moment(0), builder.moment(10)
    builder.edge(first, second, EdgeKind.HOST)
    builder.edge(second, first, EdgeKind.WAIT)
    assert builder.built([Span(first, (second,))], (), 1) is None


# ---------------------------------------------------------------- links, collectives, written steps


def with_a_collective() -> KinetoTrace:
    """Each step: 1 ms of work, an all-reduce of 2 ms beside 1 ms of other work, and work that waits for it."""
    built = KinetoTrace()
    for number in range(2):
        begin = number * 10_000 * US
        built.step(number, begin, 9_000 * US)
        built.launched_kernel("first", (begin + 10 * US, 5 * US), (begin + 20 * US, 1_000 * US))
        reduces = begin + 1_021 * US
        built.launched_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", (begin + 30 * US, 5 * US),
                              (reduces, 2_000 * US), stream=20)  # fmt: skip
        built.launched_kernel("beside", (begin + 50 * US, 5 * US), (reduces, 1_000 * US))
        built.launch(begin + 70 * US, 3 * US, name="cudaStreamWaitEvent")
        built.launched_kernel("after", (begin + 80 * US, 5 * US), (reduces + 2_002 * US, 500 * US))
        built.launch(begin + 100 * US, reduces + 2_502 * US - begin - 95 * US, name="cudaDeviceSynchronize")
    return built


def test_work_that_no_longer_waits_for_a_collective(load: Load) -> None:
    steps = steps_in(load(with_a_collective()))
    plain = Edit(steps)
    assert plain.step_ns == pytest.approx(3_530 * US, rel=0.01)
    # "after" follows "beside" at once; the collective itself, of 2 ms, still ends the step.
    edit = plain.copy()
    assert changes.overlap_collectives(steps).apply(edit) == 2
    assert plain.step_ns - edit.step_ns == pytest.approx(500 * US, abs=15 * US)
    # Twice the bandwidth: 1 ms less of the collective, which the other work of 1 ms hides from then on.
    faster = plain.copy()
    assert changes.bandwidth(steps, "nvlink", 2, ()).apply(faster) == 2
    assert plain.step_ns - faster.step_ns == pytest.approx(1_000 * US, abs=15 * US)
    for other in ("pcie", "memory"):
        with pytest.raises(UsageError, match="nothing that uses it"):
            changes.bandwidth(steps, other, 2, ())


def test_collectives_on_the_stream_of_other_work_cannot_overlap(load: Load) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 9_000 * US)
    trace.launched_kernel("first", (10 * US, 5 * US), (20 * US, 1_000 * US))
    trace.launched_kernel("ncclDevKernel_AllReduce_Sum(int)", (30 * US, 5 * US), (1_021 * US, 2_000 * US))
    with pytest.raises(UsageError, match="nothing can overlap"):
        changes.overlap_collectives(steps_in(load(trace)))
    with pytest.raises(UsageError, match="no collectives"):
        changes.overlap_collectives(steps_in(load(host_bound())))


def test_work_that_goes_takes_its_launches_and_operators_along(load: Load) -> None:
    """The host-bound step: without two of six kernels their operators' 80 us each go, or a share of them."""
    steps = steps_in(load(host_bound()))
    plain = Edit(steps)
    names = steps.trace.activities["name"].cast(str).to_list()
    rows = np.flatnonzero([name in ("k1", "k2") for name in names])
    edit = plain.copy()
    assert edit.remove_work(rows) == 4
    assert plain.step_ns - edit.step_ns == 160 * US
    half = plain.copy()
    half.remove_work(rows, of_host=0.5)
    # Of the calls nothing stays, of the rest of the operators a half.
    assert 80 * US <= plain.step_ns - half.step_ns <= 90 * US
    taken = plain.copy()
    assert taken.take(rows, np.full(len(rows), 7 * US)) == 4
    edit.take(rows, np.full(len(rows), 7 * US))  # what is removed stays so
    assert plain.step_ns - edit.step_ns == 160 * US


def test_what_the_host_takes_is_measured_and_taken_out(load: Load) -> None:
    steps = steps_in(load(host_bound()))
    thread = int(steps.chosen.thread)
    start = np.array([begin + 50 * US for begin, _ in steps.chosen.marks])
    spans = Intervals.union_of(start, start + 300 * US)
    edit = Edit(steps)
    assert edit.host_time(thread, spans) == pytest.approx(2 * 300 * US, rel=0.001)
    before = edit.step_ns
    edit.remove_host(thread, spans, 0.5)
    assert edit.host_time(thread, spans) == pytest.approx(2 * 150 * US, rel=0.25)
    assert before - edit.step_ns == pytest.approx(150 * US, abs=US)


def test_replayed_steps_are_written_for_viewers(load: Load) -> None:
    steps = steps_in(load(device_bound()))
    edit = Edit(steps)
    changes.scale(steps, "k1", 0.5).apply(edit)
    changes.remove(steps, "aten::op2").apply(edit)
    events = json.loads(replayed_events(edit, "steps"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    took = {event["name"]: event["dur"] for event in slices}
    assert (took["k0"], took["k1"], took["k3"]) == (300, 150, 300)
    assert "k2" not in took
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"host", "device 0"}
    # The first step ends with its wait; from then on the second one is as far away as the mark was.
    ends = [event["ts"] + event["dur"] for event in slices if event["name"] == "cudaDeviceSynchronize"]
    assert min(ends) == pytest.approx(edit.step_ns / US, abs=1)


def test_findings_are_changes_too() -> None:
    trace = DATA / "findings" / "fp32_inference.json.xz"
    document = whatif(trace, finding=["fp32_products"])
    (change,) = document.changes
    assert change.change == "--finding fp32_products"
    assert change.saving_ns is not None
    assert change.saving_ns > 0.7 * document.base_ns
    both = whatif(trace, finding=["fp32_products"], no_launch_gaps=True)
    assert both.changed_ns is not None
    assert document.changed_ns is not None
    assert both.changed_ns <= document.changed_ns
    with pytest.raises(UsageError, match="no such finding"):
        whatif(trace, finding=["eager_attention"])


def test_what_a_microsecond_less_saves(load: Load) -> None:
    """On a busy device all of it, where the host holds the step back nothing; the path adds up to the step."""
    for built, saves in ((device_bound(), 1.0), (host_bound(), 0.0)):
        steps = steps_in(load(built))
        table = critical_operators(steps)
        assert table["on_path_ns"].sum() == pytest.approx(unprofiled_step(steps, None).step_ns, abs=10)
        tried = dict(table.select("name", "saves").iter_rows())
        prefix = "aten::op" if "aten::op1" in tried else "k"
        assert tried[f"{prefix}1"] == pytest.approx(saves, abs=0.01)
        assert tried[f"{prefix}2"] == pytest.approx(saves, abs=0.01)
    assert table.filter(table["name"] == "aten::op1")["device_ns"].to_list() == [20 * US]


def test_how_much_longer_work_may_take_for_free(load: Load) -> None:
    """Kernels of a host-bound step have until the wait at its end; on a busy device there is no time to spare."""
    steps = steps_in(load(host_bound()))
    of_work = slack(Edit(steps))[steps.graph.kind == EdgeKind.ACTIVITY]
    # The last kernel ends 20 us before the wait, which returns 5 us after it and takes 10 us; the first one has the
    # pauses between the kernels (80 us each) too.
    assert min(of_work) == 25 * US
    assert max(of_work) <= 25 * US + 5 * 80 * US
    busy = critical_operators(steps_in(load(device_bound())))
    assert set(busy.filter(busy["device_ns"] > 0)["slack_ns"].to_list()) == {0}


# ---------------------------------------------------------------- a DataLoader


def loading(name: str, wait: int = 6_000 * US) -> KinetoTrace:
    """Each step of 10 ms: a batch is waited for, then 4 ms of work on the device, and a wait for that."""
    built = KinetoTrace()
    for number in range(3):
        begin = number * 11_000 * US
        built.step(number, begin, 10_500 * US)
        built.annotation(f"enumerate(DataLoader)#{name}.__next__", begin, wait)
        built.launched_kernel("work", (begin + wait + 10 * US, 5 * US), (begin + wait + 20 * US, 3_960 * US))
        built.launch(begin + wait + 50 * US, 3_940 * US, name="cudaDeviceSynchronize")
    return built


@pytest.mark.parametrize(
    ("name", "factor", "left_ms"),
    [
        # The main process loads for 6 ms: one worker beside the 4 ms of other work takes 6, two are ahead.
        ("_SingleProcessDataLoaderIter", 1, 6.0),
        ("_SingleProcessDataLoaderIter", 2, 4.0),
        # Workers for which the step waits take 10 ms for a batch: twice as many 5, four times as many are ahead.
        ("_MultiProcessingDataLoaderIter", 2, 5.0),
        ("_MultiProcessingDataLoaderIter", 4, 4.0),
    ],
)
def test_more_workers_load_ahead(load: Load, name: str, factor: float, left_ms: float) -> None:
    steps = steps_in(load(loading(name)))
    edit = Edit(steps)
    assert more_workers(steps, factor).apply(edit) == 3
    assert edit.step_ns == pytest.approx(left_ms * 1_000 * US, abs=30 * US)
    assert sum(part.ns for part in critical_path(edit)) == pytest.approx(edit.step_ns)
    assert path_by_kind(critical_path(edit)).get("added", 0) == pytest.approx(
        max(left_ms - 4, 0) * 1_000 * US, abs=30 * US
    )


def test_workers_take_as_long_whatever_else_is_changed(load: Load) -> None:
    steps = steps_in(load(loading("_MultiProcessingDataLoaderIter")))
    edit = Edit(steps)
    changes.scale(steps, "work", 0.25).apply(edit)
    more_workers(steps, 2).apply(edit)
    assert edit.step_ns == pytest.approx(5_000 * US, rel=0.01)


def test_loading_in_some_steps_holds_back_the_mean(load: Load) -> None:
    """60 ms of loading in one of three steps: one worker beside them takes 20 ms a step."""
    built = loading("_SingleProcessDataLoaderIter", 100 * US)
    shift = 60_000.0
    for event in built.events:
        if event["ts"] >= 11_000:
            event["ts"] += shift
        if event["ts"] < 11_000 and event["cat"] == "user_annotation" and event["name"].startswith("enumerate"):
            event["dur"] = shift
        elif event["ts"] < 11_000 and event["ts"] > 0:
            event["ts"] += shift
        elif event["name"] == "ProfilerStep#0":
            event["dur"] += shift
    built.events = [
        event for event in built.events if not (event["ts"] > 11_000 and event["name"].startswith("enumerate"))
    ]
    steps = steps_in(load(built))
    edit = Edit(steps)
    more_workers(steps, 1).apply(edit)
    assert edit.step_ns == pytest.approx(20_000 * US, rel=0.01)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300])
def test_factors_are_numbers_above_zero(load: Load, factor: float) -> None:
    steps = steps_in(load(loading("_SingleProcessDataLoaderIter")))
    with pytest.raises(UsageError, match="a factor is a number above 0"):
        more_workers(steps, factor)
    with pytest.raises(UsageError, match="a factor is a number above 0"):
        other_batch(steps, factor, steps)
    with pytest.raises(UsageError, match="a factor is a number above 0"):
        changes.bandwidth(steps, "memory", factor, ())
    if factor:
        with pytest.raises(UsageError, match="a factor is a number above 0"):
            changes.scale(steps, "work", factor)
    with pytest.raises(UsageError, match="there is no such link"):
        changes.bandwidth(steps, "ethernet", 2, ())


def test_workers_that_nobody_waits_for_are_no_change(load: Load) -> None:
    with pytest.raises(UsageError, match="no step waits for them"):
        more_workers(steps_in(load(loading("_MultiProcessingDataLoaderIter", 100 * US))), 2)
    with pytest.raises(UsageError, match="no step of the trace loads"):
        more_workers(steps_in(load(host_bound())), 2)
