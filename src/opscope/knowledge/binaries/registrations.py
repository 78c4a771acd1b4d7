"""Which translation unit a CUDA kernel was compiled in, from the library that holds it.

nvcc writes into every translation unit a local function that registers the unit's kernels with the CUDA runtime
(``__cudaRegisterFunction(..., device name, ...)``); the symbol table's file entries say which unit that function
belongs to. So the answer is exact, for templates with external linkage too. `Linkage` tells where a library's indirect
calls and loads lead.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from opscope.base.errors import BadInputError
from opscope.base.text import lazy_pattern
from opscope.knowledge.binaries.elf import AARCH64, X86_64, Elf, ElfSection, Symbols, open_elf

# ---------------------------------------------------------------- AArch64
# Encodings: Arm Architecture Reference Manual for A-profile, C4.1 and C6.2. Relocation types and the linkage table's
# form: ELF for the Arm 64-bit Architecture. Every instruction has four bytes, so nothing only looks like one.


_AARCH64_RELOCATIONS = (
    257,
    1025,
)  # R_AARCH64_ABS64, R_AARCH64_GLOB_DAT; all others of the offset table are relative

_BTI = 0xD503245F  # bti c: where a function or an entry of a linkage table may begin
_PASSED = 19  # x0 to x18 do not survive a call
_HOST_FUNCTION, _DEVICE_NAME = 1, 3  # registers of the second and fourth argument


def _page(word: int, address: int) -> int:
    """Return what adrp puts into its register."""
    # A signed number of 21 bits: to flip its highest bit and subtract that bit again extends the sign. It counts pages.
    offset = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    return (address & ~0xFFF) + ((offset ^ 1 << 20) - (1 << 20) << 12)


def _near(word: int, address: int) -> int:
    """Return what adr puts into its register: as `_page`, but counted in bytes."""
    offset = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    return address + (offset ^ 1 << 20) - (1 << 20)


def _branched(word: int, address: int) -> int:
    """Return where b and bl lead."""
    offset = word & 0x3FFFFFF
    return address + ((offset ^ 1 << 25) - (1 << 25)) * 4


def _is_adrp(word: int) -> bool:
    return word & 0x9F000000 == 0x90000000


def _is_add(word: int) -> bool:
    """Tell whether this is add of a 64-bit register and a constant."""
    return word & 0xFF800000 == 0x91000000


def _added(word: int) -> int:
    return (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)


def _is_load(word: int) -> bool:
    """Tell whether this is ldr of a 64-bit register from a register and a constant."""
    return word & 0xFFC00000 == 0xF9400000


def _load_offset(word: int) -> int:
    return (word >> 10 & 0xFFF) * 8


def _words(code: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])


def _aarch64_jumps(content: bytes, base: int) -> Iterator[tuple[int, int]]:
    """Yield a linkage table's entries as pairs of their address and the slot that they jump through.

    An entry is adrp x16, ldr x17 from there, and later br x17, with bti c before it where branches are protected.
    """
    words = _words(content)
    for number in range(len(words) - 1):
        first, second = words[number], words[number + 1]
        # The low ten bits of ldr are its registers: from x16 into x17.
        if _is_adrp(first) and first & 31 == 16 and _is_load(second) and second & 0x3FF == 16 << 5 | 17:
            place = base + 4 * number
            begin = place - 4 if number and words[number - 1] == _BTI else place
            yield begin, _page(first, place) + _load_offset(second)


def _aarch64_veneer(code: bytes, address: int) -> int | None:
    """Return where a linker's stub for far calls leads (adrp x16, add x16, br x16); None if the code is none."""
    words = _words(code[:16])
    words = words[1:] if words[:1] == (_BTI,) else words
    start = address + 4 * (len(_words(code[:16])) - len(words))
    # 0xD61F0200 is br x16.
    if len(words) >= 3 and _is_adrp(words[0]) and words[0] & 31 == 16 and _is_add(words[1]) and words[2] == 0xD61F0200:
        return _page(words[0], start) + _added(words[1])
    return None


