"""Colours on a terminal: they say what figures mean, and go nowhere else."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kineto import KinetoTrace
from tests.zygote import ROOT

GPT2 = ROOT / "tests" / "data" / "traces" / "gpt2_train_amp_stacks.json.gz"
MARK = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*arguments: str, cwd: Path, **environment: str) -> str:
    ours, theirs = pty.openpty()
    given = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "TERM": "xterm", "COLUMNS": "100", **environment}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "opscope", *arguments],
        cwd=cwd,
        env=given,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:
        pass
    process.wait()
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(GPT2, tmp_path / "train.json.gz")
    return tmp_path


def test_what_to_read_first_is_bold_and_doubts_are_yellow(folder: Path) -> None:
    text = on_terminal("analyze", "train.json.gz", "--top", "3", cwd=folder)
    assert re.search(r"\x1b\[1mEither the device, or waiting for .*\[unknown\]\x1b\[0m", text, re.DOTALL)
    assert re.search(r"\x1b\[34m█+\x1b\[0m\x1b\[33m░+\x1b\[0m", text)
    why = on_terminal("analyze", "train.json.gz", "--top", "3", "--why", cwd=folder)
    assert "\x1b[33mTrust: warn\x1b[0m" in why
    assert "\x1b[1m1. 3.2 % to 48.3 %" in why


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_they_are_not_wanted(folder: Path, environment: dict[str, str]) -> None:
    text = on_terminal("analyze", "train.json.gz", "--top", "3", cwd=folder, **environment)
    assert "trust: warn" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", text)  # no colour; a heading may be bold


def test_less_time_is_green_and_more_is_red(folder: Path) -> None:
    changes = ROOT / "tests" / "data" / "changes"
    before, after = sorted(path for path in changes.iterdir() if path.is_dir())[:2]
    text = on_terminal("diff", str(before), str(after), cwd=folder)
    grown = re.findall(r"\x1b\[31m\s*(\+?-?[0-9.]+ [mun]?s)", text)
    shrunk = re.findall(r"\x1b\[32m\s*(\+?-?[0-9.]+ [mun]?s)", text)
    assert grown or shrunk
    assert all(value.startswith("+") for value in grown)
    assert all(value.startswith("-") for value in shrunk)


def test_a_pipe_gets_plain_text_and_the_same_words(folder: Path) -> None:
    arguments = ["analyze", "train.json.gz", "--top", "3"]
    piped = subprocess.run(
        [sys.executable, "-P", "-m", "opscope", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not MARK.search(piped)
    # In a pipe a line of dashes stands below the headings of a table.
    words, plain = (
        [word for word in text.split() if word.strip("-")]
        for text in (MARK.sub("", on_terminal(*arguments, cwd=folder)), piped)
    )
    end = words.index("TRACE")  # the last word before the table, of which a terminal hides columns
    assert words[:end] == plain[:end]


def test_names_of_a_trace_cannot_colour_anything(tmp_path: Path) -> None:
    built = KinetoTrace()
    built.step(1, 0, 100_000)
    built.operator("\x1b[31mevil", 1_000, 9_000)
    built.write(tmp_path / "evil.json")
    text = on_terminal("analyze", "evil.json", cwd=tmp_path)
    assert "evil" in text
    assert "\x1b[31mevil" not in text
