"""What ``opscope exec`` costs a program: time a launch, memory, bytes on the disk.

Usage: python benchmarks/exec_cost.py FILE.json [ROUNDS]

Programs run with and without it in turn, in one session, on a machine with a GPU and nvcc. Figures are medians over the
rounds; the time is that between the first launch and the end of the last kernel.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch

from opscope.collect.cuda.command import Command, CudaCollector
from opscope.machine.driver import driver
from opscope.readers.ncu import read_kernel_counters
from opscope.readers.reading import read
from opscope.record.machine import Driver
from opscope.report.counters_document import build_counters, run_process
from opscope.workbench.toolchain.building import build_file
from opscope.workbench.toolchain.nvcc import BuildKind

_SOURCE = Path(__file__).parents[1] / "tests" / "data" / "exec" / "programs.cu"
_CASES = {"kernels of 20 us": (100_000, 36_000), "empty kernels": (1_000_000, 0)}


# A small process of its own starts the program: the peak of a child is at least what its parent had when it began.
_SMALL = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(bool(status))
"""


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Run a program; return the seconds that it prints, and its peak resident set in bytes."""
    small = [sys.executable, "-S", "-E", "-c", _SMALL, *command]
    done = subprocess.run(small, capture_output=True, text=True, check=True, env=environment)
    seconds, peak = done.stdout.split()
    return float(seconds), int(peak)


def _case(program: Path, launches: int, cycles: int, rounds: int, collector: CudaCollector) -> dict[str, float]:
    command = [str(program), "launches", str(launches), str(cycles)]
    plain, recorded, plain_bytes, recorded_bytes, size = [], [], [], [], 0
    for _ in range(rounds):
        seconds, memory = _run(command, dict(os.environ))
        plain.append(seconds)
        plain_bytes.append(memory)
        with tempfile.TemporaryDirectory() as folder:
            given = {
                "CUDA_INJECTION64_PATH": str(collector.library),
                "OPSCOPE_CUPTI": str(collector.cupti.library),
                "OPSCOPE_CUDA_FOLDER": folder,
            }
            seconds, memory = _run(command, {**os.environ, **given})
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
        recorded.append(seconds)
        recorded_bytes.append(memory)
    without, with_it = median(plain) / launches, median(recorded) / launches
    return {
        "launches": launches,
        "us_per_launch_without": without * 1e6,
        "us_per_launch_recorded": with_it * 1e6,
        "added_us_per_launch": (with_it - without) * 1e6,
        "added_percent": 100 * (with_it / without - 1),
        "added_memory_mib": (median(recorded_bytes) - median(plain_bytes)) / 2**20,
        "bytes_on_disk_per_launch": size / launches,
    }


def _beside_ncu(program: Path, collector: CudaCollector) -> list[dict[str, object]]:
    """Compare durations of the same launches with Nsight Compute's, clocks and caches left alone; empty without it."""
    if shutil.which("ncu") is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        run = collector.collect(Command((str(program), "shapes")), Path(folder) / "raw")
        trace = read(run.files[0])
    alone = [
        "ncu",
        "--clock-control",
        "none",
        "--cache-control",
        "none",
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
    ]
    command = [*alone, "--metrics", "gpu__time_duration.sum", str(program), "shapes"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counters = read_kernel_counters(printed)
    process = run_process(trace)
    rows = build_counters((), counters, () if process is None else (process,)).kernels
    return [
        {
            "grid": row.grid,
            "block": row.block,
            "launches": row.joined,
            "run_ns": row.run_ns,
            "ncu_ns": row.ncu_ns,
            "percent": 100 * (row.run_ns / row.ncu_ns - 1) if row.run_ns and row.ncu_ns else None,
        }
        for row in rows
    ]


def _described(found: Driver) -> dict[str, object]:
    return {"device": found.devices[0].name, "driver": found.release, "cuda": found.cuda}


def main() -> None:
    target, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    collector = CudaCollector.here()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "programs"
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        build_file(_SOURCE, program, BuildKind.EXECUTABLE, [capability], 256)
        Command((str(program),)).found()
        cases = {name: _case(program, *case, rounds, collector) for name, case in _CASES.items()}
        beside_ncu = _beside_ncu(program, collector)
    result = {
        **_described(driver()),
        "cupti": collector.cupti.api_version,
        "cores": os.cpu_count(),
        "rounds": rounds,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cases": cases,
        "beside_ncu": beside_ncu,
    }
    target.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
