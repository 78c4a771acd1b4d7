"""``opscope.analyze`` in a notebook: the analysis, its findings and limits show themselves, as text, table and page."""

import json
from pathlib import Path

import polars as pl
import pytest

import opscope
from opscope.analysis import analyzed
from tests.command import opscope as command
from tests.conftest import DATA
from tests.kineto import KinetoTrace

GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"


@pytest.fixture(scope="module")
def analysis() -> opscope.Analysis:
    return opscope.analyze(GPT2)


def test_findings_are_a_tuple_that_shows_itself(analysis: opscope.Analysis) -> None:
    plain = analyzed.analyze(GPT2).findings
    assert tuple(analysis.findings) == plain
    table = analysis.findings.table()
    assert table["id"].to_list() == [one.id for one in plain]
    assert json.loads(table["saving_ns"][0]) == {"low": plain[0].saving_ns.low, "high": plain[0].saving_ns.high}
    assert plain[0].title in " ".join(repr(analysis.findings).split())
    assert "<table>" in analysis.findings._repr_html_()


def test_limits_are_a_tuple_with_a_table(analysis: opscope.Analysis) -> None:
    table = analysis.limits.table()
    assert table.height == len(analysis.limits) == len(analyzed.analyze(GPT2).limits)
    first = table.row(0, named=True)
    assert first["achieved_flop_per_s"] == pytest.approx(1e9 * first["flop"] / first["call_ns"])
    assert first["share"] == pytest.approx(first["ideal_ns"] / first["call_ns"])
    assert "aten::mm" in repr(analysis.limits)
    assert table.schema["lost_ns"] == pl.Float64


def test_an_analysis_has_a_page(analysis: opscope.Analysis, tmp_path: Path) -> None:
    saved = analysis.page().save(tmp_path / "page.html")
    assert saved.stat().st_size > 500_000
    (trace,) = analysis.page().document.traces
    assert trace.document.bound == analysis.bound
    assert trace.document.findings == tuple(analysis.findings)


def test_a_trust_that_fails_comes_with_its_reason(tmp_path: Path) -> None:
    built = KinetoTrace()
    built.operator("aten::mm", 0, 5_000)
    built.launched_kernel("k", (1_000, 1_000), (3_000, 9_000))
    path = built.write(tmp_path / "cut.json")
    path.write_bytes(path.read_bytes()[:-30])
    shown = dict(opscope.analyze(path).summary().rows)
    assert shown["trust"] == "fail"
    assert "ends" in shown["fail file_is_valid"] or "cut" in shown["fail file_is_valid"]


def test_it_is_the_analysis_that_others_take(analysis: opscope.Analysis) -> None:
    assert isinstance(analysis, opscope.Analysis)
    assert isinstance(analysis, analyzed.Analysis)
    assert opscope.diff(analysis, analysis).pairs[0].step.change_ns == 0
    assert repr(analysis).startswith("Analysis of ")
    empty = opscope.analyze(opscope.read(DATA / "traces" / "cudagraph_replay.json.gz"))
    assert empty.limits.table().height == len(empty.limits)
    assert repr(empty.findings)


def test_help_begins_with_the_functions() -> None:
    done = command(code="import opscope; help(opscope)")
    text = done.stdout
    places = [text.index(f"opscope.{name}(") for name in ("analyze", "read", "profile", "bench", "diff", "ranks")]
    assert places == sorted(places)
    assert places[0] < 600
