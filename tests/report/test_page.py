"""``opscope page`` without a browser: what the file is made of, what it holds, and how the command behaves."""

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import opscope as library
from opscope.analysis.analyzed import analyze
from opscope.documents.comparison import ComparisonRow, SweepComparison
from opscope.documents.limits import LimitRow, LimitsEntry, PeaksEntry
from opscope.render.blocks import Bullets, Paragraph, Table
from opscope.report.comparison_report import sections_on_page, turns
from opscope.report.page.roofs import modelled_roofline
from opscope.report.page.traces import MOST_SLICES
from tests.command import WITHOUT_TORCH, opscope, toy
from tests.conftest import DATA, ROOT
from tests.kineto import KinetoTrace

ASSETS = ROOT / "src" / "opscope" / "report" / "page" / "assets"
GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"


def page(path: Path, *arguments: object) -> str:
    done = opscope("page", *map(str, arguments), "-o", str(path), "--overwrite")
    assert done.returncode == 0, done.stderr
    return path.read_text(encoding="utf-8")


def document_of(text: str) -> dict[str, Any]:
    match = re.search(r'<script id="data" type="application/gzip">([^<]*)</script>', text)
    assert match is not None
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(match[1])))
    return found


@pytest.mark.parametrize("name", ["kept_outputs", "oom_forward", "graph_pools", "recorded_streams"])
def test_a_snapshots_picture_adds_up(tmp_path: Path, name: str) -> None:
    path = DATA / "memory" / f"{name}.pickle.xz"
    written = document_of(page(tmp_path / "page.html", path))
    (picture,) = written["snapshots"][0]
    (device,) = json.loads(opscope("memory", str(path), "--format", "json").stdout)["devices"]
    totals = [sum(column[at] for column in picture["bytes"]) for at in range(len(picture["time_us"]))]
    assert max(totals) == totals[picture["peak"]] == picture["peak_bytes"] == device["peak_bytes"]
    assert totals[-1] == device["allocated_bytes"]
    assert picture["reserved_bytes"][-1] == device["reserved_bytes"]
    assert picture["time_us"] == sorted(picture["time_us"])
    for at, lines in enumerate(picture["top"]):
        assert sum(held for _, _, held in lines) <= totals[at]
        assert [held for _, _, held in lines] == sorted((held for _, _, held in lines), reverse=True)
    drawn = sum(one["bytes"] for one in picture["segments"]) + picture["empty_bytes"]
    assert picture["left_out"] or drawn == device["reserved_bytes"]
    for segment in picture["segments"]:
        assert sum(block[1] for block in segment["blocks"]) == segment["bytes"]
        assert sum(block[1] for block in segment["blocks"] if block[2] == -1) == segment["free_bytes"]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return shutil.copytree(DATA / "h200_bert_small", tmp_path / "sweep")


def test_only_its_own_scripts_and_style_may_run(tmp_path: Path) -> None:
    text = page(tmp_path / "page.html", GPT2)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert (len(scripts), len(styles)) == (2, 1)
    for content in (*scripts, *styles):
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy[1]
    # Before anything that could load: the policy is the first thing after the character set.
    assert text.index("Content-Security-Policy") < text.index("<script")
    assert not re.search(r"<(?:link|img|iframe|object|embed|base|form)\b", text.split("<script", 1)[0])


def test_modules_are_joined_into_one_script_in_which_each_name_stands_for_one_thing(tmp_path: Path) -> None:
    text = page(tmp_path / "page.html", GPT2)
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    assert not re.search(r"^(?:import|export)\b", script, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function\*? |class |const |let )(\w+)", script, re.MULTILINE)
    assert len(names) > 200
    assert sorted(names) == sorted(set(names))
    for path in ASSETS.glob("*.js"):  # each is there
        for name in re.findall(
            r"^export (?:async )?(?:function\*? |class |const |let )(\w+)", path.read_text(), re.MULTILINE
        ):
            assert name in names


def test_licences_of_what_it_contains_are_in_it() -> None:
    licenses = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    for words in (
        "Apache License",
        "Apache ECharts",
        "BSD 3-Clause",
        "zrender",
        "Copyright (c) 2017, Baidu Inc.",
        "tslib",
    ):
        assert words in licenses
    pinned = json.loads((ROOT / "tools" / "charts" / "package.json").read_text())["dependencies"]["echarts"]
    locked = json.loads((ROOT / "tools" / "charts" / "package-lock.json").read_text())["packages"]
    assert locked["node_modules/echarts"]["version"] == pinned
    assert locked["node_modules/echarts"]["integrity"].startswith("sha512-")
    assert f"Apache ECharts {pinned}" in licenses


