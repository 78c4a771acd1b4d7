"""Makes commands that read a trace start and end sooner, and prints where their time goes (``--timings``).

Not for commands that measure anything.
"""

import atexit
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from threading import Event
from typing import Any, Final, TypeVar

import click

from opscope.base.parts import Stage, record_stages, staged, stop_recording
from opscope.base.processes import cores
from opscope.base.units import format_ns
from opscope.cli.say import say

F = TypeVar("F", bound=Callable[..., Any])
_WIDTH: Final = max(map(len, Stage))
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


def timings_option(function: F) -> F:
    """Add ``--timings``."""
    return click.option(
        "--timings",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_begin,
        help="Print how long each stage took, to standard error.",
    )(function)


def _begin(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        began = time.perf_counter_ns()
        record_stages()
        context.call_on_close(lambda: _print(began))


def _print(began: int) -> None:
    """Print a line per stage: when it ran, how long without the stages inside it, and how long on a core."""
    spans = stop_recording()
    if not spans:  # only the help was shown, or the command failed before
        return
    say(f"{'stage':<{_WIDTH}}  {'from':>10}  {'to':>10}  {'took':>10}  {'on a core':>10}")
    for stage in Stage:
        if own := [span for span in spans if span.stage is stage]:
            first, last = min(span.begin_ns for span in own) - began, max(span.end_ns for span in own) - began
            times = (first, last, sum(span.own_ns for span in own), sum(span.cpu_ns for span in own))
            say(f"{stage:<{_WIDTH}}  " + "  ".join(f"{format_ns(one):>10}" for one in times))
    say(
        f"{'all':<{_WIDTH}}  {'':>10}  {format_ns(time.perf_counter_ns() - began):>10}  "
        "since the options were read. Stages overlap where they run on several threads; the time on a core leaves out "
        "what the libraries' own threads use."
    )
