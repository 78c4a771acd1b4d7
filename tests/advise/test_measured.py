"""What follows from times: gains within noise are none, whatever they seem."""

import pytest

from opscope.advise.measured import ChangeResult, is_faster, least_gain, not_decidable, of_itself, verdict
from opscope.advise.proof import Judgement
from opscope.advise.session import Worker
from opscope.documents.advise import Outcome
from opscope.measuring.rounds import Interval


def known(median: float, low: float | None, high: float | None, least: float = 1.02) -> ChangeResult:
    return ChangeResult(gain=Interval(median, low, high, 13), least=least)


@pytest.mark.parametrize(
    ("measured", "faster", "says"),
    [
        (known(1.5, 1.4, 1.6), True, "others of its class are proven"),
        (known(1.5, None, None), True, "others of its class are proven"),
        (known(1.01, 1.005, 1.015), False, "it is within what the step differs from itself, up to 1.02"),
        (known(1.4, 1.2, 1.6, least=1.25), False, "its interval reaches into what the step differs from itself"),
        (known(0.5, 0.4, 0.6), False, "beyond what the step differs from itself, up to 1.02"),
        (known(0.9, 0.7, 1.1, least=1.05), False, "its interval reaches into what the step differs from itself"),
        (known(4.0, 3.9, 4.1, least=2.0), False, "the machine is busy"),
        (ChangeResult(gain=Interval(9.0, 8.0, 10.0, 13), waited=0.6), False, "waited for a core 60% of the time"),
        (ChangeResult(broken="it raises"), False, "it raises"),
    ],
)
def test_a_gain_must_exceed_what_the_step_differs_from_itself(measured: ChangeResult, faster: bool, says: str) -> None:
    assert is_faster(measured) == faster
    outcome, reason = verdict(measured, None)
    assert says in reason
    assert (outcome is Outcome.TIMED) == faster


def test_only_what_is_faster_and_right_is_proven() -> None:
    fast, slow = known(1.5, 1.4, 1.6), known(1.0, 0.9, 1.1)
    right, wrong, unknown = (Judgement(one, "because", 1e-6, 1e-6) for one in (True, False, None))
    assert verdict(fast, right) == (Outcome.PROVEN, "because")
    assert verdict(fast, wrong) == (Outcome.REJECTED, "because")
    assert verdict(fast, unknown) == (Outcome.UNDECIDED, "because")
    assert verdict(slow, right)[0] is Outcome.NO_DIFFERENCE
    assert verdict(known(0.5, 0.4, 0.6), right)[0] is Outcome.SLOWER
    assert verdict(ChangeResult(broken="nothing was compiled", no_effect=True), None)[0] is Outcome.NO_DIFFERENCE


@pytest.mark.parametrize(
    ("gain", "least", "waited", "says"),
    [
        (Interval(1.0, 0.99, 1.01, 13), 1.02, 0.0, None),
        (Interval(1.1, 1.0, 7.4, 13), 1.02, 0.0, "1.00 to 7.40 times"),
        (Interval(5.0, 3.0, 8.0, 13), 1.02, 0.0, None),  # a gain in any case
        (Interval(1.0, 0.99, 1.01, 13), 1.02, 0.6, "60% of the time"),
        (Interval(1.0, 0.99, 1.01, 13), 2.0, 0.0, "by up to 2.00 times"),
    ],
)
def test_noise_neither_blames_nor_acquits(gain: Interval, least: float, waited: float, says: str | None) -> None:
    found = not_decidable(gain, least, waited)
    assert found is None if says is None else says in str(found)


def test_what_was_not_compared_says_so() -> None:
    outcome, reason = verdict(known(1.5, 1.4, 1.6), None, is_best_known=False)
    assert (outcome, reason) == (Outcome.TIMED, "it was not compared with float64")


def test_processes_that_were_started_later_are_compared_in_the_rounds_in_which_both_ran() -> None:
    early, late = timed(9.0, 9.0, *[2.0] * 6), timed(*[1.0] * 6)
    assert least_gain(early, late) == least_gain(late, early) == 2.0
    assert of_itself(early, late) == (2.0, 2.0)


def timed(*blocks: float) -> Worker:
    worker = Worker.__new__(Worker)
    worker.blocks = list(blocks)
    return worker


def test_what_was_not_waited_for_is_not_rejected() -> None:
    late = ChangeResult(broken="it took longer than 38 s", is_passing=True)
    assert verdict(late, None) == (Outcome.UNDECIDED, "it took longer than 38 s")
    assert verdict(ChangeResult(broken="ValueError: x"), None)[0] is Outcome.REJECTED
