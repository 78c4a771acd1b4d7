"""Nothing but a clock at the boundaries of a script's steps: what the script takes without the rest of opscope."""

import os
import sys
import threading
import time
from itertools import pairwise
from statistics import mean, median
from typing import Any

from opscope.collect.script.questions import grad_enabled
from opscope.collect.script.ranking import stream_of
from opscope.collect.script.watcher import EnoughMeasured
from opscope.record.step_kinds import OwnClock, StepKind, StepsFound


class PlainClock:
    """Notes when each boundary is passed; `opscope.collect.script.signals.Listener`.

    Args:
        steps: what bounds them, and how many boundaries came before those that were timed.
        cycles: how many were timed.
        annotation: the name of the ranges, where these are the steps.
    """

    def __init__(self, steps: StepsFound, cycles: int, annotation: str | None) -> None:
        self._kind, self._steps, self._cycles = stream_of(steps), steps, cycles
        self._annotation = annotation
        self._stamps: list[int] = []
        self._last = steps.before + max(cycles * steps.events, steps.timed)
        self._pid, self._main = os.getpid(), threading.get_ident()

    def result(self) -> OwnClock | None:
        """Return how long the same steps took; None where the script came to fewer."""
        stamps = self._stamps[self._steps.before :]
        cycles = self._cycles
        if len(stamps) <= self._steps.timed or not cycles:
            return None
        starts = stamps[:: self._steps.events][: cycles + 1]
        each = [after - before for before, after in pairwise(starts)]
        regular = self._steps.timed == cycles * self._steps.events
        whole = (stamps[self._steps.timed] - stamps[0]) / cycles
        return OwnClock(
            round(mean(each)) if regular else round(whole), round(median(each)) if regular else None, cycles
        )

    # ---------------------------------------------------------------- signals

    def optimizer_made(self, optimizer: Any) -> None:
        """Is no boundary."""

    def optimizer_stepped(self, _optimizer: Any) -> None:
        """An outermost ``step()`` has ended."""
        if self._kind is StepKind.TRAINING:
            self._note()

    def module_called(self, module: Any, _arguments: tuple[Any, ...], _named: dict[str, Any]) -> None:
        """An outermost call of a module begins."""
        if self._kind is StepKind.CALLS:
            if module.training and grad_enabled():
                self._note()
        elif self._kind is StepKind.EVALUATION and not (module.training and grad_enabled()):
            self._note()

    def graph_replayed(self, _graph: Any) -> None:
        """A replay of a CUDA graph begins."""
        if self._kind is StepKind.REPLAYS:
            self._note()

    def range_begins(self, name: str) -> None:
        """A range with a name begins."""
        if name == self._annotation:
            self._note()

    def profiler_prepares(self, profiler: Any) -> None:
        """Is no boundary."""

    def trace_exported(self, profiler: Any, path: Any) -> None:
        """Is no boundary."""

    def _note(self) -> None:
        self._stamps.append(time.perf_counter_ns())
        if len(self._stamps) > self._last and threading.get_ident() == self._main and os.getpid() == self._pid:
            sys.stdout.flush()
            raise EnoughMeasured(0)
