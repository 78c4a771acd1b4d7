"""C++ names as people write them, through the runtime library of the system's own compiler."""

import ctypes
import functools
from collections.abc import Callable

from opscope.base.errors import EnvironmentLacksError

_RUNTIME = "libstdc++.so.6"


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


def readable_name(name: str) -> str:
    """Return a name as people write it; unchanged if it is not mangled, or cannot be read here."""
    if not name.startswith("_Z"):
        return name
    try:
        return demangler()(name)
    except EnvironmentLacksError:
        return name
