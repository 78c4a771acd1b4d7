"""Profiles a few cycles of a script's steady state: first device activities alone, then operators as well."""

from pathlib import Path
from typing import Any, Final

from opscope.collect.script.found import current_device, synchronize_if_used
from opscope.record.capture import RawTrace
from opscope.record.configuration import CaptureOptions, Schedule

_WARM_UP: Final = 1  # cycles of each pass before those that are recorded


class Passes:
    """Runs the passes one after the other, each over the same number of cycles.

    A process in which operators were profiled stays slower, so the light pass, which records device activities only,
    comes first. There is no light pass without a GPU, or if only one kind of activities is asked for.
    """

    def __init__(self, options: CaptureOptions, trace: Path, light: Path | None) -> None:
        """Set up the passes.

        Args:
            options: what is collected, and how many cycles.
            trace: where the trace with operators goes.
            light: where the trace of device activities only goes; None for no light pass.
        """
        self.light: RawTrace | None = None
        self.trace: RawTrace | None = None
        self.durations_ns: list[int] = []  # of the profiled cycles of the pass with names
        self.starting = False
        self.began = False  # whether a profiler was ever started
        self._options, self._path, self._light_path = options, trace, light
        self._profiler: Any = None
        self._is_light = False
        self._cycles = 0

    @property
    def running(self) -> bool:
        """Whether a profiler runs."""
        return self._profiler is not None

    @property
    def usable(self) -> bool:
        """Whether the pass with operators is running and has recorded at least one cycle."""
        return self.running and not self._is_light and bool(self.durations_ns)

    def owns(self, profiler: Any) -> bool:
        """Tell whether a profiler that is about to start belongs to these passes."""
        return self.starting or (self.running and self._profiler.profiler is profiler)

    def begin(self) -> None:
        """Start the first pass."""
        self.light, self.trace = None, None
        self._is_light = self._light_path is not None
        self._start()

    def cycle(self, duration_ns: int) -> bool:
        """Note the end of a cycle; after the last one of a pass, go on to the next pass.

        Args:
            duration_ns: how long the cycle took, by the host's clock.

        Returns:
            Whether all traces are written.
        """
        self._cycles += 1
        if self._cycles > _WARM_UP and not self._is_light:
            self.durations_ns.append(duration_ns)
        # The light pass has one more cycle in front, whose end tells where the first of the others begins.
        if self._cycles < _WARM_UP + self.active + self._is_light:
            if self._cycles == _WARM_UP:
                synchronize_if_used()  # what the warm-up cycle launched must not run within the first step
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
        path = self._light_path if self._is_light and self._light_path else self._path
        written = RawTrace(path.name, write_trace(self._profiler, path))
        self._profiler = None
        if not self._is_light:
            self.trace = written
            return True
        self.light, self._is_light = written, False
        self._start()
        return False

    def abandon(self) -> None:
        """Stop the running pass and keep no trace, not even that of the light pass."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
        if self.light is not None and self._light_path is not None:
            self._light_path.unlink(missing_ok=True)
        self.light = None

    @property
    def active(self) -> int:
        """How many cycles each pass profiles."""
        return (self._options.schedule or Schedule()).active

    def _start(self) -> None:
        from opscope.collect.torch_profiler import TorchProfiler

        synchronize_if_used()
        collector = TorchProfiler(self._options, current_device())
        alone = collector.of_device_only() if self._is_light else None
        self._is_light = alone is not None
        collector = alone or collector
        self._cycles, self.durations_ns = 0, []
        self._profiler = collector.profiler(Schedule(0, _WARM_UP, self.active + self._is_light, 1))
        self.starting = self.began = True
        try:
            self._profiler.start()
        finally:
            self.starting = False
        collector.describe(self._profiler)
