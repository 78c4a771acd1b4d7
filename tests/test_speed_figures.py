"""The figures of speed in the documentation are those that were measured."""

import json
import re
from typing import Any

import pytest

from tests.command import ROOT

MEASURED: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "speed-two-cores.json").read_text())
ROWS = MEASURED["rows"]
TABLE = re.compile(r"^\| `([^`]+)` of (.+?) \| ([\d.]+) s \| ([\d.]+) s \| ([\d.]+) \| (\d+) -> (\d+) MB \|$", re.M)
NAMES = {
    ("opscope --help", "nothing"): "help",
    ("opscope analyze", "one operator"): "tiny",
    ("opscope analyze", "126 MB"): "small_table",
    ("opscope analyze --format json", "126 MB"): "small_json",
    ("opscope analyze", "126 MB as gzip"): "small_gzip",
    ("opscope analyze", "126 MB as a store"): "small_store",
    ("opscope analyze", "752 MB"): "large_table",
    ("opscope analyze --format json", "752 MB"): "large_json",
    ("opscope page", "126 MB"): "small_page",
    ("opscope page", "752 MB"): "large_page",
    ("opscope analyze", "100,000 distinct names"): "names",
}


def test_the_table_is_what_was_measured() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    found = {NAMES[match[1], match[2]]: match for match in TABLE.finditer(text)}
    assert found.keys() == ROWS.keys()
    for name, match in found.items():
        row = ROWS[name]
        median, ratio, peak = row["median_seconds"], row["ratio"], row["peak_bytes"]
        assert (match[3], match[4], match[5]) == (
            f"{median['before']:.2f}",
            f"{median['after']:.2f}",
            f"{ratio['after']:.2f}",
        ), name
        assert (int(match[6]), int(match[7])) == tuple(round(peak[one] / 1e6) for one in ("before", "after")), name


@pytest.mark.parametrize("file", ["README.md", "docs/guides/traces.md", "CHANGELOG.md"])
def test_sentences_are_what_was_measured(file: str) -> None:
    text = " ".join((ROOT / file).read_text().split())
    small, large = (ROWS[name]["median_seconds"]["after"] for name in ("small_table", "large_table"))
    assert f"126 MB in {small:.1f} s, 752 MB in {large:.1f} s" in text
