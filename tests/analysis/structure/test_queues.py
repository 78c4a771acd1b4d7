"""How much work waits on a device over time: launched by a call that returned, and not yet begun."""

from collections.abc import Callable

import numpy as np
import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.structure.streams import queue_by_kernel, queue_over_time, queues_of, waiting_since
from opscope.trace.model import Trace
from tests.analysis.test_recorded_traces import NAMES
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]


def test_work_waits_from_the_return_of_its_launch_to_its_begin(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("first", (1_000, 500), (2_000, 5_000))
    trace.launched_kernel("second", (2_000, 500), (7_000, 1_000))
    trace.launched_kernel("third", (3_000, 500), (8_000, 1_000), stream=9)
    trace.launched_kernel("at once", (9_000, 5_000), (10_000, 1_000))  # it begins while the call still runs
    trace.kernel("unlinked", 20_000, 1_000)
    analysis = analyzed(trace)
    (queue,) = queues_of(analysis.trace, analysis.links)
    begin = int(queue.time_ns[0])
    assert queue.device == 0
    assert (queue.time_ns - begin).tolist() == [0, 500, 1_000, 2_000, 5_500, 6_500]
    assert queue.waiting.tolist() == [1, 0, 1, 2, 1, 0]


def test_devices_have_queues_of_their_own(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("one", (0, 100), (1_000, 500), device=0)
    trace.launched_kernel("other", (200, 100), (5_000, 500), device=1)
    analysis = analyzed(trace)
    found = list(queues_of(analysis.trace, analysis.links))
    assert [(queue.device, queue.waiting.tolist()) for queue in found] == [(0, [1, 0]), (1, [1, 0])]
    assert [int(np.diff(queue.time_ns)[0]) for queue in found] == [900, 4_700]


@pytest.mark.parametrize("name", NAMES)
def test_every_queue_begins_and_ends_empty(recorded: Callable[[str], Trace], name: str) -> None:
    analysis = analyze(recorded(name))
    since, start = waiting_since(analysis.trace, analysis.links), analysis.trace.activities["start_ns"].to_numpy()
    assert (since <= start).all()
    for queue in queues_of(analysis.trace, analysis.links):
        assert (np.diff(queue.time_ns) > 0).all()
        assert (queue.waiting.min(), queue.waiting[-1]) == (0, 0)
        # The time that activities wait is the area below the curve.
        mine = analysis.trace.activities["device"].to_numpy() == queue.device
        area = int((np.diff(queue.time_ns) * queue.waiting[:-1]).sum())
        assert area == int((start - since)[mine].sum())


def three_launches() -> KinetoTrace:
    trace = KinetoTrace()
    trace.launched_kernel("first", (1_000, 500), (2_000, 5_000))
    trace.launched_kernel("second", (2_000, 700), (7_000, 1_000))
    trace.launched_kernel("second", (3_000, 500), (8_000, 1_000))
    return trace


def test_each_kernel_says_how_it_was_launched(analyzed: Analyze) -> None:
    analysis = analyzed(three_launches())
    rows = {row["name"]: row for row in queue_by_kernel(analysis.trace, analysis.links).iter_rows(named=True)}
    first = rows["first"]
    assert (first["launches"], first["api_ns"], first["latencies"], first["latency_ns"]) == (1, 500, 1, 500)
    assert (first["backlogs"], first["backlog_ns"], first["waiting"], first["device_ns"]) == (0, None, 0, 5_000)
    second = rows["second"]
    assert (second["launches"], second["api_ns"], second["latencies"], second["latency_ns"]) == (2, 600, 0, None)
    # One returned at 2.7 us and began at 7, the other at 3.5 and 8, when the first of them still waited.
    assert (second["backlogs"], second["backlog_ns"], second["waiting"]) == (2, 4_400, 0.5)


def test_over_time_the_lengths_are_those_of_the_curve(analyzed: Analyze) -> None:
    analysis = analyzed(three_launches())
    table = queue_over_time(analysis.trace, analysis.links)
    assert table.height == 20
    assert table["launches"].sum() == 3
    lengths = (table["to_ns"] - table["from_ns"]).to_numpy()
    # 0.5 us for the first, 4.3 and 4.5 us for the others.
    assert (table["waiting"].to_numpy() * lengths).sum() == pytest.approx(500 + 4_300 + 4_500)
    assert table["most_waiting"].max() == 2
    assert (table["from_ns"][1:].to_numpy() == table["to_ns"][:-1].to_numpy()).all()


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_recorded_traces_add_up_to_the_launches(recorded: Callable[[str], Trace], name: str) -> None:
    analysis = analyze(recorded(name))
    known = int((analysis.links.activity_launch >= 0).sum())
    by_kernel = queue_by_kernel(analysis.trace, analysis.links)
    assert by_kernel["launches"].sum() == known
    assert (by_kernel["latencies"] + by_kernel["backlogs"]).sum() == known
    spread = analysis.launches
    found = (spread.latency.count if spread.latency else 0, spread.backlog.count if spread.backlog else 0)
    assert (by_kernel["latencies"].sum(), by_kernel["backlogs"].sum()) == found
