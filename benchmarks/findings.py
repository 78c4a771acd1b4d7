"""Programs with a built-in cause: is it the first finding, and does the saving that was measured lie in its range?

    python benchmarks/findings.py OUTPUT_FOLDER [PROGRAM ...]    # on an NVIDIA GPU: times, profiles, judges
    python benchmarks/findings.py --of held_out_programs OUTPUT_FOLDER     # those of another module than programs.py
    python benchmarks/findings.py --judge OUTPUT_FOLDER          # judges what was recorded, without a GPU

Times unprofiled steps, profiles three with shapes and stacks, times the same with the cause removed. What changes the
process for good (modules that are loaded, code that is compiled) runs in a process of its own. Writes a trace and a
``NAME.result.json`` per program, and ``findings.json``.
"""

import argparse
import datetime
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.readers.reading import read

if TYPE_CHECKING:
    from programs import Program, Step

MODULES = (
    *("programs", "unseen_programs", "held_out_programs"),
    *("needless_programs", "further_programs", "blind_programs"),
    *("unknown_programs", "strange_programs"),
)
STEPS = 3
TOLERANCE = 0.02  # of the step
NOTHING = ("near_limit", "none")
FRESH = (
    *("new_kernels", "new_routines", "compiled_at_first_use", "changing_lengths", "changing_number", "growing_cache"),
    *("unpacked_images", "decoded_lines"),
)


def timed(step: "Step", *, fresh: bool) -> list[int]:
    import torch

    def once() -> int:
        begun = time.perf_counter_ns()
        step()
        torch.cuda.synchronize()
        return time.perf_counter_ns() - begun

    for _ in range(1 if fresh else 3):
        once()
    count = 3 if fresh else max(7, min(40, int(0.6e9 / once())))
    return [once() for _ in range(count)]


def programs_of(module: str) -> "dict[str, Program]":
    found: dict[str, Program] = importlib.import_module(module).PROGRAMS
    return found


def record(name: str, program: "Program", folder: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    fresh = name in FRESH
    step = program.make()
    samples = timed(step, fresh=fresh)
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"{name}.json.gz")),
        with_stack=True,
        record_shapes=True,
    ) as profiler:
        for _ in range(1 + STEPS):
            step()
            torch.cuda.synchronize()
            profiler.step()
    del step, profiler
    gc.collect()
    torch.cuda.empty_cache()
    result = {
        "name": name,
        "expected": program.expected_rule,
        "alternatives": list(program.alternatives),
        "note": program.note,
        "wall_ns": statistics.median(samples),
        "fixed_ns": statistics.median(timed(program.fixed(), fresh=fresh)) if program.fixed else None,
    }
    (folder / f"{name}.result.json").write_text(json.dumps(result, indent=2) + "\n")
    gc.collect()
    torch.cuda.empty_cache()


def judged(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.result.json")):
        result = json.loads(path.read_text())
        name, wall = result["name"], result["wall_ns"]
        joined = Measured(analyze(read(folder / f"{name}.json.gz")), None, wall)
        found = joined.findings
        first = found[0].rule if found else None
        wanted = (*NOTHING, None) if result["expected"] in NOTHING else (result["expected"],)
        own = next((finding for finding in found if finding.rule == result["expected"]), None)
        saved = None if result.get("fixed_ns") is None else wall - result["fixed_ns"]
        inside = None
        if own is not None and saved is not None:
            room = TOLERANCE * wall
            inside = own.saving_ns.low - room <= saved <= own.saving_ns.high + room
        yield {
            **result,
            "bound": str(joined.bound.kind),
            "first": first,
            "verdict": "expected" if first in wanted else "as true" if first in result["alternatives"] else "other",
            "findings": [
                {
                    "rule": f.rule,
                    "low": f.saving_ns.low / wall,
                    "likely": f.likely_ns / wall,
                    "high": f.saving_ns.high / wall,
                }
                for f in found
            ],
            "saved": None if saved is None else saved / wall,
            "in_range": inside,
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--record-only", action="store_true")
    parser.add_argument("--of", choices=MODULES, default=MODULES[0])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    device = "see the traces"
    if not options.judge:
        import torch

        from opscope.collect.script.signals import record_triton_launches

        known = programs_of(options.of)
        if "triton" in sys.modules:
            record_triton_launches()  # as opscope profile does
        device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        for name in options.programs or [name for name in known if name not in FRESH]:
            try:
                record(name, known[name], options.folder)
            except Exception:  # one program that fails, for whatever reason, leaves the others
                (options.folder / f"{name}.failed.txt").write_text(traceback.format_exc())
        if not options.programs:
            for name in (name for name in FRESH if name in known):
                environment = {**os.environ, "USE_PYTORCH_KERNEL_CACHE": "0"}
                command = [sys.executable, __file__, "--of", options.of, "--record-only", str(options.folder), name]
                subprocess.run(command, check=False, env=environment)
    if options.record_only:
        return
    rows = list(judged(options.folder))
    ranges = [row["in_range"] for row in rows if row["in_range"] is not None]
    document = {
        "device": device,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "programs": len(rows),
        "first_finding": {v: sum(row["verdict"] == v for row in rows) for v in ("expected", "as true", "other")},
        "savings_in_range": f"{sum(ranges)} of {len(ranges)}",
        "rows": rows,
    }
    (options.folder / "findings.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({key: value for key, value in document.items() if key != "rows"}, indent=2))


if __name__ == "__main__":
    main()
