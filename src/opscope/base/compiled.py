"""Loads opscope's own compiled libraries. Each has a slower equal in Python, as a machine may have no compiler."""

import ctypes
from pathlib import Path


def load_library(path: Path, version_of: str, version: int) -> ctypes.CDLL | None:
    """Return a compiled library; None where it was not built, or was built for another version of its interface.

    Args:
        path: the library.
        version_of: the name of its function that returns the version of its interface.
        version: the version that the caller knows.
    """
    try:
        library = ctypes.CDLL(str(path))
        own = getattr(library, version_of)
    except (OSError, AttributeError):
        return None
    own.restype = ctypes.c_int32
    return library if own() == version else None
