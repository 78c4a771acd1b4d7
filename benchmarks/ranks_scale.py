"""How long it takes to put the summaries of very many ranks together, and in how much memory.

python benchmarks/ranks_scale.py --ranks 4096 --steps 300 --save benchmarks/results/ranks-scale.json
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import msgspec.structs
import numpy as np
import polars as pl
from saved import save

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.jobs import Job, Shape, write_job

from opscope.distributed.job import Job as ReadJob
from opscope.distributed.job import document_of
from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import RankSummary


def packed(ranks: int, steps: int) -> list[bytes]:
    """Return the summaries of ranks that are alike but for noise and clocks; one of them is late."""
    chance = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        one = summarise_rank(write_job(Job(Shape(2), steps=steps, offset_ns=0, drift_ppm=0.0), Path(folder))[0])
    members = str(list(range(30)))[:-1] + ", ...]"
    found = []
    for rank in range(ranks):
        late = 5_000_000 if rank == ranks // 2 else 0
        offset, noise = int(chance.normal(0, 300_000)), chance.integers(0, 1_000, one.communications.height)
        # The others wait for the late rank in the last collective of each step.
        waits = (
            pl.when(pl.col("ordinal") == pl.col("ordinal").max().over("row"))
            .then(0 if late else 5_000_000)
            .otherwise(0)
        )
        moved = one.communications.with_columns(
            pl.col("start_ns") + offset - waits,
            pl.col("end_ns") + offset + noise,
            members=pl.lit(members).cast(pl.Categorical),
            size=pl.lit(ranks, pl.Int32),
        )
        waited = moved.select("row", place=pl.int_range(pl.len(), dtype=pl.Int32), since="start_ns", until="end_ns")
        exposed = (
            one.exposed.join(waited, on=["row", "place"], how="left")
            .with_columns(start_ns=pl.min_horizontal("since", pl.col("start_ns") + offset), end_ns=pl.col("until"))
            .select(one.exposed.columns)
        )
        of_steps = one.steps.with_columns(
            pl.col("device_ns") + 5_000_000, pl.col("communication_ns") + 5_000_000 - late
        )
        facts = msgspec.structs.replace(one.facts, rank=rank, world=ranks, path=f"rank{rank}.json")
        found.append(one.changed(facts, steps=of_steps, communications=moved, exposed=exposed).to_bytes())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    summaries = packed(options.ranks, options.steps)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    ranks = {rank: RankSummary.from_bytes(one) for rank, one in enumerate(summaries)}
    read = time.monotonic()
    document = document_of(ReadJob(ranks, options.ranks, [], {}))
    done = time.monotonic()
    result = {
        "ranks": options.ranks,
        "collectives of a rank": ranks[0].communications.height,
        "bytes of a summary": len(summaries[0]),
        "seconds to unpack": read - began,
        "seconds to reduce": done - read,
        "peak memory in MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "of it before": before / 1e3,
        "late": [(one.rank, one.late_ns) for one in document.late],
        "collectives that are whole": sum(one.whole for one in document.collectives),
    }
    print(result)
    if options.save:
        save(options.save, **result)


if __name__ == "__main__":
    main()
