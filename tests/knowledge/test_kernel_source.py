"""Where kernels come from: shipped indexes, libraries on disk, and what is not known."""

import gzip
import json
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.base.errors import BadInputError, UsageError
from opscope.knowledge.binaries.elf import open_elf
from opscope.knowledge.binaries.registrations import read_cuda_library
from opscope.knowledge.kernels import index
from opscope.knowledge.kernels.index import (
    HostFile,
    IndexedKernel,
    SourceIndex,
    SourceLine,
    build_index,
    by_nearness,
    parse_version,
    same_build,
    shipped_builds,
    shipped_index,
    shipped_names,
)
from opscope.knowledge.kernels.installed import library_index
from opscope.knowledge.kernels.kernel_source import How, KernelSource, SourceResolver
from opscope.knowledge.kernels.names import library_of
from opscope.knowledge.native_functions import TorchVersion
from tests.conftest import DATA, ROOT

LIBRARY = DATA / "cuda_library" / "libaxpy.so"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)


def recorded_kernels() -> set[str]:
    """All kernel names of the recorded H200 traces (PyTorch 2.11.0+cu130)."""
    names = {case["name"] for case in json.loads((DATA / "kernel_names.json").read_text())}
    for path in (DATA / "traces").glob("*.json.gz"):
        with gzip.open(path) as file:
            names |= {event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "kernel"}
    return names


def resolver(version: str | None) -> SourceResolver:
    return SourceResolver(None if version is None else TorchVersion.parse(version))


def is_library(name: str) -> bool:
    return library_of(name) is not None


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---------------------------------------------------------------- shipped indexes


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.11.0", "2.11.0+cu128"])
def test_every_aten_kernel_of_the_recorded_traces_is_in_exactly_one_file(version: str) -> None:
    found = resolver(version)
    aten = [name for name in recorded_kernels() if not is_library(name)]
    assert len(aten) >= 60
    for name in aten:
        source = found.resolve(name)
        assert (source.how, source.file is not None) == (How.VERIFIED, True), name
        assert source.torch == "2.11.0+cu130"


@pytest.mark.parametrize("version", [*(n for n in shipped_names() if not n.startswith("2.11.0")), None, "2.16.0.dev1"])
def test_indexes_of_other_versions_are_never_wrong_and_claim_no_more_than_they_know(version: str | None) -> None:
    """The file by the right index is the truth. What the other release has under the same name is its own truth."""
    truth, other = resolver("2.11.0"), resolver(version)
    aten = [name for name in recorded_kernels() if not is_library(name)]
    answers = {name: other.resolve(name) for name in aten}
    for name, source in answers.items():
        right = truth.resolve(name).file
        if source.how is not How.UNKNOWN:
            assert right == source.file or right in source.candidates, (name, source)
        assert source.how is not How.VERIFIED or (version and source.torch == version)
    assert sum(source.how is not How.UNKNOWN for source in answers.values()) >= 0.95 * len(aten)


# Read in PyTorch's source by hand: which file holds the functor or kernel that the name mentions.
HAND_CHECKED = {
    "GeluCUDAKernelImpl": "ActivationGeluKernel.cu",
    "FillFunctor": "FillKernel.cu",
    "direct_copy_kernel_cuda": "Copy.cu",
    "bfloat16_copy_kernel_cuda": "Copy.cu",
    "threshold_kernel_impl": "ActivationThresholdKernel.cu",
    "launch_clamp_scalar": "TensorCompare.cu",
    "masked_scale_kernel": "Dropout.cu",
    "fused_dropout_kernel_vec": "Dropout.cu",
    "pow_tensor_scalar_kernel_impl": "PowKernel.cu",
    "sqrt_kernel_cuda": "UnaryOpsKernel.cu",
    "tanh_kernel_cuda": "UnaryGeometricTanhKernel.cu",
    "tanh_backward_kernel_cuda": "BinaryMiscBackwardOpsKernels.cu",
    "softmax_warp_forward": "SoftMax.cu",
    "softmax_warp_backward": "SoftMax.cu",
    "cunn_SoftMaxForward": "SoftMax.cu",
    "vectorized_layer_norm_kernel": "layer_norm_kernel.cu",
    "GammaBetaBackwardCUDAKernelTemplate": "layer_norm_kernel.cu",
    "embedding_backward_feature_kernel": "Embedding.cu",
    "CatArrayBatchedCopy": "Shape.cu",
    "max_pool_forward_nchw": "DilatedMaxPool2d.cu",
    "nll_loss_forward_reduce_cuda_kernel_2d": "Loss.cu",
    "MeanOps": "ReduceMomentKernel.cu",
    "sum_functor": "ReduceSumProdKernel.cu",
    "vectorized_gather_kernel": "IndexKernelUtils.cu",
    "arange_cuda_out": "RangeFactories.cu",
    "unpack_cudnn": "attention.cu",
}


