"""The toolchain on a real GPU: what the driver says, programs and operators that run, and limits that it keeps."""

import ctypes
import json
import subprocess
from pathlib import Path

import pytest

from tests.command import fresh_opscope
from tests.conftest import ROOT, gpu_is_missing

if reason := gpu_is_missing():
    pytest.skip(reason, allow_module_level=True)

import torch

import opscope
from opscope.analysis.costs.occupancy import LaunchConfiguration, check_launch
from opscope.documents.build import BuildDocument
from opscope.knowledge.devices import compute_capabilities
from opscope.machine.driver import driver
from opscope.report.gpus_document import gpus_here
from opscope.workbench.toolchain.building import build_file
from opscope.workbench.toolchain.nvcc import BuildKind

pytestmark = pytest.mark.gpu
EXAMPLES = ROOT / "examples"


def test_the_driver_says_what_pytorch_says() -> None:
    found = driver()
    assert found.error is None
    assert len(found.devices) == torch.cuda.device_count()
    for device in found.devices:
        properties = torch.cuda.get_device_properties(device.index)
        assert device.name == properties.name
        assert device.compute_capability == f"{properties.major}.{properties.minor}"
        assert device.multiprocessors == properties.multi_processor_count
        assert device.memory_bytes == properties.total_memory
        assert device.l2_bytes == properties.L2_cache_size
    here = gpus_here(found)
    assert here.problem is None
    assert fresh_opscope("gpus", "--detect").returncode == 0


def test_the_doctor_finds_a_machine_that_works() -> None:
    result = fresh_opscope("doctor", "--format", "json")
    document = json.loads(result.stdout)
    problems = [check for check in document["checks"] if check["status"] == "problem"]
    assert not problems
    assert result.returncode == 0
    fine = {check["name"] for check in document["checks"] if check["status"] == "fine"}
    assert {"driver", "GPU 0", "PyTorch", "profiler"} <= fine


OCCUPANCY = """
template <int R> __global__ void __launch_bounds__(1024 / R) work(float* x) {
    extern __shared__ float shared[];
    float v[4 * R];
    for (int i = 0; i < 4 * R; ++i) v[i] = x[i * 1024 + threadIdx.x];
    shared[threadIdx.x] = v[0];
    __syncthreads();
    for (int k = 0; k < 8; ++k)
        for (int i = 0; i < 4 * R; ++i) v[i] = v[i] * v[(i + 1) % (4 * R)] + shared[(threadIdx.x + i) % blockDim.x];
    for (int i = 0; i < 4 * R; ++i) x[i * 1024 + threadIdx.x] = v[i];
}
template <int R> int blocks(int threads, int shared) {
    int found = -1;
    if (shared > 48 << 10) cudaFuncSetAttribute(work<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, work<R>, threads, shared)) cudaGetLastError();
    return found;
}
extern "C" int registers(int r) {
    cudaFuncAttributes a;
    if (r == 1 ? cudaFuncGetAttributes(&a, work<1>) : r == 4 ? cudaFuncGetAttributes(&a, work<4>)
                                                             : cudaFuncGetAttributes(&a, work<8>)) return -1;
    return a.numRegs;
}
extern "C" int held(int r, int threads, int shared) {
    return r == 1 ? blocks<1>(threads, shared) : r == 4 ? blocks<4>(threads, shared) : blocks<8>(threads, shared);
}
"""


def built(tmp_path: Path, text: str) -> tuple[BuildDocument, Path]:
    source = tmp_path / "probe.cu"
    source.write_text(text)
    output = tmp_path / "probe.so"
    number = ".".join(map(str, torch.cuda.get_device_capability()))
    return build_file(source, output, BuildKind.LIBRARY, [number], 256), output


def test_occupancy_is_what_the_runtime_says(tmp_path: Path) -> None:
    document, output = built(tmp_path, OCCUPANCY)
    library = ctypes.CDLL(str(output))
    device = driver().devices[0]
    capability = compute_capabilities()[device.compute_capability]
    compared = 0
    for r in (1, 4, 8):
        registers = library.registers(r)
        assert registers in {kernel.registers for kernel in document.kernels}
        for threads in (32, 64, 96, 128, 256, 512, 1024):
            for shared in (0, 1_000, 16_384, 49_152, 102_400, capability.block_shared_memory_bytes):
                if threads > 1024 // r:
                    continue  # more than its launch bounds
                held = library.held(r, threads, shared)
                found = check_launch(
                    LaunchConfiguration((1, 1, 1), (threads, 1, 1), registers, shared), capability, None
                )
                mine = 0 if found.occupancy is None else found.occupancy.blocks_per_multiprocessor
                assert mine == held, (r, registers, threads, shared)
                compared += 1
    assert compared > 80


