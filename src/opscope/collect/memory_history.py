"""PyTorch's history of a GPU's memory: recorded around profiled steps, and kept as a snapshot."""

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from opscope.base.files import write_whole

# Of some 200 bytes each, and some microseconds: a step of a large model has ten thousand of them.
_MOST_BEFORE: Final = 200_000  # entries until steps are timed, the last ones
_MOST: Final = 1_000_000
_LONGEST_S: Final = 30.0  # that a program waits for snapshots, if it runs out of memory again and again on purpose
_GAVE_WAY: Final = "the script records a history of its own: opscope memory reads the snapshot that it writes"


class MemoryHistory:
    """Records the history, and writes snapshots of it.

    Where a request is refused, a snapshot is written at once: nothing may run after that. While steps are timed,
    nothing is recorded; what was allocated before keeps its stack. Processes that the program forks record nothing.

    Args:
        path: where the snapshot goes.

    Attributes:
        recording: whether the history is recorded now.
        has_refused: whether the snapshot is of a refused request, the last one.
        reason: why there is no history; None where there is one, or may yet be.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._pid = path, os.getpid()
        self.recording, self.has_refused = False, False
        self.reason: str | None = "nothing was allocated on a GPU"
        self._used, self._own, self._ended = False, False, False
        self._waited_s = 0.0
        self._record: Callable[..., Any] = torch.cuda.memory._record_memory_history

    @property
    def usable(self) -> bool:
        """Whether a GPU is in use, and its history can be recorded."""
        return self._used and self.reason is None and not self._ended and os.getpid() == self._pid

    def begin(self) -> None:
        """Record from the first use of a GPU on; a program that records its own history is left alone."""
        torch.cuda.memory._record_memory_history = self._of_program
        torch.cuda._lazy_call(self._first_used)

    def _first_used(self) -> None:
        if self._own or os.getpid() != self._pid:
            return
        self._used, self.reason = True, None
        self.resume()
        try:
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        except Exception:  # a program must not fail because it is watched
            traceback.print_exc()

    def _of_program(self, enabled: str | None = "all", *arguments: Any, **named: Any) -> None:
        if enabled is None and not self._own:  # it has none to end
            return
        self._own, self.recording, self.reason = True, False, _GAVE_WAY
        self._record(enabled, *arguments, **named)

    def resume(self) -> None:
        """Record what happens before steps are timed."""
        self._set("all", _MOST_BEFORE)

    def pause(self) -> None:
        """Record nothing, as it takes time."""
        self._set(None)

    def end(self) -> None:
        """Record nothing any more, and leave the snapshot as it is."""
        self.pause()
        self._ended = True

    def only_alive(self) -> None:
        """Note the stacks of what is allocated, without a history."""
        self._set("state")

    def anew(self) -> None:
        """Begin a history."""
        self.pause()  # drops what there is
        self._set("all", _MOST)

    def _set(self, mode: str | None, most: int = _MOST) -> None:
        if not self.usable:
            return
        try:
            self._record(mode, context=mode, stacks="python", max_entries=most)
            self.recording = mode == "all"
        except Exception as error:  # another allocator than PyTorch's own, such as cudaMallocAsync
            self.recording, self.reason = False, f"PyTorch could not record it ({type(error).__name__}: {error})"

    def keep(self) -> bool:
        """Write a snapshot, in place of an earlier one; return whether that could be done."""
        if not self.usable:
            return False
        try:
            write_whole(self._path, pickle.dumps(torch.cuda.memory._snapshot(), protocol=4))
        except Exception as error:
            self.reason = f"the snapshot could not be written ({type(error).__name__}: {error})"
            return False
        self.has_refused = False
        return True

    def _out_of_memory(self, _device: int, _asked: int, _whole: int, _free: int) -> None:
        """Keep what led to a refused request; PyTorch calls this, before it raises."""
        began = time.monotonic()
        kept = self._waited_s < _LONGEST_S and self.keep()
        self.has_refused = kept  # an earlier one does not explain this one
        self._waited_s += time.monotonic() - began
        if not self.has_refused:
            return
        history = "" if self.recording else "; its history was not recorded while steps were timed or profiled"
        sys.stderr.write(f"opscope: out of memory; a snapshot was written to {self._path.name}{history}\n")
