"""How fast and in how much memory ``opscope analyze`` reads traces, against other readers of the same file.

Whole processes, run in turn in one session; compare only figures of one run. Usage:

    python benchmarks/trace_speed.py TRACE.json.gz --copies 13 129 --rounds 5 --orjson PYTHON --hta PYTHON -o OUT.json

TRACE is repeated with shifted times and ids until it is as large as wanted (13 copies of the recorded GPT-2 training
trace are 102 MB, 129 are 1.02 GB). ``--orjson`` and ``--hta`` name Python interpreters that have orjson and HTA.
"""

import argparse
import datetime
import gzip
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ID = re.compile(r'"(External id|correlation|id|Ev Idx|Python id|Python parent id|Sequence number)": (\d+)')
_TIME = re.compile(r'"ts": (\d+)\.(\d+)')

HTA = """
import sys, tempfile
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=tempfile.mkdtemp())
analysis.get_gpu_kernel_breakdown(visualize=False)
try:
    analysis.get_temporal_breakdown(visualize=False)
except AssertionError as error:
    print("temporal breakdown failed:", repr(error), file=sys.stderr)
"""


@dataclass
class Timing:
    """One command over all rounds: seconds of the whole process and its largest resident set."""

    command: str
    seconds: list[float]
    peak_bytes: int

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


def repeated(trace: Path, copies: int, target: Path) -> None:
    """Write a trace whose events are repeated, each copy later and with ids of its own."""
    content = trace.read_bytes()
    text = (gzip.decompress(content) if trace.suffix == ".gz" else content).decode()
    begin = text.index('"traceEvents": [') + len('"traceEvents": [')
    end = text.rindex("]")
    events = json.loads(text)["traceEvents"]
    timed = [event for event in events if event["ph"] != "M" and event.get("cat") != "Trace"]
    ids = [int(match[2]) for match in _ID.finditer(text)]
    times = [event["ts"] for event in timed]
    id_stride, time_stride = max(ids) + 1, int(max(times) - min(times)) + 1_000_000
    body = text[begin:end].strip().rstrip(",")
    with target.open("w") as file:
        file.write(text[:begin])
        for copy in range(copies):
            shifted = _ID.sub(lambda m, n=copy: f'"{m[1]}": {int(m[2]) + n * id_stride}', body)  # type: ignore[misc]
            shifted = _TIME.sub(lambda m, n=copy: f'"ts": {int(m[1]) + n * time_stride}.{m[2]}', shifted)  # type: ignore[misc]
            file.write((",\n" if copy else "\n") + shifted)
        file.write(text[end:])


def run(command: list[str], env: dict[str, str]) -> tuple[float, int]:
    """Run a command; return its wall time and its peak resident set in bytes."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"failed with {status}: {' '.join(command)}")
    return time.perf_counter() - began, usage.ru_maxrss * 1024


def measure(commands: dict[str, list[str]], rounds: int) -> list[Timing]:
    """Run all commands in turn, round by round."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    timings = {name: Timing(name, [], 0) for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds, peak = run(command, env)
            timings[name].seconds.append(round(seconds, 3))
            timings[name].peak_bytes = max(timings[name].peak_bytes, peak)
    return list(timings.values())


def commands_for(path: Path, arguments: argparse.Namespace) -> dict[str, list[str]]:
    own = [sys.executable, "-m", "opscope", "analyze", "--format", "json", str(path)]
    commands = {"opscope analyze --format json": own}
    if arguments.orjson:
        load = f"import orjson; orjson.loads(open({str(path)!r}, 'rb').read())"
        commands["orjson.loads"] = [arguments.orjson, "-c", load]
        commands["orjson.loads, gc off"] = [arguments.orjson, "-c", f"import gc; gc.disable(); {load}"]
    if arguments.hta:
        commands["HTA"] = [arguments.hta, "-c", HTA, str(path)]
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--copies", type=int, nargs="+", default=[13])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--orjson", help="a Python that has orjson")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        for copies in arguments.copies:
            path = Path(folder) / f"trace{copies}.json"
            repeated(arguments.trace, copies, path)
            size = path.stat().st_size
            timings = measure(commands_for(path, arguments), arguments.rounds)
            own = timings[0]
            print(f"{size / 1e6:.0f} MB: {own.median:.2f} s, {own.peak_bytes / size:.2f} x the file in memory")
            for other in timings[1:]:
                print(f"  {other.command}: {other.median:.2f} s; opscope takes {own.median / other.median:.3f} of it")
            sizes.append({"bytes": size, "copies": copies, "timings": [asdict(timing) for timing in timings]})
            path.unlink()
    if arguments.output:
        document = {"machine": machine(), "trace": arguments.trace.name, "sizes": sizes}
        arguments.output.write_text(json.dumps(document, indent=2) + "\n")


def machine() -> dict[str, object]:
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": models[0] if models else "unknown",
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    main()
