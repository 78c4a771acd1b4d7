"""Starts the process that compiles kernels, and lists the kernels that it leaves in Triton's cache."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process, run_within
from opscope.documents.build import KernelListing, ListingDocument
from opscope.record.bench import ListingRequest
from opscope.record.codec import encode
from opscope.workbench.toolchain.building import disassembled
from opscope.workbench.toolchain.listing import ptx_kernels

_ERRORS: Final = {2: UsageError, 3: EnvironmentLacksError}  # by the process's exit code


def compiled_kernels(request: ListingRequest, kind: str, timeout_s: float) -> ListingDocument:
    """Compile the kernels of a function, and list them.

    Args:
        request: what to compile.
        kind: ``ptx`` or ``sass``.
        timeout_s: how long compiling may take, in seconds.

    Raises:
        UsageError: the request is wrong.
        EnvironmentLacksError: a GPU, Triton or nvdisasm is missing.
        OpscopeError: the function cannot be compiled, or not in time; the message is the process's last line.
    """
    with scratch() as folder:
        # Empty caches: what was compiled before would not be compiled again, and so not be listed.
        cache = folder / "triton"
        own = {"TRITON_CACHE_DIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        command = own_process("opscope.workbench.jobs.listing_worker")
        try:
            environment = own_environment(**own, TORCHINDUCTOR_COMPILE_THREADS="1")
            done = run_within(command, timeout_s, stdin=encode(request), environment=environment)
        except subprocess.TimeoutExpired as error:
            raise OpscopeError(f"{request.target} was not compiled within {timeout_s:g} s") from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise _ERRORS.get(done.returncode, OpscopeError)(lines[-1] if lines else f"{request.target} failed")
        return ListingDocument(kind=kind, origin=request.target, kernels=tuple(_kernels(cache, kind)))


def _kernels(cache: Path, kind: str) -> Iterator[KernelListing]:
    """Yield the kernels of a cache, in the order in which they were compiled."""
    files = sorted(cache.rglob("*.ptx" if kind == "ptx" else "*.cubin"), key=lambda path: path.stat().st_mtime_ns)
    for path in files:
        yield from (
            ptx_kernels(path.read_text(encoding="utf-8", errors="replace")) if kind == "ptx" else disassembled(path)
        )
