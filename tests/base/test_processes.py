"""Programs that run for a limited time: what takes too long is ended with all that it started."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opscope.base.processes import run_within

STARTS = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
child.wait()
"""


def test_input_and_output() -> None:
    done = run_within([sys.executable, "-c", "print(input().upper())"], 60, stdin=b"text\n")
    assert (done.returncode, done.stdout) == (0, b"TEXT\n")


def test_what_it_started_is_ended_too(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        run_within([sys.executable, "-c", STARTS, str(place)], 3)
    child = int(place.read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            return
        time.sleep(0.1)
    os.kill(child, 9)
    pytest.fail("the child lives on")
