"""How much work waits on a device over time: launched by a call that returned, and not yet begun."""

from collections.abc import Callable

import numpy as np
import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.structure.queues import queues_of, waiting_since
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
