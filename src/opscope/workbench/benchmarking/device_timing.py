"""Durations on a GPU: of kernels by CUPTI through torch.profiler, and of whole calls by events.

Kernels are attributed to calls by the host range that their launch lies in, never by name. Events are queued behind a
spin kernel. Only if that was still running when the last call was issued do they count: then the host never kept the
device waiting.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from msgspec import Struct, field
from torch.profiler import ProfilerActivity, profile, record_function

from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.links import link
from opscope.base.errors import OpscopeError
from opscope.base.files import scratch
from opscope.measuring.clock import passed_ns
from opscope.measuring.rounds import Calls, Timer
from opscope.readers.reading import read

_RANGE: Final = "opscope.bench#"
_CACHES: Final = 4  # how many times the size of the L2 cache is read to flush it
_SESSION: Final = 400  # calls that one session of the profiler records
_QUEUED: Final = 600  # launches that are queued at once: the driver takes about a thousand
_CALLS_QUEUED: Final = 32
_CYCLES_PER_S: Final = 2.1e9  # of the spin kernel; a slower clock only spins longer
_LONGEST_SPIN_S: Final = 0.3
_ATTEMPTS: Final = 6


class Flush:
    """Evicts the L2 cache of a device by reading a buffer of several times its size.

    Writing would evict as well, but leave lines that the call has to write back: kernels of 10 to 50 us would then seem
    up to 20 % longer on an H200.
    """

    def __init__(self, device: torch.device) -> None:
        size = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 64 << 20
        self._buffer = torch.zeros(_CACHES * size // 4, dtype=torch.int32, device=device)
        self._read = torch.empty((), dtype=torch.int32, device=device)

    def __call__(self) -> None:
        """Read the buffer."""
        torch.amax(self._buffer, 0, out=self._read)


class KernelTimer(Struct):
    """Adds up the durations of what each call launched.

    Attributes:
        device: where the calls run.
        flush: called before each call; None leaves the cache as it is.
        launched: per name, how many kernels, copies and fills each call launched.
        streams: per name, the numbers of the streams that these ran on.
        current: the numbers of the streams that calls are made on.
    """

    device: torch.device
    flush: Callable[[], None] | None
    launched: dict[str, list[int]] = field(default_factory=dict)
    streams: dict[str, set[int]] = field(default_factory=dict)
    current: frozenset[int] = frozenset()

    def rounds(self, calls: Calls, orders: Sequence[Sequence[str]]) -> list[list[float]]:
        """Measure some rounds; see `opscope.measuring.rounds.Timer`.

        Raises:
            OpscopeError: no device work of a call was recorded.
        """
        names = [name for order in orders for name in order]
        durations: list[float] = []
        for first in range(0, len(names), _SESSION):
            durations += self._session(calls, names[first : first + _SESSION])
        each = len(orders[0])
        return [durations[at : at + each] for at in range(0, len(durations), each)]

    def launches(self, calls: Calls) -> dict[str, int]:
        """Return how many kernels, copies and fills each call launches. The profiler's first session takes seconds."""
        result = self._recorded(calls, list(calls))
        return {name: work.count for name, work in zip(calls, result, strict=True)}

    def _session(self, calls: Calls, names: Sequence[str]) -> list[float]:
        result = self._recorded(calls, names)
        for name, call in zip(names, result, strict=True):
            if not call.count:
                raise OpscopeError(f"no device work of {name} was recorded")
            self.launched.setdefault(name, []).append(call.count)
            self.streams.setdefault(name, set()).update(call.streams)
        return [call.total_ns for call in result]

    def _recorded(self, calls: Calls, names: Sequence[str]) -> "list[LaunchedWork]":
        # A fill in a range of its own, numbered after the calls, shows which stream is the current one.
        mark = torch.empty(1, device=self.device)
        torch.cuda.synchronize(self.device)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            with record_function(f"{_RANGE}{len(names)}"):
                mark.zero_()
            for place, name in enumerate(names):
                call = calls[name]
                if self.flush is not None:
                    self.flush()
                with record_function(f"{_RANGE}{place}"):
                    result = call()
                del result
                if place % 16 == 15:
                    torch.cuda.synchronize(self.device)
            torch.cuda.synchronize(self.device)
        with scratch() as folder:
            path = folder / "trace.json"
            profiler.export_chrome_trace(str(path))
            *outcome, marked = attributed(path, len(names) + 1)
        self.current |= marked.streams
        return outcome


class LaunchedWork(Struct, frozen=True):
    """What one call launched.

    Attributes:
        total_ns: the durations of its activities, added up.
        count: how many activities (kernels, copies and fills) there were.
        streams: the numbers of the streams that they ran on; -1 for one that was not recorded.
    """

    total_ns: float
    count: int
    streams: frozenset[int]


