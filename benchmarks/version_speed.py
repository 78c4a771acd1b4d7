"""Time `opscope analyze` of two source trees in turn on the same files: whole processes, every sample kept.

    python benchmarks/version_speed.py OLD_SRC NEW_SRC OUTPUT.json --rounds 5 FILE...

With ``--export`` the new tree's `opscope export` is timed beside its `analyze`.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def timed(source: Path, arguments: list[str]) -> tuple[float, int]:
    """Return the seconds of a process, and its peak memory in bytes."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "opscope", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source.resolve()), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{arguments} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--export", action="store_true")
    given = parser.parse_args()
    measured = []
    for file in given.files:
        samples: dict[str, list[tuple[float, int]]] = {"before": [], "after": []}
        analyze = ["analyze", str(file), "--format", "json"]
        for _ in range(given.rounds):
            samples["before"].append(timed(given.old, analyze))
            samples["after"].append(timed(given.new, analyze))
            if given.export:
                with tempfile.TemporaryDirectory() as folder:
                    export = ["export", str(file), "--chrome", f"{folder}/out.json"]
                    samples.setdefault("export", []).append(timed(given.new, export))
        measured.append({"file": file.name, "bytes": file.stat().st_size, **summarised(samples)})
        print(json.dumps(measured[-1]["ratios"]), file.name, flush=True)
    machine = {
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    given.output.write_text(json.dumps({"machine": machine, "files": measured}, indent=1) + "\n")


def summarised(samples: dict[str, list[tuple[float, int]]]) -> dict[str, object]:
    median = {name: statistics.median(seconds for seconds, _ in of) for name, of in samples.items()}
    peak = {name: max(size for _, size in of) for name, of in samples.items()}
    ratios = {"speed": median["before"] / median["after"], "memory": peak["after"] / peak["before"]}
    if "export" in median:
        ratios["export_against_analyze"] = median["export"] / median["after"]
        ratios["export_memory_against_analyze"] = peak["export"] / peak["after"]
    return {
        "seconds": {name: [round(seconds, 4) for seconds, _ in of] for name, of in samples.items()},
        "median_seconds": {name: round(value, 4) for name, value in median.items()},
        "peak_bytes": peak,
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
    }


if __name__ == "__main__":
    main()
