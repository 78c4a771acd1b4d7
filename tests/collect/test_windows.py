"""Programs without boundaries of steps: what is recorded of them, and that they end."""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from opscope.collect.script import found, phases, watcher
from opscope.collect.script.found import Found
from opscope.collect.script.phases import Phase
from opscope.collect.script.watcher import EnoughMeasured, Watcher
from opscope.collect.script.windows import EarlyWindow
from opscope.record.capture import ScriptRun, StepKind, WantedSteps
from opscope.record.configuration import CaptureOptions

pytestmark = pytest.mark.torch
ENDED_AT_ONCE = ScriptRun(records=True, may_repeat=False, ended_after_s=1.0)
ENDED_SOON = ScriptRun(records=True, may_repeat=False, ended_after_s=5.0)
RECORDS = ScriptRun(records=True, may_repeat=False)


@pytest.fixture
def kept() -> list[Found]:
    return []


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[Found]) -> Iterator[Callable[..., Watcher]]:
    """Start watchers of this thread; their windows last 0.2 s, and after 0.6 s they give up."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", None)
    for name, value in (("_FIRST_WINDOW_S", 0.2), ("_LONGEST_WINDOW_S", 0.2), ("_LOOKS_FOR_S", 0.6)):
        monkeypatch.setattr(phases, name, value)
    monkeypatch.setattr(watcher, "_end_later", lambda _: None)
    monkeypatch.setattr(watcher, "has_model", lambda: False)  # other tests leave some
    started: list[Watcher] = []

    def begin(run: ScriptRun, **more: object) -> Watcher:
        one = Watcher(CaptureOptions(), tmp_path / "trace.json", kept.append, run=run, **more)  # type: ignore[arg-type]
        started.append(one)
        one.torch_imported()
        return one

    yield begin
    for one in started:
        one.finish()


def work(seconds: float, name: str = "any") -> None:
    """Run operators in no order that repeats, within a range."""
    import torch

    draw, until = random.Random(0), time.perf_counter() + seconds
    operators = (torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.abs)
    with torch.autograd.profiler.record_function(name):
        while time.perf_counter() < until:
            draw.choice(operators)(torch.ones(300, 300))


def ended(one: Watcher) -> bool:
    """Ask as the watchdog does; tell whether the script is to end."""
    try:
        one.asked_by_watchdog()
    except EnoughMeasured:
        return True
    return False


def recorded(folder: Path) -> set[str]:
    """Return the ranges in the trace that was kept."""
    events = json.loads((folder / "trace.json").read_bytes())["traceEvents"]
    return {event["name"] for event in events if event.get("cat") == "user_annotation"}


def test_where_nothing_repeats_a_part_is_kept_and_said(
    start: Callable[..., Watcher], kept: list[Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(RECORDS)
    monkeypatch.setattr(phases, "_LOOKS_FOR_S", 60.0)
    for number in range(3):
        assert number == 0 or not ended(one)
        work(0.25, f"window {number}")
    monkeypatch.setattr(phases, "_LOOKS_FOR_S", 0.0)
    assert ended(one)
    assert kept[0].kind is StepKind.RUN
    assert kept[0].part is not None
    assert kept[0].part.startswith("0.")
    assert "No repetition of steps was found: the recording covers 0." in kept[0].sentence()
    assert "from the beginning" not in kept[0].sentence()
    assert recorded(tmp_path) == {"window 2"}


def test_what_was_asked_for_is_looked_for_until_the_end(start: Callable[..., Watcher], kept: list[Found]) -> None:
    one = start(ScriptRun(wanted=WantedSteps(StepKind.OPERATORS), records=True))
    for number in range(4):
        work(0.25, f"window {number}")
        one.asked_by_watchdog()
    assert one.phase is Phase.WATCH
    assert kept == []


def test_what_ended_soon_is_recorded_to_its_end_after_a_first_look(
    start: Callable[..., Watcher], kept: list[Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not where that were more operators than PyTorch can prepare in a while."""
    for most, results in ((30_000_000, {"part 1", "part 2", "part 3"}), (1_000, {"part 3"})):
        monkeypatch.setattr(phases, "_OPERATORS_OF_A_WINDOW", most)
        monkeypatch.setattr(phases, "_LOOKS_FOR_S", 60.0)
        one = start(ENDED_SOON)
        for number in range(4):
            work(0.25, f"part {number}")
            one.asked_by_watchdog() if number < 3 else one.finish()
        assert recorded(tmp_path) == results
        assert kept.pop().part is not None


