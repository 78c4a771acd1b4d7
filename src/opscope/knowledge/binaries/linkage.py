"""How code in a library reaches functions and constants that it does not hold itself."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from opscope.knowledge.binaries.elf import Elf, ElfSection

_JUMP = b"\xff\x25"  # jmp through the global offset table
_ABSOLUTE, _GLOBAL_DATA = 1, 6  # relocation types of x86-64
_ENTRY_BYTES = 8  # entries of linkage tables begin at multiples of this


@dataclass(frozen=True)
class Linkage:
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
        """Return the instructions at an address."""
        begin = self.text.offset + start - self.text.address
        return bytes(self.elf.data[begin : begin + size])

    def in_code(self, address: int) -> bool:
        """Tell whether an address lies in the library's code."""
        return self.text.address <= address < self.text.address + self.text.size

    def constant(self, address: int) -> str | None:
        """Return the text at an address, if it lies among the constants."""
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
        found = {}
        for entry in entries[inside]:
            kind, symbol = int(entry["info"]) & 0xFFFFFFFF, int(entry["info"]) >> 32
            base = int(values[symbol]) if kind in (_GLOBAL_DATA, _ABSOLUTE) else 0
            found[int(entry["offset"])] = base + int(entry["addend"])
        return found

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

    def _jumps(self) -> list[tuple[int, int]]:
        """Return the linkage tables' entries as pairs of their address and the slot they jump through."""
        found = []
        for name in (".plt", ".plt.sec", ".plt.got"):
            section = self.elf.sections.get(name)
            if section is None:
                continue
            content = bytes(self.elf.data[section.offset : section.offset + section.size])
            for start in range(0, section.size - 5, _ENTRY_BYTES):
                place = content.find(_JUMP, start, start + _ENTRY_BYTES)
                if place < 0 or place + 6 > len(content):
                    continue
                (displacement,) = struct.unpack_from("<i", content, place + 2)
                found.append((section.address + start, section.address + place + 6 + displacement))
        return found
