"""Every combination of the first findings: what a step would take with some of them, each low, likely or high."""

from collections.abc import Mapping, Sequence
from typing import Final

from opscope.analysis.advice.context import Remedy
from opscope.analysis.advice.replayed import Replayed
from opscope.documents.findings import Finding
from opscope.documents.page import StepChoices
from opscope.knowledge.reach import Assumed

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
