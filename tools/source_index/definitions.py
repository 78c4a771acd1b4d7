"""Which line of a header defines a kernel, from the headers that come with PyTorch."""

import re
from collections import defaultdict
from pathlib import Path

from opscope.knowledge.kernels.index import SourceLine

# ``__global__ void name(`` with attributes and launch bounds between, possibly over several lines.
_KERNEL = re.compile(
    r"__global__\s+(?:(?:static|inline|void|__launch_bounds__\s*\([^;{]*?\)|C10_LAUNCH_BOUNDS_\d\s*\([^;{]*?\))\s+)*?"
    r"(?:void\s+)?(?:__launch_bounds__\s*\([^;{]*?\)\s+|C10_LAUNCH_BOUNDS_\d\s*\([^;{]*?\)\s+)?(?P<name>[A-Za-z_]\w*)\s*\(",
)
_NO_NAME = {"void", "__launch_bounds__", "C10_LAUNCH_BOUNDS_1", "C10_LAUNCH_BOUNDS_2"}


def header_definitions(include: Path) -> dict[str, SourceLine]:
    """Return kernel function -> header and line; kernels that several headers define are left out.

    Args:
        include: ``torch/include`` of an unpacked wheel. Headers below ``ATen`` lie in ``aten/src`` of the repository.
    """
    found: dict[str, set[SourceLine]] = defaultdict(set)
    for header in sorted(include.rglob("*")):
        if header.suffix not in (".cuh", ".h", ".hpp") or not header.is_file():
            continue
        text = header.read_text(encoding="utf-8", errors="replace")
        if "__global__" not in text:
            continue
        for match in _KERNEL.finditer(text):
            if match["name"] not in _NO_NAME:
                line = text.count("\n", 0, match.start("name")) + 1
                found[match["name"]].add(SourceLine(_in_repository(header.relative_to(include)), line))
    return {name: _one(places) for name, places in found.items() if len({place.file for place in places}) == 1}


def _one(places: set[SourceLine]) -> SourceLine:
    """Return the one place; variants for several platforms in one header leave the line open (0)."""
    first = min(places)
    return first if len(places) == 1 else SourceLine(first.file, 0)


def _in_repository(header: Path) -> str:
    return f"aten/src/{header.as_posix()}" if header.parts[0] == "ATen" else header.as_posix()
