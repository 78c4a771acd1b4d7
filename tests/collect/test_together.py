"""Ranks of a job agree on the boundary at which all begin, however fast each is and whenever it is ready."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.collect.script.together import AgreeingRanks, RankAgreement


class Shared:
    """The store of a process group, for threads."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: str, /) -> None:
        with self.lock:
            self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        with self.lock:
            return self.values[key]

    def add(self, key: str, amount: int, /) -> int:
        with self.lock:
            number = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(number).encode()
            return number

    def check(self, keys: Sequence[str], /) -> bool:
        with self.lock:
            return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self.lock:
            return self.values.setdefault(key, desired.encode())


def grouped(store: Shared, rank: int, size: int, clock: Callable[[], float] = time.monotonic) -> RankAgreement:
    return RankAgreement(lambda: AgreeingRanks(store, rank, size), clock)


def began(
    size: int,
    ready: Sequence[int],
    *,
    ahead: int = 1,
    shift: Sequence[int] = (),
    stages: Sequence[str] = ("timing", "profiling", "end"),
    seed: int = 0,
) -> list[list[int]]:
    """Let ranks step, none further than ``ahead`` before the slowest; return at which steps each began each stage.

    With ``shift`` ranks have passed that many boundaries of their own before, and PyTorch counts their collectives.
    """
    store, steps = Shared(), [0] * size
    found: list[list[int]] = [[] for _ in range(size)]
    moved = threading.Condition()

    def run(rank: int) -> None:
        chance = random.Random(seed * 100 + rank)
        issued = (lambda: 3 * steps[rank]) if shift else (lambda: None)
        together = RankAgreement(lambda: AgreeingRanks(store, rank, size, issued))
        while len(found[rank]) < len(stages):
            time.sleep(chance.random() * 0.002)
            with moved:
                # As with a collective in each step: a rank cannot end one that another rank has not begun.
                moved.wait_for(lambda: steps[rank] < min(steps) + ahead, timeout=20)
                steps[rank] += 1
                moved.notify_all()
            count = steps[rank] + (shift[rank] if shift else 0)
            together.arrive(count)
            if steps[rank] >= ready[rank] and together.agree(stages[len(found[rank])], "training", count, 1e6):
                found[rank].append(steps[rank])
                assert together.size == size
        with moved:
            steps[rank] = 1_000_000
            moved.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 5), st.data())
def test_all_ranks_begin_each_stage_at_the_same_step(size: int, data: st.DataObject) -> None:
    ready = data.draw(st.lists(st.integers(1, 60), min_size=size, max_size=size))
    ahead = data.draw(st.integers(1, 30))
    shift = data.draw(st.just(()) | st.lists(st.integers(0, 40), min_size=size, max_size=size))
    found = began(size, ready, ahead=ahead, shift=shift, seed=data.draw(st.integers(0, 1000)))
    assert found == [found[0]] * size
    assert found[0] == sorted(set(found[0]))
    assert found[0][0] >= max(ready)


def test_a_process_without_a_group_waits_for_nobody() -> None:
    together = RankAgreement(lambda: None)
    assert together.agree("timing", "training", 1, 1e6)
    assert (together.size, together.apart) == (None, None)


def test_a_store_that_is_gone_leaves_each_rank_to_itself() -> None:
    class Gone(Shared):
        def add(self, key: str, amount: int, /) -> int:
            raise ConnectionError("Connection reset by peer")

    together = grouped(Gone(), 0, 2)
    assert together.agree("timing", "training", 1, 1e6)
    assert together.apart == "the store of its process group could not be asked (Connection reset by peer)"
    assert together.agree("profiling", "training", 2, 1e6)


def test_ranks_with_steps_of_different_kinds_go_apart() -> None:
    store = Shared()
    first, second = grouped(store, 0, 2), grouped(store, 1, 2)
    assert not first.agree("timing", "training", 1, 1e6)
    assert second.agree("timing", "calls", 1, 1e6)
    time.sleep(0.06)
    assert first.agree("timing", "training", 2, 1e6)
    assert first.apart == second.apart == "their steps are of different kinds"


def test_a_rank_that_is_never_ready_is_not_waited_for_for_long() -> None:
    now, store = [0.0], Shared()
    together = grouped(store, 0, 2, lambda: now[0])
    grouped(store, 1, 2).arrive(1)
    for time_s in (0.0, 30.0):
        now[0] = time_s
        assert not together.agree("timing", "training", 1, 1e6)
    now[0] = 61.0
    assert together.agree("timing", "training", 3, 1e6)
    assert together.apart == "1 of 2 had found theirs after 60 s"


def test_ranks_that_nobody_watches_are_waited_for_less() -> None:
    now = [0.0]
    together = grouped(Shared(), 0, 2, lambda: now[0])
    assert not together.agree("timing", "training", 1, 1e6)
    now[0] = 11.0
    assert together.agree("timing", "training", 2, 1e6)
    assert together.apart == "only 1 of 2 are profiled"


def test_a_rank_that_did_not_ask_at_the_step_gives_up_the_claim() -> None:
    store = Shared()
    first, second = grouped(store, 0, 2), grouped(store, 1, 2)
    assert not first.agree("timing", "training", 1, 1e9)
    assert not second.agree("timing", "training", 2, 1e9)  # names step 5
    time.sleep(0.06)
    assert not first.agree("timing", "training", 3, 1e9)
    assert second.agree("timing", "training", 5, 1e9)
    assert first.agree("timing", "training", 9, 1e9)  # something was compiled meanwhile
    assert second.size == 2
    assert (first.size, first.differs) == (None, "this rank passed the step at which the others began")
    assert first.met


def test_stages_that_ranks_reach_by_different_ways_are_agreed_on_all_the_same() -> None:
    store, steps = Shared(), {}
    first, second = grouped(store, 0, 2), grouped(store, 1, 2)
    assert not first.agree("timing", "training", 1, 1e9)
    assert not second.agree("profiling", "training", 1, 1e9)  # it has taken over its times

    def go(together: RankAgreement, rank: int) -> None:
        step = 2
        while not together.agree("profiling", "training", step, 1e9):
            time.sleep(0.06)
            step += 1
        steps[rank] = step

    threads = [threading.Thread(target=go, args=pair) for pair in ((first, 0), (second, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps[0] == steps[1]


def test_a_rank_that_has_passed_the_step_has_another_one_named() -> None:
    store, second_of_steps = Shared(), 1e9  # so that the step is near
    first, second = grouped(store, 0, 2), grouped(store, 1, 2)
    assert not first.agree("timing", "training", 1, second_of_steps)
    assert not second.agree("timing", "training", 2, second_of_steps)  # names step 5
    time.sleep(0.06)
    assert not first.agree("timing", "training", 9, second_of_steps)  # it sees that only now
    assert not second.agree("timing", "training", 5, second_of_steps)
    steps: dict[int, int] = {}

    def go(together: RankAgreement, rank: int, step: int) -> None:
        while not together.agree("timing", "training", step, second_of_steps):
            step += 1
            time.sleep(0.02)
        steps[rank] = step

    threads = [threading.Thread(target=go, args=(first, 0, 10)), threading.Thread(target=go, args=(second, 1, 6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps[0] == steps[1] > 10
    assert (first.size, second.apart) == (2, None)


@pytest.mark.parametrize("size", [2, 40])
def test_many_ranks_agree_as_two_do(size: int) -> None:
    found = began(size, [3] * size, stages=("profiling",))
    assert found == [found[0]] * size
