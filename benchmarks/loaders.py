"""Is the loader to blame, and which stage of it? Loops with one slow stage and healthy ones, against measured cures.

    python benchmarks/loaders.py --save benchmarks/results/loaders-two-cores.json

For each loop of ``scripts/loaders.py``: what ``opscope advise --only input`` says; and, for slow ones, what was gained
when the stage cost nothing and with more workers, measured in turns with the loop as written, beside what was computed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from saved import save

from opscope.advise.changes.change import workers_tried
from opscope.advise.messages import VariantJob
from opscope.advise.session import Session
from opscope.record.configuration import Configuration

SCRIPT = Path(__file__).parent / "scripts" / "loaders.py"
ROUNDS, TURN_S = 9, 0.3


def kinds() -> dict[str, str | None]:
    """Return the slow stage of each kind; None for healthy ones."""
    text = "import json, sys; sys.argv = ['loaders', '']; import loaders; "
    text += "print(json.dumps({kind: slow for kind, (slow, _) in loaders.KINDS.items()}))"
    done = subprocess.run((sys.executable, "-c", text), cwd=SCRIPT.parent, capture_output=True, text=True, check=True)
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def said(kind: str) -> dict[str, Any]:
    command = (
        sys.executable,
        "-m",
        "opscope",
        "advise",
        "--format",
        "json",
        "--only",
        "input",
        "--",
        str(SCRIPT),
        kind,
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)["input"]
    return found


def gains(kind: str, others: list[str]) -> list[float]:
    """Return how many times as fast the loop is with other arguments, measured in turns."""
    target = Configuration(target=str(SCRIPT))
    jobs = [VariantJob(configuration=target, device="cpu", arguments=f"{kind} {other}") for other in ("", *others)]
    with Session(jobs[0], width=2, timeout_s=120) as session:
        workers = session.build(jobs)
        session.time(workers, ROUNDS, TURN_S)
        base, *rest = workers
        for worker in rest:
            if worker.broken is not None:
                raise SystemExit(f"{kind}: {worker.broken.reason}")
        return [median(a / b for a, b in zip(base.blocks, one.blocks, strict=True)) for one in rest]


def result(kind: str, slow: str | None) -> dict[str, Any]:
    proof = said(kind)
    first = proof["stages"][0]["stage"] if proof["stages"] else None
    found = {"kind": kind, "slow": slow, "blamed": proof["blamed"], "named": first if proof["blamed"] else None}
    found["right"] = found["named"] == slow
    if slow is not None and proof["blamed"]:
        foreseen = {one["change"]: one["ratio"] for one in proof["others"]}
        others = {
            f"{workers_tried()} workers that persist": f"--workers {workers_tried()} --persist",
            f"{first} at no cost": "--fixed",
        }
        asked = [change for change in others if change in foreseen]
        measured = dict(zip(asked, gains(kind, [others[change] for change in asked]), strict=True))
        found["gains"] = {
            change: {
                "computed": foreseen[change],
                "measured": measured[change],
                "off": foreseen[change] / measured[change] - 1,
            }
            for change in asked
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    known, results = kinds(), []
    for kind in options.kinds or known:
        results.append(result(kind, known[kind]))
        print(json.dumps(results[-1]), flush=True)
    slow, healthy = ([one for one in results if (one["slow"] is None) == is_healthy] for is_healthy in (False, True))
    offs = [abs(gain["off"]) for one in slow for gain in one.get("gains", {}).values()]
    summary = {
        "named": f"{sum(one['right'] for one in slow)} of {len(slow)}",
        "blamed_wrongly": f"{sum(one['blamed'] for one in healthy)} of {len(healthy)}",
        "gains_within_10_percent": f"{sum(off <= 0.1 for off in offs)} of {len(offs)}",
    }
    print(json.dumps(summary))
    if options.save:
        save(options.save, **summary, results=results)


if __name__ == "__main__":
    main()
