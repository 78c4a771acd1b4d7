"""Build the C++ sources with AddressSanitizer and UndefinedBehaviorSanitizer, and run the tests of readers on them.

The package is copied for it, so that the libraries in use stay as they are.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "sanitized"
TESTS = [
    "reader_kineto",
    "readers_agree",
    "reading_in_blocks",
    "reading_ahead",
    "nesting",
    "tiny_traces",
    "old_versions",
]
FLAGS = ["-O1", "-g", "-std=c++2a", "-Wall", "-Wextra", "-Werror", "-pthread", "-fPIC", "-shared"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
LIBRARIES = {"readers/native/kineto.cpp": "libkineto.so", "analysis/native/nesting.cpp": "libnesting.so"}
CHECK = """
from opscope.analysis import native as nesting
from opscope.readers import native as reader
for module in (nesting, reader):
    assert str(module.LIBRARY).startswith({build!r}), module.LIBRARY
    assert module.load() is not None, module.LIBRARY
"""


def main() -> int:
    compiler = os.environ.get("CXX", "c++")
    shutil.rmtree(BUILD, ignore_errors=True)
    package = BUILD / "opscope"
    shutil.copytree(ROOT / "src" / "opscope", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for source, library in LIBRARIES.items():
        output = (package / source).with_name(library)
        command = [compiler, *FLAGS, *SANITIZERS, f"-I{package}", "-o", str(output), str(package / source)]
        subprocess.run(command, check=True)
    # Python itself is not built with them, so their library comes first.
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{BUILD}{os.pathsep}{ROOT}",
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps what it has until it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    subprocess.run([sys.executable, "-c", CHECK.format(build=str(BUILD))], check=True, env=environment)
    tests = [f"tests/test_{name}.py" for name in TESTS]
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not torch", "--numprocesses", "auto", *tests]
    return subprocess.run(pytest, check=False, env=environment, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
