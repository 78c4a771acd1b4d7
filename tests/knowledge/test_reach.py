"""What well-chosen kernels reach: tables that hold together, and that are what the recorded measurements say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opscope.knowledge.devices import (
    FUSED_HOST,
    GRAPH_GAP_NS,
    GRAPH_LAUNCH_NS,
    PINNED_BYTES_PER_NS,
    Assumed,
    reach_of,
    reach_origin,
)

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*-reach.json"))
KINDS = ("attention", "attention_training", "convolution_16", "convolution_tf32", "fused_optimizer", "one_pass")
KINDS += ("product_16", "product_tf32")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ideal_ns", [100, 10_000, 1_000_000, 100_000_000])
def test_better_assumptions_are_never_slower_and_none_beats_the_limit(kind: str, ideal_ns: int) -> None:
    slow, likely, fast = (reach_of(kind, assumed).time_ns(ideal_ns) for assumed in Assumed)
    assert slow >= likely >= fast >= ideal_ns


def test_a_time_is_the_limit_over_a_share_and_an_overhead() -> None:
    reach = reach_of("product_16", Assumed.LIKELY)
    assert reach.time_ns(1_000_000) == pytest.approx(1_000_000 / reach.share + reach.overhead_ns)


def test_other_constants_go_from_worst_to_best() -> None:
    assert list(GRAPH_GAP_NS) == sorted(GRAPH_GAP_NS, reverse=True)
    assert list(GRAPH_LAUNCH_NS) == sorted(GRAPH_LAUNCH_NS, reverse=True)
    assert list(PINNED_BYTES_PER_NS) == sorted(PINNED_BYTES_PER_NS)
    assert list(FUSED_HOST) == sorted(FUSED_HOST, reverse=True)


def test_large_copies_were_measured_at_what_is_likely_or_more() -> None:
    rates = [
        row["bytes_per_ns"]
        for path in RESULTS
        for row in json.loads(path.read_text())["copies"]
        if row["bytes"] >= 1 << 26
    ]
    assert rates
    assert all(PINNED_BYTES_PER_NS[Assumed.LIKELY] < rate < 1.01 * PINNED_BYTES_PER_NS[Assumed.HIGH] for rate in rates)


def test_the_tables_are_made_of_the_recorded_measurements(tmp_path: Path) -> None:
    """The tool, run on the results, writes what is shipped."""
    devices = [json.loads(path.read_text())["device"] for path in RESULTS]
    assert all(device in reach_origin() for device in devices)
    shipped = ROOT / "src" / "opscope" / "knowledge" / "data" / "reach.toml"
    script = f"""
import sys; sys.path.insert(0, {str(ROOT / "tools")!r})
import json, pathlib, build_reach
print(build_reach.text([json.loads(pathlib.Path(name).read_text()) for name in sys.argv[1:]]), end="")
"""
    command = [sys.executable, "-c", script, *map(str, RESULTS)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert made.stdout == shipped.read_text()