@pytest.mark.parametrize(("identifier", "file"), HAND_CHECKED.items())
def test_resolutions_checked_by_hand(identifier: str, file: str) -> None:
    names = [name for name in recorded_kernels() if identifier in name and not is_library(name)]
    assert names
    for name in names:
        found = resolver("2.11.0").resolve(name).file
        assert found is not None
        assert found.rpartition("/")[2] == file


def test_the_three_meanings_of_file_are_kept_apart() -> None:
    source = resolver("2.11.0").resolve(FILL)
    assert source.file == "aten/src/ATen/native/cuda/FillKernel.cu"
    assert source.definition is not None
    assert source.definition.file == "aten/src/ATen/native/cuda/CUDALoops.cuh"
    (site,) = source.launch_sites
    # The launch of the four-wide variant in the 2.11.0 header.
    assert site == SourceLine("aten/src/ATen/native/cuda/CUDALoops.cuh", 342, "launch_vectorized_kernel")
    assert source.url is not None
    assert source.url.endswith("/70d99e998b4955e0049d13a98d77ae1b14db1f45/aten/src/ATen/native/cuda/FillKernel.cu")


def test_generated_files_have_no_link() -> None:
    name = next(name for name in recorded_kernels() if "CUDAFunctor_add<float>" in name and "vectorized" in name)
    source = resolver("2.11.0").resolve(name)
    assert (source.file, source.url) == ("build/aten/src/ATen/UfuncCUDA_add.cu", None)


def test_a_name_that_no_release_has_is_a_candidate_or_unknown() -> None:
    changed = FILL.replace("<4, at", "<64, at")
    source = resolver("2.11.0").resolve(changed)
    assert source.how is How.CANDIDATE
    assert source.file == "aten/src/ATen/native/cuda/FillKernel.cu"
    unknown = resolver("2.11.0").resolve("void somebody::elses_kernel<int>(int)")
    assert (unknown.how, unknown.file) == (How.UNKNOWN, None)
    assert "elses_kernel" in unknown.basis


def test_indexes_cover_the_releases_since_2_6() -> None:
    minors = {".".join(name.split(".")[:2]) for name in shipped_names()}
    assert minors == {f"2.{minor}" for minor in range(6, 16)}
    for name in shipped_names():
        index = shipped_index(name)
        assert index.torch == name
        assert index.git is not None
        assert len(index.git) == 40
        assert index.kernel_count > 20_000
        assert set(index.build_ids) == {"libtorch_cuda.so", "libtorch_cuda_linalg.so"}


def test_builds_that_differ_in_no_kernel_share_an_index_and_every_wheel_has_its_digest() -> None:
    builds = shipped_builds()
    folder = Path(index.__file__).parents[1] / "data" / "kernels"
    stored = [path.read_bytes() for path in sorted(folder.glob("*.kernels"))]
    assert len(set(stored)) == len(stored)
    assert {build.index for build in builds.values()} == {path.name for path in folder.glob("*.kernels")}
    assert builds["2.12.0+cu130"].index == builds["2.12.1+cu130"].index
    assert builds["2.12.0+cu130"].build_ids != builds["2.12.1+cu130"].build_ids
    for name, build in builds.items():
        assert build.wheel.startswith(f"torch-{name.partition('+')[0]}-")
        assert re.fullmatch("[0-9a-f]{64}", build.sha256)
    assert len({build.sha256 for build in builds.values()}) == len(builds)
    assert same_build(list(builds["2.12.1+cu130"].build_ids.values())) == "2.12.1+cu130"


@pytest.mark.parametrize("version", ["2.11.0+cpu", "2.11.0+rocm6.4", "2.11.0a0+git70d99e9"])
def test_other_builds_of_a_release_verify_nothing(version: str) -> None:
    assert resolver(version).resolve(FILL).how is How.LIKELY


def test_instances_of_template_libraries_are_looked_for_in_releases_first() -> None:
    """PyTorch's own libraries hold kernels of CUB; others of CUB's are somebody else's."""
    name = "void at_cuda_detail::cub::detail::EmptyKernel<void>()"
    assert is_library(name)
    assert resolver("2.11.0").resolve(name).how in (How.VERIFIED, How.CANDIDATE)
    assert resolver(None).resolve(name).how in (How.LIKELY, How.CANDIDATE)
    foreign = resolver(None).resolve("void cub::DeviceScanKernel<theirs::Policy>(int)")
    assert (foreign.how, foreign.library) == (How.LIBRARY, "CUB")


