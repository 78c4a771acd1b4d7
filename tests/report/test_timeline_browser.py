"""The timeline of the page in a real browser: ticks, colours of pixels, ranges, arrows, marks, path and address."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Opened, browser_is_missing, chromium, opened
from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

pytestmark = pytest.mark.slow

if reason := browser_is_missing():
    pytest.skip(reason, allow_module_level=True)

GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"
T = "opscopePage.app.traces[0].timeline"
Made = Callable[[Path], Path]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Write the page of a trace, once."""
    pages: dict[Path, Path] = {}

    def make(trace: Path) -> Path:
        if trace not in pages:
            pages[trace] = tmp_path_factory.mktemp("page") / "page.html"
            done = opscope("page", str(trace), "-o", str(pages[trace]))
            assert done.returncode == 0, done.stderr
        return pages[trace]

    return make


def shown(page: Opened) -> Opened:
    page.show("timeline")
    return page


def document_of(trace: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(opscope("analyze", str(trace), "--format", "json").stdout)
    return found


# ---------------------------------------------------------------- ticks


def test_neighbouring_ticks_differ_at_every_zoom(browser: Any, made: Made) -> None:
    with opened(browser, made(GPT2)) as page:
        shown(page)
        span = 130_900_000.0
        while span >= 20:
            found = page.evaluate(
                f"([start, end]) => {{ const t = {T}; t.show(start, end); t.surface.drawNow(); return t.axisTicks; }}",
                [60_000_000, 60_000_000 + span],
            )
            labels = [tick["label"] for tick in found["ticks"]]
            assert len(set(labels)) == len(labels) >= 2, (span, labels)
            if found["anchor"]:
                assert all(label.startswith("+") for label in labels)
            span /= 3.7


@pytest.mark.parametrize(
    ("start", "end", "anchor", "labels"),
    [
        (0, 1_000, "", ["0.0 us", "0.2 us", "0.4 us", "0.6 us", "0.8 us", "1.0 us"]),
        (130_900_000, 130_900_900, "130.900 ms", ["+0 ns", "+200 ns", "+400 ns", "+600 ns", "+800 ns"]),
        (130_900_300, 130_901_300, "130.900 ms", ["+0.4 us", "+0.6 us", "+0.8 us", "+1.0 us", "+1.2 us"]),
        (2_000_000, 4_500_000, "", ["2.0 ms", "2.5 ms", "3.0 ms", "3.5 ms", "4.0 ms", "4.5 ms"]),
    ],
)
def test_ticks_count_from_an_anchor_where_the_range_is_short(
    browser: Any, made: Made, start: int, end: int, anchor: str, labels: list[str]
) -> None:
    with opened(browser, made(GPT2)) as page:
        found = page.evaluate("([start, end]) => opscopePage.ticks.timeTicks(start, end, 660)", [start, end])
        assert (found["anchorLabel"], [tick["label"] for tick in found["ticks"]]) == (anchor, labels)


# ---------------------------------------------------------------- pixels


def colour_at(page: Opened, kind: str, time: float) -> list[int]:
    found: list[int] = page.evaluate(
        f"""([kind, time]) => {{
            const t = {T};
            t.surface.drawNow();
            const lanes = t.lanes.find(one => one.kind === kind);
            const x = Math.floor((time - t.view.start) / t.perPixel()), y = t.trackOf.get(lanes).top + 16 + 8;
            return [...t.surface.context.getImageData(x, y, 1, 1).data];
        }}""",
        [kind, time],
    )
    return found


def test_a_pixel_has_the_colour_that_takes_most_of_it(browser: Any, made: Made, tmp_path: Path) -> None:
    """Of each microsecond 900 ns are a copy's and 100 ns a product's, which comes last."""
    built = KinetoTrace()
    built.step(1, 0, 4_000_000)
    for place in range(4_000):
        built.operator("aten::copy_", place * 1_000, 400)
        built.launched_kernel("copy", (place * 1_000 + 10, 10), (place * 1_000 + 50, 850))
        built.operator("aten::mm", place * 1_000 + 450, 400)
        built.launched_kernel("product", (place * 1_000 + 460, 10), (place * 1_000 + 900, 100))
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        shown(page)
        script = f"name => {{ const t = {T}, at = t.names.indexOf(name); return t.colorOf('stream', at, at); }}"
        copy, product = (page.evaluate(script, name) for name in ("aten::copy_", "aten::mm"))
        assert copy != product
        for time in (1_111_111, 2_222_222, 3_333_333):  # not at a line of the grid
            red, green, blue, alpha = colour_at(page, "stream", time)
            wanted = [int(copy[at : at + 2], 16) for at in (1, 3, 5)]
            assert all(abs(a - b) <= 3 for a, b in zip((red, green, blue), wanted, strict=True))
            assert alpha > 240
        # A search for what is small in a pixel shows it all the same.
        page.page.fill(".timeline input[type=search]", "aten::mm")
        red, green, blue, _ = colour_at(page, "stream", 2_222_222)
        wanted = [int(product[at : at + 2], 16) for at in (1, 3, 5)]
        assert all(abs(a - b) <= 6 for a, b in zip((red, green, blue), wanted, strict=True))


def test_rare_idle_time_does_not_look_like_much(browser: Any, made: Made, tmp_path: Path) -> None:
    built = KinetoTrace()
    built.step(1, 0, 10_000_000)
    for place in range(1_000):
        built.operator("aten::mm", place * 10_000, 5_000)
        built.launched_kernel("k", (place * 10_000 + 10, 10), (place * 10_000 + 100, 9_800))
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        shown(page)
        times = [5_555_000 + 7_500 * pixel for pixel in range(12)]  # between two lines of the grid
        weak = max(colour_at(page, "idle", time)[3] for time in times)
        strong = min(colour_at(page, "stream", time)[3] for time in times)
        assert 0 < weak < 0.35 * 255 < 0.9 * 255 < strong


# ---------------------------------------------------------------- ranges


def test_a_measured_step_has_the_figures_of_the_analysis(browser: Any, made: Made) -> None:
    document = document_of(GPT2)
    (device,) = document["devices"]
    with opened(browser, made(GPT2)) as page:
        shown(page)
        begin, end = page.evaluate(
            f"(() => {{ const t = {T}; t.setRange(0, t.length, true); return [t.range.start, t.range.end]; }})()"
        )
        assert end - begin == page.evaluate(f"{T}.length")
        assert page.values(".measure [data-key=busy] .figure, .measure .figure[data-key=busy]") == [device["busy_ns"]]
        kernels = sorted((row["total_ns"] for row in document["kernels"]), reverse=True)
        listed = page.values("table[aria-label='kernels in the range'] td[data-key=ns]")
        assert listed[:10] == kernels[:10]
        assert sum(one for one in listed if one is not None) == device["sum_ns"]


def test_what_reaches_into_a_range_counts_with_its_part(browser: Any, made: Made, tmp_path: Path) -> None:
    built = KinetoTrace()
    built.operator("aten::mm", 0, 1_000)
    built.launched_kernel("one", (10, 10), (1_000, 4_000))
    built.launched_kernel("two", (30, 10), (3_000, 4_000), stream=9)
    built.launched_kernel("three", (50, 10), (9_000, 1_000))
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        shown(page)
        page.evaluate(f"{T}.setRange(2000, 9500, true)")
        assert page.values(".measure .figure[data-key=busy]") == [5_500]  # 2,000 to 7,000, and from 9,000 on
        rows = page.page.eval_on_selector_all(
            "table[aria-label='kernels in the range'] tbody tr", "all => all.map(one => one.innerText.split('\\t'))"
        )
        assert rows == [
            ["two", "1", "4.000 us", "53.3 %"],
            ["one", "1", "3.000 us", "40.0 %"],
            ["three", "1", "500 ns", "6.7 %"],
        ]


def test_where_slices_are_drawn_together_busy_time_is_a_range(browser: Any, made: Made) -> None:
    """A hundred short kernels drawn together beside a long one on another stream."""
    with opened(browser, made(GPT2)) as page:
        shown(page)
        found = page.evaluate("""() => {
            const entry = (count, covered) => ({
                kind: "stream", label: "", device: 0, rows: 1, row: [0], start: [0], duration: [100], name: [0],
                operator: [], place: [], count, covered, link: [],
            });
            const made = (...merged) => new opscopePage.Lanes(entry(...merged), 0, () => "#000000");
            const [together, alone] = [made([10], [10]), made([], [])], busy = opscopePage.busyWithin;
            return [
                busy([together, alone], 0, 100), busy([together], 0, 100), busy([together], 0, 50),
                busy([alone], 20, 500),
            ];
        }""")
        assert [(one["low"], one["high"]) for one in found] == [(100, 100), (10, 10), (5, 5), (80, 80)]


def test_letters_move_the_timeline_wherever_the_focus_is(browser: Any, made: Made) -> None:
    with opened(browser, made(GPT2)) as page:
        page.show("timeline")
        page.page.wait_for_selector(".timeline canvas")
        focused = page.evaluate("document.activeElement.tagName")
        assert focused != "CANVAS"
        before = page.evaluate(f"[{T}.view.start, {T}.perPixel()]")
        page.page.keyboard.press("w")
        closer = page.evaluate(f"[{T}.view.start, {T}.perPixel()]")
        assert closer[1] < before[1]
        page.page.keyboard.press("d")
        assert page.evaluate(f"{T}.view.start") > closer[0]
        # In a field they are letters.
        scale = page.evaluate(f"{T}.perPixel()")
        page.page.fill(".timeline input", "")
        page.page.focus(".timeline input")
        page.page.keyboard.type("ws")
        assert page.evaluate(f"{T}.perPixel()") == scale
        assert page.complaints == []


def test_a_drag_measures_and_escape_leaves_it(browser: Any, made: Made) -> None:
    with opened(browser, made(GPT2)) as page:
        shown(page)
        box = page.page.locator(".timeline canvas").bounding_box()
        page.page.mouse.move(box["x"] + 300, box["y"] + 120)
        page.page.mouse.down()
        page.page.mouse.move(box["x"] + 600, box["y"] + 130, steps=5)
        page.page.mouse.up()
        start, end = page.evaluate(f"[{T}.range.start, {T}.range.end]")
        assert end - start == pytest.approx(300 * page.evaluate(f"{T}.perPixel()"), rel=0.02)
        assert "Measured: " in page.page.inner_text(".measure")
        page.page.focus(".timeline canvas")
        page.page.keyboard.press("Escape")
        assert (page.evaluate(f"{T}.range"), page.page.inner_text(".measure")) == (None, "")
        # The same by keys: the chosen slice, then a longer range.
        for key in ("n", "m", "Shift+ArrowRight"):
            page.page.keyboard.press(key)
        start, end, slice_start, slice_end = page.evaluate(f"""(() => {{
            const {{ range, selected: {{ lanes, place }} }} = {T};
            return [range.start, range.end, lanes.start[place], lanes.end[place]];
        }})()""")
        assert start == slice_start
        assert end > slice_end
        assert page.complaints == []


# ---------------------------------------------------------------- arrows, findings, path


def test_arrows_lead_from_launch_to_kernel_and_from_forward_to_backward(
    browser: Any, made: Made, tmp_path: Path
) -> None:
    built = KinetoTrace()
    built.operator("aten::mm", 10_000, 10_000, **{"Sequence number": 4})
    built.launched_kernel("forward", (12_000, 2_000), (20_000, 5_000))
    built.operator(
        "autograd::engine::evaluate_function: MmBackward0", 60_000, 20_000, tid=200, **{"Sequence number": 4}
    )
    built.operator("aten::mm", 62_000, 10_000, tid=200)
    built.launched_kernel("backward", (64_000, 2_000), (70_000, 9_000), tid=200)
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        shown(page)
        linked = f"""name => {{
            const t = {T};
            t.mark(name, true);
            t.step(1);
            return t.linked(t.selected).map(one => [t.nameOf(one), one.lanes.start[one.place] + t.entry.start_ns]);
        }}"""
        assert page.evaluate(linked, "forward") == [["cudaLaunchKernel", 12_000]]
        assert "waited\n6.000 us after cudaLaunchKernel had returned" in page.page.inner_text(".slice.detail")
        assert page.evaluate(linked, "autograd::engine::evaluate_function: MmBackward0") == [["aten::mm", 10_000]]
        page.page.focus(".timeline canvas")
        page.page.keyboard.press("g")
        assert page.page.inner_text(".slice.detail strong") == "aten::mm"
        page.evaluate(linked, "cudaLaunchKernel")
        page.page.focus(".timeline canvas")
        page.page.keyboard.press("g")
        assert page.page.inner_text(".slice.detail strong") == "forward"
        assert page.complaints == []


def test_a_finding_leads_to_its_idle_time(browser: Any, made: Made, tmp_path: Path) -> None:
    built = KinetoTrace()
    for number in range(4):
        at = number * 1_000_000
        built.step(number + 1, at, 900_000)
        built.operator("aten::mm", at + 10_000, 10_000)
        built.launched_kernel("before", (at + 12_000, 2_000), (at + 20_000, 100_000))
        built.operator("aten::add", at + 800_000, 10_000)
        built.launched_kernel("after", (at + 802_000, 2_000), (at + 810_000, 80_000))
    trace = built.write(tmp_path / "t.json")
    (finding, *_) = document_of(trace)["findings"]
    assert finding["rule"] == "host_work"
    with opened(browser, made(trace)) as page:
        page.page.click("[data-finding=host_work] .head button")
        assert page.page.get_attribute("#tab-timeline", "aria-selected") == "true"
        assert page.page.inner_text(".slice.detail strong") == "idle: host work"
        gaps = page.evaluate(f"""(() => {{
            const {{ matches, entry }} = {T};
            return matches.map(({{ lanes, place }}) => [lanes.start[place] + entry.start_ns, lanes.duration(place)]);
        }})()""")
        longest = [gap for gap in gaps if gap[1] > 600_000]
        assert [start for start, _ in longest] == [120_000 + number * 1_000_000 for number in range(4)]
        assert page.page.inner_text(".timeline .tools .count").startswith("host_work: ")
        page.page.click(".timeline .tools button:text('next')")
        page.page.focus(".timeline canvas")
        for _ in range(2):  # the chosen slice, then what was marked
            page.page.keyboard.press("Escape")
        assert page.evaluate(f"[{T}.selected, {T}.matches.length, {T}.lanes.every(one => one.marked === null)]") == [
            None,
            0,
            True,
        ]
        # A search that finds nothing leads nowhere.
        page.page.fill(".timeline input[type=search]", "no such thing")
        page.page.focus(".timeline canvas")
        page.page.keyboard.press("n")
        assert page.evaluate(f"{T}.selected") is None
        assert page.complaints == []


def test_the_critical_path_lies_on_the_slices_that_hold_the_step(browser: Any, made: Made) -> None:
    with opened(browser, made(GPT2)) as page:
        shown(page)
        path = page.evaluate(f"{T}.entry.path")
        assert path["steps"]
        wrong = page.evaluate(f"""() => {{
            const {{ start, duration, kind, slice }} = {T}.entry.path;
            return start.filter((time, at) => {{
                if (kind[at] !== "activity" || slice[at] < 0) return false;
                const {{ lanes, place }} = {T}.sliceAt(slice[at]);
                return lanes.kind !== "stream" || lanes.start[place] !== time || lanes.duration(place) !== duration[at];
            }}).length;
        }}""")
        assert wrong == 0
        assert "activity" in path["kind"]
        starts = path["start"]
        assert starts == sorted(starts)
        before = page.evaluate(f"(() => {{ {T}.surface.drawNow(); return {T}.surface.canvas.toDataURL(); }})()")
        page.page.focus(".timeline canvas")
        page.page.keyboard.press("c")
        assert page.page.get_attribute("button[aria-pressed]", "aria-pressed") == "true"
        after = page.evaluate(f"(() => {{ {T}.surface.drawNow(); return {T}.surface.canvas.toDataURL(); }})()")
        assert before != after
        assert page.complaints == []


# ---------------------------------------------------------------- tracks and the address


def test_tracks_fold_and_unfold(browser: Any, made: Made) -> None:
    with opened(browser, made(GPT2)) as page:
        shown(page)
        state = f"{T}.tracks.filter(one => one.lanes && one.lanes.kind === 'python').map(one => one.folded)"
        assert page.evaluate(state) == [True]
        page.page.click(".timeline .tracks summary")
        page.page.check(".track-list label:has-text('Python') input")
        assert page.evaluate(state) == [False]
        page.page.click(".timeline .tracks summary")
        # A search that finds something in a folded track opens it.
        page.evaluate(f"{T}.fold({T}.tracks.find(one => one.lanes && one.lanes.kind === 'python'), true)")
        page.page.fill(".timeline input[type=search]", "modeling_gpt2.py")
        page.page.keyboard.press("Enter")
        assert page.evaluate(state) == [False]
        assert page.complaints == []


def test_the_address_keeps_the_place(browser: Any, made: Made) -> None:
    path = made(GPT2)
    with opened(browser, path) as page:
        shown(page)
        page.evaluate(f"{T}.select({T}.sliceAt(2267))")
        page.evaluate(f"{T}.setRange(1000000, 2500000, true)")
        page.evaluate(f"{T}.show(900000, 2600000)")
        page.page.wait_for_function("() => location.hash.includes('t=900000..2600000')")
        address = page.page.url
        assert address.endswith("#timeline&t=900000..2600000&sel=2267&m=1000000..2500000")
    for asked in (address, address.replace("#timeline&", "#")):
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        other = context.new_page()
        other.goto(asked)
        other.wait_for_selector("#app[aria-busy=false]")
        assert other.get_attribute("#tab-timeline", "aria-selected") == "true"
        state = f"""(() => {{
            const {{ view, selected, range }} = {T};
            return [view.start, view.end, selected.lanes.first + selected.place, range.start, range.end];
        }})()"""
        assert other.evaluate(state) == [900_000, 2_600_000, 2_267, 1_000_000, 2_500_000]
        context.close()


@pytest.mark.parametrize("state", ["t=9..1", "t=x..y", "sel=99999999", "sel=-1", "m=5..5", "t=", "=&&=", "t=1e9..2e9"])
def test_an_odd_address_shows_the_timeline_all_the_same(browser: Any, made: Made, state: str) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{made(GPT2).as_uri()}#timeline&{state}")
    page.wait_for_selector("#app[aria-busy=false]")
    assert page.get_attribute("#tab-timeline", "aria-selected") == "true"
    assert complaints == []
    context.close()


def test_an_operator_shows_what_it_launched(browser: Any, made: Made, tmp_path: Path) -> None:
    """Kernels of calls within it, on its thread: not those of the operator after it."""
    built = KinetoTrace()
    built.step(1, 0, 100_000)
    built.operator("aten::linear", 1_000, 20_000)
    built.launched_kernel("one", (2_000, 500), (30_000, 3_000))
    built.launched_kernel("two", (4_000, 500), (40_000, 4_000))
    built.operator("aten::relu", 22_000, 9_000)
    built.launched_kernel("three", (23_000, 500), (50_000, 5_000))
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        shown(page)
        page.evaluate(
            f"""() => {{ const t = {T}, lanes = t.lanes.find(one => one.kind === "operator");
            const place = [...lanes.name].findIndex(name => t.names[name] === "aten::linear");
            t.select(t.sliceAt(lanes.first + place)); }}"""
        )
        text = " ".join(page.page.inner_text(".slice.detail").split())
        assert "launched 2 on the device, 7.000 us together" in text
        assert "most of it two 4.000 us; one 3.000 us" in text
        assert page.evaluate(f"{T}.launched({T}.selected).length") == 2  # an arrow leads to each
        box = page.page.locator(".slice.detail").bounding_box()
        assert box["y"] + box["height"] <= page.evaluate("innerHeight") + 1
