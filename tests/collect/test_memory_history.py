"""The history of a GPU's memory: what is asked of PyTorch when. PyTorch's functions are made up: no GPU is needed."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

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
    for number in range(5):
        made.observers[0](0, 1 << 20, 1 << 30, 0)
        assert history.refused == number + 1
    assert (tmp_path / "s.pickle").is_file()
    assert capsys.readouterr().err.count("a snapshot was written to s.pickle") == 3  # programs may try many sizes


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
    assert made.states() == ["all", None, "state", None, "all", None]
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
    assert passes.stop()
    assert passes.trace is not None
    assert passes.durations_ns == [10, 12]
    assert passes.memory is not None
    assert passes.memory.reason == "something interrupted the steps while memory was recorded"
