"""`Reading`: a file that is read on a thread of its own while the command imports what it needs."""

import gc
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from opscope.base.errors import BadInputError
from opscope.cli.reading import traces_of
from opscope.readers.reading import Reading, read
from tests.command import PYTHONPATH, opscope
from tests.conftest import DATA

TRACE = DATA / "traces" / "cudagraph_replay.json.gz"


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("tables_ahead", [False, True])
def test_a_trace_read_ahead_is_the_trace(tables_ahead: bool) -> None:
    ahead, trace = Reading(TRACE, libraries_imported=threading.Event() if tables_ahead else None).trace(), read(TRACE)
    assert ahead.source == trace.source
    assert ahead.activities.equals(trace.activities)


@pytest.mark.parametrize("tables_ahead", [False, True])
@pytest.mark.parametrize("content", ["", "SQLite format 3", None])
def test_what_cannot_be_read_is_said_by_the_one_who_waits(
    tmp_path: Path, content: str | None, tables_ahead: bool
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadInputError):
        Reading(path, libraries_imported=threading.Event() if tables_ahead else None).trace()


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_failed_reading_keeps_nothing_alive() -> None:
    reading = Reading(TRACE, max_bytes=10)
    with pytest.raises(BadInputError, match="unpacks to more than 10 bytes"):
        reading.trace()
    gone = weakref.ref(reading)
    del reading
    assert gone() is None


def test_without_a_thread_the_file_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert Reading(TRACE).trace().activities.height == read(TRACE).activities.height


def test_a_reading_can_be_interrupted() -> None:
    # polars makes system calls go on after a signal; a wait for a lock would go on until the file is read.
    code = (
        "import polars, threading, opscope.readers.reading as readers\n"
        "def endless(source): print('reading', flush=True); threading.Event().wait()\n"
        "readers.read_content = endless\n"
        f"readers.Reading(__import__('pathlib').Path({str(TRACE)!r})).trace()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=DATA.parent.parent
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors


def test_of_several_inputs_each_is_read_once_and_in_order(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"traceEvents": []}')
    found = [file.path for file, _ in traces_of([TRACE, other, TRACE], 1 << 30, [])]
    assert found == [TRACE, other]
    with pytest.raises(BadInputError, match="hold no trace"):
        traces_of([], 1 << 30, [])


@pytest.mark.parametrize("packed", [True, False])
def test_a_pipe_is_an_input(packed: bool) -> None:
    content = TRACE.read_bytes()
    result = subprocess.run(
        [sys.executable, "-m", "opscope", "analyze", "--format", "json", "/dev/stdin"],
        input=content if packed else gzip.decompress(content),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        check=True,
    )
    assert json.loads(result.stdout)["source"]["event_count"] == read(TRACE).source.event_count


@pytest.fixture
def no_utf_8(tmp_path: Path) -> Path:
    """A trace whose name is not UTF-8."""
    path = tmp_path / os.fsdecode(b"\xff.json.gz")
    try:
        path.write_bytes(TRACE.read_bytes())
    except OSError:
        pytest.skip("this file system takes no such names")
    return path


def test_a_name_that_is_no_utf_8_is_no_hindrance(no_utf_8: Path) -> None:
    result = opscope("analyze", "--format", "json", str(no_utf_8))
    assert result.returncode == 0
    assert json.loads(result.stdout)["source"]["path"].endswith("\ufffd.json.gz")


def test_traces_of_such_names_can_be_converted_and_read_back(no_utf_8: Path, tmp_path: Path) -> None:
    target = tmp_path / os.fsdecode(b"out-\xff")
    assert opscope("export", str(no_utf_8), str(TRACE), "--parquet", str(target)).returncode == 0
    (store,) = (folder for folder in target.iterdir() if os.fsencode(folder.name) == b"\xff")
    assert read(store).activities.equals(read(TRACE).activities)


@pytest.mark.parametrize("name", ["loop", "n" * 300])
def test_names_that_lead_nowhere_are_bad_inputs(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    result = opscope("analyze", str(TRACE), str(tmp_path / name))
    assert (result.returncode, "Traceback" in result.stderr) == (4, False)
