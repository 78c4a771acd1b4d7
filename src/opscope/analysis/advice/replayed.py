"""What findings save, by replaying a few steps with their changes: each alone, and together."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.context import Context, Draft, Range, Remedy
from opscope.analysis.advice.rule import RuleDescription, derived, nanoseconds, percent
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.changes import MOST_ERROR, MOST_MISSED, MOST_RESIDUAL
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.path import residual_share, unprofiled_steps
from opscope.base.units import format_ns
from opscope.documents.findings import Finding, Rule, Source
from opscope.documents.page import StepChoices
from opscope.knowledge.devices import Assumed

# ---------------------------------------------------------------- replayed savings


# On both sides of the replays: what they leave out. In recorded programs nine in ten savings lay within this.
_OF_STEP: Final = 0.02
_OF_REST: Final = 0.08
# Without work that is not needed, what is left was 15 to 40 % shorter than its replay in six of 91 recorded programs.
_OF_SHORT_REST: Final = 0.25
_SHORT_REST: Final = 0.3  # of the step
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
            saving = Range(low, high, saving.likely).within(self.base_ns)
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
        removes = all(remedy.removes for remedy in remedies)
        margin = _margin_of_removal(high, step) if removes else _margin(high, step)
        most = min(high + margin, max(self._without(remedies) + _BESIDE * step, high))
        return Range(low - _margin(low, step), most, likely).within(step)

    def _without(self, remedies: Sequence[Remedy]) -> float:
        """Return what it saves to leave out all the work that changes are about; infinity if they are about more."""
        work = [remedy.work for remedy in remedies if remedy.work is not None]
        if len(work) < len(remedies):
            return math.inf
        edit = self._bases[Assumed.HIGH].copy()
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


def _margin_of_removal(saving: float, step: float) -> float:
    rest = step - saving
    beside = _OF_STEP * step + max(_OF_REST * rest, _OF_SHORT_REST * min(rest, _SHORT_REST * step))
    return max(min(beside, _OF_SAVING * saving), 0.0)


def _with(edit: Edit, remedy: Remedy, assumed: Assumed | None) -> Edit:
    if assumed is None:
        return edit
    changed = edit.copy()
    remedy.apply(changed, assumed)
    return changed


# ---------------------------------------------------------------- two changes at once


_MOST_OF_EACH: Final = 4  # findings on the host, and on the device, of which pairs are tried
_MORE: Final = 0.05  # of the step: what a pair must save beyond the sum of both
_OF_IDLE: Final = "idle: "  # how claims of idle time begin

# Short names of changes, so that two fit into `MOST_IN_SHORT` characters; a pair with any other change has none.
_OF_DEVICE: Final = {
    Rule.UNALIGNED_SIZES: "padded sizes",
    Rule.FUSIBLE_CHAIN: "fused kernels",
    Rule.EAGER_ATTENTION: "fused attention",
    Rule.LAYOUT_CONVERSION: "channels_last",
    Rule.GROWN_COPY: "one torch.cat",
    Rule.SMALL_GRID: "larger kernels",
}
_OF_HOST: Final = {
    Rule.DISPATCH_BOUND: "a CUDA graph",
    Rule.BLOCKING_READ: "fewer reads",
    Rule.INPUT_PIPELINE: "a faster loader",
    Rule.HOST_WORK: "less host work",
}

ONLY_TOGETHER: Final = RuleDescription(
    Rule.ONLY_TOGETHER,
    "a change of what the host does and one of the device's work of which each hides what the other one saves",
    f"the replay with both; at least {percent(_MORE)} of the step more than the sum of each alone",
    "no replay is possible",
)
_OF_MEASURED: Final = "Replayed from recorded steps; savings are of the step as measured without the profiler."
_OF_ESTIMATED: Final = (
    "Replayed from recorded steps, without what recording cost the host. That is an estimate: no step was measured "
    "without the profiler."
)
_ASSUMED: Final = (
    "Low, likely and high are what each finding assumes (see how its saving follows); changes act on what those above "
    "them left. Findings that change the same work as one above, or that cannot be replayed, have no slider."
)
_MOST: Final = 3  # findings: each more makes four times as many combinations
_LARGE: Final = 10_000  # moments of the graph: of larger ones, likely assumptions alone are tried


def choices_of(
    replayed: Replayed | None, findings: Sequence[Finding], remedies: Mapping[str, Remedy]
) -> StepChoices | None:
    """Return the combinations of the first findings that have a change; None without such findings.

    Args:
        replayed: the steps; None where no replay may promise anything.
        findings: in the order of their rank.
        remedies: per id of a finding its change.
    """
    first, done = [], frozenset[str]()
    for finding in findings:
        # Changes of the same work exclude each other: the first of them is the larger one.
        if finding.id in remedies and finding.likely_ns > 0 and not done & frozenset(finding.overlaps):
            first.append(finding.id)
            done |= {finding.id}
    first = first[:_MOST]
    if replayed is None or not first:
        return None
    tried = (Assumed.LIKELY,) if replayed.moments > _LARGE else tuple(Assumed)
    options = (None, *tried)
    step = replayed.combinations([remedies[name] for name in first], options)
    # More of a change never makes a step longer: whoever finds that it does leaves it.
    for place in range(len(step)):
        for below in (len(options) ** one for one in range(len(first))):
            if place // below % len(options):
                step[place] = min(step[place], step[place - below])
    names = tuple("none" if one is None else one.name.lower() for one in options)
    basis = f"{_OF_MEASURED if replayed.is_measured else _OF_ESTIMATED} {_ASSUMED}"
    return StepChoices(findings=tuple(first), positions=names, step_ns=tuple(step), basis=basis)


def pairs(context: Context, replayed: Replayed, drafts: Sequence[Draft]) -> Iterator[Draft]:
    """Yield the pairs that save far more than the sum of both: as long as one is not done, the other one hides it.

    Args:
        context: what rules look at.
        replayed: the steps.
        drafts: what rules found, also what saves nothing alone.
    """
    known = [draft for draft in drafts if draft.remedy is not None]
    known.sort(key=lambda draft: -draft.saving.high)
    of_host = [draft for draft in known if _is_idle(draft)][:_MOST_OF_EACH]
    of_device = [draft for draft in known if not _is_idle(draft)][:_MOST_OF_EACH]
    best: tuple[float, Draft, Draft, JointReplay] | None = None
    for host, device in product(of_host, of_device):
        both = replayed.together(_remedies((host, device)))
        if both is None:
            continue
        more = both.saving.likely - host.saving.likely - device.saving.likely
        if more >= _MORE * context.step_ns and (best is None or both.saving.likely > best[3].saving.likely):
            best = more, host, device, both
    if best is not None:
        yield replace(_pair(context, *best), of_estimate_ns=replayed.estimate_ns)


def _pair(context: Context, more: float, host: Draft, device: Draft, both: JointReplay) -> Draft:
    alone = f"{format_ns(host.saving.likely)} and {format_ns(device.saving.likely)}"
    return Draft(
        rule=Rule.ONLY_TOGETHER,
        title=f"{host.rule} and {device.rule} save {format_ns(both.saving.likely)} together, {alone} alone",
        where=device.where,
        saving=both.saving,
        derivation="by replay of both changes, with the assumptions of each",
        evidence=(
            derived(
                nanoseconds(more),
                " are saved only if both are done: each alone leaves the other one's time",
                source=Source.REPLAY,
            ),
            *host.evidence[:1],
            *device.evidence[:1],
        ),
        todo=_todo(context, host, device),
        action=f"both: {device.action}  AND  {host.action}",
        wrong_if=f"{host.wrong_if}; or {device.wrong_if}",
        claims=host.claims | device.claims,
        of_others=max(host.saving.likely, device.saving.likely),
        parts=(host, device),
    )


def _todo(context: Context, host: Draft, device: Draft) -> str:
    first, second = _OF_DEVICE.get(device.rule), _OF_HOST.get(host.rule)
    if device.rule is Rule.FP32_PRODUCTS:
        first = "TF32 or bf16" if context.has_tensor_cores_for_fp32 else "float16"
    return f"{first} with {second}" if first and second else "two changes together: see --why"


def _order_of(drafts: Sequence[Draft]) -> list[int]:
    """Return which findings can be done one after the other: those with a replay that change no earlier one's work."""
    chosen: list[int] = []
    done = frozenset[str]()
    for place, draft in enumerate(drafts):
        work = frozenset(claim for claim in draft.claims if not claim.startswith(_OF_IDLE))
        if draft.remedy is not None and not work & done:
            chosen.append(place)
            done |= work
    return chosen


def _remedies(drafts: Sequence[Draft]) -> list[Remedy]:
    return [draft.remedy for draft in drafts if draft.remedy is not None]


class Joint(Struct, frozen=True):
    """Findings that are done one after the other.

    Attributes:
        places: which ones, as positions in the ranking.
        together: what they save, and what each adds to those before it.
    """

    places: tuple[int, ...]
    together: JointReplay


def all_of_them(replayed: Replayed, drafts: Sequence[Draft]) -> Joint | None:
    """Return what findings save together; None where a replay shows nothing of them.

    Args:
        replayed: the steps.
        drafts: the findings in the order of the ranking. What adds nothing to those before it is left out.
    """
    places = _order_of(drafts)
    while places:
        joint = replayed.together(_remedies([drafts[place] for place in places]))
        if joint is None:
            return None
        idle = next((place for place, adds in zip(places, joint.adds, strict=True) if adds <= 0), None)
        if idle is None:
            return Joint(tuple(places), joint)
        places.remove(idle)
    return None


def _is_idle(draft: Draft) -> bool:
    return any(claim.startswith(_OF_IDLE) for claim in draft.claims)
