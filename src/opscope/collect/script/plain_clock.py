"""A mere clock at the boundaries of a script's steps: how long they take without the rest of opscope."""

import os
import sys
import threading
import time
from itertools import pairwise
from statistics import median
from typing import Any

from opscope.collect.script.found import grad_enabled
from opscope.collect.script.step_events import stream_of
from opscope.collect.script.watcher import EnoughMeasured
from opscope.record.capture import OwnClock, StepKind, StepsFound


class PlainClock:
    """Notes when each boundary is passed; an `opscope.collect.script.signals.Listener`.

    Args:
        steps: the steps that an earlier run timed: what bounds them, and how many boundaries came before.
        interrupted: whether something else came between them.
        annotation: the name of the ranges, if these are the steps; None otherwise.
    """

    def __init__(self, steps: StepsFound, interrupted: bool, annotation: str | None) -> None:
        self._kind, self._steps, self._interrupted = stream_of(steps), steps, interrupted
        self._annotation = annotation
        self._stamps: list[int] = []
        # The index of the boundary that ends the last timed step; stamps begin with the script's first boundary.
        self._last = steps.before + steps.timed
        self._pid, self._main = os.getpid(), threading.get_ident()

    def result(self) -> OwnClock | None:
        """Return how long the same steps took; None if the script ended before them."""
        stamps = self._stamps[self._steps.before :]
        timed, events = self._steps.timed, self._steps.events
        cycles = timed // events
        if len(stamps) <= timed or not cycles:
            return None
        each = [after - before for before, after in pairwise(stamps[: timed + 1 : events])]
        # Where something came between the steps, single ones cannot be told apart: only the whole time counts.
        mean = round((stamps[timed] - stamps[0]) * events / timed)
        return OwnClock(mean, None if self._interrupted else round(median(each)), cycles)

    # ---------------------------------------------------------------- signals

    def optimizer_made(self, optimizer: Any) -> None:
        """Ignore it: this is not a boundary."""

    def optimizer_stepped(self, _optimizer: Any) -> None:
        """Note the end of an outermost ``step()``."""
        if self._kind is StepKind.TRAINING:
            self._note()

    def module_called(self, module: Any, _arguments: tuple[Any, ...], _named: dict[str, Any]) -> None:
        """Note the beginning of an outermost module call, if it is of the kind that bounds the steps."""
        if self._kind is StepKind.CALLS:
            if module.training and grad_enabled():
                self._note()
        elif self._kind is StepKind.EVALUATION and not (module.training and grad_enabled()):
            self._note()

    def graph_replayed(self, _graph: Any) -> None:
        """Note the beginning of a replay of a CUDA graph."""
        if self._kind is StepKind.REPLAYS:
            self._note()

    def range_begins(self, name: str) -> None:
        """Note the beginning of a range that is a step."""
        if name == self._annotation:
            self._note()

    def profiler_prepares(self, profiler: Any) -> None:
        """Ignore it: this is not a boundary."""

    def trace_exported(self, profiler: Any, path: Any) -> None:
        """Ignore it: this is not a boundary."""

    def _note(self) -> None:
        self._stamps.append(time.perf_counter_ns())
        # Only the main thread of the script's own process may end the script.
        if len(self._stamps) > self._last and threading.get_ident() == self._main and os.getpid() == self._pid:
            sys.stdout.flush()
            raise EnoughMeasured(0)
