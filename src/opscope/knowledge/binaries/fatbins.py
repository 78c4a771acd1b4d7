"""Which device code lies in a library: the cubins and PTX of its fat binaries, and for which GPUs. Nothing is unpacked.

The format is not documented. It was read off files that nvcc 13.0 wrote with every option that changes it, and checked
against what cuobjdump lists. A container is a header (magic, version, its own size, size of what follows) and entries;
an entry is a header (kind, sizes, flags, ``sm`` number) and a cubin, PTX or code for the linker's optimizer, which may
be compressed. Host processors only differ in how containers are aligned: with 8 bytes on x86-64, with 256 on aarch64.
"""

import struct
from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from opscope.knowledge.binaries.elf import Elf, ElfSection

_SECTIONS = (".nv_fatbin", "__nv_relfatbin")  # the second for relocatable device code
_MAGIC = 0xBA55ED50
_ALIGNMENT = 8
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the entries
# kind, version, header size, size, compressed size, options' offset, minor, major, sm, name's offset and length, flags,
# reserved, size when unpacked
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_DEBUG, _LZ4, _ARCHITECTURE_SPECIFIC, _FAMILY_SPECIFIC, _ZSTD = 0x2, 0x2000, 0x100000, 0x200000, 0x8000


class CodeKind(StrEnum):
    """What an entry holds."""

    PTX = "ptx"
    CUBIN = "cubin"
    LTO = "lto"
    OTHER = "other"


_KINDS = {1: CodeKind.PTX, 2: CodeKind.CUBIN, 8: CodeKind.LTO}
_TARGETS = {CodeKind.CUBIN: "sm", CodeKind.LTO: "lto"}  # others are for a virtual architecture
_SUFFIXES = ((_ARCHITECTURE_SPECIFIC, "a"), (_FAMILY_SPECIFIC, "f"))
_COMPRESSIONS = ((_LZ4, "lz4"), (_ZSTD, "zstd"))


class Image(Struct, frozen=True):
    """One entry.

    Attributes:
        kind: what it is.
        target: ``sm_90a`` for code that a GPU runs, ``compute_90`` for what is compiled further.
        version: of PTX, ``9.0``; of the cubin format, ``1.8``.
        offset: where its (perhaps compressed) content begins in the file.
        size: bytes that it takes.
        unpacked_size: bytes when unpacked; the same where it is not compressed.
        compression: ``lz4``, ``zstd`` or None.
        debug: whether it was compiled with -G.
    """

    kind: CodeKind
    target: str
    version: str
    offset: int
    size: int
    unpacked_size: int
    compression: str | None
    debug: bool


class FatBinary(Struct, frozen=True):
    """The images of one translation unit, or those linked for several.

    Attributes:
        address: its place in memory.
        relocatable: whether it was linked into another fat binary, which is the one that runs.
        images: its entries.
    """

    address: int
    relocatable: bool
    images: tuple[Image, ...]


def fat_binaries(elf: Elf) -> list[FatBinary]:
    """Return the fat binaries of a library, by address.

    Raises:
        BadInputError: they are damaged.
    """
    return [
        container
        for name in _SECTIONS
        if (section := elf.sections.get(name)) is not None
        for container in _containers(elf, section)
    ]


def _containers(elf: Elf, section: ElfSection) -> Iterator[FatBinary]:
    place, end = section.offset, section.offset + section.size
    while place + _CONTAINER.size <= end:
        magic, version, header, size = _CONTAINER.unpack_from(elf.data, place)
        if magic == 0:  # fills up to the next one
            place += _ALIGNMENT
            continue
        if magic != _MAGIC or version != 1 or header < _CONTAINER.size or place + header + size > end:
            raise elf.damaged("a fat binary has no valid header, or lies outside its section")
        images = tuple(_images(elf, place + header, place + header + size))
        yield FatBinary(section.address + place - section.offset, section.name != _SECTIONS[0], images)
        place += (header + size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _images(elf: Elf, place: int, end: int) -> Iterator[Image]:
    while place + _ENTRY.size <= end:
        kind, _, header, size, packed, _, minor, major, sm, _, _, flags, _, unpacked = _ENTRY.unpack_from(
            elf.data, place
        )
        if header < _ENTRY.size or size == 0 or place + header + size > end or packed > size:
            raise elf.damaged("an image of a fat binary lies outside it")
        known = _KINDS.get(kind, CodeKind.OTHER)
        suffix = next((letter for bit, letter in _SUFFIXES if flags & bit), "")
        compression = next((name for bit, name in _COMPRESSIONS if flags & bit), None)
        yield Image(
            kind=known,
            target=f"{_TARGETS.get(known, 'compute')}_{sm}{suffix}",
            version=f"{major}.{minor}",
            offset=place + header,
            size=packed if compression else size,
            unpacked_size=unpacked if compression else size,
            compression=compression,
            debug=bool(flags & _DEBUG),
        )
        place += header + size
    if place != end:
        raise elf.damaged("a fat binary ends within an image")
