"""The optimisation guide's pairs of kernels: built everywhere where nvcc is, compared where a GPU is."""

import ctypes
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from opscope.base.errors import EnvironmentLacksError, UsageError  # noqa: E402
from opscope.documents.bench import Correct  # noqa: E402
from opscope.machine.programs import find_program, host_compiler  # noqa: E402
from opscope.measuring.rounds import MeasuringLimits  # noqa: E402
from opscope.workbench import gallery  # noqa: E402
from opscope.workbench.benchmarking.run import bench_case  # noqa: E402
from opscope.workbench.gallery import divergence, graphs, occupancy, technique_kernels  # noqa: E402
from opscope.workbench.gallery.cases import GALLERY, gallery_case  # noqa: E402
from opscope.workbench.toolchain.nvcc import BuildKind, compile_file  # noqa: E402

SOURCE = Path(gallery.__file__).with_name("techniques.cu")
CASES = ("coalescing", "transpose", "bank-conflicts", "divergence", "occupancy", "vector-loads", "fusion", "graphs")
CPU = torch.device("cpu")
needs_nvcc = pytest.mark.skipif(
    find_program("nvcc") is None or host_compiler() is None, reason="nvcc or a C++ compiler is not installed"
)


@needs_nvcc
def test_kernels_are_built_for_ampere_and_hopper_and_all_functions_are_there(tmp_path: Path) -> None:
    library = tmp_path / "techniques.so"
    compile_file(SOURCE, library, BuildKind.LIBRARY, ["8.0", "9.0"], ["-Werror=all-warnings"])
    loaded = ctypes.CDLL(str(library))
    exported = re.findall(r'^extern "C" int (\w+)\(', SOURCE.read_text(), re.MULTILINE)
    assert len(exported) == 16
    for name in exported:
        assert getattr(loaded, name)
        assert f'"{name}"' in Path(technique_kernels.__file__).read_text(), "nothing calls it"


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_kernels_in_cuda_refuses_a_cpu(name: str) -> None:
    assert name in GALLERY
    with pytest.raises(EnvironmentLacksError, match="needs an NVIDIA GPU: the device is cpu"):
        gallery_case(name, CPU)


def test_kernels_refuse_what_they_do_not_take() -> None:
    with pytest.raises(UsageError, match="take float32 here, not float64"):
        technique_kernels.transpose_naive(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(UsageError, match="take tensors on a GPU, not on cpu"):
        technique_kernels.sine(torch.zeros(3))


@pytest.mark.parametrize("size", [64, 1021])
def test_both_orders_of_divergence_hold_every_element_once(size: int) -> None:
    x, flags, mixed, by_flag = divergence.inputs(size, CPU)
    for order in (mixed, by_flag):
        assert order.dtype == torch.int32
        assert order.long().sort().values.tolist() == list(range(size))
    assert flags[by_flag.long()].diff().min() == 0, "not sorted"
    both = divergence.reference(x.double(), flags, mixed, by_flag)
    roots, solutions = both[flags == 0], both[flags != 0]
    assert torch.allclose(roots, (1 + x.double().abs()).sqrt()[flags == 0])
    assert torch.allclose(solutions - 0.5 * solutions.sin(), x.double()[flags != 0], atol=1e-8)


def test_links_are_followed_one_by_one() -> None:
    x, following = occupancy.inputs(37, CPU)
    places, values = following.tolist(), x.double().tolist()
    expected = []
    for place in range(37):
        at, total = place, 0.0
        for _ in range(8):
            at = places[at]
            total += values[at]
        expected.append(total)
    assert occupancy.reference(x.double(), following).tolist() == pytest.approx(expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_all_variants_are_right_and_the_fast_one_is_not_slower(name: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    results = bench_case(gallery_case(name, device), {}, device, MeasuringLimits(0.01, 0.2, 500), lambda _: None)
    for result in results:
        assert result.correctness is not None
        assert result.correctness.verdict is Correct.RIGHT, result.correctness.sentence
    assert all(result.kernel_ns is not None for result in results)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (1, 4097), (4097, 1), (33, 31), (65, 129), (70_000, 3), (0, 5)])
def test_matrices_of_any_shape(shape: tuple[int, int]) -> None:
    x, bias = torch.randn(shape, device="cuda"), torch.randn(shape[1], device="cuda")
    for transpose in (
        technique_kernels.transpose_naive, technique_kernels.transpose_tile_32, technique_kernels.transpose_tile_33,
    ):  # fmt: skip
        assert torch.equal(transpose(x), x.t())
    assert torch.equal(technique_kernels.copy_along_rows(x), x)
    assert torch.equal(technique_kernels.copy_along_columns(x), x)
    expected = torch.relu(x * 0.5 + bias)
    assert torch.allclose(technique_kernels.scale_bias_relu(x, bias, 0.5), expected)
    three = technique_kernels.relu(technique_kernels.add_bias(technique_kernels.scale_by_float(x, 0.5), bias))
    assert torch.allclose(three, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1023, 1024, 1027])
def test_vectors_of_any_size_and_place(size: int) -> None:
    for x in (torch.randn(size, device="cuda"), torch.randn(size + 1, device="cuda")[1:]):
        assert torch.equal(technique_kernels.scale_by_float4(x, 1.5), x * 1.5)


@pytest.mark.gpu
def test_a_graph_reads_the_tensors_of_its_call_and_keeps_no_result() -> None:
    one, other = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    first, second = graphs.graph(one), graphs.graph(other)  # the second is issued while the first may still run
    assert torch.equal(first, graphs.one_by_one(one))
    assert torch.equal(second, graphs.one_by_one(other))
    assert first.data_ptr() != second.data_ptr()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        third = graphs.graph(one)
    captured.replay()
    assert torch.equal(third, first)
