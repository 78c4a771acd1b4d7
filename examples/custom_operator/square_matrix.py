"""An operator from a string: the square of each element of a matrix, built, verified and timed.

python examples/custom_operator/square_matrix.py
"""

import torch

import opscope

SOURCE = """
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

__global__ void square_matrix_kernel(const float* matrix, float* result, int width, int height) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < height && column < width) {
        const int at = row * width + column;
        result[at] = matrix[at] * matrix[at];
    }
}

torch::Tensor square_matrix(torch::Tensor matrix) {
    const int height = matrix.size(0), width = matrix.size(1);
    auto result = torch::empty_like(matrix);
    const dim3 threads(32, 8), blocks((width + 31) / 32, (height + 7) / 8);
    if (matrix.numel() > 0) {
        square_matrix_kernel<<<blocks, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(
            matrix.data_ptr<float>(), result.data_ptr<float>(), width, height);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return result;
}
"""


def _fake_square_matrix(matrix: torch.Tensor) -> torch.Tensor:
    """Say what the result looks like."""
    return torch.empty_like(matrix)


kernels = opscope.load_kernel(
    SOURCE,
    {"square_matrix": _fake_square_matrix},
    requires={"matrix": opscope.Requires(dtypes=(torch.float32,), dims=2)},
    name="example_square_matrix",
)

if __name__ == "__main__":
    x = torch.randn(4096, 4096, device="cuda")
    variants = {"torch.square": torch.square, "own": lambda matrix: kernels.square_matrix(matrix.contiguous())}
    torch.library.opcheck(kernels.square_matrix, (x[:64, :64].contiguous(),))
    print(opscope.bench(variants, inputs=x))
