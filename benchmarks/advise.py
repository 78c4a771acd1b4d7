"""What ``opscope advise`` finds on targets of many kinds (``advise_targets.py``).

python benchmarks/advise.py --budget 60 --save benchmarks/results/advise-two-cores.json
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from saved import save

TARGETS = Path(__file__).parent / "advise_targets.py"
FIELDS = ("changes", "ratio", "ci_low", "ci_high", "error", "own_error")


def kinds() -> list[str]:
    sys.path.insert(0, str(TARGETS.parent))
    import advise_targets

    return [one.__name__ for one in advise_targets.KINDS]


def advised(kind: str, budget: float, only: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "opscope", "advise", f"{TARGETS}:{kind}", "--format", "json"]
    command += ["--budget", str(budget), *only]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"kind": kind, "failed": done.stderr.splitlines()[-1] if done.stderr else f"exit code {done.returncode}"}
    document = json.loads(done.stdout)
    results = document["results"]
    verdicts = {"+".join(one["changes"]): (one["verdict"], one["ratio"], one["reason"]) for one in results}
    return {
        "kind": kind,
        "device": document["device"],
        "baseline_ns": document["baseline_ns"],
        "of_itself": document["of_itself"],
        "best": {name: {key: results[place][key] for key in FIELDS} for name, place in document["best"].items()},
        "seconds": document["seconds"],
        "unfinished": document["unfinished"],
        "verdicts": {name: one for name, one in verdicts.items() if one[0] != "refused"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--budget", type=float, default=180.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    results = []
    for kind in options.kinds or kinds():
        only = ["--only", *options.only] if options.only else []
        results.append(advised(kind, options.budget, only))
        shown = {name: value for name, value in results[-1].items() if name not in ("verdicts", "device")}
        print(json.dumps(shown), flush=True)
    if options.save:
        save(options.save, results=results)


if __name__ == "__main__":
    main()
