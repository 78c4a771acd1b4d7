"""Whether opscope's step time is that of a script's own clock, with and without opscope in turns.

    python benchmarks/script_clock.py --runs 5 --kinds eager compiled --save benchmarks/results/script-clock.json

The own clock is that of the script alone, without opscope. What opscope says is the unprofiled step of a run of
``opscope profile`` on the same script. Each is run several times, one after the other.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "own_clock.py"
KINDS = ("eager", "compiled", "accumulation", "loader", "two_optimizers", "inference", "generate", "lbfgs")


def alone(kind: str, seconds: float) -> float:
    """Run the script by itself; return what its own clock says, in milliseconds."""
    done = subprocess.run([sys.executable, str(SCRIPT), kind, str(seconds)], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["median_ms"])


def profiled(kind: str) -> dict[str, float]:
    """Run it under opscope; return the median of its unprofiled step and the interval, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "opscope", "profile", "--output-dir", f"{folder}/r", str(SCRIPT), kind, "60"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{kind}: {done.stderr[-2000:]}")
        document = json.loads(Path(folder, "r", "profiling_stats_default.json").read_text())
    wall = document["measurement"]["wall"]
    named = {"median": "median_ns", "low": "median_low_ns", "high": "median_high_ns"}
    return {name: wall[field] / 1e6 for name, field in named.items()}


def compared(kind: str, runs: int, seconds: float) -> dict[str, object]:
    """Run both in turns."""
    own, found = [], []
    for _ in range(runs):
        own.append(alone(kind, seconds))
        found.append(profiled(kind))
    medians = [one["median"] for one in found]
    ratio = statistics.median(medians) / statistics.median(own)
    agree = [
        one["low"] <= other["high"] and other["low"] <= one["high"]
        for place, one in enumerate(found)
        for other in found[:place]
    ]
    return {
        "kind": kind,
        "own_ms": own,
        "opscope": found,
        "ratio_of_medians": ratio,
        "within_3_percent": abs(ratio - 1) <= 0.03,
        "ranges_overlap": min(own) <= max(one["high"] for one in found)
        and max(own) >= min(one["low"] for one in found),
        "pairs_that_agree": f"{sum(agree)} of {len(agree)}",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    import torch

    results = []
    on_gpu = torch.cuda.is_available()
    for kind in options.kinds:
        results.append(compared(kind, options.runs, options.seconds))
        shown = {name: value for name, value in results[-1].items() if name not in ("own_ms", "opscope")}
        print(json.dumps(shown), flush=True)
        document = {
            "what": "the script's own clock without opscope, and opscope's unprofiled step, run in turns",
            "device": torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} cores, {platform.machine()}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "runs": options.runs,
            "results": results,
        }
        if options.save is not None:
            options.save.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
