"""Building with nvcc: flags, what the binary holds, what kernels take, listings and errors. Nothing built is run."""

import json
from pathlib import Path

import pytest

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.documents.build import BuildDocument
from opscope.knowledge.binaries.elf import open_elf
from opscope.machine.programs import find_program
from opscope.workbench.toolchain.building import build_file, chosen_capabilities, listing_of
from opscope.workbench.toolchain.listing import first_error, kernel_resources, messages, ptx_kernels, sass_kernels
from opscope.workbench.toolchain.nvcc import BuildFailedError, BuildKind, Nvcc, architectures, installed, target_flags
from tests.command import opscope

SOURCE = """
template <typename T> __global__ void scale(T* x, T factor, int n) {
    __shared__ T tile[256];
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) {
        tile[threadIdx.x] = x[at];
        __syncthreads();
        x[at] = tile[(threadIdx.x + 1) % 256] * factor;
    }
}
template __global__ void scale<float>(float*, float, int);
template __global__ void scale<double>(double*, double, int);
int main() { return 0; }
"""
needs_nvcc = pytest.mark.skipif(find_program("nvcc") is None, reason="nvcc is not installed")
needs_nvdisasm = pytest.mark.skipif(find_program("nvdisasm") is None, reason="nvdisasm is not installed")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return path


def built(source: Path, *numbers: str, kind: BuildKind = BuildKind.LIBRARY) -> BuildDocument:
    return build_file(source, source.with_suffix(".so"), kind, numbers, 256)


NVCC_12_9 = Nvcc(Path("nvcc"), "12.9.86", ("7.0", "7.5", "8.0", "9.0", "10.0", "12.0"), ())
NVCC_13 = Nvcc(Path("nvcc"), "13.0.88", ("7.5", "8.0", "9.0", "10.0", "12.0"), ())


def test_architectures_by_what_nvcc_builds_for() -> None:
    assert architectures(NVCC_12_9, ["sm_70", "9.0", "sm_90a", "compute_120"]) == ("7.0", "9.0", "9.0a", "12.0")
    with pytest.raises(UsageError, match=r"nvcc 13.0.88 does not build for sm_70 \(Volta\): CUDA 9.0 to 12.9 does"):
        architectures(NVCC_13, ["sm_70"])
    with pytest.raises(UsageError, match="is not an architecture"):
        architectures(NVCC_13, ["hopper"])


def test_flags_hold_machine_code_of_each_and_ptx_of_the_newest() -> None:
    assert target_flags(["8.0", "9.0"]) == (
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    )
    assert target_flags(["9.0a"]) == ("-gencode=arch=compute_90a,code=sm_90a",)


VERBOSE = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6spillsPf' for 'sm_90'
ptxas info    : Function properties for _Z6spillsPf
    800 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 42 registers, used 1 barriers, 800 bytes cumulative stack size, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 56.263 ms
