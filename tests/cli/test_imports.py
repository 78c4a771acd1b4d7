"""What commands import, by names and numbers of modules: a test of time would depend on the machine."""

import json
from pathlib import Path

import pytest

from tests.command import fresh_opscope
from tests.kineto import KinetoTrace

LISTED = (
    "import json, runpy, sys\n"
    "sys.argv[0] = 'opscope'\n"
    "try:\n"
    "    runpy.run_module('opscope', run_name='__main__')\n"
    "except SystemExit:\n"
    "    pass\n"
    "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
)


def modules_of(*args: str) -> set[str]:
    result = fresh_opscope(*args, code=LISTED)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stderr.splitlines()[-1]))


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "opscope"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = KinetoTrace()
    trace.operator("aten::add", 1_000, 900)
    trace.launched_kernel("add_kernel", (1_100, 50), (1_300, 400))
    return trace.write(tmp_path_factory.mktemp("imports") / "tiny.json")


def test_help_imports_no_command_and_no_library() -> None:
    modules = modules_of("--help")
    assert len(own(modules)) <= 8
    assert not modules & {"numpy", "polars", "msgspec", "dataclasses", "opscope.cli.analyze"}


@pytest.mark.parametrize("command", ["analyze", "profile", "exec", "bench", "advise", "ranks", "mcp"])
def test_the_help_of_a_command_imports_neither_numpy_nor_polars(command: str) -> None:
    assert not modules_of(command, "--help") & {"numpy", "polars", "torch", "mcp"}


@pytest.mark.parametrize(
    "module",
    [
        "opscope.collect.cuda.command",
        "opscope.collect.nsight_compute",
        "opscope.workbench.jobs.bench_process",
        "opscope.workbench.jobs.listing_process",
        "opscope.workbench.triton_check.interpreter",
    ],
)
def test_what_starts_processes_imports_no_pytorch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert fresh_opscope(code=code).returncode == 0


def test_a_table_needs_no_documents_builder_and_no_lookup(tiny: Path) -> None:
    modules = modules_of("analyze", str(tiny))
    unused = {
        "torch",
        "difflib",
        "html",
        "opscope.report.trace_document",
        "opscope.lookup",
        "opscope.analysis.costs.statements",
        "opscope.readers.nsys",
        "opscope.readers.parquet",
        "opscope.report.page",
        "opscope.runs.store",
    }
    assert not modules & unused
    assert len(own(modules)) <= 214


def test_a_document_needs_no_page(tiny: Path) -> None:
    modules = modules_of("analyze", str(tiny), "--format", "json")
    assert not modules & {"torch", "html", "opscope.report.page", "opscope.runs.pipeline"}
    assert len(own(modules)) <= 231


def test_a_snapshot_without_a_trace_needs_no_tables() -> None:
    snapshot = next((Path(__file__).parent.parent / "data" / "memory").glob("previous_output.*"))
    assert not modules_of("memory", str(snapshot)) & {"polars", "torch", "opscope.readers.kineto"}
