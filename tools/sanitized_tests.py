"""Build the C++ sources with AddressSanitizer and UndefinedBehaviorSanitizer, and run the tests of readers on them."""

import os
import subprocess
import sys

from instrumented import ROOT, build, environment, test_files

TESTS = [
    "reader_kineto",
    "readers_agree",
    "reading_in_blocks",
    "reading_ahead",
    "snapshot",
    "nesting",
    "tiny_traces",
    "old_versions",
    "part",
    "replay",
]
BUILD = ROOT / "build" / "sanitized"


def main() -> int:
    build(BUILD)
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not torch", "--numprocesses", "auto", *test_files(TESTS)]
    return subprocess.run(pytest, check=False, env={**os.environ, **environment(BUILD)}, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
