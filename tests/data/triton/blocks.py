"""Tensor descriptors, device functions, several configurations, and what the interpreter cannot do; no reference."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Descriptors made in a kernel take memory of the GPU.
triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


@triton.jit
def negated(x):
    return -x


@triton.jit
def descriptor_kernel(x_desc, y_ptr, rows, columns, block: tl.constexpr):
    y_desc = tl.make_tensor_descriptor(y_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[block, block])
    at = tl.program_id(0) * block
    y_desc.store([at, 0], negated(x_desc.load([at, 0])))


@triton.autotune([triton.Config({"block": 8}), triton.Config({"block": 16})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, y_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y_ptr + at, negated(tl.load(x_ptr + at, mask=at < n)), mask=at < n)


@triton.jit
def assembly_kernel(x_ptr, y_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y_ptr + at, y, mask=at < n)


def described(x):
    y = torch.empty_like(x)
    described_x = TensorDescriptor(x, list(x.shape), list(x.stride()), [16, 16])
    descriptor_kernel[(triton.cdiv(x.shape[0], 16),)](described_x, y, *x.shape, block=16)
    return y


def said_too_large(x):
    y = torch.empty_like(x)
    described_x = TensorDescriptor(x, [x.shape[0] + 1, x.shape[1]], list(x.stride()), [16, 16])
    descriptor_kernel[(triton.cdiv(x.shape[0], 16),)](described_x, y, *x.shape, block=16)
    return y


def tuned(x):
    y = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["block"]),)](x, y, x.numel())
    return y


def assembly(x):
    y = torch.empty_like(x)
    assembly_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), block=64)
    return y


def inputs(device):
    return torch.randn(20, 12, device=device)
