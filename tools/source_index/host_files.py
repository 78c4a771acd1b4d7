"""Which file a C++ function was compiled in.

Functions of a translation unit lie together. A function with external linkage belongs to the file of its neighbours
with internal linkage where both neighbours agree; where its own code names a file (in a check), that is the proof.
"""

import re
import struct
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from opscope.base.demangle import demangler
from opscope.knowledge.binaries.elf import Elf, Symbols
from opscope.knowledge.binaries.registrations import Linkage, unit_name
from opscope.knowledge.kernels.index import HostFile
from opscope.knowledge.kernels.installed import by_file_name, in_repository, repository_root, source_paths

_LOAD = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....)", re.DOTALL)
_COMPILED = (".cpp", ".cu", ".cc")


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    start: int
    size: int


def host_files(elf: Elf, wanted: set[str]) -> dict[str, HostFile]:
    """Return the file of each wanted function (``at::native::layer_norm_cuda``) that the library defines.

    A function with overloads in several files is left out.
    """
    symbols = elf.symbols()
    linkage = Linkage(elf)
    paths = source_paths(elf)
    root = repository_root(paths)
    by_name = by_file_name(paths, root)
    neighbours = _Neighbours(elf, symbols)
    found: dict[str, set[HostFile]] = {}
    for function in _wanted_functions(elf, symbols, wanted):
        around = neighbours.files(function.start)
        named = [file for file in _named_files(linkage, function) if PurePosixPath(file).suffix in _COMPILED]
        agreed = [file for file in named if PurePosixPath(file).name in around]
        if agreed:
            host = HostFile(in_repository(agreed[0], root), named=True)
        elif len(around) == 1:
            (unit,) = around
            mentioned = by_name.get(unit, set()) if neighbours.units[unit] == 1 else set()
            host = HostFile(next(iter(mentioned)) if len(mentioned) == 1 else unit, named=False)
        else:
            continue
        found.setdefault(function.name, set()).add(host)
    return {name: min(hosts, key=lambda h: not h.named) for name, hosts in found.items() if _one_file(hosts)}


def _one_file(hosts: set[HostFile]) -> bool:
    return len({host.file for host in hosts}) == 1


def _wanted_functions(elf: Elf, symbols: Symbols, wanted: set[str]) -> list[_Function]:
    demangle = demangler()
    found = []
    for index in elf.functions(symbols):
        entry = symbols.table[index]
        if entry["info"] >> 4 == 0 or not entry["size"]:
            continue
        mangled = elf.name_of(symbols, int(index))
        if "6native" not in mangled:  # the namespace of all of them
            continue
        name = demangle(mangled).partition("(")[0]
        if name in wanted:
            found.append(_Function(name, int(entry["value"]), int(entry["size"])))
    return found


class _Neighbours:
    """The functions with internal linkage, by address, and the files they belong to; ``units`` counts file names."""

    def __init__(self, elf: Elf, symbols: Symbols) -> None:
        files = elf.source_files(symbols)
        names = [unit_name(elf.name_of(symbols, int(file))) for file in files]
        self.units = Counter(names)
        index = elf.functions(symbols)
        local = index[(symbols.table["info"][index] >> 4) == 0]
        owner = np.searchsorted(files, local) - 1
        known = np.array([bool(names[number]) for number in owner])
        local, owner = local[known], owner[known]
        order = np.argsort(symbols.table["value"][local], kind="stable")
        self._addresses = symbols.table["value"][local][order].astype(np.int64).tolist()
        self._files = [names[number] for number in owner[order]]

    def files(self, address: int) -> set[str]:
        """Return the files of the functions before and after an address."""
        place = bisect_right(self._addresses, address)
        return set(self._files[max(place - 1, 0) : place + 1])


def _named_files(linkage: Linkage, function: _Function) -> list[str]:
    counts: Counter[str] = Counter()
    for match in _LOAD.finditer(linkage.code(function.start, function.size)):
        text = linkage.constant(function.start + match.end() + struct.unpack("<i", match[1])[0])
        if text is not None and PurePosixPath(text).suffix in (*_COMPILED, ".h", ".cuh"):
            counts[text] += 1
    return [file for file, _ in counts.most_common()]
