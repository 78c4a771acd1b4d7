"""The compiled pass over nested slices (``nesting.cpp``). Where it was not built, numpy does the same, slowly."""

import ctypes
import functools
from ctypes import c_int32, c_size_t
from pathlib import Path
from typing import Final

import numpy as np

_LIBRARY: Final = Path(__file__).with_name("libnesting.so")
_VERSION: Final = 4  # of the library's interface; a library built for another one is not used


@functools.cache
def load_nesting() -> ctypes.CDLL | None:
    """Return the compiled library; None where it was not built, or was built for another version."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        library.opscope_nesting_version.restype = c_int32
        if library.opscope_nesting_version() != _VERSION:
            return None
    except (OSError, AttributeError):
        return None
    numbers = np.ctypeslib.ndpointer(np.int64, ndim=1, flags="C_CONTIGUOUS")
    library.opscope_nesting.restype = c_int32
    library.opscope_nesting.argtypes = (c_size_t, *[numbers] * 6, np.ctypeslib.ndpointer(np.bool_, ndim=1))
    library.opscope_innermost.restype = c_int32
    library.opscope_innermost.argtypes = (c_size_t, *[numbers] * 4, c_size_t, *[numbers] * 3)
    library.opscope_lanes.restype = c_int32
    library.opscope_lanes.argtypes = (c_size_t, *[numbers] * 5)
    return library
