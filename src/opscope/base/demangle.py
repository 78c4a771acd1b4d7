"""C++ names as people write them, through the runtime library of the system's own compiler."""

import ctypes
import functools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Final

from opscope.base.errors import EnvironmentLacksError
from opscope.base.processes import end_with_parent, own_environment, own_process, run_within

_RUNTIME = "libstdc++.so.6"
# Of the process that reads names of a file. The longest name of PyTorch's 22,811 kernels has 5,212 characters.
_LONGEST: Final = 1 << 16
_MEMORY_BYTES: Final = 1 << 29
_CPU_SECONDS: Final = 5
_SECONDS: Final = 30


@functools.cache
def demangler() -> Callable[[str], str]:
    """Return a function that makes mangled names readable; it returns names that it cannot read unchanged.

    Raises:
        EnvironmentLacksError: the C++ runtime is missing.
    """
    try:
        demangle = ctypes.CDLL(_RUNTIME).__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError) as error:
        raise EnvironmentLacksError(f"C++ names cannot be read: {_RUNTIME} is missing ({error})") from error
    # Not c_char_p: ctypes would turn that into bytes, and the pointer that has to be freed would be lost.
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    free.argtypes = (ctypes.c_void_p,)

    def readable(name: str) -> str:
        if not name.startswith("_Z"):
            return name
        pointer = demangle(name.encode("latin-1", "replace"), None, None, ctypes.byref(ctypes.c_int()))
        if not pointer:
            return name
        try:
            text = ctypes.string_at(pointer).decode("latin-1")
        finally:
            free(pointer)
        return text

    return readable


def readable_names(names: Iterable[str]) -> dict[str, str]:
    """Return mangled names of a file as people write them; those that cannot be read, and others, are left out.

    A name of 300 characters can be made that stands for gigabytes, so they are read in a process with limits: what
    exceeds these stays as it is.
    """
    # The shortest first: what comes after one that exceeds the limits is not read.
    mangled = sorted({name for name in names if name.startswith("_Z") and "\n" not in name}, key=lambda n: (len(n), n))
    if not mangled:
        return {}
    sent = "\n".join(mangled).encode("utf-8", "replace")
    try:
        result = run_within(own_process(__name__), _SECONDS, stdin=sent, environment=own_environment()).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    # Where the process was ended, its last line may be cut off.
    lines = result.decode("utf-8", "replace").split("\n")[:-1]
    return {name: line for name, line in zip(mangled, lines, strict=False) if line != name}


def main() -> None:
    """Read names, one a line, and print them as people write them."""
    import resource  # which only Unix has

    end_with_parent(signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    readable = demangler()
    for line in sys.stdin.buffer.read().split(b"\n"):
        name = line.decode("latin-1")  # bytes as they are: lengths in names count bytes
        text = readable(name)
        sys.stdout.buffer.write((text if len(text) <= _LONGEST else name).encode("latin-1") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
