"""The gallery's kernels in Triton, as functions of tensors."""

import torch
import triton
import triton.language as tl

_BLOCK_BYTES = 4096  # of a block of four warps: two loads of 16 bytes per thread, the fastest on an H200

# The index of a block's first element has 64 bits; within the block 32 bits suffice, and are faster.


@triton.jit
def _square_kernel(x_pointer, out_pointer, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    x = tl.load(x_pointer + first + at, mask=at < n - first).to(tl.float32)
    tl.store(out_pointer + first + at, x * x, mask=at < n - first)


@triton.jit
def _gelu_kernel(x_pointer, out_pointer, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    x = tl.load(x_pointer + first + at, mask=at < n - first).to(tl.float32)
    half = 0.5 * x
    tl.store(out_pointer + first + at, tl.fma(half, tl.erf(x * 0.7071067811865476), half), mask=at < n - first)


@triton.jit
def _add_kernel(x_pointer, y_pointer, out_pointer, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    x = tl.load(x_pointer + first + at, mask=at < n - first)
    y = tl.load(y_pointer + first + at, mask=at < n - first)
    tl.store(out_pointer + first + at, x + y, mask=at < n - first)


@triton.jit
def _softmax_kernel(x_pointer, out_pointer, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    # Elements beyond the row are minus infinity: they add nothing to the sum, and are never the maximum.
    x = tl.load(x_pointer + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    # Relative to the maximum, so that exp cannot overflow.
    above = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_pointer + row * columns + at, above / tl.sum(above, axis=0), mask=at < columns)


@triton.jit
def _layer_norm_kernel(x_pointer, weight_pointer, bias_pointer, out_pointer, columns, epsilon, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_pointer + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    centred = tl.where(inside, x - mean, 0.0)  # zeros beyond the row would have become -mean, and count
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    weight = tl.load(weight_pointer + at, mask=inside).to(tl.float32)
    bias = tl.load(bias_pointer + at, mask=inside).to(tl.float32)
    tl.store(out_pointer + row * columns + at, centred * scale * weight + bias, mask=inside)


def _elementwise(kernel, *inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
    inputs = tuple(value.contiguous() for value in inputs)
    out = torch.empty_like(inputs[0])
    block = _BLOCK_BYTES // out.element_size()
    kernel[(triton.cdiv(out.numel(), block),)](*inputs, out, out.numel(), BLOCK=block, num_warps=4)
    return out


def square(x: torch.Tensor) -> torch.Tensor:
    """Square each element."""
    return _elementwise(_square_kernel, x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Apply GELU with the error function."""
    return _elementwise(_gelu_kernel, x)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add two tensors of the same shape."""
    return _elementwise(_add_kernel, x, y)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Compute softmax over the last dimension, with one program per row, which must fit into registers."""
    x = x.contiguous()
    out, columns = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(columns)
    _softmax_kernel[(x.numel() // columns,)](x, out, columns, BLOCK=block, num_warps=_warps(block))
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute layer norm over the last dimension, with one program per row."""
    x = x.contiguous()
    out, columns = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(columns)
    _layer_norm_kernel[(x.numel() // columns,)](
        x, weight.contiguous(), bias.contiguous(), out, columns, 1e-5, BLOCK=block, num_warps=_warps(block)
    )
    return out


def _warps(block: int) -> int:
    return min(max(block // 512, 1), 16)
