"""No report is lost to a part of it: what fails is left out with its reason, and the traceback is in the log."""

import json
import shutil
import textwrap
from pathlib import Path

import pytest

from opscope.analysis.analyzed import analyze
from opscope.base.parts import Losses
from opscope.runs.store import PAGE, RunDirectory, with_entry
from opscope.sweep.runner import report, written_sweep
from tests.command import opscope
from tests.conftest import DATA

RUN = DATA / "changes" / "before"

# module, what fails in it, and what is then said to be left out
COMPUTED = [
    ("opscope.analysis.measured", "bound_of", "the verdict"),
    ("opscope.analysis.measured", "step_time", "times of steps"),
    ("opscope.analysis.measured", "check_limits", "the check of limits"),
    ("opscope.analysis.measured", "check_overhead", "the check of the profiler's cost"),
    ("opscope.analysis.analyzed", "advice_on", "the findings"),
    ("opscope.analysis.analyzed", "memory_use", "memory"),
    ("opscope.analysis.analyzed", "annotation_table", "annotations"),
    ("opscope.analysis.analyzed", "backward_table", "backward"),
    ("opscope.analysis.analyzed", "captured_table", "captured"),
    ("opscope.analysis.analyzed", "graph_table", "graph nodes"),
    ("opscope.analysis.analyzed", "longest_gaps", "gaps"),
    ("opscope.analysis.analyzed", "limit_rows", "limits"),
    ("opscope.analysis.advice.advised", "as_findings", "the findings"),
    ("opscope.analysis.advice.advised", "_found", "the findings"),
    ("opscope.analysis.trust.checks", "_stream_overlaps", "the check of streams"),
    ("opscope.analysis.trust.checks", "_cold_launches", "the check of cold launches"),
    ("opscope.report.trace_document", "device_entry", "devices"),
    ("opscope.report.trace_document", "native_function_of", "operators"),
    ("opscope.report.trace_document", "limits_entry", "limits"),
    ("opscope.report.trace_document", "_kernels", "kernels"),
    ("opscope.report.trace_document", "_light", "the light pass"),
]
WRITTEN = [
    ("opscope.report.kernel_report", "environment_section", "Configuration and environment"),
    ("opscope.report.kernel_report", "_categories", "Time by category"),
    ("opscope.report.kernel_report", "operator_sections", "Operators"),
    ("opscope.report.kernel_report", "limits_blocks", "How far from the devices' limits"),
    ("opscope.report.kernel_report", "_trust", "Trust checks"),
    ("opscope.report.kernel_report", "overview_section", "Overview"),
    ("opscope.report.overview", "screen_blocks", "what bounds the step"),
    ("opscope.report.overview", "_step_times", "times of a step"),
    ("opscope.report.overview", "_clocks", "facts"),
    ("opscope.report.overview", "longest_gap", "devices"),
    ("opscope.report.overview", "Accounting", "the accounting"),
]
DRAWN = [
    ("opscope.report.page.traces", "flames", "the flame view"),
    ("opscope.report.page.traces", "slices_of", "the timeline"),
    ("opscope.report.page.traces", "drawn_timeline", "the timeline"),
    ("opscope.report.page.traces", "with_findings", "findings in the timeline"),
    ("opscope.report.page.traces", "_bar", "the bars of the step"),
    ("opscope.report.page.roofs", "_by_kernel", "the roofline"),
    ("opscope.report.page.traces", "choices_of", "what several findings save"),
]


def fails(*_: object, **__: object) -> None:
    raise IndexError("list index out of range")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    shutil.copytree(RUN, tmp_path / "r")
    monkeypatch.delenv("OPSCOPE_RAISE", raising=False)
    return RunDirectory(tmp_path / "r")


def written(run: RunDirectory) -> tuple[str, dict[str, str], str]:
    """Write the reports of a run; return the report, its trust checks and the log."""
    manifest = run.read_manifest()
    (entry,) = manifest.entries
    manifest = written_sweep(run, with_entry(manifest, report(run, entry)[0]))
    assert manifest.page_failure is None
    assert [entry.status for entry in manifest.entries] == ["done"]
    files = manifest.entries[0].files
    statistics = json.loads((run.path / files.cycles[0].statistics).read_text())
    checks = {check["name"]: check["sentence"] for check in statistics["trust"]["checks"]}
    assert (run.path / PAGE).is_file()
    log = run.path / files.log
    return (run.path / files.cycles[0].report).read_text(), checks, log.read_text() if log.is_file() else ""


