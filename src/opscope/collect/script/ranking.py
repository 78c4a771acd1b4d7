"""Which of the repetitions of a script are its steps, and what another run of it is to make up."""

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opscope.collect.script.step_events import Stream
from opscope.record.step_kinds import ScriptRun, StepKind, StepsFound, WantedSteps

# The best first. Training ends with an optimizer's step; module calls that record gradients are training whose updates
# are not heard, or inference without no_grad; a graph is replayed for what is done again and again; evaluations come
# before, between and after steps of training.
RANKED: Final = (
    StepKind.TRAINING,
    StepKind.CALLS,
    StepKind.REPLAYS,
    StepKind.EVALUATION,
    StepKind.ANNOTATION,  # only where it is asked for
)
_WHAT: Final = {
    StepKind.TRAINING: "optimizer steps",
    StepKind.CALLS: "module calls",
    StepKind.REPLAYS: "graph replays",
    StepKind.EVALUATION: "module calls without gradients",
    StepKind.ANNOTATION: "ranges",
    StepKind.OPERATORS: "operators",
}
_REPEATS: Final = 3  # that tell a repetition from a few calls
_CYCLES_OF_A_RUN: Final = 40  # that finding, settling and profiling fit into, with room for what interrupts them
_TIMED: Final = 3  # cycles that are worth keeping from a run that ended too soon


def what(kind: StepKind) -> str:
    """Return what a step is bounded by, in the plural."""
    return _WHAT[kind]


def stream_of(steps: StepsFound) -> StepKind:
    """Return the kind of the events that bound some steps: updates that no optimizer makes are seen at calls."""
    return next((kind for kind, name in _WHAT.items() if name == steps.boundary), steps.kind)


class Expected:
    """Knows whether steps of a better kind may still come.

    Args:
        run: what is wanted.
        streams: what was seen.
    """

    def __init__(self, run: ScriptRun, streams: Mapping[StepKind, Stream]) -> None:
        self.began = time.monotonic()
        self._run, self._streams = run, streams
        self._optimizers: list[weakref.ref[Any]] = []

    @property
    def optimizers(self) -> int:
        """How many optimizers there are."""
        self._optimizers = [one for one in self._optimizers if one() is not None]
        return len(self._optimizers)

    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer was set up; it cannot be without parameters."""
        self._optimizers.append(weakref.ref(optimizer))

    def wants(self, kind: StepKind) -> bool:
        """Tell whether steps of a kind may be taken at all."""
        asked = self._run.wanted.kind
        if asked is not None:
            return kind is asked
        return kind is not StepKind.ANNOTATION

    def better_than(self, kind: StepKind) -> bool:
        """Tell whether steps of a better kind may still come.

        An optimizer is there to step. How long a script prepares, evaluates and loads before it does, nobody knows: so
        it is waited for until the script's end, or until half of its time is over.
        """
        if self._run.wanted.kind is not None or kind is StepKind.TRAINING:
            return False
        if self._run.patience_s is not None and time.monotonic() - self.began > self._run.patience_s:
            return False
        return bool(self._streams[StepKind.TRAINING].events.count) or bool(self.optimizers)


def next_run(
    run: ScriptRun, streams: Mapping[StepKind, Stream], timed: Sequence[int], *, by_device: bool = False
) -> ScriptRun:
    """Return what another run is to make up for one that ended without a profile.

    Args:
        run: the one that ended.
        streams: what was seen in it.
        timed: the steps that it timed without a profiler.
        by_device: whether these are between marks on the device.
    """
    kind = run.wanted.kind or _best(streams)
    wanted = WantedSteps(kind, run.wanted.annotation)
    wall = tuple(timed) if len(timed) >= _TIMED else ()
    cycles = 0 if kind is None or kind not in streams else _cycles(streams[kind])
    enough = cycles >= _CYCLES_OF_A_RUN
    if enough:
        reason = "The script was run twice: the first run ended before the steps could be profiled"
    elif kind is None:
        reason = "The script was run twice: the first run showed no boundaries of steps, so the second was recorded"
    else:
        reason = "The script was run twice: the first run was too short, so the second was recorded from its beginning"
    return ScriptRun(
        wanted=wanted,
        records=not enough,
        may_repeat=False,
        wall_ns=wall,
        by_device=by_device,
        most_timed=cycles // 2,
        reason=reason,
    )


def _best(streams: Mapping[StepKind, Stream]) -> StepKind | None:
    for least in (_REPEATS, 1):
        for kind in RANKED:
            if streams[kind].events.count >= least and kind is not StepKind.ANNOTATION:
                return kind
    return None


def _cycles(stream: Stream) -> int:
    objects = len(set(stream.events.keys[1]))
    return stream.events.count // max(1, objects)
