"""How far opscope's benchmarks can be trusted: beside a clock, beside Nsight Compute, and beside themselves.

    python benchmarks/bench_accuracy.py RESULT.json    # on an NVIDIA GPU; Nsight Compute for one part

Spin kernels of known length show the bias of kernel times. Twelve functions are timed by opscope and by Nsight Compute
(clocks left alone, caches flushed). Two hundred comparisons of a function with itself, and a hundred with one that
takes 1 % longer, show how often a verdict is false, and how often a difference is found.
"""

import argparse
import csv
import datetime
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch.profiler import ProfilerActivity, profile

from opscope.documents.bench import SpeedVerdict
from opscope.measuring.rounds import MeasuringLimits, in_turns, median_interval, ratios, sign_test
from opscope.measuring.verdicts import verdict_of
from opscope.readers.reading import read
from opscope.workbench.benchmarking.device_timing import Flush, KernelTimer

CYCLES = (2_000, 5_000, 20_000, 50_000, 200_000, 1_000_000, 4_000_000, 9_900_000)
TRIALS = 200
SPIN_US = 50.0


def functions() -> dict[str, Callable[[], object]]:
    functional, bf16 = torch.nn.functional, torch.bfloat16

    def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda", dtype=dtype)

    one, million, rows = normal(1), normal(1 << 20), normal(8192, 1024)
    half, norm, weight = normal(1 << 20, dtype=bf16), normal(1024, 768, dtype=bf16), normal(768, dtype=bf16)
    small, large, wide = normal(1024, 1024, dtype=bf16), normal(4096, 4096, dtype=bf16), normal(4096, 4096)
    few, many = normal(8 << 20), normal(128 << 20)
    return {
        "add of one number": lambda: one + one,
        "gelu, 1M bf16": lambda: functional.gelu(half),
        "gelu by hand, 1M": lambda: 0.5 * million * (1 + torch.erf(million * 0.7071)),
        "tanh gelu, 1M": lambda: functional.gelu(million, approximate="tanh"),
        "layer norm 1024 x 768": lambda: functional.layer_norm(norm, (768,), weight, weight),
        "softmax 8192 x 1024": lambda: torch.softmax(rows, 1),
        "sum of rows": lambda: rows.sum(1),
        "bf16 product 1k": lambda: small @ small,
        "bf16 product 4k": lambda: large @ large,
        "fp32 product 4k": lambda: wide @ wide,
        "negation of 32 MB": few.neg,  # copies are no kernels for Nsight Compute
        "negation of 512 MB": many.neg,
    }


def kernels_of(call: Callable[[], object]) -> int:
    """Return how many kernels a call launches; fills, such as those before some products, are none."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read(path).activities.filter(pl.col("kind") == "kernel").height


def kernel_times(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    timer = KernelTimer(torch.device("cuda", 0), Flush(torch.device("cuda", 0)))
    for call in calls.values():
        for _ in range(3):
            call()
    timer.rounds(calls, [list(calls)])
    return in_turns(timer.rounds, calls, MeasuringLimits(seconds=seconds)).samples


def spins() -> dict[str, Any]:
    samples = kernel_times({str(n): lambda n=n: torch.cuda._sleep(n) for n in CYCLES}, 0.6)
    medians = {n: statistics.median(samples[str(n)]) for n in CYCLES}
    longest, before = CYCLES[-1], CYCLES[-2]
    per_ns = (longest - before) / (medians[longest] - medians[before])
    bias = {n: medians[n] - n / per_ns for n in CYCLES}
    middle = statistics.median(bias.values())
    return {
        "bias_ns": {f"{n / per_ns / 1000:.1f} us": round(bias[n], 1) for n in CYCLES},
        "residual_ns": {f"{n / per_ns / 1000:.1f} us": round(bias[n] - middle, 1) for n in CYCLES},
    }


def beside_nsight_compute(folder: Path) -> dict[str, Any] | str:
    """Compare kernel times: with each tool's own way of emptying the cache, and with opscope's under both.

    Both read too much of a spin kernel of known length, Nsight Compute by more. ``ratio`` is of what is left without
    that excess, once per kernel.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        return "Nsight Compute is not installed"
    calls = {**functions(), SPIN: lambda: torch.cuda._sleep(20_000)}
    samples = kernel_times(calls, 0.3)
    counts = {name: kernels_of(call) for name, call in calls.items()}
    found = {}
    for how, control in (("own flush", "all"), ("same flush", "none")):
        theirs = _under(ncu, how, control, folder / "ncu.csv", counts)
        if isinstance(theirs, str):
            return theirs
        mine = {name: statistics.median(values) for name, values in samples.items()}
        excess = theirs[SPIN] - mine[SPIN]
        found[how] = {
            "Nsight Compute reads more of a spin kernel, ns": round(excess, 1),
            "functions": [
                {
                    "function": name,
                    "kernels": counts[name],
                    "opscope_ns": mine[name],
                    "ncu_ns": theirs[name],
                    "ratio": round(mine[name] / (theirs[name] - counts[name] * excess), 4),
                }
                for name in functions()
            ],
        }
    return found


