"""What a prompt, a notebook and ``dir`` show of the Python interface."""

import pytest
from msgspec.structs import replace

import opscope
from opscope.base.summary import Summary
from tests.command import ROOT

TRACE = ROOT / "tests" / "data" / "traces" / "bert4_bf16_compiled.json.gz"


def test_only_the_public_names_are_listed() -> None:
    assert dir(opscope) == sorted(opscope.__all__)
    assert all(hasattr(opscope, name) for name in opscope.__all__)


def test_a_path_is_analysed_like_the_trace_that_it_holds() -> None:
    read = opscope.analyze(opscope.read(TRACE))
    for path in (TRACE, str(TRACE)):
        assert opscope.analyze(path).operators.equals(read.operators)
    assert opscope.analyze(TRACE, graph_capture=TRACE).graph_capture is not None
    with pytest.raises(opscope.BadInputError):
        opscope.analyze("missing.json")


def test_an_analysis_shows_its_verdict_and_its_dearest_operators() -> None:
    analysis = opscope.analyze(TRACE)
    shown = repr(analysis)
    assert len(shown) < 2000
    assert max(map(len, shown.splitlines())) <= 120
    assert shown.startswith(f"Analysis of {TRACE}\n")
    assert " ".join(analysis.bound.sentence.split()[:6]) in shown
    assert "aten::addmm" in shown
    assert "50.5 % of the device sum" in shown  # 529,848 of 1,048,174 ns
    page = analysis._repr_html_()
    assert page.startswith("<div>")
    assert "aten::addmm" in page


def test_a_trace_shows_its_file_and_the_sizes_of_its_tables() -> None:
    trace = opscope.read(TRACE)
    shown = repr(trace)
    assert len(shown) < 600
    assert "0: NVIDIA H200" in shown
    assert f"activities   {trace.activities.height}" in shown
    damaged = replace(trace, source=replace(trace.source, damage="the file ends early"))
    assert "the file ends early" in repr(damaged)


def test_names_of_a_trace_are_never_markup() -> None:
    page = Summary("<b>", (("<script>alert(1)</script>", "a & b"),)).html()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "a &amp; b" in page


def test_long_names_and_values_keep_lines_short() -> None:
    shown = Summary("title", (("n" * 500, "word " * 100), ("empty", ""))).text()
    assert max(map(len, shown.splitlines())) <= 110
    assert shown.count("word") == 100


def test_names_that_steer_a_terminal_are_shown_plainly() -> None:
    summary = Summary("\x1b[31mred\ntitle", (("na\u202eme", "va\x1b]0;lue"),))
    for shown in (summary.text(), summary.html()):
        assert not set(shown.replace("\n", "")) & {"\x1b", "\u202e"}
    assert summary.text().splitlines()[0] == "[31mred title"
