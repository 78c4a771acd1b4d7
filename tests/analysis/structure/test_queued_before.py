"""Work without a recorded launch: queued before the recording began, or lost."""

from collections.abc import Callable

import pytest

from opscope.analysis.analyzed import Analysis
from opscope.documents.verdict import CheckName, Verdict
from tests.kineto import KinetoTrace

US = 1_000


@pytest.mark.parametrize(("pause", "verdict"), [(2 * US, Verdict.WARN), (800 * US, Verdict.FAIL)])
def test_what_was_queued_follows_without_a_pause(
    analyzed: Callable[[KinetoTrace], Analysis], pause: int, verdict: Verdict
) -> None:
    """Nine kernels without a launch before the first that has one: after a pause they are lost records."""
    trace = KinetoTrace()
    for number in range(9):
        trace.slice("kernel", "early", number * (200 * US + pause), 200 * US, device=0, stream=7)
    begin = 9 * (200 * US + pause)
    trace.operator("aten::mm", begin, 20 * US)
    trace.launched_kernel("gemm", (begin + 2 * US, 5 * US), (begin + 10 * US, 100 * US))
    trust = analyzed(trace).trust
    check = next(check for check in trust.checks if check.name == CheckName.LAUNCH_RECORDED)
    assert check.verdict is verdict
    assert ("queued when it began" in check.sentence) is (verdict is Verdict.WARN)
