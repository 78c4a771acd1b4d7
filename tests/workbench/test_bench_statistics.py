"""The statistics of benchmarks against simulated clocks, and by hand."""

import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.documents.bench import (
    BenchResult,
    Correct,
    Correctness,
    Duration,
    Measure,
    SpeedVerdict,
    Steady,
    Stopped,
    VariantComparison,
    headline,
)
from opscope.measuring.rounds import (
    Calls,
    MeasuringLimits,
    Timer,
    holm,
    in_turns,
    is_steady,
    median_interval,
    next_look,
    ratios,
    sign_test,
    stopped,
)
from opscope.measuring.verdicts import between_sessions, compare, pairs_of, verdict_of


def test_the_interval_of_a_median_by_hand() -> None:
    """Of ten samples the second and the ninth: 97.9 % (Conover); of six the first and the last; of five none."""
    assert median_interval(range(1, 11)).low == 2
    assert median_interval(range(1, 11)).high == 9
    assert (median_interval([3, 1, 2, 6, 5, 4]).low, median_interval([3, 1, 2, 6, 5, 4]).high) == (1, 6)
    assert median_interval([1, 2, 3, 4, 5]).low is None


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(2_000):
        found = median_interval([draw.lognormvariate(0, 1) for _ in range(40)])
        held += found.low is not None and found.high is not None and found.low <= 1 <= found.high
    assert 0.94 <= held / 2_000 <= 0.98


@given(st.lists(st.floats(min_value=1e-3, max_value=1e9), min_size=1, max_size=300))
def test_an_interval_is_made_of_samples_around_the_median(samples: list[float]) -> None:
    found = median_interval(samples)
    assert found.median == statistics.median(samples)
    if found.low is not None and found.high is not None:
        assert found.low in samples
        assert found.low <= found.median <= found.high


def test_the_sign_test_and_holms_correction_by_hand() -> None:
    assert sign_test([0.9] * 6) == pytest.approx(2 / 64)
    assert sign_test([0.9, 1.1]) == 1.0
    assert sign_test([1.0, 1.0]) == 1.0
    # 3 x 0.01, then 2 x 0.02, then the larger of 0.04 and 0.03.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])


def simulated(clock: Callable[[str, int], float], seed: int) -> Timer:
    """Return a timer of a machine that does not exist: a function of the name and of the number of the call."""
    del seed
    count = 0

    def rounds(calls: Calls, orders: Sequence[Sequence[str]]) -> list[list[float]]:
        nonlocal count
        assert calls
        found = []
        for order in orders:
            row = []
            for name in order:
                row.append(clock(name, count))
                count += 1
            found.append(row)
        return found

    return rounds


def nothing() -> None:
    pass


LIMITS = MeasuringLimits(seconds=60.0, calls=400)


def verdict(truth: float, kind: str, seed: int) -> SpeedVerdict:
    """Compare two functions of 50 us on a machine whose clock drifts, whose samples have outliers or two modes."""
    draw = random.Random(seed)

    def clock(name: str, call: int) -> float:
        time = 50_000 * (truth if name == "b" else 1.0) * draw.gauss(1.0, 0.005)
        if kind == "drift":
            time *= 1 + 0.05 * call / 800
        elif kind == "outliers":
            time *= 3 if draw.random() < 0.05 else 1
        elif kind == "two modes":
            time *= 1.04 if draw.random() < 0.3 else 1
        return time

    samples = in_turns(simulated(clock, seed), {"a": nothing, "b": nothing}, LIMITS, seed=seed).samples
    found = ratios(samples["a"], samples["b"])
    return verdict_of(median_interval(found), sign_test(found))


