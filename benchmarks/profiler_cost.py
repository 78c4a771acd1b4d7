"""By how much recording slows a step down that the host limits: what the range of an unprofiled step rests on.

    python benchmarks/profiler_cost.py RESULT.json    # on an NVIDIA GPU

Each of a few programs runs in a process of its own per way of collecting, as a process that was profiled once stays
slower: unprofiled steps first, profiled ones after, each waited for and timed by the host. The quickest of each count:
what else runs on the machine only adds.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from programs import Step

PROGRAMS = ("tiny_training", "written_out_lstm", "many_parameters", "images_one_by_one", "requests_one_by_one")
COLLECTED = ("device", "operators", "shapes", "stacks")
STEPS = 15
WARMUP = 3


def timed(step: "Step", count: int) -> list[int]:
    import torch

    samples = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        step()
        torch.cuda.synchronize()
        samples.append(time.perf_counter_ns() - begun)
    return samples


def measure(name: str, collected: str) -> dict[str, float | str]:
    """Return the unprofiled and the profiled step in nanoseconds (the quickest)."""
    import programs
    from torch.profiler import ProfilerActivity, profile

    step = programs.PROGRAMS[name].make()
    timed(step, WARMUP)
    alone = min(timed(step, STEPS))
    host = [] if collected == "device" else [ProfilerActivity.CPU]
    with profile(
        activities=[ProfilerActivity.CUDA, *host],
        record_shapes=collected in ("shapes", "stacks"),
        with_stack=collected == "stacks",
    ):
        timed(step, WARMUP)
        profiled = min(timed(step, STEPS))
    return {
        "program": name,
        "collected": collected,
        "unprofiled_ns": alone,
        "profiled_ns": profiled,
        "factor": round(profiled / alone, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "COLLECTED"))
    arguments = parser.parse_args()
    if arguments.one:
        arguments.result.write_text(json.dumps(measure(*arguments.one)))
        return
    import torch

    rows = []
    for name in PROGRAMS:
        for collected in COLLECTED:
            subprocess.run([sys.executable, __file__, str(arguments.result), "--one", name, collected], check=True)
            rows.append(json.loads(arguments.result.read_text()))
    ranges = {
        collected: [pick(row["factor"] for row in rows if row["collected"] == collected) for pick in (min, max)]
        for collected in COLLECTED
    }
    document = {
        "what": "profiled over unprofiled step (benchmarks/profiler_cost.py)",
        "device": f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
        "processors": os.cpu_count(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "factors": ranges,
        "rows": rows,
    }
    arguments.result.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(ranges))


if __name__ == "__main__":
    main()
