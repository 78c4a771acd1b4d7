"""What a call launched, by the range on the host that its launches lie in: on traces made by hand."""

from pathlib import Path

import pytest

from tests.kineto import KinetoTrace

pytest.importorskip("torch")

from opscope.workbench.benchmarking.device_timing import attributed

pytestmark = pytest.mark.torch
US = 1_000


def test_kernels_belong_to_the_range_of_their_launch(tmp_path: Path) -> None:
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    trace.launched_kernel("flush", (1 * US, 2 * US), (5 * US, 100 * US))  # before any range
    trace.annotation("opscope.bench#0", 10 * US, 20 * US)
    # Launched within the first range; they run after the second range began.
    trace.launched_kernel("same_name", (12 * US, 2 * US), (110 * US, 7 * US))
    trace.launched_kernel("same_name", (20 * US, 2 * US), (120 * US, 5 * US), stream=9)
    trace.launched_kernel("flush", (31 * US, 2 * US), (130 * US, 100 * US))
    trace.annotation("opscope.bench#1", 40 * US, 20 * US)
    trace.launched_kernel("same_name", (45 * US, 2 * US), (235 * US, 3 * US))
    trace.annotation("opscope.bench#2", 70 * US, 5 * US)  # launches nothing
    found = attributed(trace.write(tmp_path / "t.json"), 3)
    assert [(call.total_ns, call.count) for call in found] == [(12 * US, 2), (3 * US, 1), (0, 0)]
    assert len(found[0].streams) == 2


def test_a_trace_without_ranges_has_nothing_of_any_call(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.launched_kernel("k", (1 * US, 2 * US), (5 * US, 10 * US))
    assert [call.count for call in attributed(trace.write(tmp_path / "t.json"), 2)] == [0, 0]
