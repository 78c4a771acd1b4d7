"""A Triton kernel that ``opscope kernel check examples/triton_check.py:softmax --set columns=100`` checks.

Without ``mask=at < columns`` the check names the line, and how far the kernel reads beyond the tensor.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, block: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


def softmax(x):
    y = torch.empty_like(x)
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, y, columns, block=triton.next_power_of_2(columns))
    return y


def inputs(device, size=8, columns=100):
    return torch.randn(size, columns, device=device)


def reference(x):
    return torch.softmax(x, dim=1)
