"""How long it takes to find a kernel's source: first in a library, then in its cache, and in a shipped index.

Each case is a process of its own; the time is that of the lookup inside it, imports excluded. Usage:

    python benchmarks/source_lookup.py LIBTORCH_CUDA_SO --release 2.11.0+cu130 --rounds 5 -o OUT.json
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
from pathlib import Path

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
_IN_LIBRARY = """
import resource, sys, time
from pathlib import Path
from opscope.knowledge.kernels.installed import library_index
start = time.perf_counter()
found = library_index(Path(sys.argv[1]), torch="", git=None).exact(sys.argv[2])
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
assert found
"""
_SHIPPED = """
import resource, sys, time
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import TorchVersion
start = time.perf_counter()
found = SourceResolver(TorchVersion.parse(sys.argv[1])).resolve(sys.argv[2])
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
assert found.how == "verified"
"""


def measured(code: str, where: str, cache: Path) -> tuple[float, int]:
    """Run a lookup in a process of its own; return its seconds and the process's peak memory in bytes."""
    result = subprocess.run(
        [sys.executable, "-c", code, where, KERNEL],
        env={**os.environ, "OPSCOPE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, peak = result.stdout.split()
    return float(seconds), int(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--release", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    samples: dict[str, list[tuple[float, int]]] = {"first": [], "cached": [], "shipped": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for case in ("first", "cached"):
                samples[case].append(measured(_IN_LIBRARY, str(arguments.library), Path(folder)))
            samples["shipped"].append(measured(_SHIPPED, arguments.release, Path(folder)))
    document = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "platform": platform.machine()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "release": arguments.release,
        "library_bytes": arguments.library.stat().st_size,
        "cases": {
            case: {"seconds": [s for s, _ in rows], "peak_bytes": max(peak for _, peak in rows)}
            for case, rows in samples.items()
        },
    }
    arguments.output.write_text(json.dumps(document, indent=2) + "\n")
    for case, rows in samples.items():
        print(
            f"{case}: {statistics.median(s for s, _ in rows) * 1000:.1f} ms, {max(p for _, p in rows) / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    main()