def _aarch64_calls(code: bytes, start: int, slot: Callable[[int], int | None]) -> Iterator[tuple[int, dict[int, int]]]:
    """Follow a function from its first to its last instruction.

    Args:
        code: the instructions.
        start: their address.
        slot: what a slot of the global offset table holds; None where the address is not a slot.

    Yields:
        The called address, or that of the slot through which the call leaves the library, and the values of registers
        that are known then, by number. The mapping changes as the walk goes on: read it before the next item.
    """
    # Branches are not followed. A register whose value is not certain is left out.
    known: dict[int, int] = {}
    for number, word in enumerate(_words(code)):
        address = start + 4 * number
        target, source = word & 31, word >> 5 & 31
        if _is_adrp(word):
            known[target] = _page(word, address)
        elif word & 0x9F000000 == 0x10000000:  # adr
            known[target] = _near(word, address)
        elif _is_add(word):
            _set(known, target, None if (held := known.get(source)) is None else held + _added(word))
        elif word & 0xFFE0FFE0 == 0xAA0003E0:  # mov of a register
            _set(known, target, known.get(word >> 16 & 31))
        elif _is_load(word):
            _set(known, target, None if (held := known.get(source)) is None else slot(held + _load_offset(word)))
        elif word & 0xFC000000 == 0x94000000:  # bl
            yield _branched(word, address), known
            _forget(known)
        elif word & 0xFFFFFC1F == 0xD63F0000:  # blr
            if (called := known.get(source)) is not None:
                yield called, known
            _forget(known)
        elif word & 0xFC000000 == 0x14000000:  # b: the last call may be a jump
            yield _branched(word, address), known
        else:
            for register in _written(word):
                known.pop(register, None)


def _written(word: int) -> tuple[int, ...]:
    """Return the general registers that an instruction may write; one too many only forgets something."""
    target, base = word & 31, word >> 5 & 31
    if word & 0x1C000000 == 0x14000000:  # branches, system instructions
        return ()
    if word & 0x0A000000 != 0x08000000:  # calculations
        return (target,)
    if word & 0x3A000000 == 0x28000000:  # loads and stores of pairs
        loaded = (target, word >> 10 & 31) if word & 1 << 22 and not word & 1 << 26 else ()
        return (*loaded, base) if word & 1 << 23 else loaded
    moves_base = word & 0x3B200400 == 0x38000400  # with the address counted up or down
    single = (target,) if word & 0x00C00000 and not word & 1 << 26 else ()
    return (*single, base) if moves_base else single


def _set(known: dict[int, int], register: int, value: int | None) -> None:
    if value is None:
        known.pop(register, None)
    else:
        known[register] = value


def _forget(known: dict[int, int]) -> None:
    for register in [register for register in known if register < _PASSED]:
        del known[register]


def _aarch64_registered(known: dict[int, int]) -> tuple[int | None, int | None]:
    """Return the addresses of the device name and the host function that a call passes; None for unknown ones."""
    return known.get(_DEVICE_NAME), known.get(_HOST_FUNCTION)


# ---------------------------------------------------------------- x86-64


_X86_64_RELOCATIONS = (1, 6)  # R_X86_64_64, R_X86_64_GLOB_DAT; all others of the offset table are relative

_JUMP = b"\xff\x25"  # jmp through the global offset table
_ENTRY_BYTES = 8  # entries of linkage tables begin at multiples of this


def _x86_64_jumps(content: bytes, base: int) -> Iterator[tuple[int, int]]:
    """Yield a linkage table's entries as pairs of their address and the slot that they jump through."""
    for start in range(0, len(content) - 5, _ENTRY_BYTES):
        place = content.find(_JUMP, start, start + _ENTRY_BYTES)
        if place < 0 or place + 6 > len(content):
            continue
        (displacement,) = struct.unpack_from("<i", content, place + 2)
        # The displacement counts from the end of the jump, which has six bytes.
        yield base + start, base + place + 6 + displacement


# ---------------------------------------------------------------- registrations


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
_WITH_SYMBOL = {X86_64: _X86_64_RELOCATIONS, AARCH64: _AARCH64_RELOCATIONS}
_JUMPS = {X86_64: _x86_64_jumps, AARCH64: _aarch64_jumps}


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
    for called, registers in _aarch64_calls(linkage.code(start, size), start, linkage.slot):
        # In large libraries the call leads to a stub, and only that to the linkage table.
        far = _aarch64_veneer(linkage.code(called, 16), called) if linkage.in_code(called) else None
        if called not in targets and far not in targets:
            continue
        name, stub = _aarch64_registered(registers)
        text = None if name is None else linkage.constant(name)
        if text is None:
            continue
        yield text, stub if stub is not None and linkage.in_code(stub) else None
