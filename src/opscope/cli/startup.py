"""Makes commands that read a trace start and end sooner. Not for commands that measure anything."""

import atexit
import ctypes
import gc
import os
import sys
from threading import Event
from typing import Final

from opscope.base.stages import Stage, staged
from opscope.base.threads import cores

_SWITCH_INTERVAL_S: Final = 0.0005  # Python's own is 0.005
_OBJECTS_PER_COLLECTION: Final = 100_000
_POLARS_THREADS: Final = 4
_FEW_CORES: Final = 4
_M_ARENA_MAX: Final = -8  # malloc.h


def tune_for_one_analysis() -> None:
    """Tune this process for a short life: frequent changes between threads, and hardly any garbage collection."""
    # Modules and tables live until the command ends, and at the very end Python would look through them twice more.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    atexit.register(gc.freeze)
    # A thread that reads a file needs a moment of Python between its pieces, while this one imports.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if cores() <= _FEW_CORES:
        _one_heap()
    # More threads wait for each other: 1 GB took a seventh less with 4 of them than with 16, on 16 cores. polars looks
    # at this once, when it is imported.
    os.environ.setdefault("POLARS_MAX_THREADS", str(min(cores(), _POLARS_THREADS)))


def _one_heap() -> None:
    """Have all threads allocate from one heap, where the C library is glibc.

    Otherwise each keeps for itself what it frees: a tenth more memory at the peak of 1 GB on two cores. On sixteen the
    threads would wait for each other, and there is memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


@staged(Stage.IMPORT)
def import_libraries(imported: Event) -> None:
    """Import numpy and polars, and say when they are there (see `Reading`).

    numpy without the threads of its BLAS: nothing here multiplies matrices, and they spin while they wait. Processes
    that are started later do not inherit the setting.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ:
        import numpy
    else:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        try:
            import numpy  # noqa: F401
        finally:
            del os.environ["OPENBLAS_NUM_THREADS"]
    import polars  # noqa: F401

    imported.set()
