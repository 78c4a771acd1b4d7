"""The one clock of a step: what lies within its time, and what does not."""

import pytest

torch = pytest.importorskip("torch")

from opscope.measuring import clock  # noqa: E402


def test_only_the_call_lies_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Result:
        def __del__(self) -> None:
            events.append("forgotten")

    def now() -> int:
        events.append("clock")
        return 1_000 * len(events)

    def call() -> Result:
        events.append("call")
        return Result()

    monkeypatch.setattr(clock, "perf_counter_ns", now)
    # The first reading is 1,000 ns, the call is the second event, and the next reading the third.
    assert clock.time_once(call, torch.device("cpu")) == 2_000
    assert events == ["clock", "call", "clock", "forgotten"]


@pytest.mark.parametrize(("waits", "expected"), [(True, ["wait", "call", "wait"]), (False, ["wait", "call"])])
def test_a_device_is_waited_for(monkeypatch: pytest.MonkeyPatch, waits: bool, expected: list[str]) -> None:
    events: list[str] = []
    monkeypatch.setattr(clock, "synchronize", lambda _: events.append("wait"))
    clock.time_once(lambda: events.append("call"), torch.device("cpu"), waits=waits)
    assert events == expected


def test_marks_of_a_cpu_are_of_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "perf_counter_ns", iter((100, 350)).__next__)
    first, second = (clock.Mark(torch.device("cpu")) for _ in range(2))
    second.wait()
    assert second.since(first) == 250