def test_it_is_drawn_from_the_document_of_the_trace(tmp_path: Path) -> None:
    (trace,) = document_of(page(tmp_path / "page.html", GPT2))["traces"]
    document = json.loads(opscope("analyze", str(GPT2), "--format", "json").stdout)
    for key in ("bound", "devices", "launches", "categories", "steps", "gaps", "memory", "limits", "trust", "unlinked"):
        assert trace["document"][key] == document[key], key
    assert all(row["detail"] for row in trace["document"]["operators"])
    assert [flame["by"] for flame in trace["flames"]] == ["operator", "module", "python"]
    assert {sum(flame["device_ns"]) for flame in trace["flames"]} == {document["devices"][0]["sum_ns"]}
    (memory,) = [one for one in trace["memory"] if one["device"] == 0]
    assert (
        memory["before_bytes"] + memory["smaller_bytes"] + sum(row["bytes"] for row in memory["alive"])
        == memory["peak_bytes"]
    )
    for bar, device in zip(trace["bars"], document["devices"], strict=True):
        assert sum(part["ns"] for part in bar["parts"]) == pytest.approx(device["window_ns"] / document["step_count"])


def test_chosen_steps_are_in_the_timeline(tmp_path: Path) -> None:
    (trace,) = document_of(page(tmp_path / "page.html", GPT2, "--steps", "2"))["traces"]
    assert (trace["timeline"]["steps"], trace["timeline"]["all_steps"]) == ([2], [1, 2])
    wrong = opscope("page", str(GPT2), "--steps", "7..9", "-o", str(tmp_path / "other.html"))
    assert (wrong.returncode, "marks no steps 7 to 9" in wrong.stderr) == (2, True)
    assert not (tmp_path / "other.html").exists()
    assert opscope("page", str(GPT2), "--steps", "x", "-o", str(tmp_path / "other.html")).returncode == 2


@pytest.mark.parametrize("name", ["x" * 5_000, '"' * 5_000, "\\" * 5_000, '\\"' * 2_500, 'a"' * 2_500 + "\\"])
def test_long_texts_are_cut_however_they_are_spelled(tmp_path: Path, name: str) -> None:
    built = KinetoTrace()
    built.step(1, 0, 100_000)
    built.operator(name, 500, 5_000)
    built.launched_kernel("k", (600, 100), (7_000, 3_000))
    (trace,) = document_of(page(tmp_path / "page.html", built.write(tmp_path / "t.json")))["traces"]
    (operator,) = (row["name"] for row in trace["document"]["operators"] if row["name"].startswith(name[:9]))
    assert operator.startswith(name[:1_900])
    assert len(operator) <= 2_000


def test_a_sweep_has_its_comparison_and_all_traces(sweep: Path, tmp_path: Path) -> None:
    text = page(tmp_path / "page.html", sweep)
    assert len(text) < 2_000_000
    found = document_of(text)
    assert [trace["name"] for trace in found["traces"]] == ["bs1_seq128", "bs8_seq128", "bs16_seq128"]
    assert all(
        len(trace["samples_ns"]) == trace["document"]["measurement"]["wall"]["count"] for trace in found["traces"]
    )
    opscope("export", "--reports", str(sweep))
    (one,) = found["sweeps"]
    assert one["comparison"] == json.loads((sweep / "comparison.json").read_bytes())
    # The same page stands in the run directory.
    own = document_of((sweep / "report.html").read_text(encoding="utf-8"))
    assert own["sweeps"] == found["sweeps"]
    assert own["traces"] == found["traces"]


def row(bound: str, **axes: int) -> ComparisonRow:
    values: dict[str, Any] = dict.fromkeys(ComparisonRow.__struct_fields__)
    return ComparisonRow(**{**values, "id": str(axes), "bound": bound, "axes": axes})


def test_where_a_sweep_turns() -> None:
    rows = [row("dispatch", batch=1, length=8), row("device", batch=4, length=8), row("device", batch=2, length=8),
            row("device", batch=1, length=16), row("device", batch=2, length=16)]  # fmt: skip
    assert [(t.along, t.others, t.smaller, t.larger, t.before, t.after) for t in turns(rows)] == [
        ("batch", "length 8", 1, 2, "dispatch", "device"),
        ("length", "batch 1", 8, 16, "dispatch", "device"),
    ]


