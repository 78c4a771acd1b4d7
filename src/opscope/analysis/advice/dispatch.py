"""The rule on launches that come too late."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, idle_claim
from opscope.analysis.advice.evidence import count_of, derived, measured, nanoseconds, share_of
from opscope.analysis.advice.rule import RuleDescription, percent, span, states
from opscope.analysis.idle.host_time import LULL_NS
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.arrays import count_distinct
from opscope.analysis.verdict.bounds import BUSY_SHARE
from opscope.base.units import format_ns
from opscope.documents.bound import BoundKind
from opscope.documents.findings import Rule, Source, Where
from opscope.knowledge.reach import GRAPH_GAP_NS, GRAPH_LAUNCH_NS, Assumed

_GAP_NS: Final = 1_000.0  # between two kernels of a CUDA graph
_CERTAIN: Final = 0.5  # of the idle time that no wait explains: the part that is not due to the profiler


@states(
    RuleDescription(
        Rule.DISPATCH_BOUND,
        "idle time before launches that the host issues without pause",
        f"all but the step's first launch, less {span(_GAP_NS)} a launch, which a graph needs too: "
        f"{percent(_CERTAIN)} of what "
        f"follows no wait, to all with pauses below {span(LULL_NS)}",
        "the device is busy",
        of_host=True,
    ),
)
def dispatch_bound(context: Context) -> Iterator[Draft]:
    """Find a device that waits for launches to be issued."""
    idle = context.idle_for(BoundKind.DISPATCH)
    all_of_it = float(context.waits.by_kind.get(BoundKind.DISPATCH, 0))
    if idle.high < LEAST_SHARE * context.step_ns or not all_of_it:
        return
    issued = context.links.activity_launch[context.work]
    launches = count_distinct(issued, context.trace.launches.height) / context.steps
    longest = context.where_of_pieces(np.flatnonzero(context.waits.kinds[BoundKind.DISPATCH]))
    gaps = min(launches * _GAP_NS, idle.high / 2)
    # After a wait nothing is queued, however fast the host launches: for certain only the rest can be saved.
    own = 1 - context.waits.drained_ns / all_of_it
    waited = context.waited_for(BoundKind.DISPATCH)
    # If the step is captured, short pauses between its launches go as well.
    pauses = context.waits.kinds[BoundKind.HOST_WORK] & (context.waits.lengths < LULL_NS)
    high = idle.high + context.idle_in(pauses)
    # The first launch of a step takes as long with a graph.
    kept = max(1 - 1 / max(launches, 1.0), 0.0)
    # A step of one launch needs no graph: what helps is to launch the next before waiting for this one.
    alone = launches < 2 and context.busy_ns < BUSY_SHARE * context.step_ns
    saving = Range(
        _CERTAIN * own * kept * (idle.low - gaps), high if alone else high * kept, own * kept * (idle.likely - gaps)
    )
    yield Draft(
        rule=Rule.DISPATCH_BOUND,
        title=f"The device waits {format_ns(waited)} {context.words.of} for the host to issue {launches:,.0f} launches",
        # One operator, or one range, is not the place of all launches.
        where=Where(module=longest.module, python=longest.python),
        saving=saving.within(context.step_ns),
        derivation="the idle time before launches that the host issues without pause, with its short pauses (high), "
        f"but for that before the first of them; less {span(_GAP_NS)} a launch, {percent(_CERTAIN)} of what "
        "does not follow a wait (low)",
        evidence=(
            measured(
                count_of(launches),
                f" launches {context.words.each}, ",
                nanoseconds(context.busy_ns / max(launches, 1)),
                " of work each",
                source=Source.ACTIVITIES,
            ),
            derived(
                share_of(waited, context.step_ns),
                f" {context.words.of_the} the device waits for them",
                source=Source.IDLE,
            ),
            *(
                [
                    derived(
                        nanoseconds(idle.high),
                        " of that can be left without the profiler, which slows the host down",
                        source=Source.ESTIMATE,
                    )
                ]
                if idle.high < 0.99 * waited
                else []
            ),
        ),
        todo="launch the next before waiting" if alone else "replay launches as a CUDA graph",
        action=_issue_faster(context, alone=alone),
        wrong_if="shapes or control flow change from step to step, so that no graph can be replayed",
        claims=idle_claim(BoundKind.DISPATCH) | (idle_claim(BoundKind.HOST_WORK) if pauses.any() else frozenset()),
        remedy=None if alone else _AS_GRAPH,
        pieces=np.flatnonzero(context.waits.kinds[BoundKind.DISPATCH]),
        # Recorded idle time is not shorter than that without the profiler.
        most=kept * (all_of_it + float(context.waits.lengths[pauses].sum())) / context.steps,
    )


def _launched_at_once(edit: Edit, assumed: Assumed) -> int:
    # A captured step has no pauses of the host; what takes longer is other work, which stays.
    stays = 0 if assumed is Assumed.LOW else LULL_NS
    edit.launch_as_graph(GRAPH_GAP_NS[assumed], GRAPH_LAUNCH_NS[assumed], work_stays_ns=stays)
    return edit.graph.count


_AS_GRAPH: Final = Remedy(
    f"one launch of a graph, {GRAPH_GAP_NS[Assumed.LIKELY] / 1e3:g} us ({GRAPH_GAP_NS[Assumed.HIGH] / 1e3:g} to "
    f"{GRAPH_GAP_NS[Assumed.LOW] / 1e3:g}) between kernels; waits and pauses of the host of {span(LULL_NS)} and more "
    "stay, all pauses for low",
    _launched_at_once,
)


def _issue_faster(context: Context, *, alone: bool) -> str:
    """Return advice on how to launch in time.

    Args:
        context: what rules look at.
        alone: whether a step has a single launch, and the device is not busy.
    """
    if alone:
        return "issue the next step's launch before the host waits for this one, so that the device has work queued"
    if context.runs_pytorch:
        return "step = torch.compile(step, mode='reduce-overhead')  # or capture a CUDA graph: torch.cuda.graph"
    return "capture the launches in a CUDA graph (cudaStreamBeginCapture) and replay it, or launch fewer kernels"
