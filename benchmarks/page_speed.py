"""Time `opscope page` beside `opscope analyze`, in turn on the same file, and the page in headless Chromium.

    python benchmarks/page_speed.py OUTPUT.json --rounds 9 --size 100

The file is the recorded GPT-2 training trace repeated until it has so many megabytes. Without Chromium the browser's
part is left out. The rows and slices that are timed in the browser are those of traces made for that.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")]

from tests.kineto import KinetoTrace  # noqa: E402
from trace_speed import repeated  # noqa: E402

from opscope.base.processes import cores  # noqa: E402

GPT2 = ROOT / "tests" / "data" / "traces" / "gpt2_train_amp_stacks.json.gz"


PAINT = """() => new Promise(done => new PerformanceObserver(list => {
    for (const one of list.getEntries()) if (one.name === "first-contentful-paint") done(one.startTime);
}).observe({ type: "paint", buffered: true }))"""


# What drawing takes, without waiting for the browser's next frame: while zooming in and out again.
DRAWN = """([text]) => {
    const { timeline } = opscopePage.app.traces[0];
    timeline.mark(text);
    timeline.show(0, timeline.length);
    timeline.surface.frameTimes = [];
    for (let frame = 0; frame < 60; frame += 1) {
        timeline.zoom(frame < 30 ? 0.8 : 1.25, 0.3 + 0.01 * (frame % 30));
        timeline.surface.drawNow();
    }
    return timeline.surface.frameTimes;
}"""

# What passes between the frames that a user sees, with the same movement; no frame comes sooner than in 16.7 ms.
FRAMES = """async ([text]) => {
    const { timeline } = opscopePage.app.traces[0];
    timeline.mark(text);
    timeline.show(0, timeline.length);
    const next = () => new Promise((done) => requestAnimationFrame(done));
    await next();
    const times = [];
    let last = performance.now();
    for (let frame = 0; frame < 120; frame += 1) {
        timeline.zoom(frame % 60 < 30 ? 0.8 : 1.25, 0.3 + 0.01 * (frame % 30));
        await next();
        const now = performance.now();
        times.push(now - last);
        last = now;
    }
    return times;
}"""


def seconds(*arguments: str) -> float:
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(
        [sys.executable, "-P", "-m", "opscope", *arguments], env=environment, check=True, capture_output=True
    )
    return time.perf_counter() - begin


def many(path: Path, operators: int, calls: int) -> Path:
    """A trace with so many operators and, with Python frames, launches and kernels, four slices a call."""
    built = KinetoTrace()
    built.step(1, 0, calls * 20_000 + 1_000)
    for place in range(calls):
        at = 1_000 + place * 20_000
        built.slice("python_function", f"model.py({place % 400}): f{place % 400}", at - 500, 15_000)
        built.operator(f"my::operator_{place % operators}", at, 9_000)
        built.launched_kernel(f"kernel_{place % operators}", (at + 2_000, 1_000), (at + 5_000, 3_000 + place % 977))
    return built.write(path)


def in_browser(folder: Path, big: Path) -> dict[str, object] | None:
    from tests.browser import browser_is_missing, chromium, opened

    if browser_is_missing():
        return None
    rows, slices = many(folder / "rows.json", 2_000, 2_000), many(folder / "slices.json", 50, 116_000)
    names = many(folder / "names.json", 100_000, 100_000)
    pages = {name: folder / f"{name}.html" for name in ("big", "rows", "slices", "names")}
    for name, trace in (("big", big), ("rows", rows), ("slices", slices), ("names", names)):
        seconds("page", str(trace), "-o", str(pages[name]))
    with chromium() as browser:
        paints, sorts, filters = [], [], []
        for _ in range(5):
            with opened(browser, pages["big"]) as page:
                paints.append(page.evaluate(PAINT))
        with opened(browser, pages["rows"]) as page:
            page.show("operators")
            table = "opscopePage.app.traces[0].operatorTable"
            keys, texts = ("calls", "name", "self_device_ns", "total_cpu_ns") * 3, ("operator_1", "99", "operator") * 3
            timed = f"{table}.lastRefreshMs"
            sorts += [page.evaluate(f"(() => {{ {table}.sort('{key}'); return {timed}; }})()") for key in keys]
            filters += [
                page.evaluate(f"(() => {{ {table}.query = '{text}'; {table}.refresh(); return {timed}; }})()")
                for text in texts
            ]
            count = page.evaluate("opscopePage.document.traces[0].document.operators.length")
        begin = time.perf_counter()
        with opened(browser, pages["names"]) as page:
            for view in page.evaluate("opscopePage.app.tabs.map(tab => tab.dataset.view)"):
                page.show(view)
        names_ms = (time.perf_counter() - begin) * 1_000
        with opened(browser, pages["slices"]) as page:
            page.show("timeline")
            shown = page.evaluate("opscopePage.app.traces[0].timeline.slices")
            texts = ("", "my::operator_7", "no such name")
            drawn = {text or "nothing": page.evaluate(DRAWN, [text]) for text in texts}
            frames = {text or "nothing": page.evaluate(FRAMES, [text]) for text in texts}
    return {
        "first_paint_ms": paints,
        "names_bytes": pages["names"].stat().st_size,
        "names_all_views_ms": names_ms,
        "rows": count,
        "sort_ms": sorts,
        "filter_ms": filters,
        "slices": shown,
        "drawing_ms": {text: summary(times) for text, times in drawn.items()},
        "frame_ms": {text: summary(times) for text, times in frames.items()},
    }


def summary(times: list[float]) -> dict[str, float]:
    return {"median": statistics.median(times), "max": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=100, help="megabytes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        big, page = Path(folder) / "big.json", Path(folder) / "page.html"
        repeated(GPT2, max(1, round(given.size / 7.86)), big)
        samples: dict[str, list[float]] = {"analyze": [], "page": []}
        for _ in range(given.rounds):
            samples["analyze"].append(seconds("analyze", str(big)))
            samples["page"].append(seconds("page", str(big), "-o", str(page), "--overwrite"))
        ratios = [b / a for a, b in zip(samples["analyze"], samples["page"], strict=True)]
        result = {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": {"platform": platform.platform(), "python": platform.python_version(), "cores": cores()},
            "trace_bytes": big.stat().st_size,
            "page_bytes": page.stat().st_size,
            "seconds": samples,
            "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
            "browser": in_browser(Path(folder), big),
        }
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(
        json.dumps(
            {"ratio": result["ratio"], "page_bytes": result["page_bytes"], "browser": result["browser"]}, indent=2
        )
    )


if __name__ == "__main__":
    main()