"""


def test_what_ptxas_says_of_a_kernel() -> None:
    (found,) = kernel_resources(VERBOSE)
    assert (found.name, found.arch, found.registers) == ("spills(float*)", "sm_90", 42)
    assert (found.stack_bytes, found.spill_store_bytes, found.spill_load_bytes) == (800, 12, 16)
    assert (found.shared_memory_bytes, found.constant_bytes, found.barriers) == (1024, 360, 1)


ERRORS = {
    'bad.cu(1): error: identifier "y" is undefined\n1 error detected': 'bad.cu:1: identifier "y" is undefined',
    "nvcc fatal   : Unsupported gpu architecture 'sm_70'": "Unsupported gpu architecture 'sm_70'",
    "cc1plus: fatal error: /x.cu: No such file\ncompilation terminated.": "/x.cu: No such file",
    "a.cpp:12:5: error: expected ';' before '}' token": "a.cpp:12: expected ';' before '}' token",
    "x.cpp:(.text+0x33): undefined reference to `f()'\ncollect2: error: ld returned 1": "undefined reference to `f()'",
    "": "it failed without a word",
}


@pytest.mark.parametrize("text", ERRORS)
def test_the_first_error(text: str) -> None:
    assert ERRORS[text] in first_error(text)


def test_warnings_are_told_once_with_their_place() -> None:
    line = '/x.cu(3): warning #177-D: variable "unused" was declared but never referenced'
    (found,) = messages(f"{line}\n{line}\nRemark: The warnings can be suppressed")
    assert (found.file, found.line, found.kind) == ("/x.cu", 3, "warning")
    assert "never referenced" in found.text


@needs_nvcc
def test_the_binary_holds_what_was_asked_for(source: Path) -> None:
    found = built(source, "8.0", "9.0")
    assert {(entry.kind, entry.arch) for entry in found.contents} == {
        ("sass", "sm_80"),
        ("sass", "sm_90"),
        ("ptx", "compute_90"),
    }
    names = [f"void scale<{kind}>({kind}*, {kind}, int)" for kind in ("double", "float")]
    assert sorted((kernel.arch, kernel.name) for kernel in found.kernels) == [
        (arch, name) for arch in ("sm_80", "sm_90") for name in names
    ]
    shared = {kernel.name: kernel.shared_memory_bytes for kernel in found.kernels}
    assert sorted(shared.values()) == [1024, 2048]
    assert all(kernel.occupancy is not None and kernel.occupancy.percent == 100 for kernel in found.kernels)
    assert str(source) in found.command


@needs_nvcc
def test_a_universal_build_holds_all_that_nvcc_builds_for(source: Path) -> None:
    numbers = chosen_capabilities((), universal=True)
    assert numbers == installed().capabilities
    found = built(source, *numbers, kind=BuildKind.EXECUTABLE)
    sass = {entry.arch for entry in found.contents if entry.kind == "sass"}
    assert sass == {f"sm_{number.replace('.', '')}" for number in numbers}
    assert [entry.arch for entry in found.contents if entry.kind == "ptx"] == [
        f"compute_{numbers[-1].replace('.', '')}"
    ]
    with open_elf(source.with_suffix(".so")) as elf:
        assert ".nv_fatbin" in elf.sections


@needs_nvcc
def test_ptx_has_the_source_line_of_each_instruction(source: Path) -> None:
    listing = listing_of(source, "ptx", "9.0")
    (found,) = (kernel for kernel in listing.kernels if "float*" in kernel.name)
    assert found.arch == "sm_90"
    stored = [one for one in found.instructions if "st.global" in one.text]
    assert {(one.file, one.line) for one in stored} == {(str(source), 8)}
    assert found.instructions[-1].text == "}"


@needs_nvcc
@needs_nvdisasm
def test_sass_has_the_source_line_of_each_instruction(source: Path) -> None:
    listing = listing_of(source, "sass", "9.0")
    (found,) = (kernel for kernel in listing.kernels if "double*" in kernel.name)
    stored = [one for one in found.instructions if "STG" in one.text]
    assert {(one.file, one.line) for one in stored} == {(str(source), 8)}
    assert any("EXIT" in one.text for one in found.instructions)


def test_listings_by_hand() -> None:
    ptx = """.version 9.0
.target sm_90
.visible .entry one(
)
{
 .loc 1 7 3
 { add.f32 %f1, %f2, %f3; }
 ret;
}
.visible .entry two() { ret; }
 .file 1 "/a.cu"