def test_a_release_newer_than_all_is_nearest_to_the_newest() -> None:
    assert by_nearness(TorchVersion.parse("3.0.0"))[0].startswith("2.15.0")


def test_versions() -> None:
    assert TorchVersion.parse("2.11.0+cu130") == TorchVersion((2, 11, 0), "cu130", final=True)
    assert TorchVersion.parse("2.6") == TorchVersion((2, 6, 0), None, final=True)
    for text in ("2.12.0a0+git70d99e9", "2.12.0.dev20260101+cu130"):
        version = TorchVersion.parse(text)
        assert version is not None
        assert not version.final
    assert TorchVersion.parse("latest") is None
    with pytest.raises(UsageError, match="not a version of PyTorch"):
        parse_version("latest")
    assert by_nearness(TorchVersion.parse("2.9.5"))[0].startswith("2.9.1")


# ---------------------------------------------------------------- an index


def small_index() -> SourceIndex:
    kernels = [
        IndexedKernel("void f<int>(int)", frozenset({"a/one.cu"}), frozenset({SourceLine("a/head.cuh", 7, "run")})),
        IndexedKernel("void f<float>(int)", frozenset({"a/two.cu"})),
        IndexedKernel("void g(int)", frozenset({"a/one.cu", "b/three.cu"})),
    ]
    return build_index(
        kernels,
        torch="9.9.0",
        git="0" * 40,
        build_ids={"lib.so": "12"},
        definitions={"f": SourceLine("a/head.cuh", 3)},
        functions={"at::native::f": HostFile("a/f.cpp", named=True)},
    )


def test_an_index_answers_by_exact_name_and_by_likeness() -> None:
    index = SourceIndex.unpacked(small_index().packed())
    assert index.packed() == small_index().packed()
    found = index.exact("void f<int>(int)")
    assert found is not None
    assert (found.files, found.launch_sites) == (("a/one.cu",), (SourceLine("a/head.cuh", 7, "run"),))
    both = index.exact("g(int)")
    assert both is not None
    assert both.files == ("a/one.cu", "b/three.cu")
    assert index.exact("void f<double>(int)") is None
    assert index.similar("void f<double>(int)") == ("a/one.cu", "a/two.cu")
    assert index.definition("void f<double>(int)") == SourceLine("a/head.cuh", 3)
    assert index.host_file("at::native::f") == HostFile("a/f.cpp", named=True)


@pytest.mark.parametrize("content", [b"", b"no", gzip.compress(b"\x93", mtime=0), gzip.compress(b"{}", mtime=0)])
def test_a_damaged_index_is_refused(content: bytes) -> None:
    with pytest.raises(BadInputError, match="kernel index"):
        SourceIndex.unpacked(content)


# ---------------------------------------------------------------- libraries


def test_a_library_tells_the_unit_of_each_kernel() -> None:
    """Built by nvcc 13.0 from the two sources beside it; the linker keeps both units' kernels apart."""
    library = read_cuda_library(LIBRARY)
    assert library.build_id == "467633664ac1d2f03a814ca9e820dc684c72bd09"
    units = {(kernel.name, library.units[kernel.unit]) for kernel in library.kernels}
    assert ("_Z4axpyIfEvT_PKS0_PS0_i", "axpy.cu") in units
    assert ("_Z4axpyIdEvT_PKS0_PS0_i", "axpy.cu") in units
    assert ("_ZN4mine5scaleEPffi", "scale.cu") in units
    assert sum("fill_kernel" in name for name, _ in units) == 2


def test_an_extension_library_answers_for_its_kernels(own_cache: Path) -> None:
    index = library_index(LIBRARY, torch="", git=None)
    found = SourceResolver(installed=[index])
    source = found.resolve("void axpy<float>(float, float const*, float*, int)")
    assert (source.how, source.file, source.url) == (How.VERIFIED, "axpy.cu", None)
    twins = found.resolve("(anonymous namespace)::fill_kernel(float*, float, int)")
    assert (twins.how, twins.candidates) == (How.CANDIDATE, ("axpy.cu", "scale.cu"))
    (cached,) = (own_cache / "kernels").glob("*.kernels")
    cached.write_bytes(b"damaged")
    assert library_index(LIBRARY, torch="", git=None).kernel_count == index.kernel_count


