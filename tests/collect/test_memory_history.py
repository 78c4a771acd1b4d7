"""The history of a GPU's memory: what is asked of PyTorch when. PyTorch's functions are made up: no GPU is needed."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opscope.base.errors import EnvironmentLacksError
from opscope.collect.memory_history import MemoryHistory
from opscope.collect.script import passes as of_passes
from opscope.collect.script.passes import Passes
from opscope.record.configuration import CaptureOptions, Schedule

SNAPSHOT: dict[str, Any] = {"segments": [], "device_traces": [[]]}


class Made:
    """PyTorch's functions, as they were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str | None, int]] = []
        self.at_first_use: list[Callable[[], None]] = []
        self.observers: list[Callable[..., None]] = []
        self.fails = False
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self._record)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", self._snapshot)
        monkeypatch.setattr(torch.cuda, "_lazy_call", self.at_first_use.append)
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.observers.append, raising=False)

    def _record(self, enabled: str | None, *, context: str | None, stacks: str, max_entries: int, **_: Any) -> None:
        assert (context, stacks) == (enabled, "python")
        if self.fails:
            raise RuntimeError("not this allocator")
        self.asked.append((enabled, max_entries))

    def _snapshot(self) -> dict[str, Any]:
        return {**SNAPSHOT, "asked": len(self.asked)}

    def use(self) -> None:
        for function in self.at_first_use:
            function()

    def states(self) -> list[str | None]:
        return [state for state, _ in self.asked]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_nothing_is_touched_before_the_program_uses_a_gpu(made: Made, tmp_path: Path) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    history.pause()
    history.anew()
    assert made.asked == []
    assert not history.keep()
    assert history.reason == "nothing was allocated on a GPU"
    assert list(tmp_path.iterdir()) == []


def test_it_records_from_the_first_use_and_not_while_steps_are_timed(made: Made, tmp_path: Path) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    made.use()
    history.pause()
    history.only_alive()
    history.anew()
    assert made.states() == ["all", None, "state", None, "all"]  # what is recorded anew is dropped before
    assert history.keep()
    assert pickle.loads((tmp_path / "s.pickle").read_bytes())["segments"] == []


