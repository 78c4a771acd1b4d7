"""ELF files: sections, symbols and build id of libraries for x86-64 and aarch64, read through a memory map.

Layout: Tool Interface Standard, Executable and Linking Format 1.2, and its 64-bit extension in the System V ABI.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from opscope.base.errors import BadInputError
from opscope.base.files import regular

_MAGIC = b"\x7fELF"
X86_64, AARCH64 = 62, 183
_LONGEST_NAME = 1 << 20
_NAMES_PER_BYTE = 4  # names may share their ends, but those of a real library do not add up to several times its size
_FILE, _FUNCTION = 4, 2  # symbol types
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_RELOCATION = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])


class ElfSection(Struct, frozen=True):
    """One section: where it lies in the file (``offset``, ``size``) and in memory (``address``)."""

    name: str
    address: int
    offset: int
    size: int


class Symbols(Struct, frozen=True):
    """A symbol table.

    Attributes:
        table: one row per symbol, with the fields of an ELF symbol; its positions are what `Elf` calls an index.
        strings: the section that holds the names.
    """

    table: npt.NDArray[Any]
    strings: ElfSection

    @property
    def types(self) -> npt.NDArray[np.uint8]:
        """The type of every symbol."""
        # The low four bits; the high ones say how the symbol is bound.
        kinds: npt.NDArray[np.uint8] = (self.table["info"] & 15).astype(np.uint8)
        return kinds


class Elf:
    """A library, open for reading. Every access is checked against the file's size."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        """Read the section headers.

        Raises:
            BadInputError: the file is not an ELF file of these processors, or is damaged.
        """
        self.path, self.data = path, data
        self._read_in_names = 0
        if data[:4] != _MAGIC:
            raise BadInputError(f"{path} is not an ELF library")
        if len(data) < 64 or data[4:6] != b"\x02\x01":
            raise BadInputError(f"{path} is no 64-bit little-endian ELF library, or is cut off")
        # Offsets in the ELF header: e_machine at 18, e_shoff at 40, e_shentsize, e_shnum and e_shstrndx from 58 on.
        (machine,) = struct.unpack_from("<H", data, 18)
        if machine not in (X86_64, AARCH64):
            known = "x86-64 and aarch64"
            raise BadInputError(f"{path} is built for another processor (ELF machine {machine}) than {known}")
        self.machine = int(machine)
        self.sections = {section.name: section for section in self._read_sections()}

    def _read_sections(self) -> Iterator[ElfSection]:
        (start,) = struct.unpack_from("<Q", self.data, 40)
        size, count, names = struct.unpack_from("<HHH", self.data, 58)
        if size != 64 or start + size * count > len(self.data) or names >= count:
            raise self.damaged("its section headers lie outside the file")
        headers = [struct.unpack_from("<IIQQQQ", self.data, start + size * number) for number in range(count)]
        strings = headers[names][4]
        for name, kind, _, address, offset, length in headers:
            if kind != 8 and offset + length > len(self.data):  # 8: takes no room in the file
                raise self.damaged("a section lies outside the file")
            yield ElfSection(self.string(strings + name), address, offset, length)

    def damaged(self, what: str) -> BadInputError:
        """Return the error that says what is damaged."""
        return BadInputError(f"{self.path} is damaged: {what}")

    def string(self, offset: int) -> str:
        """Return the zero-terminated text at a file offset.

        Raises:
            BadInputError: it lies outside the file or does not end, or all that was read adds up to too much.
        """
        end = self.data.find(b"\0", offset, offset + _LONGEST_NAME)
        if not 0 <= offset <= end:
            raise self.damaged("a name lies outside the file, or never ends")
        self._read_in_names += end - offset
        if self._read_in_names > _NAMES_PER_BYTE * len(self.data) + _LONGEST_NAME:
            raise self.damaged("its names overlap")
        return self.data[offset:end].decode("latin-1")

    def section(self, name: str) -> ElfSection:
        """Return a section that the file must have.

        Raises:
            BadInputError: the file has no such section.
        """
        if name not in self.sections:
            raise self.damaged(f"it has no section {name}")
        return self.sections[name]

    def bytes_of(self, section: ElfSection) -> npt.NDArray[np.uint8]:
        """Return a section's bytes without copying them."""
        return np.frombuffer(self.data, np.uint8, section.size, section.offset)

    def build_id(self) -> str | None:
        """Return the id that the linker gave this very build, in hexadecimal; None if it gave none."""
        note = self.sections.get(".note.gnu.build-id")
        if note is None or note.size < 16:
            return None
        # A note: sizes of name and id, and a type, of four bytes each; the name, filled up to four bytes; then the id.
        name_size, id_size = struct.unpack_from("<II", self.data, note.offset)
        start = note.offset + 12 + (name_size + 3) // 4 * 4
        return self.data[start : start + id_size].hex() if id_size <= 64 else None

    def symbols(self, table: str = ".symtab", strings: str = ".strtab") -> Symbols:
        """Return a symbol table.

        Args:
            table: its section: ``.symtab``, or ``.dynsym`` for the symbols that the dynamic linker needs.
            strings: the section with the names that belong to it: ``.strtab`` or ``.dynstr``.

        Raises:
            BadInputError: there is none; ``.symtab`` is missing where a library was stripped.
        """
        if table not in self.sections or strings not in self.sections:
            raise BadInputError(f"{self.path} is stripped: it has no symbol table, so its kernels cannot be told apart")
        section = self.sections[table]
        entries = np.frombuffer(self.data, _SYMBOL, section.size // _SYMBOL.itemsize, section.offset)
        return Symbols(entries, self.sections[strings])

    def name_of(self, symbols: Symbols, index: int) -> str:
        """Return a symbol's name, by its position in the table.

        Raises:
            BadInputError: the name lies outside the file, or does not end.
        """
        return self.string(symbols.strings.offset + int(symbols.table["name"][index]))

    def named(self, symbols: Symbols, name: str) -> npt.NDArray[np.intp]:
        """Return the positions of all symbols with a name."""
        # Names may share their ends, so a hit may begin within a longer name: only offsets that a symbol uses count.
        strings, wanted = symbols.strings, name.encode() + b"\0"
        offsets = []
        place = self.data.find(wanted, strings.offset, strings.offset + strings.size)
        while place >= 0:
            offsets.append(place - strings.offset)
            place = self.data.find(wanted, place + 1, strings.offset + strings.size)
        return np.flatnonzero(np.isin(symbols.table["name"], np.array(offsets, np.uint32)))

    def relocations(self, name: str) -> npt.NDArray[Any]:
        """Return a relocation section's entries; empty where there is none."""
        section = self.sections.get(name)
        if section is None:
            return np.zeros(0, _RELOCATION)
        return np.frombuffer(self.data, _RELOCATION, section.size // _RELOCATION.itemsize, section.offset)

    @staticmethod
    def source_files(symbols: Symbols) -> npt.NDArray[np.intp]:
        """Return the positions of symbols that name source files; the local symbols after each belong to it."""
        return np.flatnonzero(symbols.types == _FILE)

    @staticmethod
    def functions(symbols: Symbols) -> npt.NDArray[np.intp]:
        """Return the positions of the symbols of functions that the file defines."""
        return np.flatnonzero((symbols.types == _FUNCTION) & (symbols.table["value"] > 0))


def is_elf(path: Path) -> bool:
    """Tell whether a file is a program or a library."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def open_elf(path: Path) -> Iterator[Elf]:
    """Open a library for the time of a block.

    Raises:
        BadInputError: it is missing, no ELF file of x86-64 or aarch64, or damaged.
    """
    try:
        with regular(path).open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise BadInputError(f"cannot read the library {path}: {error}") from error
    # The map is closed with the last array that looks into it: an error may still hold some.
    # Numbers in a damaged file lead outside of it: what struct and numpy then raise, in the block too, means that.
    try:
        yield Elf(path, data)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise BadInputError(f"{path} is damaged: {error}") from error