def attributed(path: Path, calls: int) -> list[LaunchedWork]:
    """Return what each call launched, by the host range that its launches lie in.

    Args:
        path: a trace with a range per call, named by the call's number.
        calls: how many calls there are.

    Returns:
        One element per call, by its number.
    """
    trace = read(path)
    links = link(trace)
    names = trace.annotations["name"].cast(str) if trace.annotations.height else None
    rows = [] if names is None else [at for at, name in enumerate(names) if name.startswith(_RANGE)]
    number = np.array([int(str(names[at]).removeprefix(_RANGE)) for at in rows] if names is not None else [], np.int64)
    begin, end = column(trace.annotations, "start_ns")[rows], end_of(trace.annotations)[rows]
    order = np.argsort(begin)
    begin, end, number = begin[order], end[order], number[order]
    launched = np.flatnonzero(links.activity_launch >= 0)
    when = column(trace.launches, "start_ns")[links.activity_launch[launched]]
    # Ranges do not overlap: a launch can only lie in the last one that began before it. Before the first range, place
    # is -1, which indexes the 0 that is appended to the ends.
    place = np.searchsorted(begin, when, side="right") - 1
    inside = (place >= 0) & (when < np.append(end, 0)[place])
    activity, owner = launched[inside], number[place[inside]]
    duration, stream = column(trace.activities, "duration_ns"), trace.activities["stream"].fill_null(-1).to_numpy()
    total, count = np.zeros(calls), np.zeros(calls, np.int64)
    np.add.at(total, owner, duration[activity])
    np.add.at(count, owner, 1)
    streams: list[set[int]] = [set() for _ in range(calls)]
    for call, one in zip(owner.tolist(), stream[activity].tolist(), strict=True):
        streams[call].add(one)
    return [LaunchedWork(float(total[at]), int(count[at]), frozenset(streams[at])) for at in range(calls)]


def events(device: torch.device, flush: Callable[[], None] | None, launches: int) -> Timer:
    """Return a timer that records events around calls, all of which are issued before the device begins.

    Args:
        device: where the calls run.
        flush: called before each call; None leaves the cache as it is.
        launches: how many launches a call makes at most; the device's queue is limited.

    Returns:
        The timer; it raises OpscopeError if the host cannot issue calls fast enough.
    """
    spin = _Spin(device)
    # Four more per call: what prepares it, the flush, and the events before and after.
    most = max(1, min(_CALLS_QUEUED, _QUEUED // (launches + 4)))

    def rounds(calls: Calls, orders: Sequence[Sequence[str]]) -> list[list[float]]:
        names = [name for order in orders for name in order]
        durations: list[float] = []
        for first in range(0, len(names), most):
            durations += spin.behind(calls, names[first : first + most], flush)
        each = len(orders[0])
        return [durations[at : at + each] for at in range(0, len(durations), each)]

    return rounds


class _Spin(Struct):
    """A kernel that keeps a device busy while the host issues calls.

    Attributes:
        device: which one.
        seconds_per_call: how long issuing a call takes; doubled whenever the kernel ended too early.
    """

    device: torch.device
    seconds_per_call: float = 100e-6

    def behind(self, calls: Calls, names: Sequence[str], flush: Callable[[], None] | None) -> list[float]:
        """Issue calls behind the spin kernel and return their durations in nanoseconds.

        Raises:
            OpscopeError: the host cannot issue the calls in time, even behind the longest spin.
        """
        for _ in range(_ATTEMPTS):
            pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in names]
            gate = torch.cuda.Event()
            torch.cuda.synchronize(self.device)
            torch.cuda._sleep(int(min(self.seconds_per_call * len(names) + 200e-6, _LONGEST_SPIN_S) * _CYCLES_PER_S))
            gate.record()
            for name, (before, after) in zip(names, pairs, strict=True):
                call = calls[name]
                if flush is not None:
                    flush()
                before.record()
                result = call()
                after.record()
                del result
            in_time = not gate.query()  # the kernel still spins, so the device has not begun any call
            torch.cuda.synchronize(self.device)
            if in_time:
                return [passed_ns(before, after) for before, after in pairs]
            self.seconds_per_call *= 2
        raise OpscopeError("the host could not issue calls before the device was done with the ones before")


def captured(call: Callable[[], object], device: torch.device) -> "torch.cuda.CUDAGraph":
    """Capture a call in a CUDA graph.

    Raises:
        RuntimeError: the call cannot be captured: it waits for the device, or does not allocate through PyTorch.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    try:
        return _graph_of(call)
    except RuntimeError:
        # A failed capture leaves PyTorch's random generator in its capturing state; a capture that ends resets it.
        torch.cuda.synchronize(device)
        number = torch.zeros((), device=device)
        _graph_of(number.zero_)
        raise


def _graph_of(call: Callable[[], object]) -> "torch.cuda.CUDAGraph":
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph
