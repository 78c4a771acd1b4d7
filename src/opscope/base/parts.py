"""Parts of a report that fail, and how long stages take (``--timings``), which costs nothing unless it is recorded."""

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from msgspec import Struct

from opscope.base.errors import DEBUG, OpscopeError

# ---------------------------------------------------------------- parts that fail


T = TypeVar("T")
_RAISE: Final = "OPSCOPE_RAISE"  # the same for parts of reports alone; for tests


def raises() -> bool:
    """Tell whether a part that fails is to raise its error."""
    return bool(os.environ.get(DEBUG) or os.environ.get(_RAISE))


class Loss(Struct, frozen=True):
    """A part that failed.

    Attributes:
        part: what it is, for the middle of a sentence.
        reason: the error's type and message.
        traceback: where it was raised.
    """

    part: str
    reason: str
    traceback: str


class Losses:
    """Collects the parts of one report that failed; threads may share it."""

    def __init__(self) -> None:
        self._found: dict[str, Loss] = {}

    @property
    def found(self) -> tuple[Loss, ...]:
        """The parts that failed so far, each once."""
        return tuple(self._found.values())

    def part(self, name: str, make: Callable[[], T], instead: Callable[[], T]) -> T:
        """Return what a function makes; where that fails, note it and return what stands in its place.

        Args:
            name: what is made, for the middle of a sentence.
            make: makes it.
            instead: makes what stands in its place.

        Raises:
            OpscopeError: the user's request or input is wrong, or the machine lacks something: that is said as it is.
            MemoryError, OSError: likewise.
            Exception: anything, if `raises`.
        """
        try:
            return make()
        except (OpscopeError, MemoryError, OSError):
            raise
        except Exception as error:  # of whatever kind: it is a fault of opscope's own
            if raises():
                raise
            self.add(name, error)
            return instead()

    def add(self, name: str, error: Exception) -> Loss:
        """Note that a part failed; return the note."""
        message = str(error).partition("\n")[0]
        reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
        loss = Loss(name, reason, "".join(traceback.format_exception(error)))
        return self._found.setdefault(name, loss)


# ---------------------------------------------------------------- stages


P = ParamSpec("P")
R = TypeVar("R")


class Stage(StrEnum):
    """A stage of a command that analyses a trace, in the order in which they begin."""

    IMPORT = "import"
    READ = "read"
    TABLES = "tables"
    LINK = "link"
    NEST = "nest"
    ATTRIBUTE = "attribute"
    VERDICT = "verdict"
    LIMITS = "limits"
    FINDINGS = "findings"
    DOCUMENT = "document"
    RENDER = "render"


class StageRun(Struct, frozen=True):
    """One run of a stage on one thread.

    Attributes:
        stage: the stage.
        begin_ns, end_ns: when it ran, by ``time.perf_counter_ns``.
        own_ns: its length without the stages that ran inside it on the same thread.
        cpu_ns: how long its thread was on a core meanwhile, without these either.
    """

    stage: Stage
    begin_ns: int
    end_ns: int
    own_ns: int
    cpu_ns: int


class _Recorder:
    def __init__(self) -> None:
        self.spans: list[StageRun] = []
        self.open = threading.local()  # per thread the time of stages inside the one that runs: [wall, cpu]


_recorder: _Recorder | None = None


def record_stages() -> None:
    """Begin to record; what was recorded before is dropped."""
    global _recorder  # noqa: PLW0603  one process has one command
    _recorder = _Recorder()


def stop_recording() -> tuple[StageRun, ...]:
    """End the recording; return what was recorded, in the order in which it ended."""
    global _recorder
    spans, _recorder = recorded_stages(), None
    return spans


def recorded_stages() -> tuple[StageRun, ...]:
    """Return what was recorded, in the order in which it ended."""
    return tuple(_recorder.spans) if _recorder is not None else ()


@contextmanager
def stage(which: Stage) -> Iterator[None]:
    """Record what runs inside as a stage; stages inside it on the same thread count for themselves."""
    recorder = _recorder
    if recorder is None:
        yield
        return
    outer = getattr(recorder.open, "inside", None)
    inside = recorder.open.inside = [0, 0]
    begin, cpu = time.perf_counter_ns(), time.thread_time_ns()
    try:
        yield
    finally:
        end, cpu = time.perf_counter_ns(), time.thread_time_ns() - cpu
        recorder.spans.append(StageRun(which, begin, end, end - begin - inside[0], cpu - inside[1]))
        if outer is not None:
            outer[0] += end - begin
            outer[1] += cpu
        recorder.open.inside = outer


def staged(which: Stage) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record every call of a function as a stage."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with stage(which):
                return function(*args, **kwargs)

        return call

    return decorate
