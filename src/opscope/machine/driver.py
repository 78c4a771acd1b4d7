"""Asks the CUDA driver what is here, without PyTorch: ``python -m opscope.machine.driver FILE`` writes its answer.

The driver is asked in a process of its own: a broken one can hang or crash, and asking takes memory of every device.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Final

import msgspec

from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process, run_within
from opscope.base.text import lazy_pattern
from opscope.record.codec import encode
from opscope.record.machine import Driver, DriverDevice

_SECONDS: Final = 30
_NAME_BYTES: Final = 256
_MODULE: Final = Path("/proc/driver/nvidia/version")
_RELEASE: Final = lazy_pattern(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
# Numbers of CUdevice_attribute (cuda.h).
_ATTRIBUTES: Final = {
    "multiprocessors": 16,
    "l2_bytes": 38,
    "clock_khz": 13,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "threads_per_block": 1,
    "registers_per_block": 12,
    "shared_memory_per_block_bytes": 97,
    "threads_per_multiprocessor": 39,
    "blocks_per_multiprocessor": 106,
    "registers_per_multiprocessor": 82,
    "shared_memory_per_multiprocessor_bytes": 81,
}
# More of them: the sides of a block and of a grid, both parts of the compute capability; ECC, managed memory.
_BLOCK, _GRID, _CAPABILITY = (2, 3, 4), (5, 6, 7), (75, 76)
_ECC, _MANAGED = 32, 89


def driver() -> Driver:
    """Ask the driver, in a process of its own. What goes wrong is said in `Driver.error`, and raises nothing."""
    with scratch() as folder:
        answer = folder / "answer.json"  # what the driver prints is not mixed with it
        try:
            command = [*own_process("opscope.machine.driver"), str(answer)]
            done = run_within(command, _SECONDS, environment=own_environment())
        except subprocess.TimeoutExpired:
            return _nothing(find_library("cuda"), f"the driver did not answer within {_SECONDS} s")
        try:
            return msgspec.json.decode(answer.read_bytes(), type=Driver)
        except (OSError, msgspec.MsgspecError):
            return _nothing(find_library("cuda") or "libcuda.so.1", f"the driver {_how_ended(done)}")


def _how_ended(done: "subprocess.CompletedProcess[bytes]") -> str:
    if done.returncode < 0:
        return f"crashed ({signal.Signals(-done.returncode).name})"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return f"ended the process that asked it, with exit code {done.returncode}{f': {lines[-1]}' if lines else ''}"


def _nothing(library: str | None, error: str) -> Driver:
    return Driver(library=library, cuda=None, release=None, visible=_visible(), error=error)


def driver_release() -> str | None:
    """Return the driver's own version, as the kernel's module or ``nvidia-smi`` says it; None where there is none."""
    try:
        of_module = module_release(_MODULE.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        of_module = None
    if of_module is not None:
        return of_module
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.split()
    return lines[0] if answer.returncode == 0 and lines else None


def module_release(text: str) -> str | None:
    """Return the version in what the kernel's module says of itself; None if it says none.

    Args:
        text: the content of ``/proc/driver/nvidia/version``.
    """
    match = _RELEASE.search(text)
    return None if match is None else match[1]


def _place() -> str | None:
    name = find_library("cuda") or "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    # The loader was asked for a name; which file it took stands in the memory map of this process.
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        return next((line.split()[-1] for line in maps if "libcuda.so" in line), name)


def _visible() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


class DriverFailedError(Exception):
    """A call to the driver failed."""


class DriverLibrary:
    """``libcuda``: calls that raise where they fail."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(find_library("cuda") or "libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function.

        Raises:
            DriverFailedError: it fails.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            message = text.value.decode(errors="replace") if text.value else "unknown error"
            raise DriverFailedError(f"{name} failed: {message} (CUDA error {code})")

    def number(self, name: str, *arguments: object) -> int:
        """Call a function that writes a number to where its first argument points; return the number.

        Args:
            name: the function's.
            arguments: those after the first.

        Raises:
            DriverFailedError: it fails.
        """
        result = ctypes.c_int()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value

    def attribute(self, number: int, device: int) -> int:
        """Return an attribute of a device; 0 where the driver does not know it."""
        try:
            return self.number("cuDeviceGetAttribute", number, device)
        except DriverFailedError:
            return 0


def _asked() -> Driver:
    """Ask the driver in this process."""
    place = _place()
    if place is None:
        return _nothing(None, "there is no CUDA driver: libcuda.so.1 is not found")
    library = DriverLibrary()
    try:
        library.call("cuInit", 0)
        version = library.number("cuDriverGetVersion")
        devices = tuple(_device(library, at) for at in range(library.number("cuDeviceGetCount")))
    except DriverFailedError as error:
        return _nothing(place, str(error))
    # 13020 stands for CUDA 13.2.
    cuda = f"{version // 1000}.{version % 1000 // 10}"
    return Driver(library=place, cuda=cuda, release=driver_release(), devices=devices, visible=_visible())


def _device(library: DriverLibrary, index: int) -> DriverDevice:
    handle = library.number("cuDeviceGet", index)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    library.call("cuDeviceGetName", name, _NAME_BYTES, handle)
    memory = ctypes.c_size_t()
    library.call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)

    def several(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(library.attribute(number, handle) for number in numbers)

    results = {what: library.attribute(number, handle) for what, number in _ATTRIBUTES.items()}
    block, grid, capability = several(_BLOCK), several(_GRID), several(_CAPABILITY)
    return DriverDevice(
        index=index,
        name=name.value.decode(errors="replace"),
        compute_capability=f"{capability[0]}.{capability[1]}",
        memory_bytes=memory.value,
        block=(block[0], block[1], block[2]),
        grid=(grid[0], grid[1], grid[2]),
        ecc=bool(library.attribute(_ECC, handle)),
        managed=bool(library.attribute(_MANAGED, handle)),
        **results,
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(encode(_asked()))
