"""Compiles a Triton kernel, runs it on the first GPU, and checks its result."""

import sys

from opscope.record.codec import encode
from opscope.record.machine import ToolProbe


def main() -> None:
    """Try Triton and print the result; without a GPU, only that it can be imported."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def _add_one(x_pointer, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_pointer + at, tl.load(x_pointer + at, mask=at < n) + 1, mask=at < n)

    result = ToolProbe(path=triton.__file__, version=triton.__version__)
    if torch.cuda.is_available():
        x = torch.arange(1000, device="cuda", dtype=torch.float32)
        try:
            _add_one[(4,)](x, 1000, BLOCK=256)
            right = torch.equal(x.cpu(), torch.arange(1000, dtype=torch.float32) + 1)
            error = None if right else "a kernel's result is wrong"
        except Exception as failure:
            error = (str(failure).splitlines() or [type(failure).__name__])[0][:200]
        result = ToolProbe(path=result.path, version=result.version, error=error, tried="a kernel")
    sys.stdout.buffer.write(encode(result))


if __name__ == "__main__":
    main()
