"""Which of a script's repetitions are its steps, and what another run of the script has to make up for."""

import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

from opscope.collect.script.step_events import Stream
from opscope.record.step_kinds import ScriptRun, StepKind, StepsFound, Timed, WantedSteps

# The best first. Training ends with an optimizer's step. Module calls that record gradients are training whose updates
# are not observed, or inference without no_grad. A graph is replayed for work that is done again and again. Evaluations
# come before, between and after steps of training.
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
_REPEATS: Final = 3  # this many events are a repetition, and not just a few calls
_CYCLES_OF_A_RUN: Final = 40  # finding, settling and profiling fit into these, with room for interruptions
_TIMED: Final = 3  # the fewest timed cycles that are worth keeping from a run that ended too soon


def what(kind: StepKind) -> str:
    """Return what bounds the steps of a kind, in the plural."""
    return _WHAT[kind]


def stream_of(steps: StepsFound) -> StepKind:
    """Return the kind of the events that bound steps.

    It differs from the steps' kind for training without an observed optimizer, whose updates are seen at module calls.
    """
    return next((kind for kind, name in _WHAT.items() if name == steps.boundary), steps.kind)


class Expected:
    """Knows whether steps of a better kind may still come.

    Args:
        run: which steps are wanted, and how long to wait for better ones.
        streams: the events seen so far, by kind; kept up to date by the caller.
    """

    def __init__(self, run: ScriptRun, streams: Mapping[StepKind, Stream]) -> None:
        self.began = time.monotonic()
        self._run, self._streams = run, streams
        self._optimizers: list[weakref.ref[Any]] = []

    @property
    def optimizers(self) -> int:
        """How many optimizers are alive."""
        self._optimizers = [one for one in self._optimizers if one() is not None]
        return len(self._optimizers)

    def optimizer_made(self, optimizer: Any) -> None:
        """Note an optimizer that was set up; PyTorch makes none without parameters, so it is there to step."""
        self._optimizers.append(weakref.ref(optimizer))

    def wants(self, kind: StepKind) -> bool:
        """Tell whether steps of a kind may be taken at all."""
        asked = self._run.wanted.kind
        if asked is not None:
            return kind is asked
        return kind is not StepKind.ANNOTATION

    def better_than(self, kind: StepKind) -> bool:
        """Tell whether steps of a better kind may still come.

        An optimizer is there to step, but a script may prepare, evaluate and load for any length of time before that.
        So training is expected until the script ends, or until the run's patience (`ScriptRun.patience_s`) is over.
        """
        if self._run.wanted.kind is not None or kind is StepKind.TRAINING:
            return False
        if self._run.patience_s is not None and time.monotonic() - self.began > self._run.patience_s:
            return False
        return bool(self._streams[StepKind.TRAINING].events.count) or bool(self.optimizers)


def next_run(
    run: ScriptRun, streams: Mapping[StepKind, Stream], timed: Timed, ended_after_s: float | None = None
) -> ScriptRun:
    """Describe another run that makes up for one that ended without a profile.

    Args:
        run: the run that ended.
        streams: the events seen in it, by kind.
        timed: the times of the steps that it timed without a profiler.
        ended_after_s: when it ended by itself, after it had imported PyTorch; None if it did not.
    """
    kind = run.wanted.kind or _best(streams)
    wanted = WantedSteps(kind, run.wanted.annotation)
    times = timed if len(timed.wall_ns) >= _TIMED else Timed()
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
        ended_after_s=None if enough else ended_after_s,
        may_repeat=False,
        times=times,
        most_timed=cycles // 2,
        reason=reason,
    )


# A kind that repeats comes before a better one that was seen only once or twice.
def _best(streams: Mapping[StepKind, Stream]) -> StepKind | None:
    for least in (_REPEATS, 1):
        for kind in RANKED:
            if streams[kind].events.count >= least and kind is not StepKind.ANNOTATION:
                return kind
    return None


def _cycles(stream: Stream) -> int:
    # An estimate: each object (keys[1]) is taken to occur once in a cycle.
    objects = len(set(stream.events.keys[1]))
    return stream.events.count // max(1, objects)
