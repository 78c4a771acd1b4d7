"""Fit laws of growth to recorded sweeps, and say how far off they are at sizes that they were not shown.

    opscope profile bert --batch-sizes 1 2 4 8 16 32 64 128 --seq-lens 128 --dtype bf16 --output-dir RUN
    python benchmarks/growth_laws.py OUTPUT.json RUN/comparison.json...

The times are the step's, the device's, and those of each category of work.
"""

import argparse
import json
import sys
from pathlib import Path

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

from opscope.analysis.costs.growth_law import PREDICTS, growth_law  # noqa: E402
from opscope.documents.comparison import ComparisonRow, SweepComparison  # noqa: E402


def times(rows: tuple[ComparisonRow, ...], along: str) -> dict[str, dict[int, float]]:
    """Return the times in nanoseconds by what takes them and by size."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        of = {"step": row.wall_ns, "device": row.device_sum_ns, **row.categories_ns}
        for name, time in of.items():
            if time:
                found.setdefault(name, {})[int(row.axes[along])] = time
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("comparisons", type=Path, nargs="+")
    given = parser.parse_args()
    results = []
    for path in given.comparisons:
        sweep = msgspec.json.decode(path.read_bytes(), type=SweepComparison)
        along = max(sweep.rows[0].axes, key=lambda name: len({row.axes[name] for row in sweep.rows}))
        for name, of in times(sweep.rows, along).items():
            law = growth_law(of)
            if law is not None:
                results.append(
                    {"sweep": f"{sweep.description}, along {along}", "time": name, "times_ns": of,
                     "law": msgspec.to_builtins(law), "predicts": law.off <= PREDICTS}
                )  # fmt: skip
    machine, framework = sweep.machine, sweep.framework
    given.output.write_text(
        json.dumps(
            {
                "created": sweep.created,
                "device": [gpu.name for gpu in machine.gpus] if machine else None,
                "torch": framework.torch if framework else None,
                "predict": sum(one["predicts"] for one in results),
                "of": len(results),
                "results": results,
            },
            indent=1,
        )
        + "\n"
    )
    for one in results:
        print(
            f"{one['sweep']}: {one['time']}: off by up to {100 * one['law']['off']:.1f} % (at {one['law']['off_at']})"
        )


if __name__ == "__main__":
    main()