def test_what_bounds_each_size_is_a_grid_and_turns_are_sentences() -> None:
    rows = [
        replace(row("host_work", batch_size=batch, seq_len=length), device_share=share)
        for batch, length, share in ((1, 8, 0.25), (4, 8, None), (1, 16, 0.5))
    ]
    rows.append(row("device", batch_size=4, seq_len=16))
    values: dict[str, Any] = dict.fromkeys(SweepComparison.__struct_fields__, ())
    comparison = SweepComparison(**{**values, "measured_on": "device", "rows": tuple(rows), "unit": "sequences"})
    section = next(one for one in sections_on_page(comparison) if one.title[0].startswith("What bounds each"))
    grid, said = section.blocks
    assert isinstance(grid, Table)
    assert grid.columns == ("batch size \\ sequence length", "8", "16")
    assert grid.rows == (("1", "host work 25 %", "host work 50 %"), ("4", "host work", "device"))
    assert isinstance(said, Bullets)
    assert [*map("".join, said.items)] == [
        "Between batch size 1 and 4 (sequence length 16) the bound changes from host work to device.",
        "Between sequence length 8 and 16 (batch size 4) the bound changes from host work to device.",
    ]
    dtypes = [replace(one, axes={**one.axes, "dtype": dtype}) for one in rows for dtype in ("float32", "bfloat16")]
    (grid, _) = next(
        one
        for one in sections_on_page(replace(comparison, rows=tuple(dtypes)))
        if one.title[0].startswith("What bounds")
    ).blocks
    assert isinstance(grid, Table)
    assert grid.rows[0][1] == "float32: host work 25 %, bfloat16: host work 25 %"
    one_axis = replace(comparison, rows=tuple(rows[:2]))
    (alone,) = next(one for one in sections_on_page(one_axis) if one.title[0].startswith("What bounds each")).blocks
    assert alone == Paragraph.of("The bound does not change between neighbouring sizes.")


def call(kernel: str, **more: Any) -> LimitRow:
    """Return two calls of 100 ns each, which could take 40 ns."""
    known = {
        "operator": "aten::mm", "category": "Matrix Operations", "device": 0, "calls": 2, "device_ns": 200, "call_ns": 100.0,
        "flop": 1_000, "least_bytes": 10, "precision": "bf16", "ideal_ns": 40.0, "share": 0.4, "lost_ns": 120.0,
        "limited_by": "compute", "input_dims": "[[8, 4], [4, 2]]",
    }  # fmt: skip
    return LimitRow(kernel=kernel, **{**known, **more})


def test_points_of_a_roofline_are_calls_and_kernels() -> None:
    peaks = (PeaksEntry(0, "NVIDIA H200", "datasheet", {"bf16": 1e15}, 4.8e12, None),
             PeaksEntry(1, "Unknown", None, {}, None, None))  # fmt: skip
    rows = (
        call("gemm"),
        call("gemm", calls=1, device_ns=50, call_ns=50.0, flop=400, least_bytes=4, ideal_ns=60.0, lost_ns=0.0),
        call("gemm", precision="fp32", lost_ns=500.0),
        call("nothing", device_ns=0, call_ns=0.0),
        call("copy", ideal_ns=None, share=None, lost_ns=None, reason="no model"),
        call("elsewhere", device=1),
    )
    limits = LimitsEntry(
        peaks=peaks, device_sum_ns=1_000, modelled_ns=650, rows=rows, utilisation=(), over_limit=("x",)
    )
    roofline = modelled_roofline(limits, rows, None)
    known, unknown = roofline.roofs
    assert (known.title, known.memory_bytes_per_s, known.flop_per_s) == ("Device 0", 4.8e12, {"bf16": 1e15})
    assert known.notes[0].startswith("NVIDIA H200: peaks datasheet; memory 4.800 TB/s. Areas are time lost:")
    assert [one.call_ns for one in known.points["operators by inputs"]] == [100.0, 50.0, 100.0]
    assert known.points["operators by inputs"][0].name == "aten::mm [8,4], [4,2]"
    first, second = known.points["kernels"]  # the most time lost first
    assert (first.precision, second.precision) == ("fp32", "bf16")
    assert (second.calls, second.flop, second.bytes, second.call_ns) == (3, 2_400 / 3, 8.0, 250 / 3)
    assert (second.lost_ns, second.share) == (120.0, (80 + 50) / 250)  # the least time is at most what calls took
    assert (unknown.points, unknown.notes) == (
        {}, ("The peaks of Unknown are not known: opscope gpus --measure measures them.",)
    )  # fmt: skip
    assert roofline.notes == ("Faster than the limit, so a model or a peak is wrong: x.",)
    assert "cover 65.0 % of the device sum" in (roofline.work_note or "")
    assert modelled_roofline(None, (), "no GPU worked").notes == ("No limits: no GPU worked.",)
    nothing = modelled_roofline(replace(limits, nothing="Nothing."), rows, None)
    assert (nothing.roofs, nothing.notes, nothing.work_note) == ((), ("Nothing.",), None)


