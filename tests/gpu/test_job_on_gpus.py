"""Ranks with a GPU each: they profile the same steps, and the one that is late is named with its cause."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import opscope
from tests.command import ROOT
from tests.command import fresh_opscope as run

pytestmark = pytest.mark.gpu

SCRIPT = ROOT / "tests" / "workloads" / "scripts" / "two_gpus.py"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("job")
    done = run("profile", "--nproc", "2", "-o", "out", str(SCRIPT), "1000", cwd=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "rank 1 is late" in done.stdout
    return folder / "out"


def test_both_ranks_profile_the_same_steps(job: Path) -> None:
    traces = [next((job / f"rank{rank}").glob("*_trace_*.json")).read_text() for rank in (0, 1)]
    first, second = (set(re.findall(r'"name": "(number \d+)"', text)) for text in traces)
    assert first == second
    assert len(first) == 3
    records = [json.loads((job / f"rank{rank}" / "raw" / "capture_default.json").read_text()) for rank in (0, 1)]
    assert [record["steps"]["ranks"] for record in records] == [2, 2]
    assert records[0]["steps"]["before"] == records[1]["steps"]["before"]


def test_the_late_rank_is_named_with_its_cause(job: Path) -> None:
    document = opscope.ranks(job).document
    assert [(one.rank, str(one.cause)) for one in document.late] == [(1, "host")]
    assert document.late[0].late_ns == pytest.approx(40e6, abs=5e6)
    assert document.late[0].where is not None
    assert "tokenize" in document.late[0].where


def test_clocks_and_links_are_known(job: Path) -> None:
    document = opscope.ranks(job).document
    assert max(one.error_ns for one in document.clocks) < 50_000
    assert len({one.host for one in document.ranks}) == 1
    largest = max(document.collectives, key=lambda one: one.bytes or 0)
    assert largest.link_bandwidth
    assert largest.bus_bandwidth
    assert 0.05 < largest.bus_bandwidth / largest.link_bandwidth < 1.2
