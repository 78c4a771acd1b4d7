"""Run the command line in a process of its own, as users do."""

import importlib.util
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.zygote import ROOT, Command, zygote

# What PYTHONPATH names comes first: tools/mutate.py has other sources there.
PYTHONPATH = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src")])
TOY = ROOT / "tests" / "workloads" / "toy.py"
# Makes an import of PyTorch fail as it does where PyTorch is not installed.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from opscope.cli import main; main()"


def opscope(
    *args: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    code: str | None = None,
    stdin: bytes | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``opscope`` with arguments in a process forked from a warm one; ``code`` replaces what it runs."""
    kind = _kind_of(args) if code is None and importlib.util.find_spec("torch") else "plain"
    return zygote(kind).run(args, code, cwd, env or {}, stdin)


def _kind_of(args: tuple[str, ...]) -> str:
    """Return which warm process a command is forked from."""
    if args[:1] == ("profile",):
        return "jobs" if any(word.endswith(".py") for word in args) else "torch"
    if args[:2] == ("kernel", "check"):
        return "kernels"
    return "jobs" if args[:1] == ("bench",) else "plain"


def started(
    *args: str, env: Mapping[str, str] | None = None, terminal: str | None = None, output: bool = False
) -> Command:
    """Start a command like `opscope`, and go on meanwhile; errors, and ``output`` too, go to a terminal if given."""
    kind = "torch" if args[:1] == ("profile",) else "plain"
    return zygote(kind).start(args, None, None, env or {}, terminal=terminal, output=output)


def example(script: Path, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script of the repository's that profiles, in a process that has imported PyTorch."""
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    return zygote("torch").run(args, code, cwd, {}, None)


def fresh_opscope(
    *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, code: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m opscope`` from its very beginning; for what imports, start and end have to do with."""
    start = ["-m", "opscope"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "HF_HUB_OFFLINE": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def toy(name: str) -> str:
    return f"{TOY}:{name}"


def screen(width: int, *args: str) -> list[str]:
    """Run a command whose output goes to a terminal of a width."""
    parent, child = pty.openpty()
    command = started(*args, env={"COLUMNS": str(width), "TERM": "xterm"}, terminal=os.ttyname(child), output=True)
    assert command.finish().returncode == 0
    os.set_blocking(parent, False)
    shown = b""
    while True:
        try:
            chunk = os.read(parent, 1 << 16)
        except BlockingIOError:
            break
        shown += chunk
    os.close(child)
    os.close(parent)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r", "").splitlines()
