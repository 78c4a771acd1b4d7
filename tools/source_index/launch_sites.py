"""Where a kernel is launched: file, line and host function, from the checks that follow launches.

``C10_CUDA_KERNEL_LAUNCH_CHECK`` after a launch passes ``__FILE__``, ``__func__`` and ``__LINE__`` to
``c10::cuda::c10_cuda_check_implementation``. From every place that uses a kernel's host function, the nearest check
that the control flow reaches is taken, and its arguments are read on the way.
"""

import struct
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import capstone  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from opscope.knowledge.binaries.elf import Elf
from opscope.knowledge.binaries.registrations import CudaLibrary, Linkage

_CHECK = "c10_cuda_check_implementation"
_CHUNK = 1 << 22
_FARTHEST = 1500  # instructions from a launch to its check


@dataclass(frozen=True, slots=True, order=True)
class LaunchSite:
    """A line that launches a kernel; ``file`` is what ``__FILE__`` was, ``function`` what ``__func__`` was."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class _Instruction:
    size: int
    mnemonic: str
    operands: str


@dataclass(frozen=True, slots=True)
class _Arguments:
    """What a path has loaded so far for the check's second to fourth argument."""

    file: int | None = None
    function: int | None = None
    line: int | None = None


def launch_sites(elf: Elf, library: CudaLibrary) -> dict[str, set[LaunchSite]]:
    """Return per kernel (mangled name) the lines that launch it, where the code tells."""
    linkage = Linkage(elf)
    kernels_of = defaultdict(set)
    for kernel in library.kernels:
        if kernel.stub is not None:
            kernels_of[kernel.stub].add(kernel.name)
    uses: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    functions = _Functions(elf)
    for address, stub in _uses(linkage, set(kernels_of)):
        around = functions.around(address)
        if around is not None and around[0] != stub and not functions.registers(around[0]):
            uses[around].append((address, stub))
    checks = set(linkage.imported([_CHECK]))
    found: dict[str, set[LaunchSite]] = defaultdict(set)
    for around, places in uses.items():
        walk = _Walk(linkage, around, checks, set(kernels_of))
        for address, stub in places:
            if site := walk.nearest_check(address):
                for name in kernels_of[stub]:
                    found[name].add(site)
    return dict(found)


class _Functions:
    """The functions of a library by address."""

    def __init__(self, elf: Elf) -> None:
        symbols = elf.symbols()
        index = elf.functions(symbols)
        index = index[np.argsort(symbols.table["value"][index], kind="stable")]
        self._start = symbols.table["value"][index].astype(np.int64)
        self._size = symbols.table["size"][index].astype(np.int64)
        self._registering = {
            int(symbols.table["value"][i])
            for name in ("_ZL24__sti____cudaRegisterAllv", "_ZL31__nv_cudaEntityRegisterCallbackPPv")
            for i in elf.named(symbols, name)
        }

    def around(self, address: int) -> tuple[int, int] | None:
        """Return start and size of the function around an address."""
        k = int(np.searchsorted(self._start, address, side="right")) - 1
        if k < 0 or address >= self._start[k] + self._size[k]:
            return None
        return int(self._start[k]), int(self._size[k])

    def registers(self, start: int) -> bool:
        """Tell whether a function registers kernels; it names them without launching any."""
        return start in self._registering


def _uses(linkage: Linkage, stubs: set[int]) -> Iterator[tuple[int, int]]:
    """Yield where code refers to a host function: the address of the 32-bit displacement, and the function."""
    indirect = {slot: target for slot, target in linkage.pointers.items() if target in stubs}
    indirect |= {entry: target for entry, target in linkage.forwarding.items() if target in stubs}
    targets = {**{stub: stub for stub in stubs}, **indirect}
    known = np.array(sorted(targets), np.int64)
    if not len(known):
        return
    text = linkage.text
    content = linkage.elf.bytes_of(text)
    low, high = int(known[0]), int(known[-1])
    for begin in range(0, text.size - 4, _CHUNK):
        part = content[begin : begin + _CHUNK + 3]
        displacement = _displacements(part)
        reached = displacement + np.arange(begin + 4, begin + 4 + len(displacement), dtype=np.int64) + text.address
        near = np.flatnonzero((reached >= low) & (reached <= high))
        hits = near[known[np.minimum(np.searchsorted(known, reached[near]), len(known) - 1)] == reached[near]]
        for hit in hits.tolist():
            yield text.address + begin + hit, targets[int(reached[hit])]