"""
    one, two = ptx_kernels(ptx)
    assert [(i.text.strip(), i.file, i.line) for i in one.instructions][-3:] == [
        ("{ add.f32 %f1, %f2, %f3; }", "/a.cu", 7),
        ("ret;", "/a.cu", 7),
        ("}", "/a.cu", 7),
    ]
    assert two.symbol == "two"
    section = '\t.target sm_80\n\t.section .text._Z1kv,"ax"\n'
    sass = section + '\t//## File "/a.cu", line 4\n  /*0000*/ EXIT ;\n\t.section .data\n'
    (kernel,) = sass_kernels(sass)
    assert (kernel.name, kernel.arch) == ("k()", "sm_80")
    assert [(i.text.strip(), i.line) for i in kernel.instructions] == [("/*0000*/ EXIT ;", 4)]


@needs_nvcc
def test_an_error_names_its_line(source: Path) -> None:
    source.write_text("__global__ void k(float* x) {\n    x[0] = y;\n}\n")
    with pytest.raises(BuildFailedError, match=r'scale.cu:2: identifier "y" is undefined'):
        built(source, "9.0")


@needs_nvcc
def test_the_command(source: Path) -> None:
    result = opscope("kernel", "build", str(source), "--arch", "sm_80,sm_90", "--kind", "library", "--format", "json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "opscope.build/1"
    assert source.with_suffix(".so").is_file()
    text = opscope("kernel", "build", str(source), "--arch", "9.0", "-o", str(source.with_name("program")))
    assert "machine code for sm_90, PTX of compute_90" in text.stdout
    listing = opscope("kernel", "build", str(source), "--arch", "9.0", "--emit", "ptx", "--kernel", "scale<double>")
    assert "scale.cu:8  x[at] = tile" in listing.stdout
    assert "scale<float>" not in listing.stdout
    assert opscope("kernel", "build", str(source), "--arch", "9.0", "--emit", "ptx", "--kernel", "none").returncode == 2
    assert opscope("kernel", "build", str(source), "--arch", "9.0", "--universal").returncode == 2
    assert opscope("kernel", "build", str(source), "--arch", "sm_20").returncode == 2


@needs_nvcc
def test_nothing_is_overwritten_or_built_elsewhere(source: Path) -> None:
    before = source.read_bytes()
    for arguments, said in (
        (("-o", str(source)), "is what is read"),
        (("-o", str(source), "--emit", "ptx"), "is what is read"),
        (("--", "-c"), "makes nvcc write something else"),
        (("--", "-o", "elsewhere"), "makes nvcc write something else"),
        (("--kernel", "none"), "no kernel's name holds 'none'"),
    ):
        result = opscope("kernel", "build", str(source), "--arch", "9.0", *arguments)
        assert result.returncode == 2, arguments
        assert said in result.stderr
    assert source.read_bytes() == before
    strange = source.with_name("bt`touch x`.cu")
    strange.write_bytes(before)
    assert "nvcc misreads names" in opscope("kernel", "build", str(strange), "--arch", "9.0").stderr
    nowhere = opscope("kernel", "build", str(source), "--arch", "9.0", "-o", str(source.parent / "none" / "x"))
    assert nowhere.returncode == 3


@needs_nvcc
def test_relocatable_code_says_that_its_figures_are_before_linking(source: Path) -> None:
    result = opscope(
        "kernel", "build", str(source), "--arch", "9.0", "-o", str(source.with_name("p")), "--", "-rdc=true"
    )
    assert result.returncode == 0, result.stderr
    assert "what kernels take is of each file before it is linked" in result.stdout


def test_without_nvcc_the_error_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opscope.machine.programs.folders", lambda: iter(()))
    with pytest.raises(EnvironmentLacksError, match=r"nvcc is not installed: pip install 'opscope\[cuda\]'"):
        installed()


@needs_nvcc
def test_a_build_replaces_a_build_and_nothing_else_unasked(source: Path, tmp_path: Path) -> None:
    words = ("kernel", "build", str(source), "--kind", "library", "--arch", "9.0", "-o", str(tmp_path / "out"))
    for _ in range(2):
        assert opscope(*words).returncode == 0
    (tmp_path / "out").write_text("mine")
    assert opscope(*words).returncode == 2
    assert (tmp_path / "out").read_text() == "mine"
    assert opscope(*words, "--overwrite").returncode == 0
    listing = ("kernel", "build", str(source), "--arch", "9.0", "--emit", "ptx", "-o", str(tmp_path / "ptx"))
    assert [opscope(*listing).returncode for _ in range(2)] == [0, 2]
