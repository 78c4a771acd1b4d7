"""PyTorch's history of a GPU's memory: recorded around profiled steps, and kept as a snapshot."""

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
_MOST_REFUSED: Final = 3  # snapshots of a program that runs out of memory on purpose, to find how much fits
_GAVE_WAY: Final = "the script records a history of its own: opscope memory reads the snapshot that it writes"


class MemoryHistory:
    """Records the history, and writes snapshots of it.

    Where a request is refused, a snapshot is written at once: nothing may run after that. While steps are timed,
    nothing is recorded; what was allocated before keeps its stack.

    Args:
        path: where the snapshot goes.

    Attributes:
        refused: how many requests were refused.
        recording: whether the history is recorded now.
        reason: why there is no history; None where there is one, or may yet be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.refused, self.recording = 0, False
        self.reason: str | None = "nothing was allocated on a GPU"
        self._used, self._own = False, False
        self._record: Callable[..., Any] = torch.cuda.memory._record_memory_history

    @property
    def usable(self) -> bool:
        """Whether a GPU is in use, and its history can be recorded."""
        return self._used and self.reason is None

    def begin(self) -> None:
        """Record from the first use of a GPU on; a program that records its own history is left alone."""
        torch.cuda.memory._record_memory_history = self._of_program
        torch.cuda._lazy_call(self._first_used)

    def _first_used(self) -> None:
        self._used, self.reason = True, None
        self.resume()
        try:
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        except Exception:  # a program must not fail because it is watched
            traceback.print_exc()

    def _of_program(self, *arguments: Any, **named: Any) -> None:
        self._own, self.reason = True, _GAVE_WAY
        self._record(*arguments, **named)

    def resume(self) -> None:
        """Record what happens before steps are timed."""
        self._set("all", _MOST_BEFORE)

    def pause(self) -> None:
        """Record nothing, as it takes time."""
        self._set(None)

    def only_alive(self) -> None:
        """Note the stacks of what is allocated, without a history."""
        self._set("state")

    def anew(self) -> None:
        """Begin a history."""
        self.pause()  # drops what there is
        self._set("all", _MOST)

    def _set(self, what: str | None, most: int = _MOST) -> None:
        if not self.usable:
            return
        try:
            self._record(what, context=what, stacks="python", max_entries=most)
            self.recording = what == "all"
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
        return True

    def _out_of_memory(self, _device: int, _asked: int, _whole: int, _free: int) -> None:
        """Keep what led to a refused request; PyTorch calls this, before it raises."""
        self.refused += 1
        if self.refused > _MOST_REFUSED:
            return
        began = time.monotonic()
        if self.keep():
            took = time.monotonic() - began
            sys.stderr.write(f"opscope: out of memory; a snapshot was written to {self._path.name} ({took:.1f} s)\n")
