"""Where a script stands still: told from another thread, with the script's own line."""

import queue
import re
import sys
import time
from types import SimpleNamespace

import pytest

from opscope.collect.script import watchdog
from opscope.collect.script.watcher import Phase

pytestmark = pytest.mark.torch


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand for a watcher of this thread, with which a thread that looks often ends at the end of the test."""
    monkeypatch.setattr(watchdog, "_LOOKS_S", 0.02)
    monkeypatch.setattr(watchdog, "_STANDS_S", 0.2)
    return SimpleNamespace(active=True, phase=Phase.WATCH, events=0)


def told(heard: queue.Queue[str], wanted: str) -> str:
    """Wait in one call for a phrase that fits."""
    while not re.fullmatch(wanted, phrase := heard.get(timeout=30)):
        pass
    return phrase


def test_a_standstill_is_told_with_its_line_and_function(watched: SimpleNamespace) -> None:
    heard: queue.Queue[str] = queue.Queue()
    try:
        watchdog.tell_standstill(watched, heard.put)  # type: ignore[arg-type]
        line = sys._getframe().f_lineno + 1
        first = told(heard, r"at .+")
        file, number, name = re.fullmatch(r"at (.+):(\d+), in (\w+), for 0 s", first).groups()  # type: ignore[union-attr]
        assert file.endswith("test_watchdog.py")
        assert name == "told"
        assert int(number) < line
        assert told(heard, "") == ""
    finally:
        watched.active = False


def test_steps_that_come_are_no_standstill(watched: SimpleNamespace) -> None:
    heard: queue.Queue[str] = queue.Queue()
    numbers = iter(range(1_000_000))

    class Working(SimpleNamespace):
        @property
        def events(self) -> int:
            return next(numbers)

    working = Working(active=True, phase=Phase.TIME)
    watchdog.tell_standstill(working, heard.put)  # type: ignore[arg-type]
    time.sleep(1.0)
    working.active = False
    assert heard.empty()
