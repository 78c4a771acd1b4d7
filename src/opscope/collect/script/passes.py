"""Profiles a few cycles of a script's steady state: device activities alone, then operators, then memory if asked."""

import contextlib
import traceback
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from opscope.collect.script.found import current_device, on_device, synchronize_if_used
from opscope.record.capture import MemoryRecording, RawTrace
from opscope.record.configuration import CaptureOptions, Schedule

if TYPE_CHECKING:
    from opscope.collect.memory_history import MemoryHistory

_INTERRUPTED: Final = "something interrupted the steps while memory was recorded"
_WARM_UP: Final = 1  # cycles of each pass before those that are recorded


class _Pass(Enum):
    LIGHT = "device activities only"
    NAMES = "operators"
    BESIDE = "operators and allocations, to see what the next one costs; nothing of it is kept"
    MEMORY = "operators, allocations and the history of a GPU's memory"


class Passes:
    """Runs the passes one after the other, each over the same number of cycles.

    A process in which operators were profiled stays slower, so the light pass, which records device activities only,
    comes first. There is no light pass without a GPU, or if only one kind of activities is asked for. To record memory
    takes the host time, so that pass comes last, and no figure of the others is of it; one just like it without that
    history comes before.
    """

    def __init__(self, options: CaptureOptions, trace: Path, light: Path | None, memory: Path | None = None) -> None:
        """Set up the passes.

        Args:
            options: what is collected, and how many cycles.
            trace: where the trace with operators goes.
            light: where the trace of device activities only goes; None for no light pass.
            memory: where the trace of the pass goes that records memory; None for no such pass.
        """
        self.light: RawTrace | None = None
        self.trace: RawTrace | None = None
        self.history: MemoryHistory | None = None  # of a GPU's memory, once PyTorch was imported
        self.memory: MemoryRecording | None = None
        self.durations_ns: list[int] = []  # of the profiled cycles of the pass with names
        self.starting = False
        self.began = False  # whether a profiler was ever started
        self._options = options
        self._paths = {_Pass.LIGHT: light, _Pass.NAMES: trace, _Pass.MEMORY: memory}
        self._profiler: Any = None
        self._pass = _Pass.NAMES
        self._further_ns: dict[_Pass, list[int]] = {}  # durations of the passes after that
        self._cycles = 0

    @property
    def running(self) -> bool:
        """Whether a profiler runs."""
        return self._profiler is not None

    @property
    def usable(self) -> bool:
        """Whether a pass is running, and the one with operators has recorded at least one cycle."""
        return self.running and self._pass is not _Pass.LIGHT and bool(self.durations_ns)  # memory comes after names

    def owns(self, profiler: Any) -> bool:
        """Tell whether a profiler that is about to start belongs to these passes."""
        return self.starting or (self.running and self._profiler.profiler is profiler)

    @property
    def is_whole(self) -> bool:
        """Whether the profile is written, and only memory may yet be recorded."""
        return self.trace is not None and self._paths[_Pass.MEMORY] is not None

    def begin(self) -> bool:
        """Start the first pass; after an interruption of those that record memory, the first one of these.

        Returns:
            Whether all traces are written, as memory cannot be recorded.
        """
        if self.is_whole:
            return self._begin_memory()
        self.light, self.trace, self.memory = None, None, None
        if self.history is not None:
            self.history.pause()
        self._start(_Pass.NAMES if self._paths[_Pass.LIGHT] is None else _Pass.LIGHT)
        return False

    def cycle(self, duration_ns: int) -> bool:
        """Note the end of a cycle; after the last one of a pass, go on to the next pass.

        Args:
            duration_ns: how long the cycle took, by the host's clock.

        Returns:
            Whether all traces are written.
        """
        self._cycles += 1
        if self._cycles > _WARM_UP and self._pass is not _Pass.LIGHT:
            self._further_ns.get(self._pass, self.durations_ns).append(duration_ns)
        # The light pass has one more cycle in front, whose end tells where the first of the others begins.
        if self._cycles < _WARM_UP + self.active + (self._pass is _Pass.LIGHT):
            if self._cycles == _WARM_UP:
                synchronize_if_used()  # what the warm-up cycle launched must not run within the first step
                if self._pass is _Pass.MEMORY and self.history is not None:
                    self.history.anew()
            self._profiler.step()
            return False
        return self.stop()

    def stop(self, *, is_last: bool = False) -> bool:
        """Stop the running pass at a boundary and write its trace; start the next pass if there is one.

        Args:
            is_last: whether no other pass is started after this one.

        Returns:
            Whether all traces are written.
        """
        if self.is_whole:
            return self._stop_memory(is_last=is_last)
        written = self._written()
        if self._pass is _Pass.LIGHT:
            self.light = written
            if not is_last:
                self._start(_Pass.NAMES)
            return is_last
        self.trace = written
        if self._paths[_Pass.MEMORY] is None or self.history is None:
            return True
        if is_last or not self.history.usable or not on_device():
            self.memory = MemoryRecording(reason=self.history.reason or _INTERRUPTED)
            return True
        return self._begin_memory()

    def _written(self) -> RawTrace:
        """Stop the running pass and write its trace."""
        from opscope.collect.torch_profiler import write_trace

        synchronize_if_used()
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        path = self._paths[self._pass]
        assert path is not None
        return RawTrace(path.name, write_trace(profiler, path))

    # ---- memory: whatever fails, the profile is there already

    def _begin_memory(self) -> bool:
        """Start the pass beside which memory is compared; return whether that is impossible."""
        return self._without_memory(lambda: self._start(_Pass.BESIDE))

    def _stop_memory(self, *, is_last: bool) -> bool:
        if self._pass is _Pass.BESIDE and not is_last:
            self.abandon()
            return self._without_memory(lambda: self._start(_Pass.MEMORY))
        if self._pass is _Pass.BESIDE or not self._further_ns[_Pass.MEMORY]:
            self.abandon()
            self.memory = MemoryRecording(reason=_INTERRUPTED)
            return True
        return self._without_memory(self._keep_memory) or True

    def _without_memory(self, function: Callable[[], None]) -> bool:
        """Do something; where it fails, note why memory is missing, and return True."""
        try:
            function()
        except Exception as error:  # in the midst of the script, which must not fail because it is watched
            traceback.print_exc()
            with contextlib.suppress(Exception):
                self.abandon()
            self.memory = MemoryRecording(reason=f"recording failed ({type(error).__name__}: {error})")
            return True
        return False

    def _keep_memory(self) -> None:
        """Keep a snapshot of the pass that has just ended."""
        assert self.history is not None
        trace = self._written().file
        if not self.history.keep():
            self.memory = MemoryRecording(reason=self.history.reason)
            return
        with_ns, without_ns = (tuple(self._further_ns[one]) for one in (_Pass.MEMORY, _Pass.BESIDE))
        self.memory = MemoryRecording("", trace, with_ns, without_ns)

    def abandon(self) -> None:
        """Stop the running pass and keep no trace, not even that of an earlier pass; but a whole profile stays."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
        if self.is_whole:
            return
        light = self._paths[_Pass.LIGHT]
        if self.light is not None and light is not None:
            light.unlink(missing_ok=True)
        self.light = None

    def without_memory(self) -> None:
        """Stop the running pass, and keep a whole profile without the memory that was to be recorded after it."""
        self.abandon()
        self.memory = self.memory or MemoryRecording(reason=_INTERRUPTED)

    @property
    def active(self) -> int:
        """How many cycles each pass profiles."""
        return (self._options.schedule or Schedule()).active

    def _start(self, which: _Pass) -> None:
        from opscope.collect.torch_profiler import TorchProfiler

        synchronize_if_used()
        collector = TorchProfiler(self._options, current_device())
        alone = collector.of_device_only() if which is _Pass.LIGHT else None
        if which is _Pass.LIGHT and alone is None:
            which = _Pass.NAMES
        if which in (_Pass.LIGHT, _Pass.NAMES):
            self.durations_ns = []
        else:
            collector = replace(collector, options=replace(self._options, profile_memory=True))
            self._further_ns[which] = []
            if which is _Pass.MEMORY and self.history is not None:
                self.history.only_alive()
        collector = alone or collector
        self._pass, self._cycles = which, 0
        self._profiler = collector.profiler(Schedule(0, _WARM_UP, self.active + (which is _Pass.LIGHT), 1))
        self.starting = self.began = True
        try:
            self._profiler.start()
        finally:
            self.starting = False
        collector.describe(self._profiler)
