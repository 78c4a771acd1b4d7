"""Sums of two vectors: one that is right, and others that are wrong in one way each."""

import torch
import triton
import triton.language as tl

BLOCK = 128


@triton.jit
def right_kernel(x_ptr, y_ptr, z_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    tl.store(z_ptr + at, x + y, mask=at < n)


@triton.jit
def load_unmasked_kernel(x_ptr, y_ptr, z_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at)  # no mask
    tl.store(z_ptr + at, x + y, mask=at < n)


@triton.jit
def store_unmasked_kernel(x_ptr, y_ptr, z_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    tl.store(z_ptr + at, x + y)  # no mask


@triton.jit
def before_kernel(x_ptr, y_ptr, z_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at - 2, mask=at < n)  # begins before the tensor
    y = tl.load(y_ptr + at, mask=at < n)
    tl.store(z_ptr + at, x + y, mask=at < n)


@triton.jit
def accumulate_kernel(x_ptr, y_ptr, z_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    z = tl.load(z_ptr + at, mask=at < n)
    z += tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n)
    tl.store(z_ptr + at, z, mask=at < n)


@triton.jit
def raising_kernel(x_ptr, y_ptr, z_ptr, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(z_ptr + at, x + missing, mask=at < n)  # noqa: F821


def run(kernel, x, y, z, n=None):
    n = x.numel() if n is None else n
    kernel[(triton.cdiv(n, BLOCK),)](x, y, z, n, block=BLOCK)
    return z


def right(x, y):
    return run(right_kernel, x, y, torch.empty_like(x))


def load_unmasked(x, y):
    return run(load_unmasked_kernel, x, y, torch.empty_like(x))


def store_unmasked(x, y):
    return run(store_unmasked_kernel, x, y, torch.empty_like(x))


def load_before(x, y):
    return run(before_kernel, x, y, torch.empty_like(x))


def tail_forgotten(x, y):
    return run(right_kernel, x, y, torch.empty_like(x), x.numel() - 10)


def reads_empty(x, y):
    return run(accumulate_kernel, x, y, torch.empty_like(x))


def onto_zeros(x, y):
    return run(accumulate_kernel, x, y, torch.zeros_like(x))


def onto_filled(x, y):
    z = torch.empty_like(x)
    z.numpy()[...] = 0  # behind PyTorch's back
    return run(accumulate_kernel, x, y, z)


def twice_the_first(x, y):
    return run(right_kernel, x, x, torch.empty_like(x))


def raises(x, y):
    return run(raising_kernel, x, y, torch.empty_like(x))


def in_place(x, y):
    return run(right_kernel, x, y, x)


def returns_nothing(x, y):
    run(right_kernel, x, y, torch.empty_like(x))


def no_kernel(x, y):
    return x + y


def inputs(device, size=300, dtype=torch.float32):
    if not dtype.is_floating_point:
        return tuple(torch.randint(-1, 2, (size,), device=device, dtype=dtype) for _ in range(2))
    return torch.randn(size, device=device).to(dtype), torch.randn(size, device=device).to(dtype)


def reference(x, y):
    return x + y
