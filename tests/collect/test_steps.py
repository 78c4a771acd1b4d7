"""Steps one after the other: followed in a stream of events, timed, judged; and two kinds are never compared."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.trust.checks import check_steady
from opscope.analysis.trust.step_time import steadiness_of
from opscope.collect.script.clock import CycleClock
from opscope.collect.script.finder import CyclePlace, Follower, Updates
from opscope.collect.script.step_events import RANKED, Expected, Identities, Pattern, Stream, next_run
from opscope.documents.verdict import Verdict
from opscope.record.capture import ScriptRun, StepKind, Timed, WantedSteps
from tests.command import opscope
from tests.conftest import DATA

CHANGES = DATA / "changes"


def followed(cycle: str, count: int, events: str) -> str:
    """Follow a repetition; return a letter per event: inside, cycle, start, lost."""
    follower = Follower(Pattern(tuple(cycle), 0, len(cycle), count, len(cycle) * count, 0.0), 0)
    letters = {CyclePlace.INSIDE: "i", CyclePlace.CYCLE: "c", CyclePlace.START: "s", CyclePlace.LOST: "l"}
    return "".join(letters[follower.event((key, key, key))] for key in events)


@pytest.mark.parametrize(
    ("cycle", "events", "expected"),
    [
        ("A", "AAA", "ccc"),
        ("AB", "ABAB", "icic"),
        ("A", "AXAA", "clsc"),  # what comes first after something else has no known beginning
        ("ABC", "ABXABCABC", "iilllsiic"),
        ("AB", "BAB", "sic"),
    ],
)
def test_whole_cycles_are_told_from_interrupted_ones(cycle: str, events: str, expected: str) -> None:
    assert followed(cycle, 3, events) == expected


@given(st.lists(st.sampled_from("ABX"), max_size=80))
def test_a_whole_cycle_is_one_without_anything_between(events: list[str]) -> None:
    places = followed("AB", 3, "".join(events))
    for index, place in enumerate(places):
        if place == "c":
            assert events[index - 1 : index + 1] == ["A", "B"]
            assert index == 1 or places[index - 2] in "cs"


def test_a_short_run_may_be_a_part_of_a_longer_cycle() -> None:
    for count, resumes in ((3, False), (12, True)):
        follower = Follower(Pattern(("A",), 0, 1, count, count, 0.0), 0)
        follower.event(("X", "X", "X"))
        assert follower.may_resume is resumes


# Two optimizers in turns, 1 and 2, each with the modules that were called before it: a model and a loss.
GAN = ((1, (3, 4)), (2, (3, 5)))
LIKE = ((1, (3, 4)), (2, (3, 4)))  # the same, and nothing but their order tells the first from the second


@pytest.mark.parametrize(
    ("cycle", "events", "astray", "followed_by"),
    [
        (GAN, [(1, (3, 9)), (2, (3, 5))], 24, (1, (3, 9))),  # one loss is new
        (GAN, [(2, (3, 5)), (1, (3, 9))], 25, (2, (3, 5))),  # seen from within a cycle
        (GAN, [(7, (8, 9)), (6, (8, 10))], 24, (7, (8, 9))),  # all is new
        (LIKE, [(7, (8, 9)), (6, (8, 9))], 24, (7, (8, 9))),  # the cycle begins where the last one has ended
        (GAN, [(1, (3, 5)), (2, (3, 4))], 24, None),  # nothing is new: another phase, and the first may come back
        (GAN, [(1, (3, 9)), (2, (3, 9))], 24, None),  # two losses became one
        (GAN, [(1, (3, 9, 10)), (2, (3, 5))], 24, None),  # something else is called, too
    ],
)
def test_a_cycle_goes_on_with_new_objects(
    cycle: tuple[tuple[int, tuple[int, ...]], ...],
    events: list[tuple[int, tuple[int, ...]]],
    astray: int,
    followed_by: tuple[int, tuple[int, ...]] | None,
) -> None:
    follower = Follower(Pattern(cycle, 0, 2, 12, 24, 0.0), 0)

    def is_new(_: int, number: int) -> bool:
        return number > 5

    renamed = follower.renamed(events * 12, astray, is_new)
    assert (renamed is None) is (followed_by is None)
    if renamed is None or followed_by is None:
        return
    assert follower.renamed(events * 11, astray - 2, is_new) is None  # too few
    weaker = renamed.at_level(1)
    assert weaker is not None
    whole = [CyclePlace.INSIDE, CyclePlace.CYCLE] if astray == 24 else [CyclePlace.START, CyclePlace.INSIDE]
    for one in (renamed, weaker):  # the weaker one whatever is called
        assert [one.event((key, key[0], "Adam")) for key in events] == whole
    assert weaker.event(((events[0][0], ()), events[0][0], "Adam")) is not CyclePlace.LOST


def test_where_a_cycle_begins_is_not_guessed() -> None:
    """Of one optimizer that steps twice a cycle, only the calls tell the first step from the second."""
    assert Follower(Pattern(((1, (3, 3)), (1, (3,))), 0, 2, 12, 24, 0.0), 0).at_level(1) is None


def test_objects_that_are_gone_do_not_come_back() -> None:
    class Thing:
        pass

    names, kept, lost = Identities(), Thing(), Thing()
    numbers = [names.of(kept)[0], names.of(lost)[0]]
    assert not names.are_gone(numbers[1:])
    assert names.newest == 2
    assert names.are_alike(*numbers)
    assert not names.are_alike(numbers[0], names.of(set[int])[0])
    del lost
    assert names.are_gone(numbers[1:])
    assert not names.are_gone(numbers)


def test_a_clock_counts_whole_cycles_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CycleClock(on_device=False)
    clock.start(1)
    clock.cycle(11)
    monkeypatch.setattr("time.perf_counter_ns", lambda: 15)
    clock.leave_out(11)  # opscope's own: until 15
    clock.cycle(25)
    clock.skip()
    clock.cycle(90)  # begins after the break
    clock.cycle(100)
    assert clock.times().wall_ns == (10, 10, 10)
    assert not clock.enough


def test_what_comes_between_cycles_does_not_have_them_timed_for_ever() -> None:
    """Cycles of a millisecond, one a second: after 75 s there are 75, which is enough."""
    clock, ms = CycleClock(on_device=False), 1_000_000
    for second in range(76):
        assert clock.enough is (second > 75)
        clock.start(1 + second * 1_000 * ms, second, second)
        clock.cycle(1 + second * 1_000 * ms + ms, second + 1, second)
        clock.skip()
    assert clock.enough
    assert not clock.goes_on()


def test_steps_that_were_not_followed_for_a_while_are_no_stretch_between() -> None:
    for forgets, stretches in ((True, 0), (False, 1)):
        clock = CycleClock(on_device=False)
        clock.start(1)
        clock.cycle(11)
        clock.skip()
        if forgets:
            clock.forget_skipped()
        clock.start(200)
        clock.cycle(210)
        assert len(clock.times().between) == stretches


# ---------------------------------------------------------------- which steps


def streams(**counts: int) -> dict[StepKind, Stream]:
    found = {kind: Stream(kind) for kind in RANKED}
    for name, count in counts.items():
        for number in range(count):
            found[StepKind[name]].events.add(("k", "k", "k"), 1000.0 * number)
    return found


def test_a_lower_kind_waits_for_an_optimizer_that_is_alive() -> None:
    class Optimizer:
        pass

    optimizer = Optimizer()
    expected = Expected(ScriptRun(), streams())
    assert not expected.better_than(StepKind.EVALUATION)
    expected.optimizer_made(optimizer)
    assert expected.better_than(StepKind.EVALUATION)
    assert not expected.better_than(StepKind.TRAINING)
    del optimizer
    assert not expected.better_than(StepKind.EVALUATION)
    impatient = Expected(ScriptRun(patience_s=0.0), streams(TRAINING=1))
    assert not impatient.better_than(StepKind.EVALUATION)
    asked = Expected(ScriptRun(WantedSteps(StepKind.EVALUATION)), streams(TRAINING=9))
    assert asked.wants(StepKind.EVALUATION)
    assert not asked.wants(StepKind.TRAINING)


@pytest.mark.parametrize(
    ("counts", "kind", "records"),
    [
        ({"EVALUATION": 200}, StepKind.EVALUATION, False),
        ({"EVALUATION": 200, "TRAINING": 100}, StepKind.TRAINING, False),
        ({"EVALUATION": 200, "TRAINING": 2}, StepKind.EVALUATION, False),  # two are not repetition
        ({"TRAINING": 5}, StepKind.TRAINING, True),
        ({"CALLS": 1}, StepKind.CALLS, True),
        ({}, None, True),
    ],
)
def test_what_another_run_makes_up(counts: dict[str, int], kind: StepKind | None, *, records: bool) -> None:
    found = next_run(ScriptRun(), streams(**counts), Timed((5, 5)))
    assert (found.wanted.kind, found.records, found.may_repeat, found.times) == (kind, records, False, Timed())
    three = Timed((5, 5, 5), by_device=True)
    assert next_run(ScriptRun(), streams(**counts), three).times == three
    if counts.get("EVALUATION"):
        seen = streams(**counts)[StepKind.EVALUATION].seen()
        assert seen is not None
        assert (seen.count, seen.median_ns) == (200, 1000)


def test_events_of_a_program_that_waits_for_long_are_dropped() -> None:
    stream = Stream(StepKind.EVALUATION)
    for number in range(10_000):
        stream.events.add(("k", "k", "k"), float(number))
    assert stream.events.count == 10_000
    assert len(stream.events.ends) < 5_000
    assert stream.events.repetition(6) is not None


@pytest.mark.torch
def test_an_update_of_parameters_is_seen_whoever_makes_it() -> None:
    torch = pytest.importorskip("torch")
    net, updates = torch.nn.Linear(2, 2), Updates()
    assert not updates.since_last(1, net)
    assert not updates.since_last(1, net)
    torch.optim.SGD(net.parameters(), lr=0.1).step()  # without gradients: nothing changes
    assert not updates.since_last(1, net)
    with torch.no_grad():
        net.weight.add_(1.0)
    assert updates.since_last(1, net)
    assert not updates.since_last(1, net)
    assert not Updates().since_last(1, torch.nn.ReLU())
    with torch.inference_mode():
        made = torch.nn.Linear(2, 2)
    assert not updates.since_last(2, made)


# ---------------------------------------------------------------- whether they took the same time


def test_parts_and_trend_by_hand() -> None:
    alike = steadiness_of([100] * 16)
    assert alike is not None
    assert (alike.low_ns, alike.high_ns, alike.change) == (100.0, 100.0, None)
    rising = steadiness_of(list(range(1000, 1040)))
    assert rising is not None
    assert rising.change == pytest.approx(39 / 1019.5)
    assert (rising.low_ns, rising.high_ns) == (1002.0, 1037.0)
    assert steadiness_of([1] * 15) is None


@given(st.integers(0, 2**32 - 1))
def test_noise_is_no_trend(seed: int) -> None:
    """Of a thousand clocks of noise alone some ten would be said to change; by how much is bounded."""
    samples = np.random.default_rng(seed).normal(1e6, 1e4, 200).astype(int)
    found = steadiness_of(samples.tolist())
    assert found is not None
    assert found.change is None or abs(found.change) < 0.02


def test_a_clock_that_changes_is_said_with_the_device_beside_it() -> None:
    rising, wandering = steadiness_of(list(range(1000, 2000, 10))), steadiness_of([1000] * 50 + [1500] * 50)
    assert rising is not None
    assert wandering is not None
    check = check_steady(rising, 500_000.0)
    assert check.verdict is Verdict.WARN
    assert "took longer and longer" in check.sentence
    assert "The device itself works 500.0 us in a step." in check.sentence
    assert "wandered by 1.50 times" in check_steady(wandering, None).sentence
    steady = steadiness_of([1000, 1001] * 20)
    assert steady is not None
    assert check_steady(steady, None).verdict is Verdict.PASS


# ---------------------------------------------------------------- like with like


def test_steps_of_two_kinds_are_not_compared(tmp_path: Path) -> None:
    for name, kind in (("before", "training"), ("after", "evaluation")):
        shutil.copytree(CHANGES / "before", tmp_path / name)
        for record in (tmp_path / name / "raw").glob("capture_*.json"):
            content = json.loads(record.read_text())
            content["steps"] = {"kind": kind}
            record.write_text(json.dumps(content))
    sides = (str(tmp_path / "before"), str(tmp_path / "after"))
    refused = opscope("diff", *sides)
    assert refused.returncode == 5
    assert "these are different steps: training before, evaluation after" in refused.stderr
    assert opscope("diff", *sides, "--any-steps").returncode == 0
    assert opscope("diff", str(CHANGES / "before"), sides[1]).returncode == 0  # an earlier version told no kind
