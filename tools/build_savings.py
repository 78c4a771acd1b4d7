"""Draw docs/images/savings.svg: predicted savings with their ranges against measured ones.

    python tools/build_savings.py [--check]

The programs and figures are those of benchmarks/results/h100-findings-frozen.json and h100-held-out-frozen.json (each
with rules that were frozen before its programs were recorded) and of h100-findings.json (the same recordings, rules of
today). With --check nothing is written; the exit code is 1 if the picture is out of date.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE = ROOT / "benchmarks" / "results", ROOT / "docs" / "images" / "savings.svg"
SIDE: Final = 330  # pixels of a plot
LEFT, TOP, BETWEEN = 60, 50, 60
IN, OUT = "#2a78d6", "#c8402f"
STYLE: Final = (
    "text{font:12px sans-serif;fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}.frame{stroke:#777}}"
)


def rows_of(*names: str) -> list[dict[str, Any]]:
    sets = [json.loads((RESULTS / name).read_text())["sets"] for name in names]
    rows = [row for found in sets for name in ("unseen", "held_out") for row in found.get(name, ())]
    return [row for row in rows if row["own"] and row["saved"] is not None]


def plot(rows: list[dict[str, Any]], left: int, title: str) -> list[str]:
    def at(measured: float, predicted: float) -> tuple[float, float]:
        return left + SIDE * measured, TOP + SIDE * (1 - predicted)

    inside = sum(row["in_range"] for row in rows)
    lines = [
        f'<text x="{left}" y="{TOP - 24}" font-weight="bold">{title}</text>',
        f'<text x="{left}" y="{TOP - 8}">{inside} of {len(rows)} measured savings in the range</text>',
        f'<rect class="frame" x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>',
        f'<line class="frame" x1="{left}" y1="{TOP + SIDE}" x2="{left + SIDE}" y2="{TOP}" stroke="#999"/>',
        f'<text x="{left + SIDE / 2}" y="{TOP + SIDE + 36}" text-anchor="middle">measured saving, % of the step</text>',
    ]
    for tick in range(0, 101, 25):
        x, y = at(tick / 100, tick / 100)
        lines.append(f'<text x="{x:.0f}" y="{TOP + SIDE + 18}" text-anchor="middle">{tick}</text>')
        lines.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{tick}</text>')
    for row in rows:
        own, colour = row["own"], IN if row["in_range"] else OUT
        x, low = at(row["saved"], own["low"])
        _, high = at(row["saved"], own["high"])
        _, likely = at(row["saved"], own["likely"])
        lines.append(f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
        name = f"{row['name']} ({row['expected']})"
        lines.append(f'<circle cx="{x:.1f}" cy="{likely:.1f}" r="3" fill="{colour}"><title>{name}</title></circle>')
    return lines


def picture() -> str:
    width, height = LEFT + 2 * SIDE + BETWEEN + 20, TOP + SIDE + 50
    before = rows_of("h100-findings-frozen.json", "h100-held-out-frozen.json")
    frozen = plot(before, LEFT, "Rules frozen before the programs were recorded")
    today = plot(rows_of("h100-findings.json"), LEFT + SIDE + BETWEEN, "Rules of today, same recordings")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"><style>{STYLE}</style>'
    axis = f'<text transform="translate(16 {TOP + SIDE / 2}) rotate(-90)" text-anchor="middle">predicted, range</text>'
    return "\n".join([head, axis, *frozen, *today, "</svg>", ""])


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PICTURE.read_text() != picture())
    PICTURE.write_text(picture())
