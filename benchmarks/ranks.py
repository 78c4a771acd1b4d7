"""Whether `opscope ranks` names the late rank, its cause and by how much: in made jobs of many shapes and seeds.

python benchmarks/ranks.py --jobs 200 --save benchmarks/results/ranks-made.json
python benchmarks/ranks.py --jobs 125 --spread --save benchmarks/results/ranks-spread.json

With --spread lateness is in many small pauses, or in kernels of the forward pass, the backward pass or the optimizer,
and hosts of ranks differ as under a profiler: of two ranks by up to 40 %. What it is by is compared with how much
shorter steps of the same job without it are, as some of it may hide behind the device's own work.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from saved import save

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.jobs import Job, Lateness, Shape, write_job

from opscope.distributed.clocks import clocks_of
from opscope.distributed.collectives import matched, rows_of
from opscope.distributed.job import Job as ReadJob
from opscope.distributed.job import document_of
from opscope.distributed.one_rank import summarise_rank

MS = 1_000_000
SHAPES = {
    "data": Shape(8),
    "tensor": Shape(8, tensor=4),
    "pipeline": Shape(8, stages=2),
    "experts": Shape(8, experts=True),
    "sharded": Shape(8, sharded=True),
    "all": Shape(16, tensor=2, stages=2),
}
CAUSES = ("host", "input", "kernels", "work", "clock", "blocking")


def made(number: int) -> tuple[str, Job]:
    """Return a job by its number; one in five is healthy."""
    chance = random.Random(number)
    name = chance.choice(list(SHAPES))
    shape = SHAPES[name]
    late = {}
    if number % 5:
        cause = chance.choice(CAUSES)
        size = chance.randrange(1_000, 3_000) if cause == "clock" else round(chance.uniform(2, 8) * MS)
        late = {chance.randrange(shape.ranks): Lateness(cause, size)}
    job = Job(
        shape, late, steps=chance.choice((3, 5, 8)), jitter_ns=chance.choice((500, 5_000, 20_000)),
        offset_ns=chance.choice((0, 300_000, 5_000_000)), drift_ppm=chance.choice((0.0, 5.0, 15.0)), per_host=4,
        noise_ns=chance.choice((500, 2_000)), sequence=shape.stages == 1 and chance.random() < 0.5,
        lose=chance.choice((0.0, 0.0, 0.01)), leftovers=chance.choice((0, 3)), seed=number,
    )  # fmt: skip
    return name, job


SPREAD_SHAPES = {
    "two": Shape(2), "two, sharded": Shape(2, sharded=True), "two, tensor": Shape(2, tensor=2),
    "four": Shape(4), "data": Shape(8), "tensor": Shape(8, tensor=4), "sharded": Shape(8, sharded=True),
    "experts": Shape(4, experts=True),
}  # fmt: skip


def spread(number: int) -> tuple[str, Job]:
    """Return a job whose lateness is spread, or hidden by hosts that differ, by its number; one in five is healthy."""
    chance = random.Random(10_000 + number)
    name = chance.choice(list(SPREAD_SHAPES))
    shape = SPREAD_SHAPES[name]
    launch = chance.choice((5_000, 5_000, 250_000))
    slow = {rank: chance.uniform(1, 1.4 if shape.ranks == 2 else 1.08) for rank in range(shape.ranks)}
    late = {}
    if number % 5:
        size, rank = round(chance.uniform(2, 8) * MS), chance.randrange(shape.ranks)
        places = ("forward", "backward", "optimizer")
        late[rank] = (
            Lateness("host", size, pieces=chance.choice((6, 12, 24)))
            if chance.random() < 0.2
            else Lateness("kernels", size, place=chance.choice(places))
        )
    job = Job(
        shape, late, steps=chance.choice((1, 3, 6)) if shape.ranks == 8 else chance.choice((3, 6)),
        jitter_ns=chance.choice((500, 5_000, 20_000)), offset_ns=chance.choice((0, 300_000)), per_host=4,
        launch_ns=launch, host_slow=slow, seed=number,
    )  # fmt: skip
    return name, job


_LEAST_FELT = 0.05  # of a step: what hides behind the rest makes nobody late


def tried_spread(number: int, folder: Path) -> dict[str, Any]:
    name, job = spread(number)
    ranks = {rank: summarise_rank(path) for rank, path in enumerate(write_job(job, folder / str(number)))}
    document = document_of(ReadJob(ranks, len(ranks), [], {}))
    late = [(one.rank, str(one.cause), one.late_ns) for one in document.late]
    found: dict[str, Any] = {"number": number, "shape": name, "late": late, "slow_links": len(document.slow_links)}
    for rank, one in job.late.items():
        twin = replace(job, late={})
        ranks = {at: summarise_rank(path) for at, path in enumerate(write_job(twin, folder / f"{number}-healthy"))}
        healthy = document_of(ReadJob(ranks, len(ranks), [], {}))
        steps = [statistics.mean(step.duration_ns for step in of.steps) for of in (document, healthy)]
        longer = steps[0] - steps[1]
        if longer < _LEAST_FELT * steps[0]:
            return {} if not late else found
        # Both are known: what was built in, and how much longer steps are for it.
        near = min((one.ns, longer), key=lambda ns: abs(ns - (late[0][2] if late else 0)))
        found |= {"rank": rank, "cause": one.cause, "built_in_ns": near}
    return found


def tried(number: int, folder: Path) -> dict[str, Any]:
    name, job = made(number)
    ranks = {rank: summarise_rank(path) for rank, path in enumerate(write_job(job, folder / str(number)))}
    document = document_of(ReadJob(ranks, len(ranks), [], {}))
    found = {
        "number": number,
        "shape": name,
        "late": [(one.rank, str(one.cause), one.late_ns) for one in document.late],
        "slow_links": len(document.slow_links),
    }
    clocks = clocks_of(matched(rows_of(ranks)).calls)
    if clocks is not None:
        true = np.array([offset + drift * (clocks.middle_ns - offset) for offset, drift in job.clocks()])[clocks.ranks]
        off = clocks.offset_ns - true
        found["clock_errors_ns"] = np.abs(off - np.median(off)).tolist()
    replayed = next((one for one in document.findings if one.rule == "late_rank" and one.is_replayed), None)
    if replayed is not None:
        twin = replace(job, late={})
        ranks = {rank: summarise_rank(path) for rank, path in enumerate(write_job(twin, folder / f"{number}-healthy"))}
        healthy = document_of(ReadJob(ranks, len(ranks), [], {}))
        steps = [statistics.mean(step.duration_ns for step in one.steps) for one in (document, healthy)]
        saved = steps[0] - steps[1]
        if any(one.cause == "work" for one in job.late.values()):
            saved *= 1 - 1 / job.shape.ranks  # work is divided, and not left out
        found["saving_off"] = (replayed.likely_ns - saved) / steps[0]
    for rank, one in job.late.items():
        found |= {"rank": rank, "cause": one.cause, "built_in_ns": one.ns if one.cause != "clock" else None}
    return found


def summed(results: list[dict[str, Any]]) -> dict[str, Any]:
    late, healthy = ([one for one in results if ("rank" in one) is is_late] for is_late in (True, False))
    named = [one for one in late if len(one["late"]) == 1 and one["late"][0][0] == one["rank"]]
    right = [one for one in named if one["late"][0][1] == one["cause"]]
    # Waits make a rank late by what follows each, which is not built in to the microsecond.
    sized = [one for one in right if one["built_in_ns"] is not None and one["cause"] != "blocking"]
    off = [abs(one["late"][0][2] - one["built_in_ns"]) for one in sized]
    savings = [abs(one["saving_off"]) for one in results if "saving_off" in one]
    errors = [error for one in results for error in one.get("clock_errors_ns", [])]
    return {
        "jobs": len(results),
        "late": len(late),
        "rank right": len(named),
        "rank and cause right": len(right),
        "healthy": len(healthy),
        "healthy with a late rank": sum(bool(one["late"]) for one in healthy),
        "with a slow link, where none is": sum(one["slow_links"] > 0 for one in results),
        "lateness off by a tenth and 1 ms": sum(
            abs(one["late"][0][2] - one["built_in_ns"]) > max(0.1 * one["built_in_ns"], MS) for one in sized
        ),
        "lateness off, median and worst, in us": [statistics.median(off) / 1e3, max(off) / 1e3] if off else None,
        "savings by replay": sum("saving_off" in one for one in results),
        "savings off what the job without the late rank takes, median and worst, of a step": [
            statistics.median(savings),
            max(savings),
        ]
        if savings
        else None,
        "clocks off, median and worst, in us": [statistics.median(errors) / 1e3, max(errors) / 1e3] if errors else None,
        "wrong": [one["number"] for one in late if one not in right],
        "causes": dict(Counter(one["cause"] for one in late)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.jobs)
    with tempfile.TemporaryDirectory() as folder:
        results = [(tried_spread if options.spread else tried)(number, Path(folder)) for number in numbers]
    results = [one for one in results if one]
    summary = summed(results)
    print(summary)
    for one in results:
        if one["number"] in summary["wrong"] or ("rank" not in one and one["late"]):
            print({key: value for key, value in one.items() if key != "clock_errors_ns"})
    if options.save:
        save(options.save, summary=summary)


if __name__ == "__main__":
    main()
