"""Which threads of a program only wait: their frames say nothing of where its time goes."""

from typing import Final

import numpy as np

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.call_tree import self_time
from opscope.analysis.structure.nesting import Ints, Nesting
from opscope.base.patterns import lazy_pattern
from opscope.trace.model import Trace

# Calls in which a thread waits for others, as the profiler names frames of CPython 3.10 to 3.13: built-in functions by
# repr(), those of the standard library by file (without the folder, or below lib/python3.N), line and name.
_WAITS: Final = lazy_pattern(
    r"^<built-in (?:method|function) (?:acquire|acquire_lock|sleep|select|poll|epoll|wait|recv|recv_into|accept)\b"
    r"|^<method '(?:acquire|poll|select|wait|recv|recv_into|accept)' of "
    r"|(?:^|[/\\]python3\.\d+t?[/\\])"
    r"(?:threading|queue|selectors|socket|subprocess|(?:multiprocessing|concurrent[/\\]futures|asyncio)[/\\]\w+)"
    r"\.py\(\d+\): (?:wait|get|join|select|poll|_poll|acquire|_acquire_restore|_wait_for_tstate_lock|accept|recv|_recv|"
    r"recv_bytes|_recv_bytes|recv_into|result|_run_once)$"
)
_MOSTLY: Final = 0.95  # of the time of its frames


def sleeping_threads(trace: Trace, frames: Nesting) -> Ints:
    """Return the numbers of the threads that wait nearly all the time and run no operator, call or named range.

    Args:
        trace: the trace.
        frames: the nesting of its Python frames.
    """
    tables = (trace.operators, trace.launches, trace.annotations)
    busy = np.unique(np.concatenate([column(table, "thread") for table in tables]))
    thread, own = column(trace.frames, "thread"), self_time(frames)
    size = int(thread.max(initial=-1)) + 1
    whole = np.bincount(thread, weights=own, minlength=size)
    waits = names_that(trace.frames, _WAITS.search)
    waiting = np.bincount(thread[waits], weights=own[waits], minlength=size)
    result = np.flatnonzero((whole > 0) & (waiting >= _MOSTLY * whole))
    sleeping: Ints = result[~np.isin(result, busy)]
    return sleeping
