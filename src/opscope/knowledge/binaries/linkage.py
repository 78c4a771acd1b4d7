"""How code in a library reaches functions and constants that it does not hold itself."""

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from opscope.knowledge.binaries import aarch64, x86_64
from opscope.knowledge.binaries.elf import AARCH64, X86_64, Elf, ElfSection

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
