"""Profiles a few cycles of a script's steady state: device activities alone, then operators, then memory if asked."""

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
        return self.running and self._pass is not _Pass.LIGHT and bool(self.durations_ns)

    def owns(self, profiler: Any) -> bool:
        """Tell whether a profiler that is about to start belongs to these passes."""
        return self.starting or (self.running and self._profiler.profiler is profiler)

    def begin(self) -> None:
        """Start the first pass."""
        self.light, self.trace, self.memory, self._further_ns = None, None, None, {}
        if self.history is not None:
            self.history.pause()
        self._start(_Pass.NAMES if self._paths[_Pass.LIGHT] is None else _Pass.LIGHT)

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

    def stop(self) -> bool:
        """Stop the running pass at a boundary and write its trace; start the next pass if there is one.

        Returns:
            Whether all traces are written.
        """
        from opscope.collect.torch_profiler import write_trace

        synchronize_if_used()
        self._profiler.stop()
        if self._pass is _Pass.BESIDE:
            return self._goes_on()
        path = self._paths[self._pass]
        assert path is not None
        written = RawTrace(path.name, write_trace(self._profiler, path))
        self._profiler = None
        if self._pass is _Pass.LIGHT:
            self.light = written
            self._start(_Pass.NAMES)
            return False
        if self._pass is _Pass.MEMORY:
            self.memory = self._kept(written.file)
            return True
        self.trace = written
        if self._paths[_Pass.MEMORY] is None or self.history is None or not self.history.usable or not on_device():
            self.memory = None if self.history is None else MemoryRecording(reason=self.history.reason)
            return True
        self._start(_Pass.BESIDE)
        return False

    def _goes_on(self) -> bool:
        """Begin to record memory, unless the steps before were interrupted; return whether all traces are written."""
        self._profiler = None
        if len(self._further_ns[_Pass.BESIDE]) < self.active:
            self.memory = MemoryRecording(reason=_INTERRUPTED)
            return True
        self._start(_Pass.MEMORY)
        return False

    def _kept(self, trace: str) -> MemoryRecording:
        """Keep a snapshot of the pass that has just ended."""
        assert self.history is not None
        if not self._further_ns[_Pass.MEMORY]:
            return MemoryRecording(reason=_INTERRUPTED)
        if not self.history.keep():
            return MemoryRecording(reason=self.history.reason)
        self.history.pause()
        with_ns, without_ns = (tuple(self._further_ns[one]) for one in (_Pass.MEMORY, _Pass.BESIDE))
        return MemoryRecording("", trace, with_ns, without_ns)

    def abandon(self) -> None:
        """Stop the running pass and keep no trace, not even that of an earlier pass."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
        light = self._paths[_Pass.LIGHT]
        if self.light is not None and light is not None:
            light.unlink(missing_ok=True)
        self.light = None

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
