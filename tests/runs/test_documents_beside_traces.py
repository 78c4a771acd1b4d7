"""A folder of traces may hold what opscope itself wrote beside them."""

import json
import shutil
from pathlib import Path

from tests.command import ROOT, opscope


def test_opscopes_own_documents_are_no_traces(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "data" / "traces" / "cudagraph_replay.json.gz", tmp_path)
    shutil.copy(ROOT / "benchmarks" / "results" / "h200-bench-gelu.json", tmp_path / "gelu.json")
    done = opscope("analyze", str(tmp_path), "--format", "json")
    assert "gelu" not in done.stderr
    assert json.loads(done.stdout)["schema"].startswith("opscope.analysis")
    (tmp_path / "job.json").write_text("no JSON")  # but what is of someone else is named
    done = opscope("analyze", str(tmp_path))
    assert done.returncode == 4
    assert "job.json is not a trace" in done.stderr
