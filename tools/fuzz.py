"""Attack the readers and analyses for a while: the compiled reader with libFuzzer, all of it with the tests.

    python tools/fuzz.py MINUTES [--reader-only]

Half of the time is libFuzzer's, guided by the code that inputs reach; what it learns is kept in build/fuzz-corpus, and
what breaks the reader in build/fuzz-found. The rest goes to the tests that attack, with other random numbers in every
round; the seed of a round that fails is printed.
"""

import argparse
import gzip
import os
import subprocess
import sys
import time

from instrumented import ROOT, build, environment, test_files

BUILD, CORPUS, FOUND = (ROOT / "build" / name for name in ("fuzz", "fuzz-corpus", "fuzz-found"))
COVERAGE = ("-fsanitize-coverage=trace-pc,trace-cmp",)
LONGEST_INPUT = 6_000
TESTS = [
    *("attacks", "export_changes_no_answer", "hostile", "nesting", "reader_kineto", "readers_agree"),
    *("reading_in_blocks", "reference", "gaps_reference", "intervals", "timeline"),
]
EFFORT = 5  # of one round: some minutes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("minutes", type=float)
    parser.add_argument("--reader-only", action="store_true", help="only libFuzzer, for all of the time")
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes
    if fuzz_reader(seconds if arguments.reader_only else seconds / 2):
        print(f"The compiled reader fails on what {FOUND} holds.")
        return 1
    return 0 if arguments.reader_only else run_rounds(time.monotonic() + seconds / 2)


def fuzz_reader(seconds: float) -> int:
    """Run libFuzzer on the compiled reader."""
    build(BUILD, COVERAGE, ROOT / "fuzz" / "coverage.cpp")
    for folder in (CORPUS, FOUND):
        folder.mkdir(exist_ok=True)
    for path in sorted((ROOT / "tests" / "data").glob("*traces/*.json.gz")):
        seed = gzip.decompress(path.read_bytes())[:LONGEST_INPUT]
        (CORPUS / f"seed-{path.name.removesuffix('.json.gz')}").write_bytes(seed)
    options = [f"-max_total_time={max(int(seconds), 1)}", f"-dict={ROOT / 'fuzz' / 'kineto.dict'}", "-print_pcs=0"]
    options += [f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={FOUND}/", "-timeout=20", "-rss_limit_mb=4096"]
    command = [sys.executable, str(ROOT / "fuzz" / "kineto.py"), *options, str(CORPUS)]
    return subprocess.run(command, check=False, env={**os.environ, **environment(BUILD)}, cwd=ROOT).returncode


def run_rounds(until: float) -> int:
    """Run the tests that attack until the time is up or one fails."""
    tests = test_files(TESTS)
    seed = int(time.time())
    while time.monotonic() < until:
        settings = {"OPSCOPE_FUZZ": str(EFFORT), "OPSCOPE_FUZZ_SEED": str(seed)}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--numprocesses", "auto", *tests]
        if subprocess.run(command, check=False, env={**os.environ, **settings}, cwd=ROOT).returncode:
            print(f"To see it again: OPSCOPE_FUZZ={EFFORT} OPSCOPE_FUZZ_SEED={seed} .venv/bin/python -m pytest ...")
            return 1
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
