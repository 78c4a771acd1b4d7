"""The process that compiles kernels of Triton and torch.compile, and leaves them in a Triton cache of its own.

It reads a request from standard input. Its environment names the folders of the caches before anything is imported.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.knowledge.devices import capability_of, compute_capabilities
from opscope.record.bench import BenchRequest, ListingRequest

_WARP = 32  # threads


def main() -> None:
    """Serve one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ListingRequest)
    try:
        _compile_ahead(request) if request.signature is not None else _called(request)
    except OpscopeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def _called(request: ListingRequest) -> None:
    """Call a function once, so that its kernels are compiled."""
    import torch

    from opscope.workbench.jobs.bench_targets import cases_of

    if not torch.cuda.is_available():
        raise EnvironmentLacksError(
            "kernels are compiled when they are called, on a GPU, and there is none; of a kernel of Triton itself, "
            "--signature and --arch say what to compile it for"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    (case,) = cases_of(BenchRequest(targets=(request.target,), inputs=request.inputs), device)
    function: Callable[..., object] = next(iter(case.variants.values()))
    inputs = case.make_inputs(device, {})
    if request.inductor:
        function = torch.compile(function, dynamic=False)
    _without_gpu_faults(function, inputs, torch)


def _without_gpu_faults(function: Callable[..., object], inputs: Sequence[object], torch: Any) -> None:
    try:
        function(*inputs)
        torch.cuda.synchronize()
    except Exception as error:
        message = (str(error).splitlines() or [""])[0][:200]
        raise UsageError(f"the function fails: {type(error).__name__}: {message}") from error


def _compile_ahead(request: ListingRequest) -> None:
    """Compile a Triton kernel for the types and the architecture of a request; needs no GPU if that names one."""
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise EnvironmentLacksError(f"Triton is missing: pip install 'opscope[triton]' ({error})") from error
    from opscope.workloads.custom import load_module

    file, _, name = request.target.rpartition(":")
    if not file or not name:
        raise UsageError(f"{request.target!r} names no kernel: file.py:kernel does")
    kernel: Any = _undecorated(load_module(file), name, request.target)
    if not isinstance(kernel, triton.runtime.JITFunction):
        raise UsageError(f"{request.target} is not a kernel of Triton (@triton.jit)")
    source = ASTSource(kernel, *_types(kernel.arg_names, request))
    target = GPUTarget("cuda", _number(request.arch), _WARP)
    try:
        triton.compile(source, target=target)
    except Exception as error:  # Triton's own errors have no common base
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        # Of a message of many lines, the first and the last.
        why = " ... ".join(dict.fromkeys(lines[:1] + lines[-1:]))[:400]
        raise OpscopeError(f"{request.target} cannot be compiled: {type(error).__name__}: {why}") from error


def _undecorated(module: Any, name: str, target: str) -> Any:
    """Return a kernel without its decorators that choose configurations (@triton.autotune, @triton.heuristics)."""
    result = getattr(module, name, None)
    if result is None:
        raise UsageError(f"{target}: there is no {name}")
    while not hasattr(result, "arg_names") or (hasattr(result, "fn") and type(result).__name__ != "JITFunction"):
        inner = getattr(result, "fn", None)
        if inner is None:
            break
        result = inner
    return result


def _types(names: Sequence[str], request: ListingRequest) -> tuple[dict[str, str], dict[tuple[int, ...], object]]:
    """Return the type of each argument by name, and the values of constants by the argument's position.

    Raises:
        UsageError: a constant is not an argument, or types and constants are not as many as the arguments.
    """
    unknown = [name for name in request.constants if name not in names]
    if unknown:
        raise UsageError(f"the kernel has no argument {unknown[0]!r}; it has {', '.join(names)}")
    types_in_order = list(request.signature or ())
    if len(types_in_order) + len(request.constants) != len(names):
        raise UsageError(
            f"the kernel has the arguments {', '.join(names)}: --constant NAME=VALUE for each constexpr, --signature "
            f"for the types of the others, in order; {len(types_in_order)} and {len(request.constants)} were given"
        )
    types = {name: "constexpr" if name in request.constants else types_in_order.pop(0) for name in names}
    values: dict[tuple[int, ...], object] = {
        (at,): _value(request.constants[name]) for at, name in enumerate(names) if name in request.constants
    }
    return types, values


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _number(arch: str | None) -> int:
    """Return a compute capability as Triton writes it, 90 for 9.0; that of the current GPU if ``arch`` is None.

    Raises:
        UsageError: it is not a known architecture, or None without a GPU.
    """
    if arch is None:
        import torch

        if not torch.cuda.is_available():
            raise UsageError("for which GPU? There is none here: --arch sm_90")
        major, minor = torch.cuda.get_device_capability()
        return int(10 * major + minor)
    number = capability_of(arch)
    if number is None:
        raise UsageError(f"{arch!r} is not an architecture; an example is sm_90")
    if number not in compute_capabilities():
        raise UsageError(f"{arch!r} is not a known architecture; opscope gpus lists them")
    return int(number.replace(".", ""))


if __name__ == "__main__":
    main()
