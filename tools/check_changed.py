"""Check what belongs to the files that changed: format, lint, types, and the quick tests of their rooms.

``python tools/check_changed.py [REVISION]``: changed since REVISION, HEAD unless told; files that git does not know yet
count as changed. It is for the minutes between two commits: ``.ci/run`` checks everything.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_NO_TESTS = 5  # pytest's exit code where all were left out, as all of a file that are slow
_SOURCE, _TESTS = _ROOT / "src" / "opscope", _ROOT / "tests"


def changed_since(revision: str) -> list[Path]:
    """Return the files that differ from a revision and still exist."""
    commands = (["git", "diff", "--name-only", revision], ["git", "ls-files", "--others", "--exclude-standard"])
    names = "".join(subprocess.run(c, cwd=_ROOT, check=True, capture_output=True, text=True).stdout for c in commands)
    return [path for name in names.splitlines() if (path := _ROOT / name).is_file()]


def tests_of(path: Path) -> Iterator[Path]:
    """Yield the tests that belong to a file.

    A test belongs to itself, and a module to the tests of its room and to those that import it.
    """
    if path.is_relative_to(_TESTS) and not path.is_relative_to(_TESTS / "data"):
        yield path if path.name.startswith("test_") else path.parent
    if not path.is_relative_to(_SOURCE):
        return
    yield _mirrored(path.parent.relative_to(_SOURCE))
    if path.suffix == ".py":
        imported = _import_of(path.relative_to(_SOURCE).with_suffix(""))
        yield from (test for test in _TESTS.rglob("test_*.py") if imported.search(test.read_text(encoding="utf-8")))


def _mirrored(room: Path) -> Path:
    """Return the folder of tests that is called like a room, or like the nearest room around it that has one."""
    for around in (room, *room.parents):
        if around != Path() and (_TESTS / around).is_dir():
            return _TESTS / around
    return _TESTS / "api"


def _import_of(module: Path) -> re.Pattern[str]:
    *room, name = ("opscope", *module.parts)
    return re.compile(
        rf"(from {re.escape('.'.join(room))} import .*\b{name}\b|\b{re.escape('.'.join((*room, name)))}\b)"
    )


def _without_covered(paths: set[Path]) -> list[str]:
    """Leave out what lies in a folder that is there too."""
    return sorted(str(path.relative_to(_ROOT)) for path in paths if not paths & set(path.parents))


def _passes(command: list[str]) -> bool:
    code = subprocess.run(command, check=False, cwd=_ROOT).returncode
    return code == 0 or ("pytest" in command and code == _NO_TESTS)


def main() -> None:
    """Check, and exit with 1 where anything failed."""
    changed = changed_since(sys.argv[1] if len(sys.argv) > 1 else "HEAD")
    sources = [str(path) for path in changed if path.suffix == ".py"]
    if not sources and not any(path.is_relative_to(_SOURCE) for path in changed):
        print("No source and no test changed.")
        return
    tests = _without_covered({test for path in changed for test in tests_of(path)})
    python = [sys.executable, "-m"]
    commands = [[*python, "mypy"]]
    if sources:
        commands += [[*python, "ruff", "format", "--check", *sources], [*python, "ruff", "check", *sources]]
    if tests:
        print("Tests:", *tests, flush=True)
        commands.append([*python, "pytest", "-q", "-n", "auto", "--dist", "loadfile", "-m", "not slow", *tests])
    failed = [command[2] for command in commands if not _passes(command)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
