"""``opscope whatif`` on the command line: changes by option, what it refuses, and what it writes."""

import json
from pathlib import Path

import pytest

from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

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
        (["--no-wait", "nosuch"], "these operators: `aten::linear`"),
        (["--no-wait", "cudaLaunchKernel"], "these calls that wait: `cudaDeviceSynchronize`"),
        (["--no-wait", "aten::relu"], "these calls that wait: `cudaDeviceSynchronize`"),
        (["--remove", "nosuch"], "these operators: `aten::linear`"),
        (["--scale", "nosuch=2"], "these kernels: `sm80_xmma_gemm"),
        (["--to-limit", "nosuch"], "these kernels: `sm80_xmma_gemm"),
        (["--scale", "aten::mm=1e308"], "such as aten::mm=0.5"),
    ],
)
def test_what_it_refuses(options: list[str], says: str) -> None:
    done = opscope("whatif", TRACE, *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_only_other_steps_have_is_no_answer(tmp_path: Path) -> None:
    """The first of many steps alone calls aten::rare: none that is replayed does."""
    build = KinetoTrace()
    for number in range(9):
        begin = 1_000_000 * number
        build.step(number, begin, 900_000)
        build.operator("aten::rare" if number == 0 else "aten::mm", begin + 10_000, 500_000)
        build.launched_kernel("gemm", (begin + 20_000, 5_000), (begin + 30_000, 400_000))
    path = build.write(tmp_path / "trace.json")
    for option, name in (("--remove", "aten::rare"), ("--scale", "aten::rare=0.5")):
        done = opscope("whatif", str(path), option, name)
        assert done.returncode == 2, done.stdout
        assert "no step that is replayed" in done.stderr
        assert "aten::mm" in done.stderr or "gemm" in done.stderr
