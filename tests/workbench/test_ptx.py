"""PTX and machine code of kernels of Triton, compiled without a GPU."""

import json
from pathlib import Path

import pytest

from opscope.machine.programs import find_program
from tests.command import opscope

pytest.importorskip("triton")
pytestmark = pytest.mark.torch
KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def scale(x_pointer, out_pointer, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + at, mask=at < n)
    tl.store(out_pointer + at, x * 2, mask=at < n)


def plain():
    """Is no kernel."""
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL)
    return path


TYPES = ("--signature", "*fp32,*fp32,i32", "--constant", "BLOCK=128", "--arch", "sm_90")


def test_a_kernel_is_compiled_for_types_that_are_named(file: Path) -> None:
    result = opscope("kernel", "ptx", f"{file}:scale", *TYPES, "--format", "json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "opscope.listing/1"
    (kernel,) = document["kernels"]
    assert kernel["name"] == "scale"
    stored = [one for one in kernel["instructions"] if "st.global" in one["text"]]
    assert {(one["file"], one["line"]) for one in stored} == {(str(file), 10)}
    text = opscope("kernel", "ptx", f"{file}:scale", *TYPES)
    assert "kernels.py:9  x = tl.load(x_pointer + at, mask=at < n)" in text.stdout


@pytest.mark.skipif(find_program("nvdisasm") is None, reason="nvdisasm is not installed")
def test_machine_code_of_a_kernel(file: Path) -> None:
    result = opscope("kernel", "ptx", f"{file}:scale", *TYPES, "--emit", "sass")
    assert result.returncode == 0, result.stderr
    assert "STG.E" in result.stdout
    assert "kernels.py:10" in result.stdout


def test_what_is_missing_is_said(file: Path) -> None:
    for arguments, said in (
        (("--signature", "*fp32,i32", "--arch", "sm_90"), "the arguments x_pointer, out_pointer, n, BLOCK: --constant"),
        ((*TYPES, "--constant", "OTHER=1"), "the kernel has no argument 'OTHER'"),
        (("--arch", "sm_90"), "go with --signature"),
        (("--signature", "*fp32", "--constant", "BLOCK"), "NAME=VALUE"),
    ):  # fmt: skip
        result = opscope("kernel", "ptx", f"{file}:scale", *arguments)
        assert result.returncode == 2
        assert said in result.stderr
    other = opscope("kernel", "ptx", f"{file}:plain", "--signature", "i32", "--arch", "sm_90")
    assert "is not a kernel of Triton" in other.stderr
