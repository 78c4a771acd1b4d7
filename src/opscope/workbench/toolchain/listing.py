"""Makes listings, with the source line of each instruction, from PTX and nvdisasm; reads messages of compilers."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from opscope.base.demangle import demangler
from opscope.base.text import lazy_pattern
from opscope.documents.build import CompilerMessage, Instruction, KernelListing, KernelResources

# ---------------------------------------------------------------- messages of compilers


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
_ENTRY_POINT: Final = lazy_pattern(r"Compiling entry function '([^']+)' for '([^']+)'")
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
        if match := _ENTRY_POINT.search(line):
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


# ---------------------------------------------------------------- listings


_FILE: Final = lazy_pattern(r'\s*\.file\s+(\d+)\s+"([^"]+)"')
_LOC: Final = lazy_pattern(r"\s*\.loc\s+(\d+)\s+(\d+)")
_ENTRY: Final = lazy_pattern(r"\s*(?:\.visible |\.weak |\.extern )*\.entry\s+([\w$.]+)")
_TARGET: Final = lazy_pattern(r"\s*\.target\s+(sm_\w+)")
_SECTION: Final = lazy_pattern(r"\s*\.section\s+\.text\.([\w$.]+)")
_LINE: Final = lazy_pattern(r'\s*//## File "([^"]+)", line (\d+)(?! inlined)')
_OTHER_SECTION: Final = lazy_pattern(r"\s*\.section\s")


def ptx_kernels(text: str) -> Iterator[KernelListing]:
    """Yield the kernels in a text of PTX, each with its lines; a kernel ends where its braces close."""
    readable, files, arch = demangler(), dict(_files(text)), ""
    symbol: str | None = None
    place: tuple[str | None, int | None] = (None, None)
    results: list[Instruction] = []
    depth = 0
    for line in text.splitlines():
        if target := _TARGET.match(line):
            arch = target[1]
        elif symbol is None and (entry := _ENTRY.match(line)):
            symbol, results, place, depth = entry[1], [], (None, None), 0
        if symbol is None:
            continue
        if location := _LOC.match(line):
            place = (files.get(location[1]), int(location[2]))  # holds for the lines up to the next .loc
            continue
        if line.strip():
            results.append(Instruction(line.rstrip().expandtabs(8), *place))
        depth += line.count("{") - line.count("}")
        if depth == 0 and "}" in line:
            yield KernelListing(name=readable(symbol), symbol=symbol, arch=arch, instructions=tuple(results))
            symbol = None


def _files(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if match := _FILE.match(line):
            yield match[1], match[2]


def sass_kernels(text: str) -> Iterator[KernelListing]:
    """Yield the kernels in the output of ``nvdisasm -g -c``, each with its instructions and labels."""
    readable, arch = demangler(), ""
    symbol: str | None = None
    place: tuple[str | None, int | None] = (None, None)
    results: list[Instruction] = []
    # A kernel ends where the next section begins, so one more section ends the last kernel.
    for line in (*text.splitlines(), ".section end"):
        if target := _TARGET.match(line):
            arch = target[1]
        section = _SECTION.match(line)
        if (section or _OTHER_SECTION.match(line)) and symbol is not None:
            yield KernelListing(name=readable(symbol), symbol=symbol, arch=arch, instructions=tuple(results))
            symbol = None
        if section:
            # The place is kept: it is printed only where it changes, also from one kernel to the next.
            symbol, results = section[1], []
        elif symbol is not None and (location := _LINE.match(line)):
            place = (location[1], int(location[2]))
        elif symbol is not None and ("/*" in line or line.startswith(".L_")):
            results.append(Instruction(line.rstrip().expandtabs(8), *place))