@pytest.mark.parametrize("name", ["gpt2_train_amp_stacks", "cudagraph_replay"])
def test_checks_and_what_adds_up_are_the_same_as_in_the_terminal(tmp_path: Path, name: str) -> None:
    source = shutil.copy(DATA / "traces" / f"{name}.json.gz", tmp_path)
    (trace,) = document_of(page(tmp_path / "page.html", source))["traces"]
    printed = opscope("analyze", str(source), "--why", env={"COLUMNS": "500"}).stdout
    (adds_up,) = (line.strip() for line in printed.splitlines() if line.strip().startswith("Accounting:"))
    texts = ["".join(block["items"][0]) for block in trace["trust"]["blocks"] if block["kind"] == "paragraph"]
    assert f"{adds_up.rstrip('.')}." in texts
    checks = trace["document"]["trust"]["checks"]
    doubts = [one for one in checks if one["verdict"] != "pass"]
    assert texts[0].endswith(f"{len(doubts)} of {len(checks)} checks {'is' if len(doubts) == 1 else 'are'} in doubt."
                             if doubts else f"none of {len(checks)} checks is in doubt.")  # fmt: skip
    (inner,) = trace["trust"]["sections"]
    assert [cells[2] for cells in inner["blocks"][0]["rows"]] == [one["sentence"] for one in checks]
    for curve in trace["memory"]:
        if curve["before_bytes"] is not None:
            assert curve["adds_up"] == f"Rows add up to the peak: {curve['peak_bytes']:,} bytes."


def test_a_trace_of_nothing_and_a_damaged_one(tmp_path: Path) -> None:
    assert (
        document_of(page(tmp_path / "page.html", KinetoTrace().write(tmp_path / "t.json")))["traces"][0]["timeline"]
        is None
    )
    whole = gzip.decompress(GPT2.read_bytes())
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) // 2])
    cut = opscope("page", str(tmp_path / "cut.json"), "-o", str(tmp_path / "cut.html"))
    assert cut.returncode == 4  # it is written of what is whole, and that is said
    assert document_of((tmp_path / "cut.html").read_text())["traces"][0]["document"]["trust"]["verdict"] == "fail"
    again = ("-o", str(tmp_path / "cut.html"), "--overwrite")
    assert opscope("page", str(tmp_path / "cut.json"), *again, "--allow-damaged").returncode == 0
    (tmp_path / "none.json").write_text("no trace")
    assert opscope("page", str(tmp_path / "none.json"), "-o", str(tmp_path / "none.html")).returncode == 4
    nowhere = opscope("page", str(GPT2), "-o", str(tmp_path / "no" / "page.html"))
    assert (nowhere.returncode, "Traceback" in nowhere.stderr) == (3, False)


def test_pages_of_stores_recordings_and_several_inputs(tmp_path: Path) -> None:
    assert opscope("export", str(GPT2), "--parquet", str(tmp_path / "store")).returncode == 0
    stored, plain = (
        document_of(page(tmp_path / "page.html", path))["traces"][0] for path in (tmp_path / "store", GPT2)
    )
    assert stored["flames"] == plain["flames"]
    assert stored["memory"] == plain["memory"]  # addresses are kept
    found = document_of(
        page(tmp_path / "page.html", GPT2, DATA / "traces" / "cdist.json.gz", "--title", "two & <more>")
    )
    assert (found["title"], len(found["traces"])) == ("two & <more>", 2)
    assert "<title>two &amp; &lt;more&gt;</title>" in (tmp_path / "page.html").read_text()


