"""``opscope analyze --compile-log``: what people read, the part of JSON by its schema, and what it refuses."""

import json
from pathlib import Path

import jsonschema

from tests.command import WITHOUT_TORCH, opscope

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data" / "compiled"


def program(name: str) -> list[str]:
    logs = (f"{name}.torch_trace.log.xz", f"{name}.torch_logs.txt.xz")
    return [str(DATA / f"{name}.trace.json.xz"), *(part for log in logs for part in ("--compile-log", str(DATA / log)))]


def test_breaks_and_lines_of_kernels_are_printed_where_pytorch_is_not_installed() -> None:
    result = opscope("analyze", *program("break_print"), code=WITHOUT_TORCH)
    assert result.returncode == 0, result.stderr
    assert "Graph break at /project/compiled_programs.py:92: Failed to trace builtin operator." in result.stdout
    assert '    print("", end="")  # cause' in result.stdout
    assert "The line runs 6 times in a step." in result.stdout
    assert "the lines of 100.0 % of their time are known" in result.stdout
    assert "compiled_programs.py:59" in result.stdout


def test_json_and_markdown_have_the_same() -> None:
    result = opscope("analyze", *program("graph_mutation"), "--format", "json")
    document = json.loads(result.stdout)
    jsonschema.validate(document, json.loads((ROOT / "docs" / "schema" / "analysis-1.json").read_text()))
    (skipped,) = document["compile"]["skipped"]
    assert (skipped["reason"], skipped["place"]["line"]) == ("mutated inputs (1 instances)", 354)
    words = opscope("analyze", *program("graph_mutation"), "--format", "md").stdout
    assert "CUDA graph skipped" in words
    assert "mutated inputs (1 instances)" in words


def test_a_trace_without_a_log_has_no_such_part() -> None:
    document = json.loads(opscope("analyze", program("graph_plain")[0], "--format", "json").stdout)
    assert document["compile"] is None


def test_one_log_goes_with_one_trace() -> None:
    trace, *logs = program("graph_plain")
    result = opscope("analyze", trace, program("break_print")[0], *logs)
    assert result.returncode == 2
    assert "--compile-log is of one process: name one trace, not 2" in result.stderr


def test_a_log_that_is_none_is_refused() -> None:
    trace = program("graph_plain")[0]
    result = opscope("analyze", trace, "--compile-log", trace)
    assert result.returncode == 4
    assert "nothing that TORCH_TRACE or TORCH_LOGS writes" in result.stderr
