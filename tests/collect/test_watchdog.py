"""Where a script is while no step comes: told from another thread, with the script's own line."""

import queue
import re
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from opscope.collect.script import running
from opscope.collect.script.phases import Phase

pytestmark = pytest.mark.torch


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Stand for a watcher of this thread, whose thread looks often and ends with the test."""
    monkeypatch.setattr(running, "_LOOKS_S", 0.02)
    monkeypatch.setattr(running, "_WITHOUT_STEPS_S", 0.2)
    watcher = SimpleNamespace(active=True, phase=Phase.WATCH, events=0, is_at_work=False)
    yield watcher
    watcher.active = False


def told(heard: queue.Queue[str], wanted: str) -> re.Match[str]:
    """Wait in one call for a phrase that fits."""
    while (found := re.fullmatch(wanted, heard.get(timeout=30))) is None:
        pass
    return found


def test_while_no_step_comes_the_line_and_function_are_told(watched: SimpleNamespace) -> None:
    heard: queue.Queue[str] = queue.Queue()
    running.tell_without_steps(watched, heard.put)  # type: ignore[arg-type]
    found = told(heard, r"no step in the main thread for \d+ s, at (.+):(\d+), in told")
    assert found[1].endswith("test_watchdog.py")
    assert "heard.get" in Path(__file__).read_text().splitlines()[int(found[2]) - 1]
    watched.events += 1
    assert told(heard, "") is not None


def test_while_steps_come_nothing_is_told(watched: SimpleNamespace) -> None:
    heard: queue.Queue[str] = queue.Queue()
    numbers = iter(range(1_000_000))

    class Working(SimpleNamespace):
        @property
        def events(self) -> int:
            return next(numbers)

    working = Working(active=True, phase=Phase.TIME, is_at_work=False)
    running.tell_without_steps(working, heard.put)  # type: ignore[arg-type]
    time.sleep(1.0)
    working.active = False
    assert heard.empty()


def test_what_is_done_at_a_boundary_is_not_the_scripts(watched: SimpleNamespace) -> None:
    heard: queue.Queue[str] = queue.Queue()
    watched.is_at_work = True
    running.tell_without_steps(watched, heard.put)  # type: ignore[arg-type]
    time.sleep(1.0)
    assert heard.empty()
    watched.is_at_work = False
    assert told(heard, r"no step .*") is not None


def test_what_a_script_lets_go_is_freed_meanwhile(watched: SimpleNamespace) -> None:
    class Large:
        pass

    def holds() -> weakref.ref[Large]:
        large = Large()
        told(heard, r"no step .*")
        return weakref.ref(large)

    heard: queue.Queue[str] = queue.Queue()
    running.tell_without_steps(watched, heard.put)  # type: ignore[arg-type]
    gone = holds()
    deadline = time.monotonic() + 30
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None


def test_a_current_folder_that_is_gone_ends_nothing(
    watched: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: queue.Queue[str] = queue.Queue()
    folder = tmp_path / "gone"
    folder.mkdir()
    running.tell_without_steps(watched, heard.put)  # type: ignore[arg-type]
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert told(heard, r"no step .*") is not None
