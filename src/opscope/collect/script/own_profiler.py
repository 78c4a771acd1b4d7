"""The profiler that a script has of its own: PyTorch has one at a time, so what that one recorded is what there is."""

import shutil
import traceback
from pathlib import Path
from typing import Any

from opscope.record.capture import RawTrace


class OwnProfiler:
    """Follows the profilers that a script starts, and keeps what the last one recorded.

    Args:
        trace: where its trace is kept.
    """

    def __init__(self, trace: Path) -> None:
        self._path = trace
        self._last: Any = None
        self._copied: Any = None

    @property
    def was_used(self) -> bool:
        """Whether the script started one."""
        return self._last is not None

    def started(self, profiler: Any) -> None:
        """A profiler of the script's starts: a ``torch.autograd.profiler.profile``."""
        self._last = profiler

    def exported(self, profiler: Any, path: Any) -> None:
        """The script wrote a trace; PyTorch gives it once only, so it is copied."""
        if profiler is not self._last:
            return
        try:
            shutil.copyfile(path, self._path)
            self._copied = profiler
        except OSError:  # a script must not fail because it is watched
            traceback.print_exc()

    def kept(self) -> RawTrace | None:
        """Return the trace of the last one; None where it never ended, or left nothing."""
        if self._last is None:
            return None
        if self._copied is self._last:
            return RawTrace(self._path.name)
        if getattr(self._last, "kineto_results", None) is None:
            return None
        from opscope.collect.torch_profiler import write_trace  # imports PyTorch, which the script does first

        try:
            return RawTrace(self._path.name, write_trace(self._last, self._path))
        except Exception:  # it is of a state that PyTorch cannot write
            traceback.print_exc()
            return None
