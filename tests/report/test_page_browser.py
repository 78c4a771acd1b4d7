"""The page in a real browser: every view opens, its numbers are those of the JSON, it obeys, and nothing gets out."""

import gzip
import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opscope.base.units import format_bytes, format_count, format_ns, format_share
from opscope.documents.advise import AdviseDocument, ErrorClass, Outcome, Patch, Tried
from opscope.documents.verdict import IdleCause
from opscope.record.codec import encode
from opscope.report.difference_sections import change
from tests.advise.facts import facts
from tests.analysis.costs.test_counted_work import OF_H100, counts, moved, table
from tests.browser import Opened, browser_is_missing, chromium, opened
from tests.command import opscope
from tests.conftest import DATA, ROOT
from tests.kineto import KinetoTrace

pytestmark = pytest.mark.slow

if reason := browser_is_missing():
    pytest.skip(reason, allow_module_level=True)

Show = Callable[..., Any]
TRACE_VIEWS = ["overview", "operators", "kernels", "timeline", "steps", "flame", "roofline", "memory"]


def views_of(page: Opened) -> list[str]:
    found: list[str] = page.evaluate("opscopePage.app.tabs.map(tab => tab.dataset.view)")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write the page of some inputs, once."""
    pages: dict[tuple[str, ...], Path] = {}

    def make(*inputs: object, command: str = "page") -> Path:
        key = (command, *map(str, inputs))
        if key not in pages:
            path = tmp_path_factory.mktemp("page") / "page.html"
            arguments = (*key[1:], "-o", str(path)) if command == "page" else (*key[1:], "--page", str(path))
            done = opscope(command, *arguments)
            assert done.returncode == 0, done.stderr
            pages[key] = path
        return pages[key]

    return make


def trace(name: str) -> Path:
    return DATA / "traces" / f"{name}.json.gz"


def cpu_only(folder: Path) -> Path:
    built = KinetoTrace()
    for number in range(3):
        built.step(number + 1, number * 100_000, 90_000)
        for place in range(5):
            built.operator(
                "aten::mm", number * 100_000 + 1_000 + place * 10_000, 8_000, **{"Input Dims": [[4, 4], [4, 4]]}
            )
    return built.write(folder / "cpu.json")


def search_everywhere(page: Opened, view: str) -> None:
    """Look for what no table of a view has, and then for everything again."""
    for search in page.page.query_selector_all(f".of-{view} .table input[type=search]"):
        count = search.evaluate("one => one.closest('.table').querySelector('.count').innerText")
        search.fill("no row has this")
        found = search.evaluate("one => one.closest('.table').querySelector('.count').innerText")
        assert found.startswith("0 of "), (view, found)
        search.fill("")
        assert search.evaluate("one => one.closest('.table').querySelector('.count').innerText") == count


def assert_clean(page: Opened) -> None:
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("file:")] == []
    assert len(page.requests) == 1


# ---------------------------------------------------------------- every view


# Each trace at both widths and in both schemes, and each width in each scheme.
@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("gpt2_train_amp_stacks", 1400, "light"),
        ("gpt2_train_amp_stacks", 700, "dark"),
        ("cudagraph_replay", 1400, "dark"),
        ("cudagraph_replay", 700, "light"),
        ("bert4_bf16_compiled", 1400, "light"),
        ("bert4_bf16_compiled", 700, "dark"),
    ],
)
def test_every_view_of_a_trace_opens(
    browser: Any, made: Callable[..., Path], name: str, width: int, scheme: str
) -> None:
    with opened(browser, made(trace(name)), width=width, scheme=scheme) as page:
        # A view without anything in it has no tab.
        missing = {"cudagraph_replay": {"operators", "memory"}, "bert4_bf16_compiled": {"memory"}}.get(name, set())
        further = ["snapshots"] if name == "gpt2_train_amp_stacks" else []  # what is allocated on the GPU was recorded
        assert views_of(page) == [*(view for view in TRACE_VIEWS if view not in missing), *further]
        for view in views_of(page):
            page.show(view)
            assert page.page.inner_text("main").strip()
            search_everywhere(page, view)
            # Nothing is wider than the window, but what scrolls by itself.
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert_clean(page)


def test_every_view_of_a_sweep_opens(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(DATA / "h200_bert_small")) as page:
        assert views_of(page) == ["sweep", *TRACE_VIEWS]
        for view in views_of(page):
            page.show(view)
            search_everywhere(page, view)
        assert page.evaluate("opscopePage.document.traces.length") == 3
        for number in range(3):
            page.page.select_option("header select", str(number))
            page.show("timeline")
        assert_clean(page)


def test_a_sweep_says_by_which_law_its_times_grow(browser: Any, made: Callable[..., Path]) -> None:
    """Recorded on an H200: the step takes 870 us at batch sizes 1, 8 and 16, gelu 2.77, 5.17 and 7.92 us."""
    with opened(browser, made(DATA / "h200_bert_small")) as page:
        page.show("sweep")
        laws = page.page.inner_text("section:has(h2:text('Laws of growth'))")
        assert re.search(r"wall\s+batch size\s+sequence length 128\s+870.1 us\s+-\s+0.9 %", laws)
        assert re.search(r"aten::gelu\s+batch size\s+sequence length 128\s+2.424 us \+ 343 ns per n\s+7.06", laws)
        assert "none of these (3 sizes)" in laws
        assert_clean(page)


@pytest.mark.parametrize("name", ["gpt2_train_amp_stacks", "bert_fp32_eager_bs8_seq128", "cudagraph_replay"])
def test_what_is_read_first_is_what_the_command_prints(browser: Any, made: Callable[..., Path], name: str) -> None:
    printed = opscope("analyze", str(trace(name))).stdout
    lines = printed[: printed.index("More: --why")].splitlines()[1:]  # the first names the file
    with opened(browser, made(trace(name))) as page:
        page.show("overview")
        shown = " ".join(page.page.inner_text(".screen").split())
        for line in lines:
            if not set(line) <= set("█▓▒░─- "):  # the bar is drawn, and so are the table's lines
                for words in re.split(r"  +", line.strip()):
                    assert words in shown, line


def test_advice_says_on_the_page_what_the_command_says(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    tried = Tried(
        changes=("tf32", "compile"), error_class=ErrorClass.TF32, verdict=Outcome.PROVEN, reason="as float64", ratio=1.5,
        ci_low=1.4, ci_high=1.6, step_ns=2e6, error=1e-4, own_error=1e-6, compared_tensors=7, compared_elements=70,
        lines=("model = torch.compile(model)",), patch=Patch(diff="-a\n+<b>\n", folder="/tmp", ratio=1.5),
    )  # fmt: skip
    document = AdviseDocument(
        target="train.py", device="NVIDIA H200", facts=facts(), baseline_ns=3e6, of_itself=(0.99, 1.01),
        classes=(ErrorClass.TF32,), results=(tried,), best={ErrorClass.TF32: 0}, processes=9, seconds=100.0, unfinished=None,
    )  # fmt: skip
    (tmp_path / "advice.json").write_bytes(encode(document))
    with opened(browser, made(tmp_path / "advice.json")) as page:
        page.show("advice")
        search_everywhere(page, "advice")
        shown = " ".join(page.page.inner_text("main").split())
        assert "Proven, products in TF32: 1.50 times as fast (1.40 to 1.60), 2.000 ms a step" in shown
        assert "Write: model = torch.compile(model)" in shown
        assert page.page.inner_text("pre .added") == "+<b>"
        assert page.values("table[aria-label='what was tried'] td[data-key=ratio]") == [1.5]
        assert_clean(page)


def test_a_cpu_only_run_and_an_empty_trace_open(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    for path in (cpu_only(tmp_path), KinetoTrace().write(tmp_path / "empty.json")):
        with opened(browser, made(path)) as page:
            for view in views_of(page):
                page.show(view)
            assert_clean(page)


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (700, "dark")])
def test_memory_snapshots_open(browser: Any, made: Callable[..., Path], width: int, scheme: str) -> None:
    paths = [DATA / "memory" / f"activations{part}.pickle.xz" for part in ("", ".fixed")]
    with opened(browser, made(*paths), width=width, scheme=scheme) as page:
        page.show("snapshots")
        search_everywhere(page, "snapshots")
        shown = " ".join(page.page.inner_text("main").split())
        assert "The peak is 3.157 GiB lower (4.132 GiB, then 998.3 MiB): activations -3.220 GiB" in shown
        assert "GPU 0: at most 4.132 GiB allocated (step 1, in the backward pass), 4.355 GiB reserved." in shown
        assert "1. 12 blocks keep 3.376 GiB of activations for the backward pass: saves 3.158 GiB" in shown
        assert "Lines that held most at the peak" in shown
        held = page.page.inner_text("table[aria-label='lines that held most']").split("\n")[1]
        assert held.split("\t") == ["activations", "memory_programs.py:41 (forward)", "3.720 GiB", "90.0 %"]
        # Segments that hold something, and the blocks in them.
        document = json.loads(opscope("memory", str(paths[0]), "--format", "json").stdout)
        first = page.evaluate("opscopePage.document.snapshots[0][0]")
        assert sum(column[first["peak"]] for column in first["bytes"]) == document["devices"][0]["peak_bytes"]
        blocks = sum(block[2] != -1 for one in first["segments"] for block in one["blocks"])
        assert (
            page.evaluate("document.querySelectorAll('section .lanes')[0].querySelectorAll('i').length") == blocks > 0
        )
        assert_clean(page)


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (700, "dark")])
def test_the_ranks_of_a_job_open(
    browser: Any, made: Callable[..., Path], tmp_path: Path, width: int, scheme: str
) -> None:
    shutil.copytree(DATA / "ranks" / "late_backward_kernels", tmp_path / "job")
    (tmp_path / "job" / "<i>notes.json").write_text("{}")
    printed = opscope("ranks", str(tmp_path / "job"), "--format", "json").stdout
    (tmp_path / "job.json").write_text(printed)
    document = json.loads(printed)
    with opened(browser, made(tmp_path / "job.json"), width=width, scheme=scheme) as page:
        page.show("ranks")
        search_everywhere(page, "ranks")
        shown = page.page.inner_text("main")
        assert document["heat"]["sentence"] in shown
        assert document["timeline"]["sentence"] in shown
        first = document["findings"][0]
        assert f"{first['title']}; {first['action']}. Without that a step would take {first['saving']}" in shown
        assert "<i>notes.json" in shown
        assert page.evaluate("document.querySelectorAll('table.heat td').length") == 2 * len(document["steps"])
        calls = sum(len(lane["calls"]) for lane in document["timeline"]["lanes"])
        assert page.evaluate("document.querySelectorAll('.lane i').length") == calls > 0
        assert page.evaluate("document.querySelectorAll('.lane b').length") == 2
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert_clean(page)


def test_benchmarks_and_differences_open(browser: Any, made: Callable[..., Path]) -> None:
    results = ROOT / "benchmarks" / "results"
    with opened(browser, made(results / "h200-bench-gelu.json", results / "h200-bench-square.json")) as page:
        page.show("bench")
        saved = json.loads((results / "h200-bench-gelu.json").read_bytes())
        # As in the terminal: medians with their intervals, notes, and what was compared.
        rows = page.page.locator("#app .data").first.locator("tbody tr").all_inner_texts()
        for result, row in zip(saved["results"], rows, strict=True):
            assert f"{format_ns(result['kernel_ns']['median'])} +-" in row
        assert "Variants were measured in turns" in page.page.inner_text("#app")
        # The picture: a point for each variant, at its median, with a line along its interval.
        page.page.wait_for_function("[...opscopePage.charts].every(one => one.instance)")
        drawn = page.evaluate(
            "[...opscopePage.charts][0].instance.getOption().series[0].data.map(one => one.value.slice(0, 3))"
        )
        times = [result["kernel_ns"] for result in saved["results"]]
        assert drawn == [[time["ci_low"], time["ci_high"], time["median"]] for time in times]
        assert_clean(page)
    changes = DATA / "changes"
    with opened(browser, made(changes / "before", changes / "compiled", command="diff")) as page:
        page.show("diff")
        search_everywhere(page, "diff")
        assert_clean(page)
        document = page.evaluate("opscopePage.document.difference")
        assert document == json.loads(
            opscope("diff", str(changes / "before"), str(changes / "compiled"), "--format", "json").stdout
        )
        step = document["pairs"][0]["step"]
        kernels = page.values("table[aria-label='kernels before and after'] td[data-key=after_ns]")
        assert sum(kernels) == pytest.approx(sum(row["after_ns"] for row in document["pairs"][0]["kernels"]))
        rows = page.page.locator("table[aria-label='Part, Change']").first.locator("tbody tr")
        parts = [row.split("\t") for row in rows.all_inner_texts()]
        assert parts[-1][1].strip() == change(step["change_ns"])
        assert len(parts) == min(8, len(step["work"])) + (len(step["work"]) > 8) + len(step["parts"]) + 1
        assert {change(part["change_ns"]) for part in step["parts"]} <= {text.strip() for _, text in parts}


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("name", ["gpt2_train_amp_stacks", "bert_fp32_eager_bs8_seq128", "cudagraph_replay"])
def test_numbers_on_the_page_are_those_of_the_json(browser: Any, made: Callable[..., Path], name: str) -> None:
    document = json.loads(opscope("analyze", str(trace(name)), "--format", "json").stdout)
    with opened(browser, made(trace(name))) as page:
        embedded = page.evaluate("opscopePage.document.traces[0].document")
        for key, value in document.items():
            if key in ("operators", "kernels"):  # the page has more of each row
                own = [
                    {field: row[field] for field in old if old[field] is not None}
                    for row, old in zip(embedded[key], value, strict=True)
                ]
                assert own == [{field: old[field] for field in old if old[field] is not None} for old in value]
            elif key != "findings":
                assert embedded[key] == value, key
        if document["operators"]:
            page.show("operators")
            page.page.evaluate("opscopePage.app.traces[0].operatorTable.more.querySelector('button')?.click()")
        for key in ("self_device_ns", "calls", "self_cpu_ns", "total_cpu_ns"):
            shown = page.values(f"table[aria-label=operators] td[data-key={key}]")
            assert sorted(shown) == sorted(row[key] for row in document["operators"])
        page.show("kernels")
        page.page.evaluate("opscopePage.app.traces[0].kernelTable.more.querySelector('button')?.click()")
        assert sum(page.values("table[aria-label=kernels] td[data-key=total_ns]")) == sum(
            d["sum_ns"] for d in document["devices"]
        )
        page.show("overview")
        large = page.page.locator(".verdict .big")
        labels = large.locator(".label").all_inner_texts()
        figures = dict(zip(labels, page.values(".verdict .big .figure"), strict=True))
        assert figures[document["step_time"]["basis"]] == pytest.approx(document["step_time"]["ns"])
        sums = sum(one["sum_ns"] for one in document["devices"])
        assert figures["device sum a step"] == pytest.approx(sums / document["step_count"])
        bar = page.evaluate("opscopePage.document.traces[0].bars[0]")
        shown = page.values(".stepbar .legend .figure")
        assert shown == [part["ns"] for part in bar["parts"]]
        assert math.isclose(sum(shown), bar["step_ns"])
        assert bar["step_ns"] == document["devices"][0]["window_ns"] / document["step_count"]
        # Idle time has the color of its cause.
        swatches = page.page.locator(".stepbar .legend li[data-part^='idle: '] .swatch")
        colors = swatches.evaluate_all("all => all.map((one) => getComputedStyle(one).backgroundColor)")
        causes = [IdleCause(part["name"].removeprefix("idle: ")) for part in bar["parts"] if "idle: " in part["name"]]
        assert causes
        assert colors == [f"rgb({', '.join(map(str, bytes.fromhex(cause.color[1:])))})" for cause in causes]


def test_what_was_alive_adds_up_on_the_page(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("memory")
        page.page.evaluate("document.querySelectorAll('.more button').forEach(one => one.click())")
        memory = page.evaluate("opscopePage.document.traces[0].memory.find(one => one.device === 0)")
        assert sum(page.values("table[aria-label='alive at the peak'] td[data-key=bytes]")) == memory["peak_bytes"]
        assert page.values("[data-figure=peak] .figure")[0] == memory["peak_bytes"] == 3_329_359_360


def test_slices_of_the_timeline_are_those_of_the_trace(browser: Any, made: Callable[..., Path]) -> None:
    events = json.loads(gzip.decompress(trace("bert_fp32_eager_bs8_seq128").read_bytes()))["traceEvents"]
    kernels = sorted(
        (e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in events if e.get("cat") == "kernel"
    )
    with opened(browser, made(trace("bert_fp32_eager_bs8_seq128"))) as page:
        page.show("timeline")
        shown = page.evaluate("""() => {
            const { timeline } = opscopePage.app.traces[0];
            const [lanes] = timeline.lanes.filter(one => one.kind === "stream");
            return Array.from(lanes.start, (start, at) => [timeline.names[lanes.name[at]], start + timeline.entry.start_ns, lanes.end[at] - start]);
        }""")
        begin, length = page.evaluate(
            "(({ start_ns, duration_ns }) => [start_ns, duration_ns])(opscopePage.app.traces[0].timeline.entry)"
        )
        kernels = [one for one in kernels if one[1] + one[2] > begin and one[1] < begin + length]
        named = {name for name, _, _ in kernels}
        ours = sorted(tuple(one) for one in shown if one[0] in named)
        assert [(name, time) for name, _, time in ours] == [(name, time) for name, _, time in kernels]
        assert all(abs(one[1] - other[1]) <= 1 for one, other in zip(ours, kernels, strict=True))  # the file has floats


def test_steps_ranges_and_the_backward_pass_have_a_view(browser: Any, made: Callable[..., Path]) -> None:
    document = json.loads(opscope("analyze", str(trace("gpt2_train_amp_stacks")), "--format", "json").stdout)
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("steps")
        page.page.evaluate("document.querySelectorAll('.more button').forEach(one => one.click())")
        for table, key, rows in (
            ("steps", "span_ns", "steps"),
            ("steps", "idle_ns", "steps"),
            ("ranges", "total_device_ns", "annotations"),
            ("backward", "backward_device_ns", "backward"),
        ):
            shown = page.values(f"table[aria-label={table}] td[data-key={key}]")
            assert sorted(shown) == sorted(row[key] for row in document[rows]), (table, key)
        page.page.wait_for_selector(".chart[aria-label='steps, busy and idle'] canvas")
        (drawn,) = page.evaluate(
            "[...opscopePage.charts].filter(one => one.instance).map(({ instance }) => instance.getOption()).map(one => "
            "({ bars: one.series.map(({ name, data }) => [name, data.map(({ value }) => value)]), top: one.yAxis[0].max }))"
        )
        bars, steps = dict(drawn["bars"]), document["steps"]
        assert [height for _, height in bars["busy"]] == [step["busy_ns"] for step in steps]
        assert [height for _, height in bars["idle"]] == [step["idle_ns"] for step in steps]
        assert [height for _, height in bars["on the host"]] == [0 for _ in steps]
        assert all(step["busy_ns"] + step["idle_ns"] <= drawn["top"] for step in steps)
        assert_clean(page)


def test_labels_of_axes_are_round_and_differ(browser: Any, made: Callable[..., Path]) -> None:
    gib = 2**30
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        ask = page.evaluate
        assert ask(f"opscopePage.ticks.roundScale({3.1 * gib}, 1024)") == {"min": 0, "max": 4 * gib, "interval": gib}
        assert ask("opscopePage.ticks.roundPowers(31.2e12, 1.2e15)") == {"min": 2e13, "max": 2e15}
        assert ask("['10.00 ms', '1.000 P', '989.4 T', '0 B', '1,000', '100'].map(opscopePage.ticks.withoutZeros)") == [
            *("10 ms", "1 P", "989.4 T", "0 B", "1,000", "100"),
        ]
        for low, high in ((130_900_000, 130_950_000), (5, 9), (1_000_000, 1_000_000), (12_000_000, 99_000_000)):
            labels = ask(
                """([low, high]) => {
                const { min, max, interval, axisLabel } = opscopePage.ticks.closeTimes([low, high]);
                const found = [];
                for (let at = min; at <= max + interval / 2; at += interval) found.push(axisLabel(at));
                return found;
            }""",
                [low, high],
            )
            assert len(set(labels)) == len(labels) >= 2, labels


def test_the_flame_view_sums_to_the_device_sum(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("flame")
        for by in ("operator", "module", "python"):
            page.page.click(f".choice button[data-value={by}]")
            assert page.evaluate("opscopePage.app.traces[0].flame.whole") == 25_104_876


def test_a_kernel_has_the_colour_of_its_operator_in_the_flame_view(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("flame")
        for by in ("operator", "module"):
            page.page.click(f".choice button[data-value={by}]")
            wrong = page.evaluate(
                """() => {
                    const data = opscopePage.app.traces[0], flame = data.flame, wrong = [];
                    const known = new Set(data.document.categories.map(one => one.category));
                    const kernels = new Set(data.document.kernels.map(one => one.name));
                    const colours = new Map(), names = flame.names;
                    for (let node = 0; node < flame.entry.name.length; node += 1) {
                        const name = names[flame.entry.name[node]];
                        if (data.categoryOf.has(name)) colours.set(data.categoryOf.get(name), flame.colorOf(node));
                    }
                    for (let node = 0; node < flame.entry.name.length; node += 1) {
                        if (!kernels.has(names[flame.entry.name[node]])) continue;
                        let at = flame.entry.parent[node];
                        while (at >= 0 && !data.categoryOf.has(names[flame.entry.name[at]])) at = flame.entry.parent[at];
                        if (at >= 0 && flame.colorOf(node) !== flame.colorOf(at)) wrong.push(names[flame.entry.name[node]]);
                    }
                    return wrong;
                }"""
            )
            assert wrong == []


def test_categories_without_operators_lead_nowhere_and_odd_addresses_are_survived(
    browser: Any, made: Callable[..., Path]
) -> None:
    with opened(browser, made(trace("cudagraph_replay"))) as page:
        page.show("overview")
        labels = page.page.query_selector_all(".of-overview .bars .label")
        assert labels
        assert [one.evaluate("one => one.tagName") for one in labels] == ["SPAN"] * len(labels)
        for address in ("overview,0&finding=%", "timeline&t=x..%E0&sel=abc", "none&=&&", "%"):
            page.evaluate(f"location.hash = '#{address}'")
            assert page.page.inner_text("main").strip()
        assert_clean(page)


def test_work_that_no_limit_is_known_of_is_one_sentence(browser: Any, made: Callable[..., Path]) -> None:
    printed = opscope("limits", str(trace("cudagraph_replay"))).stdout
    sentence = "No work can be compared with a limit. The main reason: no operator was recorded."
    assert printed.splitlines()[-1].strip() == sentence
    with opened(browser, made(trace("cudagraph_replay"))) as page:
        page.show("roofline")
        assert page.page.inner_text(".of-roofline") == sentence


def test_figures_read_the_same_in_both_languages(browser: Any) -> None:
    random.seed(3)
    values: list[float] = [
        0,
        1,
        0.5,
        1.5,
        2.5,
        999,
        999.5,
        1_000,
        99_995,
        1e6,
        123_456_789,
        10**12,
        -1,
        -2_500.5,
        100,
        99.95,
    ]
    values += [random.choice((1, -1)) * 10 ** random.uniform(0, 13) for _ in range(400)]
    values += [float(random.randrange(10**9)) for _ in range(400)]
    source = (ROOT / "src/opscope/report/page/assets/units.js").read_text().replace("export ", "")
    context = browser.new_page()
    shown = context.evaluate(
        "([source, values]) => { const all = new Function(source + '; return [formatNs, formatBytes, formatCount, value => formatShare(value, 7)]')();"
        " return values.map(value => all.map(format => format(value))); }",
        [source, values],
    )
    context.close()
    for value, found in zip(values, shown, strict=True):
        assert found[0] == format_ns(value), value
        assert found[1] == format_bytes(value), value
        assert found[3] == format_share(value, 7), value
        expected = format_count(value)
        assert found[2] == expected or float(found[2].replace(",", "")) == float(expected.replace(",", "")), value


# ---------------------------------------------------------------- it obeys


def test_the_mouse_sorts_searches_filters_and_opens_rows(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("operators")
        first = page.page.locator("table[aria-label=operators] tbody tr.row").first
        assert first.get_attribute("data-id") == "aten::mm"
        page.page.click("th[data-key=calls] button")
        calls = page.values("table[aria-label=operators] td[data-key=calls]")
        assert calls == sorted(calls, reverse=True)
        page.page.click("th[data-key=calls] button")
        calls = page.values("table[aria-label=operators] td[data-key=calls]")
        assert calls == sorted(calls)
        page.page.fill(".of-operators input[type=search]", "layer_norm")
        names = page.page.eval_on_selector_all("tr.row", "all => all.map(one => one.dataset.id)")
        assert "aten::native_layer_norm" in names
        assert len(names) < 12
        page.page.fill(".of-operators input[type=search]", "")
        page.page.click(".chip[data-group=Attention]")
        assert len(page.page.query_selector_all("tr.row")) == int(
            page.page.inner_text(".chip[data-group=Attention] small")
        )
        page.page.click(".chip[data-group=Attention]")
        page.page.fill(".of-operators input[type=search]", "aten::mm")
        page.page.click("tr.row[data-id='aten::mm'] td.text")
        opened_row = page.page.inner_text("tr.opened")
        for heading in ("Shapes", "Kernels", "Limits", "Called from", "Dossier", "transformers/models/gpt2"):
            assert heading in opened_row
        page.page.click("text=show its calls in the timeline")
        assert page.page.get_attribute("#tab-timeline", "aria-selected") == "true"
        assert "slices" in page.page.inner_text(".timeline .count")
        assert_clean(page)


def test_each_finding_has_an_address(browser: Any, made: Callable[..., Path]) -> None:
    path = made(DATA / "findings" / "tiny_training.json.xz")
    with opened(browser, path) as page:
        asked = page.page.eval_on_selector_all("li[data-finding] a.rule", "all => all.map((one) => one.href)")
        last = page.page.eval_on_selector_all("li[data-finding]", "all => all.map((one) => one.dataset.finding)")[-1]
        assert asked[-1] == f"{path.as_uri()}#overview,0&finding={last}"
        page.page.goto(asked[-1])
        page.page.wait_for_selector(".findings .pointed")
        assert page.page.eval_on_selector_all(".pointed", "all => all.map((one) => one.dataset.finding)") == [last]
        assert page.page.eval_on_selector(
            ".pointed", "one => { const { top } = one.getBoundingClientRect(); return top >= 0 && top < innerHeight; }"
        )
        # Names in sentences are set apart, and no backtick is shown.
        assert "`" not in page.page.inner_text(".findings")
        assert_clean(page)


def test_sliders_move_the_step(browser: Any, made: Callable[..., Path]) -> None:
    """Each combination of positions shows the step that was replayed for it; the last slider is the fastest digit."""
    with opened(browser, made(DATA / "findings" / "tiny_training.json.xz")) as page:
        choices = page.evaluate("opscopePage.document.traces[0].choices") or {}
        steps, count = choices["step_ns"], len(choices["positions"])
        sliders = [f"input[type=range][data-finding='{name}']" for name in choices["findings"]]
        assert choices["positions"] == ["none", "low", "likely", "high"]
        assert len(steps) == count ** len(sliders)
        likely = sum(2 * count**place for place in range(len(sliders)))
        assert page.values("[data-figure='changed step']") == [steps[likely]]
        for position in (0, 3):
            for slider in sliders:
                page.page.fill(slider, str(position))
            at = sum(position * count**place for place in range(len(sliders)))
            assert page.values("[data-figure='changed step']") == [steps[at]]
        page.page.fill(sliders[0], "0")
        assert page.values("[data-figure='changed step']") == [
            steps[(count ** len(sliders) - 1) - 3 * count ** (len(sliders) - 1)]
        ]
        left, saved = page.page.eval_on_selector_all(
            ".left, .saved", "all => all.map(one => parseFloat(one.style.width))"
        )
        assert left + saved == pytest.approx(100 * steps[0] / max(steps), abs=0.01)
        page.page.focus(sliders[0])
        page.page.keyboard.press("ArrowRight")
        assert page.page.get_attribute(sliders[0], "aria-valuetext") == "done, low"
        assert_clean(page)


def test_the_timeline_zooms_pans_hovers_and_leads_to_rows(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("timeline")
        box = page.page.locator(".timeline canvas").bounding_box()
        state = "(() => { const { view } = opscopePage.app.traces[0].timeline; return [view.start, view.end]; })()"
        whole = page.evaluate(state)
        page.page.mouse.move(box["x"] + 700, box["y"] + 100)
        page.page.keyboard.down("Control")
        page.page.mouse.wheel(0, -600)
        page.page.keyboard.up("Control")
        page.page.wait_for_timeout(60)
        zoomed = page.evaluate(state)
        assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
        page.page.keyboard.down("Shift")
        page.page.mouse.down()
        page.page.mouse.move(box["x"] + 500, box["y"] + 100, steps=4)
        page.page.mouse.up()
        page.page.keyboard.up("Shift")
        assert page.evaluate(state)[0] > zoomed[0]
        # The middle of a kernel, wherever it lies.
        at = page.evaluate("""() => {
            const { timeline } = opscopePage.app.traces[0];
            timeline.show(0, timeline.length);
            const number = timeline.lanes.findIndex(one => one.kind === "stream");
            const lanes = timeline.lanes[number];
            let place = 0;
            lanes.start.forEach((start, at) => { if (lanes.end[at] - start > lanes.end[place] - lanes.start[place]) place = at; });
            return { x: (lanes.start[place] + lanes.end[place]) / 2 / timeline.perPixel(), y: timeline.trackOf.get(lanes).top + 16 + 8, name: timeline.names[lanes.name[place]],
                operator: timeline.names[lanes.operator[place]] };
        }""")
        page.page.wait_for_timeout(60)
        page.page.mouse.move(box["x"] + at["x"], box["y"] + at["y"])
        hovered = page.page.inner_text("#tooltip")
        assert at["operator"] in hovered
        assert "transformers/" in hovered
        assert "GPT2LMHeadModel_0" in hovered or "Linear_0" in hovered
        page.page.mouse.click(box["x"] + at["x"], box["y"] + at["y"])
        page.page.click("text=open its row")
        assert page.page.get_attribute("#tab-kernels", "aria-selected") == "true"
        assert page.page.get_attribute("tr.row[aria-expanded=true]", "data-id") == at["name"]
        assert_clean(page)


def test_a_search_marks_all_calls_of_an_operator(browser: Any, made: Callable[..., Path]) -> None:
    document = json.loads(opscope("analyze", str(trace("gpt2_train_amp_stacks")), "--format", "json").stdout)
    (mm,) = [row for row in document["operators"] if row["name"] == "aten::mm"]
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("timeline")
        page.page.fill(".timeline input[type=search]", "aten::mm")
        found = page.evaluate("""() => { const { timeline } = opscopePage.app.traces[0]; const kinds = { stream: [0, 0], operator: [0, 0] };
            for (const { lanes, place } of timeline.matches) { kinds[lanes.kind][0] += 1; kinds[lanes.kind][1] += lanes.end[place] - lanes.start[place]; } return kinds; }""")
        assert found["stream"] == [mm["activities"], mm["self_device_ns"]]
        assert found["operator"][0] == mm["calls"]


def test_the_keyboard_reaches_everything(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        keys = page.page.keyboard
        keys.press("2")
        assert page.page.get_attribute("#tab-operators", "aria-selected") == "true"
        keys.press("ArrowRight")
        assert page.page.get_attribute("#tab-kernels", "aria-selected") == "true"
        keys.press("ArrowLeft")
        keys.press("/")
        keys.type("softmax")
        assert "log_softmax" in page.page.inner_text("table[aria-label=operators]")
        page.page.focus("tr.row")
        keys.press("ArrowDown")
        keys.press("Enter")
        assert len(page.page.query_selector_all("tr.opened")) == 1
        keys.press("Enter")
        assert not page.page.query_selector_all("tr.opened")
        keys.press("4")
        page.page.focus(".timeline canvas")
        for key in ("+", "+", "ArrowRight", "n", "n"):
            keys.press(key)
        assert page.page.inner_text(".timeline .slice.detail")
        keys.press("Enter")
        assert page.page.query_selector("tr.opened")
        keys.press("6")
        page.page.focus(".flame canvas")
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            keys.press(key)
        assert page.evaluate("opscopePage.app.traces[0].flame.focus") >= 0
        keys.press("Escape")
        page.page.focus("#tab-flame")
        keys.press("?")
        assert page.page.is_visible("dialog.helpbox")
        keys.press("Escape")
        assert_clean(page)


def test_the_address_keeps_the_view(browser: Any, made: Callable[..., Path]) -> None:
    path = made(DATA / "h200_bert_small")
    with opened(browser, path) as page:
        page.page.goto(f"{path.as_uri()}#kernels,2")
        page.page.reload()
        page.page.wait_for_selector("#app[aria-busy=false]")
        assert page.page.get_attribute("#tab-kernels", "aria-selected") == "true"
        assert page.page.input_value("header select") == "2"


def test_it_prints_without_controls_and_on_white(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("gpt2_train_amp_stacks")), scheme="dark") as page:
        page.page.emulate_media(media="print")
        assert not page.page.is_visible("nav")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert len(page.page.pdf()) > 10_000


def test_printing_keeps_the_chosen_place(browser: Any, made: Callable[..., Path]) -> None:
    state = "(({ view, scroller }) => [view.start, view.end, scroller.scrollTop])(opscopePage.app.traces[0].timeline)"
    with opened(browser, made(trace("gpt2_train_amp_stacks"))) as page:
        page.show("timeline")
        page.evaluate("""() => { const { timeline } = opscopePage.app.traces[0];
            for (const track of timeline.tracks) timeline.fold(track, false);
            timeline.show(20e6, 30e6); timeline.scroller.scrollTop = 300; }""")
        before = page.evaluate(state)
        assert before == [20e6, 30e6, 300]
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(state) == before
        assert page.evaluate("document.documentElement.dataset.theme") is None


# ---------------------------------------------------------------- nothing gets out

EVIL = (
    "</script><script>window.hit = 1</script>", "<img src=x onerror=window.hit=1>", "<svg/onload=window.hit=1>", "javascript:window.hit=1",
    "\u202egnp.exe\u2066", "a\u0000b", "--><script>window.hit=1</script>", "'\"><iframe src=http://example.invalid>", "{{constructor.constructor('window.hit=1')()}}",
    "\ud800", "]]><!--", "&lt;script&gt;window.hit=1&lt;/script&gt;", "`${window.hit=1}`", "__proto__", "constructor", "=HYPERLINK(\"http://example.invalid\")",
)  # fmt: skip


def hostile() -> KinetoTrace:
    built = KinetoTrace(deviceProperties=[{"id": 0, "name": EVIL[1]}])
    built.step(1, 0, 1_000_000)
    for place, name in enumerate((*EVIL, "x" * 1_000_000)):
        at = 1_000 + place * 20_000
        built.slice("python_function", f"{name}.py(1): {name}", at, 15_000)
        built.slice("python_function", f"nn.Module: {name}", at + 500, 14_000)
        built.annotation(name, at + 800, 13_000)
        built.operator(
            name, at + 1_000, 9_000, **{"Input Dims": [[2, 2]], "Input type": [name], "Concrete Inputs": [name]}
        )
        built.launched_kernel(name, (at + 2_000, 1_000), (at + 5_000, 3_000), grid=[1, 1, 1], block=[1, 1, 1])
        args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Allocated": 512 * (place + 1), "Addr": place + 1}
        built.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 100,
                "tid": 100,
                "ts": (at + 2_500) / 1000,
                "args": args,
            }
        )
    return built


def test_names_of_a_trace_are_text_everywhere(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    path = made(hostile().write(tmp_path / "<img src=x onerror=window.hit=1>.json"))
    assert path.stat().st_size < 2_000_000
    with opened(browser, path) as page:
        for view in views_of(page):
            page.show(view)
            page.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            for row in page.page.query_selector_all("tr.row")[:25]:
                row.evaluate("row => row.click()")
            for canvas in page.page.query_selector_all("canvas"):
                box = canvas.bounding_box()
                for share in (0.1, 0.3, 0.5, 0.7, 0.9):
                    page.page.mouse.move(box["x"] + share * box["width"], min(box["y"] + 60, 880))
        page.page.wait_for_timeout(200)
        assert page.evaluate("window.hit") is None
        assert page.evaluate("document.querySelectorAll('main img, main iframe, main svg, main script').length") == 0
        assert page.evaluate("[...document.querySelectorAll('a')].every(one => one.protocol === 'https:')")
        text = page.page.inner_text("body")
        assert "\u202e" not in text
        assert_clean(page)


def test_a_page_of_a_difference_trusts_names_no_more(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    paths = [hostile().write(tmp_path / name) for name in ("one.json", "other.json")]
    with opened(browser, made(*paths, command="diff")) as page:
        for row in page.page.query_selector_all("tr.row"):
            row.evaluate("row => row.click()")
        assert page.evaluate("window.hit") is None
        assert_clean(page)


def test_ten_thousand_names_open(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    built = KinetoTrace()
    built.step(1, 0, 3_000_000_000)
    for place in range(10_000):
        at = 1_000 + place * 20_000
        built.operator(f"my::operator_{place}", at, 9_000)
        built.launched_kernel(
            f"void my_kernel_{place}<{place % 97}, float>(float*)", (at + 2_000, 1_000), (at + 5_000, 3_000)
        )
    path = made(built.write(tmp_path / "many.json"))
    assert path.stat().st_size < 2_000_000
    with opened(browser, path) as page:
        for view in views_of(page):
            page.show(view)
        left_out = {one["table"]: one for one in page.evaluate("opscopePage.document.traces[0].left_out")}
        assert left_out["kernels"]["rows"] == 8_000
        assert page.evaluate("opscopePage.app.traces[0].deviceSum") == 30_000_000
        assert_clean(page)


def test_the_policy_stops_what_a_script_would_do(browser: Any, made: Callable[..., Path]) -> None:
    """Were a script to get in, it could neither run code of its own nor reach anything."""
    with opened(browser, made(trace("cudagraph_replay"))) as page:
        page.evaluate("""() => {
            const script = document.createElement("script"); script.textContent = "window.hit = 1"; document.body.append(script);
            const image = document.createElement("img"); image.src = "http://example.invalid/x.png"; image.setAttribute("onerror", "window.hit = 2"); document.body.append(image);
            fetch("http://example.invalid/").catch(() => { window.refused = true; });
        }""")
        page.page.wait_for_function("window.refused")
        assert page.evaluate("window.hit") is None
        assert any("Content Security Policy" in text for text in page.complaints)
        # Chromium names the request that the policy stopped, and why.
        assert page.refused == [("http://example.invalid/x.png", "csp")]


def test_a_notebook_shows_the_page_in_a_frame(browser: Any, tmp_path: Path) -> None:
    from opscope.analysis.analyzed import analyze
    from opscope.analysis.measured import Measured
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.report.page.html import Page
    from opscope.runs.pipeline import PageParts

    parts = PageParts(1)
    parts.add(Measured(analyze(trace("cudagraph_replay"))), NativeFunctions.shipped())
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{Page(parts.page())._repr_html_()}")
    shown = browser.new_page()
    complaints: list[str] = []
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.goto(notebook.as_uri())
    frame = shown.frame_locator("iframe")
    frame.locator("#app[aria-busy=false]").wait_for()
    tabs = frame.locator("[role=tab]")
    for number in range(tabs.count()):
        tabs.nth(number).click()
    assert frame.locator("#tab-roofline").get_attribute("aria-selected") == "true"
    assert complaints == []
    shown.close()


# ---------------------------------------------------------------- what Nsight Compute counted


def test_counted_kernels_stand_below_the_roofs_of_their_units(
    browser: Any, made: Callable[..., Path], tmp_path: Path
) -> None:
    """A roof is that of one unit, so a point is of the operations of the unit that has most to do."""
    multiplies = counts(OF_H100, bf16_dst_fp32=989_400_000, ffma=33_450_000_000) | moved(480_000_000, 0, 2_000_000)
    kernels = [("mixes()", multiplies), ("<b>copies</b>()", counts(OF_H100) | moved(4_800_000, 0, 2_000))]
    path = table(tmp_path / "c.csv", kernels, device__attribute_display_name="NVIDIA H200")
    with opened(browser, made(path)) as page:
        assert views_of(page) == ["counters"]
        page.show("counters")
        page.page.wait_for_selector(".of-counters canvas")
        search_everywhere(page, "counters")
        series = page.evaluate(
            "[...opscopePage.charts].map(({ instance }) => instance.getOption().series.map(one => "
            "({ name: one.name, type: one.type, data: one.data.map(({ value }) => ({ value })) })))"
        )
        roofs = {one["name"] for one in series[0] if one["type"] == "line"}
        assert roofs == {"fp32"}
        (point,) = series[0][-1]["data"]
        assert point["value"] == [pytest.approx(66.9e9 / 480e6), pytest.approx(66.9e9 / 2e-3)]
        (copy,) = series[1][-1]["data"]
        assert copy["value"] == [4_800_000, pytest.approx(2.4e12)]
        text = page.page.inner_text(".of-counters")
        assert "<b>copies</b>()" in text
        assert "over the time under Nsight Compute" in text
        assert "of limit" not in text  # the least time is not a share of a time at other clocks
        assert_clean(page)


def test_counters_come_after_the_views_of_the_trace(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    run = DATA / "exec" / "graph.cudarec.xz"
    with opened(browser, made(run, DATA / "exec" / "ncu_raw.csv")) as page:
        assert views_of(page)[0] == "overview"
        assert views_of(page)[-1] == "counters"
        page.show("counters")
        text = page.page.inner_text(".of-counters")
        assert "which ncu --set roofline counts" in text
        assert "16 of 16 measured launches are those of" in text
        assert_clean(page)


# ---------------------------------------------------------------- what an attack found

PAINTED = """([row, time]) => {
    const { timeline } = opscopePage.app.traces[0];
    timeline.surface.drawNow();
    const lanes = timeline.lanes.find(one => one.kind === "stream");
    const ratio = devicePixelRatio;
    const x = (time - timeline.view.start) / timeline.perPixel(), y = timeline.trackOf.get(lanes).top + 16 + row * 17 + 8;
    return timeline.surface.context.getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data[3] > 0;
}"""


def test_a_long_slice_beside_tiny_ones_is_drawn(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    built = KinetoTrace()
    built.step(1, 0, 10_000_000)
    built.operator("aten::mm", 500, 5_000)
    for start, length in ((1_000_000, 100), (1_000_200, 100), (1_000_400, 3_000_000), (9_000_000, 100)):
        built.launched_kernel("k", (600, 100), (start, length))
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        page.show("timeline")
        for time in (1_500_000, 2_500_000, 3_900_000):
            assert page.evaluate(PAINTED, [0, time]), time
        assert not page.evaluate(PAINTED, [0, 6_300_000])


def test_a_slice_around_others_is_drawn_however_near_one_looks(
    browser: Any, made: Callable[..., Path], tmp_path: Path
) -> None:
    built = KinetoTrace()
    built.operator("aten::mm", 0, 5_000)
    built.launched_kernel("long", (100, 100), (1_000_000, 10_000_000))
    for place in range(20):
        built.launched_kernel("short", (300 + place, 1), (1_100_000 + place * 100_000, 1_000))
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        page.show("timeline")
        page.evaluate("opscopePage.app.traces[0].timeline.show(6e6, 9e6)")
        assert page.evaluate(PAINTED, [0, 7_500_000])
        found = page.evaluate("""() => { const { timeline } = opscopePage.app.traces[0]; const lanes = timeline.lanes.find(one => one.kind === "stream");
            return [[1, 1100500], [1, 2900500], [0, 5000000]].map(([row, time]) => timeline.names[lanes.name[lanes.at(row, time - timeline.entry.start_ns, 0)]]); }""")
        assert found == ["short", "short", "long"]


def test_charts_come_back_after_the_colours_changed(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(DATA / "h200_bert_small")) as page:
        for view in ("sweep", "roofline"):
            page.show(view)
            page.page.wait_for_timeout(200)
            before = len(page.page.query_selector_all(".chart canvas"))
            assert before > 0
            page.show("overview")
            page.page.click("button[data-value=dark]")
            page.show(view)
            page.page.wait_for_timeout(200)
            assert len(page.page.query_selector_all(".chart canvas")) == before
            page.page.click("button[data-value=light]")
        assert_clean(page)


def test_what_is_left_out_counts_in_sums_and_shares(browser: Any, made: Callable[..., Path], tmp_path: Path) -> None:
    built = KinetoTrace()
    built.step(1, 0, 100_000_000)
    for place in range(3_000):
        built.operator(f"my::operator_{place}", 1_000 + place * 20_000, 5_000)
        built.launched_kernel(f"k{place}", (2_000 + place * 20_000, 1_000), (5_000 + place * 20_000, 3_000))
    with opened(browser, made(built.write(tmp_path / "t.json"))) as page:
        data = page.evaluate("(({ deviceSum, cpuSum }) => [deviceSum, cpuSum])(opscopePage.app.traces[0])")
        assert data == [9_000_000, 12_000_000]
        whole = "operators 9,000,000 ns + unlinked 0 ns (0 activities) = device sum 9,000,000 ns."
        assert whole in page.page.inner_text(".of-overview")
        assert "1,000 more operators (3.000 ms together)" in (page.show("operators") or page.page.inner_text("main"))


def test_dialogs_do_not_pile_up_and_odd_names_have_colours(browser: Any, made: Callable[..., Path]) -> None:
    with opened(browser, made(trace("cudagraph_replay"))) as page:
        for _ in range(3):
            page.page.keyboard.press("?")
        assert len(page.page.query_selector_all("dialog")) == 1
        page.page.keyboard.press("3")
        assert page.page.get_attribute("#tab-overview", "aria-selected") == "true"
        page.page.keyboard.press("Escape")
        page.show("timeline")
        colours = page.evaluate(
            """() => { const { timeline } = opscopePage.app.traces[0];
            return ["constructor", "toString", "dispatch"].map(name => { timeline.names.push(name); return timeline.colorOf("operator", timeline.names.length - 1, -1); }); }"""
        )
        assert all(isinstance(colour, str) and colour.startswith("#") for colour in colours)


def test_one_configuration_begins_with_its_overview(browser: Any, made: Callable[..., Path]) -> None:
    changes = DATA / "changes"
    with opened(browser, made(changes / "before")) as page:
        assert page.evaluate("opscopePage.app.tabs.map(tab => tab.dataset.view)") == TRACE_VIEWS
        assert page.page.get_attribute("#tab-overview", "aria-selected") == "true"
    with opened(browser, made(changes / "before", changes / "tf32")) as page:
        page.show("overview")
        assert page.page.eval_on_selector_all("header option", "all => all.map(one => one.textContent)") == [
            "before: bs8",
            "tf32: bs8",
        ]
        page.show("sweep")
        page.page.click("article[data-sweep=tf32] td button")
        assert page.page.input_value("header select") == "1"
        assert_clean(page)