def test_a_page_needs_no_pytorch(tmp_path: Path) -> None:
    done = opscope("page", str(GPT2), "-o", str(tmp_path / "page.html"), code=WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr


def test_a_large_trace_makes_a_small_page(tmp_path: Path) -> None:
    built = KinetoTrace()
    built.step(1, 0, 4_000_000_000)
    for place in range(120_000):
        at = 1_000 + place * 30_000
        built.operator(f"aten::op_{place % 50}", at, 9_000)
        built.launched_kernel(f"kernel_{place % 70}", (at + 2_000, 1_000), (at + 5_000, 3_000 + place % 977))
    text = page(tmp_path / "page.html", built.write(tmp_path / "large.json"))
    assert len(text) < 4_000_000
    timeline = document_of(text)["traces"][0]["timeline"]
    assert timeline["slice_count"] > 360_000
    assert timeline["merged_below_ns"] > 0
    assert sum(len(track["row"]) for track in timeline["tracks"]) <= MOST_SLICES
    assert sum(sum(track["count"]) or len(track["row"]) for track in timeline["tracks"]) == timeline["slice_count"]


@pytest.mark.torch
def test_a_profile_leaves_its_page(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = opscope("profile", toy("step"), "--output-dir", str(tmp_path / "run"), "--active", "1")
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stdout
    found = document_of((tmp_path / "run" / "report.html").read_text())
    assert found["traces"][0]["bars"] == []
    assert found["traces"][0]["document"]["capture"]["configuration"]["target"].endswith("step")


@pytest.mark.torch
def test_runs_and_analyses_show_themselves_in_notebooks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    left = torch.randn(32, 32)
    run = library.profile(lambda: left @ left, device="cpu", active=1, name="<b>product</b>")
    shown = run._repr_html_()
    assert "<svg" in shown
    assert "aten::mm" in shown
    assert "<b>product" not in shown
    made = run.page()
    assert '<iframe sandbox="allow-scripts allow-popups allow-popups-to-escape-sandbox"' in made._repr_html_()
    assert "allow-same-origin" not in made._repr_html_()
    assert document_of(made.save(tmp_path / "page.html").read_text())["traces"][0]["samples_ns"]
    assert "<svg" in analyze(run.trace)._repr_html_()
    compared = library.bench({"one": torch.neg, "other": torch.abs}, inputs=(left,), device="cpu", seconds=0.02)
    assert "<svg" in compared._repr_html_()
    assert "95 % intervals" in compared._repr_html_()
    changed = library.diff(run, run)
    assert "<table>" in changed._repr_html_()
    assert "No difference found" in repr(changed) or "cannot be known" in repr(changed)
    assert document_of(changed.page().html.decode())["difference"]["pairs"][0]["step"]["change_ns"] == 0


def test_the_bundle_has_a_script_that_makes_it() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "build_charts.py", "--help"], capture_output=True, text=True, check=True
    )
    assert "--check" in done.stdout


def test_a_trace_without_steps_and_idle_time_has_a_page(tmp_path: Path) -> None:
    built = KinetoTrace()
    built.operator("aten::mm", 0, 5_000)
    built.launched_kernel("k", (1_000, 1_000), (3_000, 9_000))
    (trace,) = document_of(page(tmp_path / "page.html", built.write(tmp_path / "t.json")))["traces"]
    assert [track["kind"] for track in trace["timeline"]["tracks"]] == ["stream", "operator", "call"]


def test_a_page_that_cannot_be_made_costs_no_result(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opscope.base.errors import OpscopeError
    from opscope.record.codec import decode
    from opscope.record.sweep import Manifest
    from opscope.runs import pipeline
    from opscope.runs.store import RunDirectory
    from opscope.sweep import runner

    opscope("export", "--reports", str(sweep))
    directory = RunDirectory(sweep)
    manifest = decode(directory.manifest, Manifest)
    assert (sweep / "report.html").is_file()

    def fails(*_: object, **__: object) -> None:
        raise OpscopeError("no page today")

    monkeypatch.setattr(pipeline, "page_html", fails)
    after = runner.run_sweep(runner.Plan(manifest, directory, runner.Here()), SilentObserver())
    assert [entry.status for entry in after.entries] == ["done"] * 3
    assert not (sweep / "report.html").exists()  # none that is of something else
    assert (sweep / "comparison.json").is_file()


class SilentObserver:
    def configuration(self, number: int, entry: Any) -> None: ...

    def progress(self, phase: str, fraction: float, waits: str = "") -> None: ...

    def finished(self, number: int, entry: Any) -> None: ...
