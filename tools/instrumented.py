"""Builds the C++ sources with AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the package."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FLAGS = ("-O1", "-g", "-std=c++2a", "-Wall", "-Wextra", "-Werror", "-pthread", "-fPIC")
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_LIBRARIES = {
    "readers/native/kineto.cpp": "libkineto.so",
    "analysis/structure/native/nesting.cpp": "libnesting.so",
    "analysis/replay/native/replay.cpp": "libreplay.so",
}


def test_files(names: Sequence[str]) -> list[str]:
    """Return the paths of tests by their names without ``test_``, whichever room's folder holds them.

    Raises:
        FileNotFoundError: no folder holds one of them, or several do.
    """
    return [_test_file(name) for name in names]


def _test_file(name: str) -> str:
    found = list((ROOT / "tests").rglob(f"test_{name}.py"))
    if len(found) != 1:
        raise FileNotFoundError(f"one file test_{name}.py was expected in {ROOT / 'tests'}, not {len(found)}")
    return str(found[0])


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def build(target: Path, more_flags: Sequence[str] = (), more_source: Path | None = None) -> None:
    """Copy the package, so that the libraries in use stay as they are, and build its libraries there.

    Args:
        target: where to.
        more_flags: for the library's own sources.
        more_source: is linked into every library, compiled without any of these flags.
    """
    shutil.rmtree(target, ignore_errors=True)
    package = target / "opscope"
    shutil.copytree(ROOT / "src" / "opscope", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    objects = []
    if more_source is not None:
        objects.append(str(target / "more.o"))
        command = [compiler(), "-O2", "-std=c++2a", "-fPIC", "-c", "-o", objects[0], str(more_source)]
        subprocess.run(command, check=True)
    for source, library in _LIBRARIES.items():
        output = (package / source).with_name(library)
        compiled = str(target / f"{library}.o")
        flags = [*_FLAGS, *_SANITIZERS, *more_flags, f"-I{package}/trace", "-c", "-o", compiled]
        subprocess.run([compiler(), *flags, str(package / source)], check=True)
        link = [*_SANITIZERS, "-pthread", "-shared", "-Wl,-Bsymbolic", "-o", str(output), compiled, *objects]
        subprocess.run([compiler(), *link], check=True)
    subprocess.run(
        [sys.executable, __file__, str(target)],
        check=True,
        env={**os.environ, **environment(target)},
    )


def environment(target: Path) -> dict[str, str]:
    """Return what runs Python on what was built."""
    # Python itself is not built with them, so their library comes first, and that of the exceptions that it watches.
    preloaded = [
        subprocess.run([compiler(), f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout
        for name in ("libasan.so", "libstdc++.so")
    ]
    return {
        "PYTHONPATH": f"{target}{os.pathsep}{ROOT}",
        "LD_PRELOAD": " ".join(path.strip() for path in preloaded),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps what it has until it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def _check(target: str) -> None:
    """Load each library, and see that it is the one that was built in the folder ``target``."""
    from opscope.analysis.replay.graph import load_replay
    from opscope.analysis.structure.nesting import load_nesting
    from opscope.readers.native.library import load_kineto

    for load in (load_nesting, load_kineto, load_replay):
        library = load()
        assert library is not None, load
        assert library._name.startswith(target), library._name


if __name__ == "__main__":
    _check(sys.argv[1])
