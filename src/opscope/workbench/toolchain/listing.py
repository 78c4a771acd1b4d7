"""Makes listings, with the source line of each instruction, from PTX and from the output of nvdisasm."""

from collections.abc import Iterator
from typing import Final

from opscope.base.demangle import demangler
from opscope.base.text import lazy_pattern
from opscope.documents.build import Instruction, KernelListing

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