def test_a_window_that_ends_early_as_it_has_many_operators_counts(
    start: Callable[..., Watcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_LOOKS_FOR_S", 60.0)
    one = start(RECORDS)
    work(0.5, "long")
    one.asked_by_watchdog()
    one._window_s = 0.1
    work(0.15, "short")
    one.asked_by_watchdog()
    assert recorded(tmp_path) == {"short"}
    assert 0.0 < one._early.at_work <= 1.0


@pytest.mark.parametrize("what", ["model", "boundary"])
def test_a_program_that_may_yet_train_is_not_ended(
    what: str, start: Callable[..., Watcher], kept: list[Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "has_model", lambda: what == "model")
    one = start(RECORDS)
    if what == "boundary":
        monkeypatch.setattr(type(one), "has_events", True)
    for number in range(5):
        work(0.25, f"window {number}")
        one.asked_by_watchdog()
    assert kept == []


def test_what_was_not_recorded_from_the_beginning_says_so(start: Callable[..., Watcher], kept: list[Found]) -> None:
    """With --once a recording begins where no boundary came for long."""
    one = start(ScriptRun(may_repeat=False))
    one._start_early()
    work(0.1)
    one.finish()
    assert kept[0].part is not None


def test_what_ended_at_once_is_recorded_in_one_piece(
    start: Callable[..., Watcher], kept: list[Found], tmp_path: Path
) -> None:
    one = start(ENDED_AT_ONCE)
    for number in range(4):
        work(0.25, f"part {number}")
        one.asked_by_watchdog()
    one.finish()
    assert recorded(tmp_path) == {"part 0", "part 1", "part 2", "part 3"}
    assert kept[0].part is None
    assert "the recording is of the run from its beginning" in kept[0].sentence()


@pytest.mark.parametrize("window", ["whole", "rest"])
def test_a_short_rest_does_not_replace_a_window(
    window: str, start: Callable[..., Watcher], kept: list[Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_LOOKS_FOR_S", 60.0)
    one = start(RECORDS)
    work(0.6, "whole")
    lasted = one._early.seconds
    one.asked_by_watchdog()
    work(0.01, "rest")
    if window == "rest":
        work(lasted, "rest")
    one.finish()
    assert recorded(tmp_path) == {window}
    assert kept[0].part is not None


def test_a_rest_in_which_nothing_ran_does_not_replace_a_window(
    start: Callable[..., Watcher], kept: list[Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_LOOKS_FOR_S", 60.0)
    one = start(RECORDS)
    work(0.3, "whole")
    lasted = one._early.seconds
    one.asked_by_watchdog()
    time.sleep(lasted)
    one.finish()
    assert recorded(tmp_path) == {"whole"}
    assert kept[0].part is not None
    assert kept[0].at_work is not None
    assert kept[0].at_work > 0.01
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


class _Raises:
    """Has something raised where Python prints and ignores it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def __del__(self) -> None:
        self.function()


def test_a_program_whose_end_is_lost_is_asked_again(
    start: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_NO_BOUNDARY_S", 0.0)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    results: list[object] = []
    monkeypatch.setattr(watcher, "end_process", lambda: results.append("ended"))
    one = start(ScriptRun(), ends=results.append)
    time.sleep(0.01)
    for _ in range(3):
        _Raises(one.asked_by_watchdog)
        assert results == []
    with pytest.raises(EnoughMeasured):  # this process has not really ended
        one.asked_by_watchdog()
    assert results == [one.again, "ended"]
    assert one.again is not None
    assert one.again.records


def test_the_last_lines_of_a_script_are_not_interrupted(
    start: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_NO_BOUNDARY_S", 0.0)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    one = start(ScriptRun())
    time.sleep(0.01)
    with pytest.raises(EnoughMeasured):
        one.asked_by_watchdog()
    one.asked_by_watchdog()  # as it is in its finally block
    assert one._raised == 1


def test_a_program_without_boundaries_is_left_to_another_run(
    start: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It allocates on a device, and has no model: both are asked for as often as the watchdog comes."""
    began = time.monotonic()
    now, left = [began], [50, 60]
    monkeypatch.setattr(
        watcher, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter_ns=time.perf_counter_ns)
    )
    monkeypatch.setattr(watcher, "on_device", lambda: True)
    monkeypatch.setattr(watcher, "_allocations", lambda: left.pop(0))
    one = start(ScriptRun())
    one._expected.began = began
    now[0] = began + 69
    assert not ended(one)
    now[0] = began + 70
    assert ended(one)
    assert one.again is not None


def test_a_model_that_is_loaded_is_waited_for(start: Callable[..., Watcher], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_NO_BOUNDARY_ON_DEVICE_S", 0.0)
    monkeypatch.setattr(watcher, "on_device", lambda: True)
    monkeypatch.setattr(watcher, "_allocations", lambda: 5_000)
    monkeypatch.setattr(watcher, "has_model", lambda: True)
    assert not ended(start(ScriptRun()))


def test_a_model_is_seen() -> None:
    torch = pytest.importorskip("torch")
    empty = torch.nn.ReLU()
    model = torch.nn.Linear(2, 2)
    assert found.has_model()
    assert empty is not model


def test_recorded_cycles_are_typical_ones(tmp_path: Path) -> None:
    """Of twenty cycles of 10 us, the last two wait for a core, and those before the middle are cold."""
    durations = [40.0] * 9 + [10.0] * 9 + [500.0] * 2
    events, at = [], 0.0
    for us in durations:
        for name in ("aten::mm", "aten::relu"):
            events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": us / 2})
            at += us / 2
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    window = EarlyWindow(CaptureOptions(), path)
    window._written, window._kept = True, (0, round(at * 1_000), 1)
    steps = window.steps_by_operators(4, 3, going_on=False)
    assert steps is not None
    assert steps.durations_ns == [10_000] * 3
    assert 9 <= steps.seen <= 15
    marked = [
        event for event in json.loads(path.read_bytes())["traceEvents"] if event["name"].startswith("ProfilerStep")
    ]
    assert [event["dur"] for event in marked] == [10.0] * 3
