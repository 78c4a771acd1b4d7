"""What ``opscope advise`` finds: on steps whose best changes are known, or on others of many kinds.

python benchmarks/advise.py --of known --save benchmarks/results/advise-known.json
python benchmarks/advise.py --of targets --budget 60 --save benchmarks/results/advise-two-cores.json
"""

import argparse
import importlib
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from saved import save

FOLDER = Path(__file__).parent
FIELDS = ("changes", "ratio", "ci_low", "ci_high", "error", "own_error")


def kinds(of: str) -> list[str]:
    sys.path.insert(0, str(FOLDER))
    return [one.__name__ for one in importlib.import_module(f"advise_{of}").KINDS]


def advised(target: str, budget: float, only: list[str], folder: Path | None = None) -> dict[str, Any]:
    kind = target.rpartition(":")[2]
    command = [sys.executable, "-m", "opscope", "advise", "--format", "json"]
    command += ["--budget", str(budget), *only, *shlex.split(target)]
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=folder)
    took = time.monotonic() - began
    if done.returncode:
        return {"kind": kind, "failed": f"exit code {done.returncode}"}
    document = json.loads(done.stdout)
    results = document["results"]
    verdicts = {"+".join(one["changes"]): (one["verdict"], one["ratio"], one["reason"]) for one in results}
    return {
        "kind": kind,
        "device": document["device"],
        "baseline_ns": document["baseline_ns"],
        "of_itself": document["of_itself"],
        "best": {name: {key: results[place][key] for key in FIELDS} for name, place in document["best"].items()},
        "seconds": took,
        "unfinished": document["unfinished"],
        "verdicts": {name: one for name, one in verdicts.items() if one[0] != "refused"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", choices=["known", "targets"], default="targets")
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--script", help="a script and its arguments, instead of steps")
    parser.add_argument("--folder", type=Path, help="where the script runs")
    parser.add_argument("--budget", type=float, default=180.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    results = []
    steps = [f"{FOLDER / f'advise_{options.of}.py'}:{kind}" for kind in options.kinds or kinds(options.of)]
    only = [f"--only={name}" for name in options.only]
    for target in [options.script] if options.script else steps:
        results.append(advised(target, options.budget, only, options.folder))
        shown = {name: value for name, value in results[-1].items() if name not in ("verdicts", "device")}
        print(json.dumps(shown), flush=True)
        if options.save:  # after each, as a machine may be had for a while only
            save(options.save, results=results)


if __name__ == "__main__":
    main()