@pytest.mark.parametrize("kind", ["still", "drift", "outliers", "two modes"])
def test_equal_functions_differ_rarely_and_a_percent_is_found(kind: str) -> None:
    trials = 200
    alarms = sum(verdict(1.0, kind, seed) in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER) for seed in range(trials))
    assert alarms <= 0.05 * trials
    found = sum(verdict(1.01, kind, seed) is SpeedVerdict.SLOWER for seed in range(trials // 2))
    assert found >= 0.9 * trials / 2


def test_rounds_go_on_until_every_median_and_ratio_is_known() -> None:
    draw = random.Random(3)
    noisy = in_turns(
        simulated(lambda name, _: draw.gauss(1_000, 200 if name == "b" else 1), 0), {"a": nothing, "b": nothing}, LIMITS
    )
    still = in_turns(simulated(lambda *_: draw.gauss(1_000, 1), 0), {"a": nothing, "b": nothing}, LIMITS)
    assert still.stopped is Stopped.CONFIDENT
    assert len(still.samples["a"]) == len(still.samples["b"]) == 16
    assert noisy.stopped is Stopped.CALLS
    assert len(noisy.samples["a"]) == 400


def test_when_measuring_stops() -> None:
    limits = MeasuringLimits(seconds=1.0, calls=100)
    assert stopped([1.0] * 15, 0.1, limits) is None
    assert stopped([1.0] * 16, 0.1, limits) is Stopped.CONFIDENT
    assert stopped([1.0] * 17, 0.1, limits) is None  # looked at after 16, 32, 64 only
    assert stopped([1.0, 2.0] * 8, 2.0, limits) is Stopped.TIME
    assert stopped([1.0, 2.0] * 4, 2.0, limits) is None  # too few to tell variants apart
    assert stopped([1.0, 2.0] * 4, 5.0, limits) is Stopped.TIME
    assert stopped([1.0, 2.0] * 50, 0.1, limits) is Stopped.CALLS
    assert [next_look(n, limits) for n in (0, 16, 31, 64)] == [16, 32, 32, 100]
    assert not is_steady([[1.0]] * 9, 1e6)
    assert not is_steady([[3.0], [1.0], [1.0]], 1e9)
    assert is_steady([[3.0], [1.0], [1.0], [1.01]], 1e9)


def result(name: str, samples: Sequence[float], **more: object) -> BenchResult:
    wall = Duration(
        median=statistics.median(samples), ci_low=None, ci_high=None, n=len(samples), samples=tuple(samples),
        stopped=Stopped.CALLS,
    )  # fmt: skip
    return BenchResult(name=name, case="case", wall_ns=wall, **more)  # type: ignore[arg-type]


def checked(verdict: Correct) -> Correctness:
    return Correctness(verdict=verdict, sentence="TIF32-like", reference="r", tolerance=1e-5)


def test_what_is_said_of_variants() -> None:
    base = [100.0, 101, 99, 100, 102, 98] * 4
    results = [
        result("base", base),
        result("half", [value / 2 for value in base]),
        result("same", [value * 1.001 for value in base]),
        result("wild", [value * factor for value, factor in zip(base, [0.5, 2.0] * 12, strict=True)]),
        result("wrong", base, correctness=checked(Correct.WRONG)),
        result("rough", [value / 3 for value in base], correctness=checked(Correct.LOWER_PRECISION)),
        result("slowed", [value / 4 for value in base], doubts=("the device was slowed down",)),
    ]
    found = {comparison.variant: comparison for comparison in compare(pairs_of(results))}
    assert {name: comparison.verdict for name, comparison in found.items()} == {
        "half": SpeedVerdict.FASTER,
        "same": SpeedVerdict.NO_DIFFERENCE,
        "wild": SpeedVerdict.INCONCLUSIVE,
        "wrong": SpeedVerdict.WRONG,
        "rough": SpeedVerdict.FASTER,
        "slowed": SpeedVerdict.INCONCLUSIVE,
    }
    assert found["half"].ratio == pytest.approx(0.5)
    assert "2.000 times as fast" in found["half"].sentence
    assert "No difference found, +-0.1 %" in found["same"].sentence
    assert "lower precision" in found["rough"].sentence
    assert found["half"].measure is Measure.WALL


def test_a_gain_is_split_into_precision_and_implementation() -> None:
    base = [100.0, 101, 99, 100] * 8
    lower = checked(Correct.LOWER_PRECISION)
    precise = Correctness(**{**{f: getattr(lower, f) for f in lower.__struct_fields__}, "precision": "tf32"})
    found = compare(
        pairs_of(
            [
                result("base", base),
                result("mine", [value / 6 for value in base], correctness=precise),
                result("base at tf32", [value / 5 for value in base]),
            ]
        )
    )
    assert "The precision alone makes 5.000 times of it, the implementation 1.200 times" in found[0].sentence
    assert found[1].variant == "base at tf32"


def test_many_comparisons_need_more_each() -> None:
    """Seven rounds alone say something (p = 0.016 is not enough at 1 %); eight do, but not if twenty are compared."""
    base = [100.0] * 8
    one = compare(pairs_of([result("base", base), result("v", [90.0] * 8)]))
    assert one[0].verdict is SpeedVerdict.FASTER
    many = compare(pairs_of([result("base", base), *(result(f"v{n}", [90.0] * 8) for n in range(20))]))
    assert {comparison.verdict for comparison in many} == {SpeedVerdict.INCONCLUSIVE}


def test_kernels_that_recording_slows_are_compared_by_events() -> None:
    """5.7 us of kernels in 5.3 us: what ran on the device took 5.3 us, and the variants take the same."""

    def timed(name: str, kernel: float, event: float) -> BenchResult:
        def each(value: float) -> Duration:
            samples = (value,) * 16
            return Duration(median=value, ci_low=value, ci_high=value, n=16, samples=samples, stopped=Stopped.CONFIDENT)

        return result(name, [6.0] * 16, kernel_ns=each(kernel), event_ns=each(event))

    base, slowed, near = timed("base", 5.0, 5.3), timed("slowed", 5.7, 5.3), timed("near", 5.2, 5.3)
    assert [one.kernels_exceed_events for one in (base, slowed, near)] == [False, True, False]
    found = compare(pairs_of([base, slowed, near]))
    assert [(one.measure, one.verdict) for one in found] == [
        (Measure.EVENT, SpeedVerdict.NO_DIFFERENCE),
        (Measure.KERNEL, SpeedVerdict.SLOWER),
    ]
    assert headline([base, slowed]) is Measure.EVENT
    assert headline([base, near]) is Measure.KERNEL


def test_what_the_host_issues_slowly_is_told_by_its_clock_too() -> None:
    """Twenty kernels that take as long in a graph, which is issued in a seventh of the time."""

    def timed(name: str, wall: float, *, launch_bound: bool) -> BenchResult:
        samples = (22.0,) * 16
        kernels = Duration(median=22.0, ci_low=22.0, ci_high=22.0, n=16, samples=samples, stopped=Stopped.CONFIDENT)
        return result(name, [wall] * 16, kernel_ns=kernels, launch_bound=launch_bound)

    one, graph = timed("one by one", 420.0, launch_bound=True), timed("graph", 60.0, launch_bound=True)
    (found,) = compare(pairs_of([one, graph]))
    assert (found.measure, found.verdict) == (Measure.KERNEL, SpeedVerdict.NO_DIFFERENCE)
    assert "by the host's clock 0.143 times as long (0.143 to 0.143)" in found.sentence
    (other,) = compare(pairs_of([timed("a", 60.0, launch_bound=False), timed("b", 60.0, launch_bound=False)]))
    assert "by the host's clock" not in other.sentence


def test_contention_widens_an_interval_by_what_a_call_differs_from_itself() -> None:
    steady = Steady(
        ns=1.0, ci_low=1.0, ci_high=1.0, pieces=1.0, pieces_low=1.0, pieces_high=1.0, piece_ns=1.0,
        same_low=0.8, same_high=1.1, rounds=9, of_rounds=9,
    )  # fmt: skip
    samples = [100.0] * 20

    def compared(waited: str | None, factor: float) -> VariantComparison:
        others = [factor * one for one in samples]
        both = [
            result("a", samples, contention=waited, steady=steady),
            result("b", others, contention=waited, steady=steady),
        ]
        (found,) = compare(pairs_of(both))
        return found

    quiet, busy = compared(None, 1.2), compared("waited", 1.2)
    assert (quiet.ci_low, quiet.ci_high, quiet.verdict) == (1.2, 1.2, SpeedVerdict.SLOWER)
    assert (busy.ci_low, busy.ci_high) == (pytest.approx(0.96), pytest.approx(1.5))
    assert busy.verdict is SpeedVerdict.INCONCLUSIVE
    assert compared("waited", 0.1).verdict is SpeedVerdict.FASTER


def test_sessions_without_a_common_yardstick_differ_by_more_than_machines_do() -> None:
    def steady(ns: float, *, several_threads: bool) -> Steady:
        return Steady(
            ns=ns, ci_low=0.99 * ns, ci_high=1.01 * ns, pieces=ns, pieces_low=0.99 * ns, pieces_high=1.01 * ns,
            piece_ns=1.0, same_low=1.0, same_high=1.0, rounds=20, of_rounds=20, several_threads=several_threads,
        )  # fmt: skip

    before = steady(1_000, several_threads=False)
    low, high = between_sessions(before, steady(1_300, several_threads=False))
    assert 1.2 < low < 1.3 < high < 1.4
    low, high = between_sessions(before, steady(1_300, several_threads=True))
    assert low < 1 < high  # a slower machine explains that
    low, high = between_sessions(before, steady(40_000, several_threads=True))
    assert 7 < low < 8  # 40 times as long is more than any machine's speed explains
