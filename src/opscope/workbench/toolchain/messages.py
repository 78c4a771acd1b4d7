"""Reads what compilers print: warnings, errors, and the resources of kernels that ptxas reports."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from opscope.base.demangle import demangler
from opscope.base.text import lazy_pattern
from opscope.documents.build import CompilerMessage, KernelResources

# Of nvcc's front end, of gcc with and without a place, of nvcc's other programs, of the linker, and of gcc's driver.
_MESSAGES: Final = (
    lazy_pattern(r"(?P<file>[^\s(][^(]*)\((?P<line>\d+)\): (?:\w+ )?(?P<kind>warning|error)\b[^:]*: (?P<text>.*)"),
    lazy_pattern(r"(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?(?P<kind>warning|error): (?P<text>.*)"),
    lazy_pattern(r"cc1plus: (?:fatal )?(?P<kind>error|warning): (?P<text>.*)"),
    lazy_pattern(r"(?:nvcc|ptxas|nvlink)\b[^:]*(?P<kind>warning|error|fatal)\s*: (?P<text>.*)"),
    lazy_pattern(r"(?P<text>.*: undefined reference to .*)"),
    lazy_pattern(r"(?:\S*/)?ld: (?P<text>(?:cannot|.*: error|.*: No such).*)"),
    lazy_pattern(r"(?:\S*/)?gcc: (?:fatal )?(?P<kind>error): (?P<text>.*)"),
)
_ENTRY: Final = lazy_pattern(r"Compiling entry function '([^']+)' for '([^']+)'")
_STACK: Final = lazy_pattern(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED: Final = lazy_pattern(r"Used (\d+) registers")
_NUMBERS: Final = {
    "barriers": lazy_pattern(r"used (\d+) barriers"),
    "shared_memory_bytes": lazy_pattern(r"(\d+)(?:\+\d+)? bytes smem"),
    "constant_bytes": lazy_pattern(r"(\d+)(?:\+\d+)? bytes cmem\[0\]"),
}


def messages(text: str) -> Iterator[CompilerMessage]:
    """Yield the warnings and errors in a compiler's output, each once."""
    seen = set()
    for line in text.splitlines():
        result = next((match for pattern in _MESSAGES if (match := pattern.match(line.strip()))), None)
        if result is None or line in seen:
            continue
        seen.add(line)
        parts = result.groupdict()
        kind = "warning" if parts.get("kind") == "warning" else "error"
        number = parts.get("line")
        yield CompilerMessage(
            file=parts.get("file"), line=int(number) if number else None, kind=kind, text=parts["text"].strip()
        )


def first_error(text: str) -> str:
    """Return the first error in a compiler's output, with its place; the last line if no error is recognised."""
    error = next((message for message in messages(text) if message.kind == "error"), None)
    if error is None:
        lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
        named = next((line for line in lines if "error: " in line), None)  # "At end of source: error: ..."
        return named or (lines[-1] if lines else "it failed without a word")
    return error.text if error.file is None else f"{error.file}:{error.line}: {error.text}"


class _Kernel(Struct):
    symbol: str
    arch: str
    stack: tuple[int, int, int] = (0, 0, 0)


def kernel_resources(text: str) -> Iterator[KernelResources]:
    """Yield the resources of each kernel on each architecture, from the output of ``ptxas --verbose``."""
    readable = demangler()
    # Lines on a kernel follow each other: the entry, its stack, and last its registers.
    kernel: _Kernel | None = None
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            kernel = _Kernel(match[1], match[2])
        elif kernel is not None and (match := _STACK.search(line)):
            kernel.stack = (int(match[1]), int(match[2]), int(match[3]))
        elif kernel is not None and (match := _USED.search(line)):
            yield _resources(kernel, readable(kernel.symbol), int(match[1]), line)
            kernel = None


def _resources(kernel: _Kernel, name: str, registers: int, line: str) -> KernelResources:
    numbers = {what: int(match[1]) for what, pattern in _NUMBERS.items() if (match := pattern.search(line))}
    stack, stores, loads = kernel.stack
    return KernelResources(
        name=name,
        symbol=kernel.symbol,
        arch=kernel.arch,
        registers=registers,
        stack_bytes=stack,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        shared_memory_bytes=numbers.get("shared_memory_bytes", 0),
        constant_bytes=numbers.get("constant_bytes"),
        barriers=numbers.get("barriers", 0),
    )
