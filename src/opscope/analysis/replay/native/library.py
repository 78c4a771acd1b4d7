"""The compiled replay of a graph (``replay.cpp``). Where it was not built, Python does the same, slowly."""

import ctypes
import functools
from ctypes import c_int32, c_size_t
from pathlib import Path
from typing import Final

import numpy as np

_LIBRARY: Final = Path(__file__).with_name("libreplay.so")
_VERSION: Final = 1  # of the library's interface; a library built for another one is not used


@functools.cache
def load_replay() -> ctypes.CDLL | None:
    """Return the compiled library; None where it was not built, or was built for another version."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        library.opscope_replay_version.restype = c_int32
        if library.opscope_replay_version() != _VERSION:
            return None
    except (OSError, AttributeError):
        return None
    numbers = np.ctypeslib.ndpointer(np.int64, ndim=1, flags="C_CONTIGUOUS")
    library.opscope_replay.restype = None
    library.opscope_replay.argtypes = (c_size_t, *[numbers] * 6)
    return library