def _displacements(part: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the little-endian 32-bit number that begins at every byte."""
    bytes_ = part.astype(np.uint32)
    numbers = bytes_[:-3] | (bytes_[1:-2] << 8) | (bytes_[2:-1] << 16) | (bytes_[3:] << 24)
    return numbers.view(np.int32).astype(np.int64)


class _Walk:
    """The control flow of one function."""

    def __init__(self, linkage: Linkage, around: tuple[int, int], checks: set[int], stubs: set[int]) -> None:
        self._linkage, self._start, self._checks, self._stubs = linkage, around[0], checks, stubs
        self._code = linkage.code(*around)
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._instructions: Mapping[int, _Instruction] = {
            address: _Instruction(size, mnemonic, operands)
            for address, size, mnemonic, operands in decoder.disasm_lite(self._code, self._start)
        }
        self._order = list(self._instructions)

    def nearest_check(self, used_at: int) -> LaunchSite | None:
        """Return the line that the nearest check after a use of a kernel's host function reports."""
        first = self._order[bisect_right(self._order, used_at) - 1] if self._order else None
        if first is None or not self._is_use(first, used_at):
            return None  # these bytes only look like a displacement
        queue = deque([(first, _Arguments(), 0)])
        seen = set()
        while queue:
            address, arguments, distance = queue.popleft()
            if address in seen or address not in self._instructions or distance > _FARTHEST:
                continue
            seen.add(address)
            arguments = self._with_loaded(address, arguments)
            target = self._target(address)
            if target in self._checks:
                return self._site(arguments)
            if target in self._stubs and address != first:
                continue  # another launch comes first on this path
            queue.extend((successor, arguments, distance + 1) for successor in self._successors(address))
        return None

    def _is_use(self, address: int, displacement_at: int) -> bool:
        instruction = self._instructions[address]
        loads = instruction.mnemonic in ("lea", "mov") and "rip" in instruction.operands
        ends = address + instruction.size == displacement_at + 4
        return ends and (loads or instruction.mnemonic in ("call", "jmp"))

    def _with_loaded(self, address: int, arguments: _Arguments) -> _Arguments:
        instruction = self._instructions[address]
        register, _, value = instruction.operands.partition(", ")
        if instruction.mnemonic == "lea" and "rip" in value:
            end = address + instruction.size - self._start
            (displacement,) = struct.unpack_from("<i", self._code, end - 4)
            loaded = self._start + end + displacement
            if register == "rsi":
                return _Arguments(loaded, arguments.function, arguments.line)
            if register == "rdx":
                return _Arguments(arguments.file, loaded, arguments.line)
        elif instruction.mnemonic == "mov" and register == "ecx" and value[:1].isdigit():
            return _Arguments(arguments.file, arguments.function, int(value, 0))
        return arguments

    def _target(self, address: int) -> int | None:
        instruction = self._instructions[address]
        if instruction.mnemonic not in ("call", "jmp"):
            return None
        return int(instruction.operands, 16) if instruction.operands.startswith("0x") else None

    def _successors(self, address: int) -> Iterable[int]:
        instruction = self._instructions[address]
        after = address + instruction.size
        jump = int(instruction.operands, 16) if instruction.operands.startswith("0x") else None
        if instruction.mnemonic == "ret":
            return ()
        if instruction.mnemonic == "jmp":
            return () if jump is None else (jump,)
        if instruction.mnemonic.startswith("j") and jump is not None:
            return (after, jump)
        return (after,)

    def _site(self, arguments: _Arguments) -> LaunchSite | None:
        if arguments.file is None or not arguments.line:
            return None
        file = self._linkage.constant(arguments.file)
        function = None if arguments.function is None else self._linkage.constant(arguments.function)
        return LaunchSite(file, arguments.line, function or "") if file else None
