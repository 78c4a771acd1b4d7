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


def test_one_finding_shows_its_saving_its_place_and_what_to_write() -> None:
    first = opscope.analyze(TRACE).findings[0]
    shown = repr(first)
    assert len(shown) < 2000
    assert shown.startswith(f"{first.id}: ")
    words = " ".join(shown.split())
    for part in (first.saving, first.action, first.prove):
        assert " ".join(part.split())[:60] in words
    assert "<table>" in first._repr_html_()


def test_what_to_do_first_is_shown_with_its_saving_and_its_place() -> None:
    analysis = opscope.analyze(ROOT / "examples" / "training_step.json.xz")
    rows = dict(analysis.summary().rows)
    assert rows["to do 1"] == "stop reading 63 values a step, saves 0.334 to 2.47 ms, programs.py:248"
    assert rows["bound"] == analysis.bound.sentence


def test_a_what_if_shows_the_step_before_and_after() -> None:
    document = opscope.whatif(ROOT / "examples" / "training_step.json.xz", no_launch_gaps=True)
    shown = repr(document)
    assert len(shown) < 2000
    assert "step with all changes" in shown
    assert "--no-launch-gaps" in shown


def test_a_prompt_completes_what_users_need() -> None:
    analysis = opscope.analyze(TRACE)
    public = [name for name in dir(analysis) if not name.startswith("_")]
    assert len(public) <= 32
    assert {"findings", "limits", "operators", "page", "bound", "trust"} <= set(public)
    assert all(hasattr(analysis, name) for name in public)


def test_public_names_say_where_they_are_imported_from() -> None:
    for name in opscope.__all__:
        if name != "__version__":
            assert getattr(opscope, name).__module__ == "opscope", name
