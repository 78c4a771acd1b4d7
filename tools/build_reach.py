"""Write src/opscope/knowledge/data/reach.toml: what well-chosen kernels reach, from results of benchmarks/reach.py.

    python tools/build_reach.py benchmarks/results/*-reach.json

A kind of work takes its limit divided by a share, and an overhead: time = ideal / share + overhead. Three such pairs
per kind are fitted to all results together, so that one in ten measurements took longer (low), half of them (likely),
and nine in ten (high); the fit is of logarithms, so a size counts as much as another.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

OUTPUT = Path(__file__).parents[1] / "src" / "opscope" / "knowledge" / "data" / "reach.toml"
QUANTILES: Final = {"low": 0.9, "likely": 0.5, "high": 0.1}
SHARES: Final = np.arange(0.2, 0.985, 0.01)
OVERHEADS_NS: Final = np.geomspace(300, 80_000, 90)


def fitted(ideal: np.ndarray, took: np.ndarray, quantile: float) -> tuple[float, float]:
    """Return the share and overhead for which a share of the measurements took less."""
    model = np.log(ideal[:, None, None] / SHARES[None, :, None] + OVERHEADS_NS[None, None, :])
    over = np.log(took)[:, None, None] - model
    loss = np.where(over > 0, quantile * over, (quantile - 1) * over).sum(axis=0)
    share, overhead = np.unravel_index(int(loss.argmin()), loss.shape)
    return float(SHARES[share]), float(OVERHEADS_NS[overhead])


def text(results: list[dict[str, Any]]) -> str:
    """Return the file's text."""
    devices = ", ".join(f"{result['device']} ({result['date'][:10]})" for result in results)
    torch = ", ".join(sorted({result["torch"] for result in results}))
    lines = [
        "# What well-chosen kernels reach: time = ideal / share + overhead. Written by tools/build_reach.py from",
        "# results of benchmarks/reach.py: one in ten measurements took longer than low, half longer than likely,",
        "# nine longer than high.",
        f'origin = "{devices}; torch {torch}"',
    ]
    kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        for row in result["shares"]:
            kinds[row["kind"]].append((row["ideal_ns"], row["took_ns"]))
    for kind, pairs in sorted(kinds.items()):
        ideal, took = np.array(pairs).T
        lines += ["", f"[{kind}]", f"samples = {len(pairs)}"]
        for name, quantile in QUANTILES.items():
            share, overhead = fitted(ideal, took, quantile)
            lines.append(f"{name} = {{ share = {share:.2f}, overhead_ns = {overhead:.0f} }}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(text([json.loads(Path(name).read_text()) for name in sys.argv[1:]]))