LAUNCH = """
__global__ void nothing() {}
extern "C" int launched(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, int shared) {
    cudaGetLastError();
    if (shared > 48 << 10 && cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, shared)) {
        cudaGetLastError();
        return 0;
    }
    nothing<<<dim3(gx, gy, gz), dim3(bx, by, bz), shared>>>();
    const bool fine = cudaGetLastError() == cudaSuccess;
    cudaDeviceSynchronize();
    return fine;
}
"""


def test_what_is_refused_is_what_the_device_refuses(tmp_path: Path) -> None:
    _, output = built(tmp_path, LAUNCH)
    library = ctypes.CDLL(str(output))
    capability = compute_capabilities()[driver().devices[0].compute_capability]
    most = capability.block_shared_memory_bytes
    for grid, block, shared in (
        ((1, 65_535, 1), (1, 1, 1), 0),
        ((1, 65_536, 1), (1, 1, 1), 0),
        ((1, 1, 65_536), (1, 1, 1), 0),
        ((100_000, 1, 1), (1024, 1, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 1, 1), (1, 1, 64), 0),
        ((1, 1, 1), (1, 1, 65), 0),
        ((1, 1, 1), (32, 33, 1), 0),
        ((0, 1, 1), (32, 1, 1), 0),
        ((1, 1, 1), (32, 1, 1), most),
        ((1, 1, 1), (32, 1, 1), most + 1),
    ):
        accepted = bool(library.launched(*grid, *block, shared))
        assert accepted is not bool(
            check_launch(LaunchConfiguration(grid, block, 16, shared), capability, None).problems
        ), (
            grid,
            block,
            shared,
        )


def test_the_unified_memory_example_runs_in_three_launch_shapes(tmp_path: Path) -> None:
    output = tmp_path / "add"
    result = fresh_opscope("kernel", "build", str(EXAMPLES / "unified_memory" / "add.cu"), "-o", str(output))
    assert result.returncode == 0, result.stderr
    ran = subprocess.run([output], capture_output=True, text=True, check=True, timeout=120)
    times = [float(line.split(":")[1].split()[0]) for line in ran.stdout.splitlines()]
    assert times[0] > times[1] > times[2]


@pytest.mark.parametrize("name", ["add.py", "square_matrix.py"])
def test_the_examples_of_operators_verify_and_time_themselves(name: str) -> None:
    import sys

    command = [sys.executable, str(EXAMPLES / "custom_operator" / name)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "(right)" in ran.stdout
    assert "(wrong)" not in ran.stdout


def test_an_operator_checks_its_arguments_and_compiles() -> None:
    from examples.custom_operator.square_matrix import kernels

    x = torch.randn(64, 48, device="cuda")
    assert torch.equal(kernels.square_matrix(x), x * x)
    with pytest.raises(opscope.UsageError, match="is on cpu"):
        kernels.square_matrix(x.cpu())
    with pytest.raises(opscope.UsageError, match="is not contiguous"):
        kernels.square_matrix(x.t())
    compiled = torch.compile(lambda x: kernels.square_matrix(x) + 1, fullgraph=True)
    assert torch.allclose(compiled(x), x * x + 1)


CALLS = """
import torch
import triton
import triton.language as tl

@triton.jit
def scale(x_pointer, out_pointer, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + at, mask=at < n)
    tl.store(out_pointer + at, x * 2, mask=at < n)

def inputs(device):
    return torch.randn(1000, device=device)

def own(x):
    out = torch.empty_like(x)
    scale[(8,)](x, out, 1000, BLOCK=128)
    return out

def plain(x):
    return torch.nn.functional.gelu(x) * 2
"""


def test_ptx_of_what_python_launches(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    own = fresh_opscope("kernel", "ptx", f"{file}:own")
    assert own.returncode == 0, own.stderr
    assert "calls.py:9  x = tl.load" in own.stdout
    inductor = fresh_opscope("kernel", "ptx", f"{file}:plain", "--inductor")
    assert inductor.returncode == 0, inductor.stderr
    assert ".entry triton_" in inductor.stdout


def test_a_kernel_of_triton_in_the_interpreter_and_on_the_gpu() -> None:
    result = fresh_opscope("kernel", "check", f"{EXAMPLES / 'triton_check.py'}:softmax", "--format", "json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["cpu"]["agreement"]["right"]
    assert document["gpu"]["ran"]
    assert document["gpu"]["agreement"]["right"]