@pytest.mark.parametrize(("module", "name", "part"), COMPUTED)
def test_what_cannot_be_computed_is_left_out_with_its_reason(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, module: str, name: str, part: str
) -> None:
    monkeypatch.setattr(f"{module}.{name}", fails)
    text, checks, log = written(run)
    assert f"{part} (`IndexError: list index out of range`)" in checks["parts_computed"]
    assert "opscope --debug raises it" in text
    assert f"left out of the report: {part}\n" in log
    assert 'raise IndexError("list index out of range")' in log
    assert "Top 10 operators" in text or part in ("operators", "kernels")


@pytest.mark.parametrize(("module", "name", "part"), WRITTEN)
def test_a_section_that_cannot_be_written_costs_no_other_one(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, module: str, name: str, part: str
) -> None:
    whole = written(run)[0]
    monkeypatch.setattr(f"{module}.{name}", fails)
    text, _, log = written(run)
    assert f"Left out: {part}, as writing it failed (" in text
    assert "IndexError: list index out of range" in text
    assert f"left out of the report: {part}, as text\n" in log
    kept = set(text.splitlines())
    assert len(kept & set(whole.splitlines())) > 0.4 * len(set(whole.splitlines()))


@pytest.mark.parametrize(("module", "name", "part"), DRAWN)
def test_a_picture_that_cannot_be_made_costs_no_other_one(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, module: str, name: str, part: str
) -> None:
    from opscope.report.page import html

    pages: list[object] = []
    monkeypatch.setattr("opscope.runs.pipeline.page_html", lambda page: pages.append(page) or html.page_html(page))
    monkeypatch.setattr(f"{module}.{name}", fails)
    written(run)
    (trace,) = pages[-1].traces  # type: ignore[attr-defined]
    said = {check.name: check.sentence for check in trace.document.trust.checks}["parts_computed"]
    assert f"{part} (`IndexError: list index out of range`)" in said
    assert any(part in row[2] for row in trace.trust.sections[0].blocks[0].rows)
    others = [trace.flames, trace.timeline, trace.bars, trace.roofline.roofs]
    assert sum(bool(one) for one in others) >= 3


def test_an_error_is_raised_where_that_is_asked_for(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opscope.analysis.analyzed.longest_gaps", fails)
    monkeypatch.setenv("OPSCOPE_DEBUG", "1")
    with pytest.raises(IndexError):
        written(run)


@pytest.mark.parametrize(("output_format", "shown"), [("table", "aten::addmm"), ("brief", "Next"), ("json", '"steps"')])
@pytest.mark.parametrize("failing", ["longest_gaps", "advice_on", "limit_rows", "graph_table"])
def test_commands_show_the_rest_and_debug_raises(output_format: str, shown: str, failing: str) -> None:
    trace = str(DATA / "traces" / next(path.name for path in sorted((DATA / "traces").glob("*.json.gz"))))
    code = f"""
        import os, sys
        os.environ.pop("OPSCOPE_RAISE", None)
        import opscope.analysis.analyzed as analyzed
        def fails(*_, **__):
            raise IndexError("list index out of range")
        analyzed.{failing} = fails
        from opscope.cli import main
        main()
    """
    arguments = ("analyze", trace, "--format", output_format, "--why")
    told = opscope(*arguments, code=textwrap.dedent(code))
    assert told.returncode == 0, told.stderr
    assert "IndexError: list index out of range" in told.stdout
    assert shown in told.stdout
    raised = opscope("--debug", *arguments, code=textwrap.dedent(code))
    assert raised.returncode != 0
    assert "Traceback" in raised.stderr


def test_a_part_that_fails_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = Losses()
    monkeypatch.delenv("OPSCOPE_RAISE", raising=False)
    for _ in range(2):
        assert losses.part("gaps", fails, tuple) == ()
    assert [loss.part for loss in losses.found] == ["gaps"]
    assert analyze(next((DATA / "traces").glob("*.json.gz"))).losses.found == ()
