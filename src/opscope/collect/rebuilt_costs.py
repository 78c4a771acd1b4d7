"""Costs of calls that no rule knows: PyTorch counts them on meta tensors, which hold no data, in a separate process.

A trace may be anyone's, and the calls that it records may be made up. So they run in a process that can neither write
files nor take much memory or time (`meta_worker.confine`), and only if `replayable` allows them.
"""

import contextlib
import json
import os
import selectors
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from opscope.analysis.costs.sums import LaunchShape
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process
from opscope.knowledge.categories import Category
from opscope.knowledge.costs import Cost
from opscope.knowledge.dtypes import recorded_dtype
from opscope.record.meta import MetaAnswer, MetaCall, Rebuilt

# Kinds of work that read every element of their inputs; for other kinds only the written bytes are certain.
_READ_WHOLE: Final = frozenset(
    {
        *(Category.MATRIX, Category.CONVOLUTION, Category.NORMALIZATION, Category.ACTIVATION, Category.LOSS),
        *(Category.ELEMENTWISE, Category.REDUCTION, Category.DISTANCE, Category.FFT),
    }
)
_START_S: Final = 60.0  # importing PyTorch takes 2 to 10 s on slow disks
_CALL_S: Final = 5.0  # a call takes a millisecond; one that takes seconds is not a call of a real program
_MOST_PROCESSES: Final = 3  # a call that ends the process is skipped; after three such calls none is tried any more
_LONGEST_ANSWER: Final = 1 << 16  # bytes of a line
MadeAgain = Callable[[LaunchShape], Rebuilt | None]


def least_cost(row: LaunchShape, category: Category, made_again: MadeAgain) -> Cost | None:
    """Return the least work of a call, as far as it is certain.

    Args:
        row: the recorded call.
        category: what kind of work it is.
        made_again: makes the call again; returns None if it could not.

    Returns:
        The cost; None if the call cannot be made again, or nothing of what it reads and writes is certain.
    """
    result = made_again(row)
    if result is None:
        return None
    # Of other kinds, a read may be of a part, and an indexed write in place may touch a single element.
    read = result.read_bytes if category in _READ_WHOLE else 0
    written = result.new_bytes + (result.rewritten_bytes if category in _READ_WHOLE else 0)
    if not read + written:
        return None
    dtype = next((d for d in map(recorded_dtype, json.loads(row.input_types or "[]")) if d is not None), None)
    return Cost(read + written, result.flop, result.flop, dtype=dtype)


@contextlib.contextmanager
def costs_by_pytorch() -> Iterator[Callable[[LaunchShape, Category], Cost | None]]:
    """Provide a function that returns the cost of a recorded call; its first call starts PyTorch.

    ::

        with costs_by_pytorch() as rebuild:
            analysis = replace(analysis, rebuild=rebuild)
    """
    with scratch() as empty:
        process = _MetaProcess(empty)
        try:
            yield lambda row, category: least_cost(row, category, process.made_again)
        finally:
            process.end()


class _MetaProcess(Struct):
    """Makes calls in a process, and starts another process after a call that ended it.

    Attributes:
        folder: an empty folder, in which the process runs.
        process: the one that runs; None before the first call and after one that failed.
        started: how many processes were started.
    """

    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    started: int = 0

    def made_again(self, row: LaunchShape) -> Rebuilt | None:
        """Make a recorded call again; return None if that is not allowed, or fails in any way."""
        if row.operator is None or not row.input_strides:
            return None
        dims, types, values = (text or "[]" for text in (row.input_dims, row.input_types, row.concrete_inputs))
        call = MetaCall(row.operator, dims, types, row.input_strides, values)
        process = self._running()
        if process is None or process.stdin is None:
            return None
        try:
            process.stdin.write(msgspec.json.encode(call) + b"\n")
            process.stdin.flush()
            answer = self._answer(process, _CALL_S)
        except OSError:
            answer = None
        if answer is None:
            # A late answer would be taken for that of the next call, so the process is not used again.
            self.end()
            return None
        return answer.rebuilt

    def _running(self) -> "subprocess.Popen[bytes] | None":
        """Return the process, started and confined; None if it does not start, or too many were started."""
        if self.process is not None or self.started >= _MOST_PROCESSES:
            return self.process
        self.started += 1
        self.process = subprocess.Popen(
            own_process("opscope.collect.meta_worker"),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=own_environment(),
            start_new_session=True,
        )
        # The first line says that the process is ready. Where one does not get there, another would not either.
        if self._answer(self.process, _START_S) is None:
            self.end()
            self.started = _MOST_PROCESSES
        return self.process

    @staticmethod
    def _answer(process: "subprocess.Popen[bytes]", seconds: float) -> MetaAnswer | None:
        """Read one answer; return None if none comes in time, or the line is not an answer."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        # One write of fewer bytes than a pipe holds arrives whole.
        line = os.read(process.stdout.fileno(), _LONGEST_ANSWER)
        try:
            return msgspec.json.decode(line, type=MetaAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def end(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
