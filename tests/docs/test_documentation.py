"""The documentation: it builds without a warning, its commands run, and what is made from the code is up to date."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from opscope.cli import COMMANDS, cli
from opscope.documents.verdict import IdleCause
from tests.command import opscope
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^ *```(bash|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def shown(page: Path, kind: str) -> Iterator[list[str]]:
    """Yield the words of each opscope command in the blocks of a kind; comments and pipes are cut off."""
    for found in _BLOCK.finditer(page.read_text()):
        for line in found[2].splitlines() if found[1] == kind else ():
            text = line.strip().removeprefix("$ ")
            if text.startswith("opscope "):
                yield shlex.split(text, comments=True)[1:]


RUN = [words for page in PAGES for words in shown(page, "console")]


@pytest.mark.parametrize("words", RUN, ids=" ".join)
def test_a_command_that_is_shown_with_a_prompt_runs(words: list[str], tmp_path: Path) -> None:
    for folder in ("examples", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    done = opscope(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_shown_takes_its_options(page: Path) -> None:
    context = click.Context(cli)
    for words in [*shown(page, "bash"), *shown(page, "console")]:
        assert words[0] in COMMANDS, words
        command = cli.get_command(context, words[0])
        if isinstance(command, click.Group):
            command = command.get_command(context, words[1])
        assert command is not None, words
        known = {name for option in command.params for name in option.opts}
        for word in words[1:]:
            if word == "--" or word.endswith((".py", "./add")) or word == "torchrun":
                break  # what follows is a script's own, or a program's
            if word.startswith("--"):
                assert word.partition("=")[0] in known, f"{page.name}: opscope {' '.join(words)}"


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_findings_that_pages_show_are_those_of_the_command(page: str) -> None:
    """All lines of shown output are lines of the command's output; ``...`` stands for what is left out."""
    blocks = re.findall(r"```text\n(.*?)```", (ROOT / page).read_text(), re.S)
    (block,) = (block for block in blocks if block.startswith("training_step.json.xz"))
    printed = opscope("analyze", "examples/training_step.json.xz", "--top", "3", cwd=ROOT).stdout.splitlines()
    for line in block.splitlines():
        assert any(one.startswith(line.rstrip(".)").rstrip(" ,.")) for one in printed), line


def test_what_is_made_from_the_code_is_up_to_date() -> None:
    for tool in ("build_rooms.py", "build_rules.py", "build_savings.py"):
        done = subprocess.run([sys.executable, ROOT / "tools" / tool, "--check"], check=False)
        assert done.returncode == 0, f"run tools/{tool}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "trees")]
    command = [sys.executable, "-m", "sphinx", *options, "docs", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "<h3>analyze" in (tmp_path / "site" / "reference" / "commands.html").read_text()


def test_every_cause_of_idle_time_is_explained() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    begin, end = text.index("- **Idle by cause**"), text.index("- **Gap**")
    named = {" ".join(words.split()).lower() for words in re.findall(r"\*([^*]+)\*", text[begin:end].replace("**", ""))}
    assert set(map(str, IdleCause)) <= named
