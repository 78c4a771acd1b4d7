"""How often the pytest plugin is right on a busy machine: unchanged code, and code that takes half as long again.

    python benchmarks/pytest_gate.py --runs 40 --busy 2 --save benchmarks/results/gate.json

Each run is a fresh pytest process beside processes that keep the cores busy; the baseline was saved without them and,
in a second series, with them.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TEST = """
import os
import torch
PIECES = int(os.environ["PIECES"])
def work(x):
    for _ in range(PIECES):
        x = x * 1.0
    return x
def test_work(opscope_bench):
    opscope_bench(work, (torch.randn(64, 64),))
"""
UNCHANGED, SLOWER = 4, 6  # half as long again


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep cores busy meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(folder: Path, pieces: int, *options: str) -> str:
    """Run the test once; return what became of it."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-rx", "-p", "no:cacheprovider"]
    command = [*pytest, *options, str(folder / "test_work.py")]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PIECES": str(pieces)}, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    for line in done.stdout.splitlines():
        if line.startswith(("XFAIL", "FAILED", "ERROR", "E   ")):
            print(line[:300], file=sys.stderr, flush=True)
    return next((word for word in ("failed", "xfailed", "passed", "error") if f" {word}" in f" {last}"), last)


def series(folder: Path, runs: int, beside: int, baseline_beside: int) -> dict[str, object]:
    """Save a baseline and try both codes against it."""
    with busy(baseline_beside):
        if (saved := run(folder, UNCHANGED, "--opscope-save")) != "passed":
            raise SystemExit(f"the baseline could not be saved: {saved}")
    found: dict[str, Counter[str]] = {"unchanged": Counter(), "slower": Counter()}
    began = time.perf_counter()
    with busy(beside):
        for _ in range(runs):
            found["unchanged"][run(folder, UNCHANGED)] += 1
            found["slower"][run(folder, SLOWER)] += 1
    seconds = round((time.perf_counter() - began) / (2 * runs), 1)
    outcomes = {name: dict(counts) for name, counts in found.items()}
    return {"busy_at_baseline": baseline_beside, "busy": beside, "seconds_a_run": seconds, **outcomes}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    import torch

    document: dict[str, object] = {
        "what": "outcomes of opscope_bench with 5 % allowed; slower is code that takes 1.5 times as long",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "runs": options.runs,
        "series": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_work.py").write_text(TEST)
        for beside in (0, options.busy):
            found = series(folder, options.runs, options.busy, beside)
            print(json.dumps(found), flush=True)
            document["series"] = [*document["series"], found]  # type: ignore[misc]
            if options.save is not None:
                options.save.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