def test_a_library_of_another_version_claims_no_more_than_likely() -> None:
    index = build_index(
        [IndexedKernel(FILL, frozenset({"a.cu"}))],
        torch="2.6.0+cu124",
        git="1" * 40,
        build_ids={"libtorch_cuda.so": "7"},
    )
    other = SourceResolver(TorchVersion.parse("2.11.0"), installed=[index]).resolve(FILL)
    assert (other.how, other.file) == (How.LIKELY, "a.cu")
    assert "of PyTorch 2.6.0+cu124, but PyTorch 2.11.0 ran" in other.basis
    same = SourceResolver(TorchVersion.parse("2.6.0"), installed=[index]).resolve(FILL)
    assert same.how is How.VERIFIED


def test_what_is_cached_does_not_depend_on_who_asked_first(own_cache: Path) -> None:
    library_index(LIBRARY, torch="", git=None)
    again = library_index(LIBRARY, torch="2.6.0+cu124", git="1" * 40)
    assert (again.torch, again.git) == ("2.6.0+cu124", "1" * 40)
    assert len(list((own_cache / "kernels").glob("*.kernels"))) == 1


def test_a_library_that_claims_anothers_build_id_does_not_answer_for_it(own_cache: Path, tmp_path: Path) -> None:
    forged = tmp_path / LIBRARY.name
    forged.write_bytes(LIBRARY.read_bytes().replace(b"axpy.cu", b"evil.cu"))
    kernel = "void axpy<float>(float, float const*, float*, int)"
    for library, file in ((forged, "evil.cu"), (LIBRARY, "axpy.cu"), (forged, "evil.cu")):
        index = library_index(library, torch="", git=None)
        assert SourceResolver(installed=[index]).resolve(kernel).file == file
    assert len(list((own_cache / "kernels").glob("*.kernels"))) == 2
    # Nor does it once it stands in the other's place.
    forged.write_bytes(LIBRARY.read_bytes())
    assert SourceResolver(installed=[library_index(forged, torch="", git=None)]).resolve(kernel).file == "axpy.cu"


def test_an_extensions_kernel_is_not_defined_where_pytorchs_of_the_same_name_is() -> None:
    kernels = [IndexedKernel("void mylib::reduce_kernel<float>(float*)", frozenset({"mine.cu"}))]
    index = build_index(kernels, torch="", git=None, build_ids={"mine.so": "7"})
    source = SourceResolver(TorchVersion.parse("2.11.0"), installed=[index]).resolve(kernels[0].name)
    assert (source.how, source.file, source.definition) == (How.VERIFIED, "mine.cu", None)


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "file"))
    assert library_index(LIBRARY, torch="", git=None).kernel_count == 4


@pytest.mark.skipif(shutil.which("strip") is None, reason="strip is not installed")
def test_a_stripped_library_is_refused_with_the_reason(tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", str(stripped), str(LIBRARY)], check=True)
    with pytest.raises(BadInputError, match="is stripped: it has no symbol table"):
        read_cuda_library(stripped)


def test_a_library_without_kernels_says_so(tmp_path: Path) -> None:
    native = ROOT / "src" / "opscope" / "readers" / "native" / "libkineto.so"
    if not native.is_file():
        pytest.skip("the compiled reader was not built")
    with pytest.raises(BadInputError, match="registers no CUDA kernels"):
        library_index(native, torch="", git=None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot read the library"),
        (b"not a library at all", "is not an ELF library"),
        (b"\x7fELF\x02\x01", "cut off"),
        (b"\x7fELF\x01\x01" + bytes(100), "no 64-bit little-endian"),
    ],
)
def test_what_is_no_library_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=reason):
        read_cuda_library(path)
    with pytest.raises(BadInputError, match="cannot read the library"):
        read_cuda_library(tmp_path)


def test_another_processor_is_named(tmp_path: Path) -> None:
    content = bytearray(LIBRARY.read_bytes())
    struct.pack_into("<H", content, 18, 243)
    path = tmp_path / "riscv.so"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match="another processor"):
        read_cuda_library(path)


@given(st.data())
def test_damaged_libraries_end_in_an_answer_or_a_clear_refusal(data: st.DataObject) -> None:
    content = bytearray(LIBRARY.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 8))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    # The headers are what everything depends on: damage them more often than chance does.
    if len(content) > 64 and data.draw(st.booleans()):
        content[data.draw(st.integers(0, 63))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.so"
        path.write_bytes(content)
        try:
            library = read_cuda_library(path)
        except BadInputError:
            return
    assert all(0 <= kernel.unit < len(library.units) for kernel in library.kernels)


def test_build_ids_are_read() -> None:
    with open_elf(LIBRARY) as elf:
        assert elf.build_id() == "467633664ac1d2f03a814ca9e820dc684c72bd09"


def test_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolver("2.11.0")
    first: KernelSource = found.resolve(FILL)
    assert found.resolve(FILL) is first
