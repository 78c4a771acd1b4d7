"""What machine code of aarch64 libraries says of calls and loads: entries of linkage tables, registering functions.

Encodings: Arm Architecture Reference Manual for A-profile, C4.1 and C6.2. Relocation types and the linkage table's
form: ELF for the Arm 64-bit Architecture. Every instruction has four bytes, so nothing only looks like one.
"""

import struct
from collections.abc import Callable, Iterator

RELOCATIONS_WITH_SYMBOL = (
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


def jumps(content: bytes, base: int) -> Iterator[tuple[int, int]]:
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


def veneer(code: bytes, address: int) -> int | None:
    """Return where a linker's stub for far calls leads (adrp x16, add x16, br x16); None if the code is none."""
    words = _words(code[:16])
    words = words[1:] if words[:1] == (_BTI,) else words
    start = address + 4 * (len(_words(code[:16])) - len(words))
    # 0xD61F0200 is br x16.
    if len(words) >= 3 and _is_adrp(words[0]) and words[0] & 31 == 16 and _is_add(words[1]) and words[2] == 0xD61F0200:
        return _page(words[0], start) + _added(words[1])
    return None


def calls(code: bytes, start: int, slot: Callable[[int], int | None]) -> Iterator[tuple[int, dict[int, int]]]:
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


def registered(known: dict[int, int]) -> tuple[int | None, int | None]:
    """Return the addresses of the device name and the host function that a call passes; None for unknown ones."""
    return known.get(_DEVICE_NAME), known.get(_HOST_FUNCTION)
