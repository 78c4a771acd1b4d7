"""What findings save, by replaying a few steps with their changes: each alone, and together."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.context import Context, Draft, Range, Remedy
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.changes import MOST_ERROR, MOST_MISSED, MOST_RESIDUAL
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.path import residual_share, unprofiled_steps
from opscope.knowledge.devices import Assumed

# On both sides of the replays: what they leave out. In recorded programs nine in ten savings lay within this.
_OF_STEP: Final = 0.02
_OF_REST: Final = 0.08
_OF_SAVING: Final = 0.5  # but never more than this share of the saving
# What leaving out work saved more than that work took, in recorded programs: other work finds its data in the cache.
_BESIDE: Final = 0.05
# The replayed steps stand for all of them if their mean is within this share of the mean of all.
_ALIKE: Final = 0.25


class JointReplay(Struct, frozen=True):
    """Several changes in one replay.

    Attributes:
        saving: of all of them.
        adds: per change what it saves after those before it, with likely assumptions; nanoseconds a step.
    """

    saving: Range
    adds: tuple[float, ...]


class Replayed:
    """Steps without a profiler, to be replayed with changes. Times are nanoseconds a step.

    Args:
        steps: the steps.
        unprofiled_ns: the time of an unprofiled step; None where it is not known.
    """

    def __init__(self, steps: Steps, unprofiled_ns: float | None) -> None:
        self._wall = unprofiled_ns
        self._bases = unprofiled_steps(steps, unprofiled_ns)

    @classmethod
    def of(cls, context: Context) -> "Replayed | None":
        """Return the replayed steps of a recording; None where their replay would promise nothing."""
        steps = context.replayable()
        if steps is None or not context.device.window.duration_ns:
            return None
        recorded, edit = steps.graph.step_ns, Edit(steps)
        replayed = edit.step_ns
        mean = context.device.window.duration_ns / context.steps
        if recorded <= 0 or abs(recorded / mean - 1) > _ALIKE or abs(replayed / recorded - 1) > MOST_ERROR:
            return None
        if residual_share(edit) > MOST_RESIDUAL:
            return None
        # The recorded steps are typical ones: what a few others wait for is not in them, nor what all waited for that
        # found no batch ready.
        unprofiled = None
        if context.inside_ns is not None:
            typical = min(context.evidence.typical_ns or context.inside_ns, context.inside_ns)
            unprofiled = max(typical - context.evidence.waits_beyond_recorded_ns, 1.0)
        result = cls(steps, unprofiled)
        # With a quicker host the path may go through what the recorded one went around.
        return result if result.meets_the_wall and result.residual_share <= MOST_RESIDUAL else None

    @property
    def meets_the_wall(self) -> bool:
        """Whether the replay's unprofiled step is the measured one, as far as that is known."""
        if self._wall is None:
            return True
        return abs(self._bases[Assumed.LIKELY].step_ns / self._wall - 1) <= MOST_MISSED

    @property
    def residual_share(self) -> float:
        """The share of the step without a profiler that no record explains, along its critical path."""
        return residual_share(self._bases[Assumed.LIKELY])

    @property
    def is_measured(self) -> bool:
        """Whether the step without a profiler was measured."""
        return self._wall is not None

    @property
    def base_ns(self) -> float:
        """The step without a profiler, as measured; the replay's estimate where it was not."""
        return self._bases[Assumed.LIKELY].step_ns if self._wall is None else self._wall

    @property
    def estimate_ns(self) -> float | None:
        """The estimate of that step; None where it was measured."""
        return None if self.is_measured else self.base_ns

    @property
    def moments(self) -> int:
        """How large the graph is."""
        return len(self._bases[Assumed.LIKELY].graph.time_ns)

    def combinations(self, remedies: Sequence[Remedy], options: Sequence[Assumed | None]) -> list[float]:
        """Return the step with each combination of some changes, each with each of some assumptions.

        Args:
            remedies: the changes, made one after the other.
            options: assumptions; None leaves a change out.

        Returns:
            The steps in nanoseconds: the last change's option varies fastest.
        """
        base = self._bases[Assumed.LIKELY]
        start, edits = base.step_ns, [base]
        for remedy in remedies:
            edits = [_with(edit, remedy, option) for edit in edits for option in options]
        return [self.base_ns - (start - edit.step_ns) * self._scale(start) for edit in edits]

    def saving_of(self, remedy: Remedy) -> Range | None:
        """Return what a change saves; None where the steps have nothing that it is about."""
        return self._saving((remedy,))

    def replayed(self, draft: Draft) -> Draft:
        """Return a finding with what its change saves in the replay; as it is where the steps do not show it."""
        saving = None if draft.remedy is None else self.saving_of(draft.remedy)
        if saving is None or draft.remedy is None:
            return draft
        how = f"by replay: {draft.remedy.assumes}"
        if saving.high > draft.most:
            how += "; no more than the device idles in the recording"
        saving = saving.within(draft.most)
        # A replay knows nothing of work that slows other work down, or that fills the device only with it.
        if draft.beside and draft.alone:
            saving = saving.no_more_than(draft.saving)
        elif draft.beside:
            low, high = min(saving.low, draft.saving.low), max(saving.high, draft.saving.high)
            saving = Range(low, high, saving.likely)
        return replace(draft, saving=saving, derivation=how, of_estimate_ns=self.estimate_ns)

    def together(self, remedies: Sequence[Remedy]) -> JointReplay | None:
        """Return what changes save that are made one after the other; None where the steps have nothing of them."""
        saving = self._saving(remedies)
        if saving is None:
            return None
        edit, adds = self._bases[Assumed.LIKELY].copy(), []
        before = start = edit.step_ns
        for remedy in remedies:
            remedy.apply(edit, Assumed.LIKELY)
            after = edit.step_ns
            adds.append((before - after) * self._scale(start))
            before = after
        return JointReplay(saving, tuple(adds))

    def _saving(self, remedies: Iterable[Remedy]) -> Range | None:
        remedies, savings, targets = tuple(remedies), [], 0
        # Whether a slow or a fast host saves less depends on the change: both are tried for both ends.
        for assumed, host in (
            *((assumed, assumed) for assumed in Assumed),
            (Assumed.LOW, Assumed.HIGH),
            (Assumed.HIGH, Assumed.LOW),
        ):
            base = self._bases[host]
            edit, start = base.copy(), base.step_ns
            targets += sum(remedy.apply(edit, assumed) for remedy in remedies)
            savings.append((start - edit.step_ns) * self._scale(start))
        if not targets:
            return None
        step = self.base_ns
        low, likely, high = min(savings[0], savings[3]), savings[1], max(savings[2], savings[4])
        low, high = min(low, likely), max(high, likely)
        most = min(high + _margin(high, step), max(self._without(remedies) + _BESIDE * step, high))
        return Range(low - _margin(low, step), most, likely).within(step)

    def _without(self, remedies: Sequence[Remedy]) -> float:
        """Return what it saves to leave out all the work that changes are about; infinity if they are about more."""
        work = [remedy.work for remedy in remedies if remedy.work is not None]
        if len(work) < len(remedies):
            return math.inf
        edit = self._bases[Assumed.LOW].copy()
        start = edit.step_ns
        edit.remove_work(np.unique(np.concatenate(work)))
        return (start - edit.step_ns) * self._scale(start)

    def _scale(self, start: float) -> float:
        """Savings are of the measured step, which the replay meets within a few percent, or of the likely estimate.

        With a slower or a faster host they are the same share of that.
        """
        return self.base_ns / start if start else 1.0


def _margin(saving: float, step: float) -> float:
    return max(min(_OF_STEP * step + _OF_REST * (step - saving), _OF_SAVING * saving), 0.0)


def _with(edit: Edit, remedy: Remedy, assumed: Assumed | None) -> Edit:
    if assumed is None:
        return edit
    changed = edit.copy()
    remedy.apply(changed, assumed)
    return changed
