"""What machine code of x86-64 libraries says of calls and loads: entries of linkage tables, registering functions."""

import struct
from collections.abc import Iterator

RELOCATIONS_WITH_SYMBOL = (1, 6)  # R_X86_64_64, R_X86_64_GLOB_DAT; all others of the offset table are relative

_JUMP = b"\xff\x25"  # jmp through the global offset table
_ENTRY_BYTES = 8  # entries of linkage tables begin at multiples of this


def jumps(content: bytes, base: int) -> Iterator[tuple[int, int]]:
    """Yield a linkage table's entries as pairs of their address and the slot that they jump through."""
    for start in range(0, len(content) - 5, _ENTRY_BYTES):
        place = content.find(_JUMP, start, start + _ENTRY_BYTES)
        if place < 0 or place + 6 > len(content):
            continue
        (displacement,) = struct.unpack_from("<i", content, place + 2)
        # The displacement counts from the end of the jump, which has six bytes.
        yield base + start, base + place + 6 + displacement
