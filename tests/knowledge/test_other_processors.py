"""Libraries of another processor, what fat binaries hold, and a PyTorch of another platform."""

import contextlib
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.base.errors import BadInputError
from opscope.knowledge.binaries.elf import open_elf
from opscope.knowledge.binaries.fatbins import CodeKind, Image, fat_binaries
from opscope.knowledge.binaries.registrations import read_cuda_library
from opscope.knowledge.kernels.index import IndexedKernel, build_index, same_build, shipped_builds
from opscope.knowledge.kernels.installed import torch_in, torch_in_wheel, torch_index
from tests.command import opscope
from tests.conftest import ROOT

FOLDER = ROOT / "tests" / "data" / "cuda_library"
X86, ARM, NO_PLT = FOLDER / "libaxpy.so", FOLDER / "libaxpy_aarch64.so", FOLDER / "libnoplt.so"
TARGETS = FOLDER / "libtargets_aarch64.so"


def kernels(path: Path) -> Counter[tuple[str, str]]:
    """Return the kernels with their units; local ones under names without the file's own number."""
    library = read_cuda_library(path)
    return Counter((name_of(kernel.name), library.units[kernel.unit]) for kernel in library.kernels)


def name_of(kernel: str) -> str:
    return "fill_kernel" if "fill_kernel" in kernel else kernel


def test_the_same_sources_register_the_same_kernels_on_both_processors() -> None:
    assert kernels(ARM) == kernels(X86)
    assert kernels(NO_PLT) == kernels(X86)
    library = read_cuda_library(ARM)
    assert ("_ZN4mine5scaleEPffi", "scale.cu") in kernels(ARM)
    assert all(kernel.stub is not None for kernel in library.kernels)


def images(path: Path) -> list[Image]:
    with open_elf(path) as elf:
        return [image for binary in fat_binaries(elf) for image in binary.images]


def test_fat_binaries_by_what_they_were_built_for() -> None:
    found = Counter((image.kind, image.target) for image in images(TARGETS))
    assert found == {
        (CodeKind.CUBIN, "sm_80"): 2,
        (CodeKind.CUBIN, "sm_90a"): 2,
        (CodeKind.CUBIN, "sm_100f"): 2,
        (CodeKind.PTX, "compute_120"): 2,
    }
    assert {image.compression for image in images(TARGETS)} == {"zstd"}
    assert {image.target for image in images(X86)} == {"sm_90", "compute_90"}
    assert all(image.version == "9.0" for image in images(TARGETS) if image.kind is CodeKind.PTX)


@given(st.data())
def test_damaged_fat_binaries_are_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(TARGETS.read_bytes())
    with open_elf(TARGETS) as elf:
        section = elf.sections[".nv_fatbin"]
    for _ in range(data.draw(st.integers(1, 3))):
        place = section.offset + data.draw(st.integers(0, section.size - 1))
        content[place] = data.draw(st.integers(0, 255))
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(BadInputError):
            assert len(images(Path(file.name))) <= 100_000


def wheel(tmp_path: Path, *, version: str = "__version__ = '2.14.1+cu130'\ngit_version = 'abc'\n") -> Path:
    path = tmp_path / "torch-2.14.1-cp311-cp311-manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch/version.py", version)
        archive.write(ARM, "torch/lib/libtorch_cuda.so")
    return path


def test_a_wheel_of_another_platform_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    with torch_in_wheel(wheel(tmp_path)) as found:
        assert (found.version, found.git) == ("2.14.1+cu130", "abc")
        (index,) = torch_index(found)
    place = index.exact("mine::scale(float*, float, int)")
    assert place is not None
    assert place.files == ("scale.cu",)
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked")
    unpacked = torch_in(tmp_path / "unpacked")
    assert unpacked is not None
    assert unpacked.version == "2.14.1+cu130"
    assert torch_in(tmp_path) is None


def test_what_is_no_wheel_of_pytorch_is_refused(tmp_path: Path) -> None:
    for content, said in ((b"no zip", "not a wheel of PyTorch"), (None, "does not say which PyTorch")):
        path = wheel(tmp_path, version="nothing")
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(BadInputError, match=said), torch_in_wheel(path):
            pass
    empty = tmp_path / "other.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("numpy/version.py", "")
    with pytest.raises(BadInputError, match="not a wheel of PyTorch"), torch_in_wheel(empty):
        pass


def test_the_command_reads_a_wheel(tmp_path: Path) -> None:
    found = opscope("explain", "mine::scale(float*, float, int)", "--library", str(wheel(tmp_path)))
    assert found.returncode == 0, found.stderr
    assert "scale.cu (verified" in found.stdout


def test_builds_differ_in_the_architectures_that_namespaces_name() -> None:
    """As `libtorch_cuda.so` of 2.14.1 writes it for x86-64, and for aarch64."""
    name = "void cub::CUB_300001_SM_{}_NS::DeviceScanKernel<int>(int)"
    here, there = name.format("750_800_860_900_1000_1200"), name.format("800_900_1000_1100_1200")
    index = build_index(
        [IndexedKernel(here, frozenset({"Scan.cu"}))], torch="2.14.1+cu130", git=None, build_ids={"a": "b"}
    )
    found = index.exact(there)
    assert found is not None
    assert found.files == ("Scan.cu",)
    assert index.exact(there.replace("int", "long")) is None


def test_wheels_of_other_platforms_are_known_by_their_build_ids() -> None:
    others = [(build.torch, other) for build in shipped_builds().values() for other in build.others]
    assert others
    for torch, other in others:
        assert same_build(other.build_ids.values()) == torch