def test_a_refused_request_is_kept_at_once(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    made.use()
    made.observers[0](0, 1 << 20, 1 << 30, 0)
    assert history.has_refused
    assert "a snapshot was written to s.pickle\n" in capsys.readouterr().err
    history.pause()
    made.observers[0](0, 1 << 20, 1 << 30, 0)
    assert "its history was not recorded while steps were timed or profiled" in capsys.readouterr().err
    assert pickle.loads((tmp_path / "s.pickle").read_bytes())["asked"] == 2  # of the last one
    assert history.keep()
    assert not history.has_refused
    history.end()
    kept = (tmp_path / "s.pickle").stat().st_mtime_ns
    made.observers[0](0, 1 << 20, 1 << 30, 0)  # it does not take the place of the profile's
    assert (tmp_path / "s.pickle").stat().st_mtime_ns == kept
    assert not history.has_refused


def test_a_program_waits_for_snapshots_only_so_long(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    made.use()
    now = iter(range(0, 1_000, 20))  # each takes 20 s
    monkeypatch.setattr("opscope.collect.memory_history.time.monotonic", lambda: next(now))
    for expected in (True, True, False):
        made.observers[0](0, 1 << 20, 1 << 30, 0)
        assert history.has_refused == expected  # what an earlier one shows does not explain the last one


def test_a_history_that_the_program_began_before_using_the_gpu_stays(made: Made, tmp_path: Path) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=7)
    made.use()
    history.pause()
    assert made.asked == [("all", 7)]
    assert not history.usable


def test_a_program_that_ends_a_history_it_never_began_changes_nothing(made: Made, tmp_path: Path) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    made.use()
    torch.cuda.memory._record_memory_history(None)
    assert made.states() == ["all"]
    assert history.usable


def test_forked_processes_record_nothing(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    monkeypatch.setattr("opscope.collect.memory_history.os.getpid", lambda: -1)
    made.use()
    assert made.asked == []
    assert not history.keep()


def test_a_program_that_records_its_own_history_is_left_alone(made: Made, tmp_path: Path) -> None:
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    made.use()
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=7)
    history.pause()
    history.anew()
    assert made.asked[-1] == ("all", 7)
    assert not history.keep()
    assert history.reason is not None
    assert "a history of its own" in history.reason


def test_another_allocator_is_named_and_the_program_goes_on(made: Made, tmp_path: Path) -> None:
    made.fails = True
    history = MemoryHistory(tmp_path / "s.pickle")
    history.begin()
    made.use()
    assert not history.usable
    assert history.reason == "PyTorch could not record it (RuntimeError: not this allocator)"


# ---------------------------------------------------------------- the passes


class Profiler:
    """Stands for torch.profiler."""

    def __init__(self) -> None:
        self.steps = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None:
        self.steps += 1


@pytest.fixture
def passes(made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Passes:
    from opscope.collect import torch_profiler

    monkeypatch.setattr(of_passes, "on_device", lambda: True)
    monkeypatch.setattr(torch_profiler.TorchProfiler, "profiler", lambda *_: Profiler())
    monkeypatch.setattr(torch_profiler.TorchProfiler, "describe", lambda *_: None)
    monkeypatch.setattr(torch_profiler, "write_trace", lambda _, path: path.write_bytes(b"{}") and 0)
    options = CaptureOptions(schedule=Schedule(active=2), memory=True)
    one = Passes(options, tmp_path / "t.json", None, tmp_path / "m.json")
    one.history = MemoryHistory(tmp_path / "s.pickle")
    one.history.begin()
    made.use()
    return one


def test_memory_is_recorded_after_the_profile_and_what_that_costs(made: Made, passes: Passes, tmp_path: Path) -> None:
    passes.begin()
    over = [passes.cycle(duration) for duration in (50, 90, 90, 60, 10, 12, 70, 20, 24)]
    assert over == [False] * 8 + [True]
    # Off while steps are profiled; the stacks of what is alive in the warm-up step; then a history.
    assert made.states() == ["all", None, "state", None, "all"]
    assert passes.memory is not None
    assert (passes.memory.with_ns, passes.memory.without_ns) == ((20, 24), (10, 12))
    assert passes.memory.trace == "m.json"
    assert passes.memory.sentence == (
        "It was recorded over 2 steps after the profile, of which no other figure is: a step took 22 ns, and 11 ns "
        "without it (+100 %)."
    )
    assert {path.name for path in tmp_path.iterdir()} == {"t.json", "m.json", "s.pickle"}


@pytest.mark.parametrize("beside", [(), (10,), (10, 12), (10, 12, 70)])
def test_an_interruption_while_memory_is_recorded_costs_the_profile_nothing(
    passes: Passes, beside: tuple[int, ...]
) -> None:
    passes.begin()
    for duration in (50, 10, 12, 70, *beside):
        passes.cycle(duration)
    assert passes.usable
    assert passes.stop(is_last=True)
    assert not passes.running
    assert passes.trace is not None
    assert passes.durations_ns == [10, 12]
    assert passes.memory is not None
    assert passes.memory.reason == "something interrupted the steps while memory was recorded"


def test_the_profile_alone_is_kept_if_it_is_cut_short(passes: Passes) -> None:
    passes.begin()
    for duration in (50, 10):
        passes.cycle(duration)
    assert passes.stop(is_last=True)
    assert not passes.running  # no other pass was started
    assert passes.trace is not None
    assert passes.memory is not None
    assert passes.memory.snapshot is None


def test_memory_is_tried_again_after_an_interruption_and_the_profile_is_not(passes: Passes) -> None:
    passes.begin()
    for duration in (50, 10, 12, 70, 20):
        passes.cycle(duration)
    passes.abandon()
    assert passes.is_whole
    assert not passes.begin()
    over = [passes.cycle(duration) for duration in (60, 10, 12, 70, 20, 24)]
    assert over == [False] * 5 + [True]
    assert passes.durations_ns == [10, 12]
    assert passes.memory is not None
    assert passes.memory.with_ns == (20, 24)


def test_a_disk_that_is_full_costs_only_the_memory(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    from opscope.collect import torch_profiler

    passes.begin()
    for duration in (50, 10, 12, 60, 10, 12, 70, 20):
        passes.cycle(duration)

    def full(*_: object) -> int:
        raise EnvironmentLacksError("no room")

    monkeypatch.setattr(torch_profiler, "write_trace", full)
    assert passes.cycle(24)
    assert passes.trace is not None
    assert passes.memory is not None
    assert passes.memory.reason == "recording failed (EnvironmentLacksError: no room)"