def _under(ncu: str, how: str, control: str, listing: Path, counts: dict[str, int]) -> dict[str, float] | str:
    command = [ncu, "--csv", "--metrics", "gpu__time_duration.sum", "--clock-control", "none"]
    command += ["--cache-control", control, "--profile-from-start", "off", "--target-processes", "all"]
    command += ["--log-file", str(listing), sys.executable, __file__, str(listing), "--under-ncu", how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not listing.is_file():
        return f"Nsight Compute failed: {(done.stderr or done.stdout)[-300:]}"
    lines = [line for line in listing.read_text().splitlines() if line.startswith('"')]
    values = [_nanoseconds(row) for row in csv.DictReader(lines)]
    flushing = kernels_of(Flush(torch.device("cuda", 0))) if how == "same flush" else 0
    if (expected := REPEATS * sum(count + flushing for count in counts.values())) != len(values):
        return f"{len(values)} kernels were recorded, not {expected}"
    found, at = {}, 0
    for name, count in counts.items():
        each = [values[at + i * (count + flushing) :][flushing : flushing + count] for i in range(REPEATS)]
        found[name] = statistics.median(map(sum, each))
        at += REPEATS * (count + flushing)
    return found


REPEATS = 15
SPIN = "spin kernel"


def _nanoseconds(row: dict[str, str]) -> float:
    unit = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}[row["Metric Unit"]]
    return float(row["Metric Value"].replace(",", "")) * unit


def under_ncu(how: str) -> None:
    flush = Flush(torch.device("cuda", 0))
    for call in (*functions().values(), lambda: torch.cuda._sleep(20_000)):
        call()
        flush()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        for _ in range(REPEATS):
            if how == "same flush":
                flush()
            call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def alarms(trials: int, second: float) -> dict[str, Any]:
    """Compare spin kernels of about 50 us, the second one longer by a factor."""
    cycles = int(SPIN_US * 1980)
    one, other = (lambda: torch.cuda._sleep(cycles)), (lambda: torch.cuda._sleep(round(cycles * second)))
    x = torch.randn(1 << 24, device="cuda")
    calls = {"a": lambda: x * 2, "b": lambda: x * 2} if second == 1 else {"a": one, "b": other}
    timer = KernelTimer(torch.device("cuda", 0), Flush(torch.device("cuda", 0)))
    timer.rounds(calls, [list(calls)])
    began, verdicts, widths, rounds = time.time(), [], [], []
    for trial in range(trials):
        samples = in_turns(timer.rounds, calls, MeasuringLimits(), seed=trial).samples
        found = ratios(samples["a"], samples["b"])
        interval = median_interval(found)
        verdicts.append(verdict_of(interval, sign_test(found)))
        widths.append(interval.half_width or 0.0)
        rounds.append(interval.n)
    return {
        "function": "x * 2 of 64 MB" if second == 1 else "a spin kernel of 50 us",
        "trials": trials,
        "said to differ": sum(verdict in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER) for verdict in verdicts),
        "seconds": round(time.time() - began, 1),
        "half_width_median": statistics.median(widths),
        "rounds_median": statistics.median(rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path)
    parser.add_argument("--under-ncu", choices=("own flush", "same flush"))
    arguments = parser.parse_args()
    if arguments.under_ncu:
        under_ncu(arguments.under_ncu)
        return
    document = {
        "device": f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "spin kernels": spins(),
        "equal functions": alarms(TRIALS, 1.0),
        "one percent": alarms(TRIALS // 2, 1.01),
        "beside Nsight Compute": beside_nsight_compute(arguments.result.resolve().parent),
    }
    arguments.result.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
