"""How often does ``opscope advise`` call the step as written faster than itself?

    python benchmarks/advise_noise.py --trials 100 --save benchmarks/results/advise-noise-two-cores.json

Each trial starts three new processes with the same step: the one as written, its twin, and a third that stands for a
change. They are timed as finalists are; a gain of the third is false.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from saved import save

from opscope.advise.measured import is_faster, least_gain, timed_beside
from opscope.advise.messages import VariantJob
from opscope.advise.proving import time_finalists
from opscope.advise.session import Session
from opscope.record.configuration import Configuration

TARGETS = Path(__file__).parent / "advise_targets.py"
KINDS = ("gan", "lstm", "recommender", "two_losses", "diffusion")  # steps of one to twenty milliseconds on a CPU


def trial(kind: str, seed: int) -> dict[str, Any]:
    device = "cuda" if torch.cuda.device_count() else "cpu"
    job = VariantJob(configuration=Configuration(target=f"{TARGETS}:{kind}"), device=device)
    with Session(job, width=2, timeout_s=120, seed=seed) as session:
        base, twin, third = workers = session.build([job] * 3)
        time_finalists(session, [base, twin], [third])
        for worker in workers:
            if worker.broken is not None:
                raise SystemExit(f"{kind}: {worker.broken.reason}")
        least = least_gain(base, twin)
        found = timed_beside([base, twin], third, least)
        assert found.gain is not None
        return {
            "kind": kind,
            "false_gain": is_faster(found),
            "ratio": found.gain.median,
            "low": found.gain.low,
            "high": found.gain.high,
            "least": least,
            "rounds": len(base.blocks),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    results = []
    for number in range(options.trials):
        results.append(trial(KINDS[number % len(KINDS)], number))
        print(json.dumps(results[-1]), flush=True)
    summary = {"trials": len(results), "false_gains": sum(one["false_gain"] for one in results)}
    print(json.dumps(summary))
    if options.save:
        save(options.save, **summary, results=results)


if __name__ == "__main__":
    main()
