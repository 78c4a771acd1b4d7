"""``opscope whatif`` on the command line: changes by option, what it refuses, and what it writes."""

import json
from pathlib import Path

import pytest

from tests.command import opscope
from tests.conftest import DATA

TRACE = str(DATA / "findings" / "fp32_inference.json.xz")


def asked(*options: str) -> dict[str, object]:
    done = opscope("whatif", TRACE, "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_several_changes_at_once_and_the_written_steps(tmp_path: Path) -> None:
    target = tmp_path / "changed.json.gz"
    document = asked("--finding", "fp32_products", "--bandwidth", "memory=2x", "--chrome", str(target))
    changes = document["changes"]
    assert isinstance(changes, list)
    assert [one["change"] for one in changes] == ["--finding fp32_products", "--bandwidth memory=2x"]
    assert all(one["targets"] > 0 for one in changes)
    assert document["changed_ns"] < document["base_ns"]  # type: ignore[operator]
    assert target.stat().st_size > 1_000
    again = opscope("whatif", TRACE, "--chrome", str(target))
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--bandwidth", "nvlink=0x"], "such as nvlink=2x"),
        (["--bandwidth", "ethernet=2x"], "nvlink, pcie, memory"),
        (["--bandwidth", "nvlink=2x"], "the trace has nothing that uses it"),
        (["--workers", "0x"], "such as 2x"),
        (["--workers", "2x"], "no step of the trace loads a batch"),
        (["--overlap", "collectives"], "the trace has no collectives"),
        (["--finding", "nothing"], "there are: "),
        (["--chrome", "-"], "name a file"),
    ],
)
def test_what_it_refuses(options: list[str], says: str) -> None:
    done = opscope("whatif", TRACE, *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
