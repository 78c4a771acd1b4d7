"""A script's own profiler: PyTorch can run one at a time, so only what that one recorded is available."""

import shutil
import traceback
from pathlib import Path
from typing import Any

from opscope.record.capture import RawTrace


class OwnProfiler:
    """Follows the profilers that a script starts, and keeps the recording of the last one.

    Args:
        trace: where that recording is kept.
    """

    def __init__(self, trace: Path) -> None:
        self._path = trace
        self._last: Any = None
        self._copied: Any = None

    @property
    def was_used(self) -> bool:
        """Whether the script started a profiler."""
        return self._last is not None

    def started(self, profiler: Any) -> None:
        """Note a ``torch.autograd.profiler.profile`` that the script starts."""
        self._last = profiler

    def exported(self, profiler: Any, path: Any) -> None:
        """Copy a trace that the script wrote, because PyTorch exports a trace only once."""
        if profiler is not self._last:
            return
        try:
            shutil.copyfile(path, self._path)
            self._copied = profiler
        except OSError:  # a script must not fail because it is watched
            traceback.print_exc()

    def kept(self) -> RawTrace | None:
        """Return the trace of the last profiler; None if it never ended, or left nothing that can be written."""
        if self._last is None:
            return None
        if self._copied is self._last:
            return RawTrace(self._path.name)
        if getattr(self._last, "kineto_results", None) is None:
            return None
        from opscope.collect.torch_profiler import write_trace  # imports PyTorch, which the script does first

        try:
            return RawTrace(self._path.name, write_trace(self._last, self._path))
        except Exception:  # the profiler is in a state that PyTorch cannot export
            traceback.print_exc()
            return None
