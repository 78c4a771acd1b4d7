"""What findings save together: all of them, pairs that save little alone, and every combination of the first ones."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.context import Context, Draft, Remedy
from opscope.analysis.advice.replayed import JointReplay, Replayed
from opscope.analysis.advice.rule import RuleDescription, derived, nanoseconds, percent
from opscope.base.units import format_ns
from opscope.documents.findings import Finding, Rule, Source
from opscope.documents.page import StepChoices
from opscope.knowledge.devices import Assumed

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
