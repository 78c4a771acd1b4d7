"""Which translation unit a CUDA kernel was compiled in, from the library that holds it.

nvcc writes into every translation unit a local function that registers the unit's kernels with the CUDA runtime
(``__cudaRegisterFunction(..., device name, ...)``); the symbol table's file entries say which unit that function
belongs to. So the answer is exact, for templates with external linkage too. `Linkage` tells where a library's indirect
calls and loads lead.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from opscope.base.errors import BadInputError
from opscope.base.text import lazy_pattern
from opscope.knowledge.binaries import aarch64, x86_64
from opscope.knowledge.binaries.elf import AARCH64, X86_64, Elf, ElfSection, Symbols, open_elf

# Small units register their kernels in the first function, large ones in the second.
_REGISTERING = ("_ZL24__sti____cudaRegisterAllv", "_ZL31__nv_cudaEntityRegisterCallbackPPv")
_REGISTER = "__cudaRegisterFunction"
# lea or mov of a 64-bit register from an address relative to the instruction pointer; or a call, of a function or
# through a slot.
_LOAD_OR_CALL = lazy_pattern(
    rb"[\x48\x4c][\x8d\x8b][\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....)|(?:\xe8|\xff\x15)(....)", re.DOTALL
)
_UNIT = lazy_pattern(r"tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_(?P<name>.*?)(\.compute_\d+[a-z]*)?(\.cudafe1\.cpp)?")
# Of each processor: the types of relocations that add a symbol's address, and how linkage tables are read.
_WITH_SYMBOL = {X86_64: x86_64.RELOCATIONS_WITH_SYMBOL, AARCH64: aarch64.RELOCATIONS_WITH_SYMBOL}
_JUMPS = {X86_64: x86_64.jumps, AARCH64: aarch64.jumps}


class Linkage(Struct, frozen=True, dict=True):
    """The code of an open library, and where its indirect calls and loads lead."""

    elf: Elf

    @cached_property
    def text(self) -> ElfSection:
        """The section that holds the code."""
        return self.elf.section(".text")

    @cached_property
    def constants(self) -> ElfSection:
        """The section that holds strings."""
        return self.elf.section(".rodata")

    def code(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes of instructions at an address."""
        begin = self.text.offset + start - self.text.address
        return bytes(self.elf.data[begin : begin + size])

    def in_code(self, address: int) -> bool:
        """Tell whether an address lies in the library's code."""
        return self.text.address <= address < self.text.address + self.text.size

    def constant(self, address: int) -> str | None:
        """Return the zero-terminated text at an address; None if that does not lie among the constants."""
        if not self.constants.address <= address < self.constants.address + self.constants.size:
            return None
        return self.elf.string(self.constants.offset + address - self.constants.address)

    @cached_property
    def pointers(self) -> Mapping[int, int]:
        """Slot of the global offset table -> the function or constant of this library that it points to."""
        table = self.elf.sections.get(".got")
        if table is None:
            return {}
        values = self.elf.symbols(".dynsym", ".dynstr").table["value"]
        entries = self.elf.relocations(".rela.dyn")
        inside = (entries["offset"] >= table.address) & (entries["offset"] < table.address + table.size)
        # Packed relocations (.relr.dyn) leave the address in place.
        content = np.frombuffer(self.elf.data, "<u8", table.size // 8, table.offset)
        packed = ".relr.dyn" in self.elf.sections
        result = {table.address + 8 * int(i): int(content[i]) for i in np.flatnonzero(content)} if packed else {}
        for entry in entries[inside]:
            # The low half of ``info`` is the type, the high one the symbol. Without one, the addend is the address.
            kind, symbol = int(entry["info"]) & 0xFFFFFFFF, int(entry["info"]) >> 32
            base = int(values[symbol]) if kind in _WITH_SYMBOL[self.elf.machine] else 0
            result[int(entry["offset"])] = base + int(entry["addend"])
        return result

    def imported(self, names: Iterable[str]) -> Mapping[int, str]:
        """Return the linkage table entries that lead to functions whose name contains one of ``names``."""
        wanted = tuple(names)
        symbols = self.elf.symbols(".dynsym", ".dynstr")
        slots = {}
        for entry in self.elf.relocations(".rela.plt"):
            slots[int(entry["offset"])] = int(entry["info"]) >> 32
        result = {}
        for address, slot in self._jumps():
            if slot in slots:
                name = self.elf.name_of(symbols, slots[slot])
                if any(part in name for part in wanted):
                    result[address] = name
        return result

    @cached_property
    def forwarding(self) -> Mapping[int, int]:
        """Linkage table entry -> the function of this library that it leads to."""
        values = self.elf.symbols(".dynsym", ".dynstr").table["value"]
        slots = {int(e["offset"]): int(values[int(e["info"]) >> 32]) for e in self.elf.relocations(".rela.plt")}
        targets = {address: self.pointers.get(slot) or slots.get(slot) or 0 for address, slot in self._jumps()}
        return {address: target for address, target in targets.items() if target}

    def slot(self, address: int) -> int | None:
        """Return what a slot of the global offset table points to; None if the address is not a slot.

        A slot that leads out of the library stands for its target: its own address is returned.
        """
        if address not in self._slots:
            return None
        return self.pointers.get(address) or address

    @cached_property
    def _slots(self) -> set[int]:
        return set(self.pointers) | {int(e["offset"]) for e in self.elf.relocations(".rela.plt")}

    def imported_slots(self, names: Iterable[str]) -> set[int]:
        """Return the slots of functions of other libraries, for calls that use no linkage table (``-fno-plt``)."""
        wanted = tuple(names)
        symbols = self.elf.symbols(".dynsym", ".dynstr")
        entries = self.elf.relocations(".rela.dyn")
        kinds, numbers = entries["info"] & 0xFFFFFFFF, entries["info"] >> np.uint64(32)
        fitting = np.isin(kinds, _WITH_SYMBOL[self.elf.machine]) & (numbers < len(symbols.table))
        entries, numbers = entries[fitting], numbers[fitting]
        outside = symbols.table["value"][numbers] == 0  # symbols that another library defines have no address here
        return {
            int(entry["offset"])
            for entry, number in zip(entries[outside], numbers[outside].tolist(), strict=True)
            if any(part in self.elf.name_of(symbols, number) for part in wanted)
        }

    def _jumps(self) -> list[tuple[int, int]]:
        """Return the linkage tables' entries as pairs of their address and the slot they jump through."""
        results: list[tuple[int, int]] = []
        for name in (".plt", ".plt.sec", ".plt.got", ".iplt"):
            section = self.elf.sections.get(name)
            if section is not None:
                content = bytes(self.elf.data[section.offset : section.offset + section.size])
                results += _JUMPS[self.elf.machine](content, section.address)
        return results


class Registration(Struct, frozen=True):
    """One kernel of a library.

    Attributes:
        name: the kernel's mangled name.
        unit: the translation unit that compiled it, as a position in `CudaLibrary.units`.
        stub: the address of the host function that launches it; None where the library does not tell.
    """

    name: str
    unit: int
    stub: int | None


class CudaLibrary(Struct, frozen=True):
    """The kernels of one library.

    Attributes:
        build_id: in hexadecimal; None if the linker gave it none.
        units: base names of the translation units' source files (``SoftMax.cu``), which may repeat.
        kernels: those that it registers.
    """

    build_id: str | None
    units: tuple[str, ...]
    kernels: tuple[Registration, ...]


def read_cuda_library(path: Path) -> CudaLibrary:
    """Read which kernels a library holds and which translation units they come from.

    Raises:
        BadInputError: it is missing, no ELF library of x86-64 or aarch64, stripped, or damaged.
    """
    with open_elf(path) as elf:
        return cuda_library(elf)


def cuda_library(elf: Elf) -> CudaLibrary:
    """Read the same from a library that is already open.

    Raises:
        BadInputError: it is stripped or damaged.
    """
    symbols = elf.symbols()
    files = elf.source_files(symbols)
    units = tuple(unit_name(elf.name_of(symbols, int(file))) for file in files)
    return CudaLibrary(elf.build_id(), units, tuple(_registrations(elf, symbols, files)))


def unit_name(file: str) -> str:
    """Return the source file behind a file entry of a symbol table: ``SoftMax.cu``."""
    match = _UNIT.fullmatch(file)
    return f"{match['name']}.cu" if match else file


def _registrations(elf: Elf, symbols: Symbols, files: npt.NDArray[np.intp]) -> Iterator[Registration]:
    linkage = Linkage(elf)
    targets = set(linkage.imported([_REGISTER])) | linkage.imported_slots([_REGISTER])
    # The runtime may be linked into the library itself.
    targets |= {int(symbols.table["value"][index]) for index in elf.named(symbols, _REGISTER)} - {0}
    if not targets:
        return
    followed = 0
    for name in _REGISTERING:
        for index in elf.named(symbols, name):
            # The function is a local symbol, so the last file entry before it names its unit.
            unit = int(np.searchsorted(files, index)) - 1
            entry = symbols.table[index]
            if unit >= 0 and linkage.in_code(int(entry["value"])):
                # A damaged file may claim the same code for many functions, which would be followed again and again.
                followed += int(entry["size"])
                if followed > len(elf.data):
                    raise BadInputError(f"{elf.path} is damaged: its registering functions overlap")
                follow = _followed_on_aarch64 if elf.machine == AARCH64 else _registered_by
                for kernel, stub in follow(linkage, int(entry["value"]), int(entry["size"]), targets):
                    yield Registration(kernel, unit, stub)


def _registered_by(linkage: Linkage, start: int, size: int, targets: set[int]) -> Iterator[tuple[str, int | None]]:
    """Follow a registering function: each call takes the name and the host function that were loaded before it."""
    code = linkage.code(start, size)
    name: str | None = None
    stub: int | None = None
    position = 0
    while match := _LOAD_OR_CALL.search(code, position):
        position = match.end()
        (displacement,) = struct.unpack("<i", match[1] if match[2] is None else match[2])
        address = start + match.end() + displacement
        if match[2] is not None:
            if address in targets:
                if name is not None:
                    yield name, stub
                name = stub = None
                continue
        elif (text := linkage.constant(address)) is not None:
            # The call takes further, short texts; a mangled name is longer.
            name = text if len(text) > 2 else name
            continue
        elif linkage.in_code(stub_address := linkage.pointers.get(address, address)):
            stub = stub_address
            continue
        position = match.start() + 1  # these bytes only looked like an instruction


def _followed_on_aarch64(
    linkage: Linkage, start: int, size: int, targets: set[int]
) -> Iterator[tuple[str, int | None]]:
    """Follow a registering function by what its registers hold at each call."""
    for called, registers in aarch64.calls(linkage.code(start, size), start, linkage.slot):
        # In large libraries the call leads to a stub, and only that to the linkage table.
        far = aarch64.veneer(linkage.code(called, 16), called) if linkage.in_code(called) else None
        if called not in targets and far not in targets:
            continue
        name, stub = aarch64.registered(registers)
        text = None if name is None else linkage.constant(name)
        if text is None:
            continue
        yield text, stub if stub is not None and linkage.in_code(stub) else None
