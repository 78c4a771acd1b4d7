"""Rules on a device that waits for the host, which does something else, such as loading data, or launches too late."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, idle_claim
from opscope.analysis.advice.preparation import LEAST_COMPILING_NS, compiling_times, loading_gaps
from opscope.analysis.advice.remedies import without_host, work_around
from opscope.analysis.advice.rule import (
    RuleDescription,
    count_of,
    derived,
    measured,
    nanoseconds,
    percent,
    seen,
    share_of,
    span,
    states,
)
from opscope.analysis.idle.causes import PAUSE_UNDER_STACKS_NS, inside_by_thread
from opscope.analysis.idle.host_time import LULL_NS, PAUSE_NS
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.arrays import Intervals, column, count_distinct, end_of
from opscope.analysis.verdict.bounds import BUSY_SHARE
from opscope.base.units import format_ns
from opscope.documents.findings import Rule, Source, Where
from opscope.documents.verdict import BoundKind, IdleCause
from opscope.knowledge.devices import GRAPH_GAP_NS, GRAPH_LAUNCH_NS, Assumed
from opscope.knowledge.serving import Server

# Shares of the idle time that are saved for certain: of other work, and of what operators compute on the host.
_CERTAIN: Final = 0.5
_OF_COMPUTING: Final = 0.8
_AHEAD: Final = "DataLoader(..., num_workers=N, pin_memory=True, persistent_workers=True, prefetch_factor=4)"
_TOO_SLOW: Final = "the workers cannot load a batch in the time of a step"
_GAP_NS: Final = 1_000.0  # between two kernels of a CUDA graph
_CERTAINLY_LATE: Final = 0.5  # of the idle time that no wait explains: the part that is not due to the profiler


@states(
    RuleDescription(
        Rule.DISPATCH_BOUND,
        "idle time before launches that the host issues without pause",
        f"all but the step's first launch, less {span(_GAP_NS)} a launch, which a graph needs too: "
        f"{percent(_CERTAINLY_LATE)} of what "
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
    pieces = np.flatnonzero(context.waits.kinds[BoundKind.DISPATCH])
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
        _CERTAINLY_LATE * own * kept * (idle.low - gaps),
        high if alone else high * kept,
        own * kept * (idle.likely - gaps),
    )
    yield Draft(
        rule=Rule.DISPATCH_BOUND,
        title=f"The device waits {format_ns(waited)} {context.words.of} for the host to issue {launches:,.0f} launches",
        # One operator is not the place of all launches.
        where=context.where_mostly(pieces),
        saving=saving.within(context.step_ns),
        derivation="the idle time before launches that the host issues without pause, with its short pauses (high), "
        f"but for that before the first of them; less {span(_GAP_NS)} a launch, {percent(_CERTAINLY_LATE)} of what "
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
        todo=_issue_in_short(context, alone=alone),
        action=_issue_faster(context, alone=alone),
        wrong_if="the kernels are large, or cannot be fused"
        if context.runs_xpu
        else "shapes or control flow change from step to step, so that no graph can be replayed",
        claims=idle_claim(BoundKind.DISPATCH) | (idle_claim(BoundKind.HOST_WORK) if pauses.any() else frozenset()),
        remedy=None if alone or context.runs_xpu else _AS_GRAPH,
        pieces=pieces,
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


# Options as vllm.config.compilation, sglang.srt.server_args and tensorrt_llm.llmapi.llm_args name them.
_GRAPHS_OF: Final[Mapping[Server | None, str]] = {
    Server.VLLM: "serve without --enforce-eager, and with a graph for each batch size that comes (--compilation-config "
    "'{\"cudagraph_capture_sizes\": [...]}')",
    Server.SGLANG: "serve without --disable-cuda-graph, and with graphs for all batch sizes that come "
    "(--cuda-graph-max-bs)",
    Server.TENSORRT_LLM: "serve with cuda_graph_config in the server's options, for all batch sizes that come",
    None: "have the server replay a CUDA graph for each batch size that comes",
}
_AHEAD_OF: Final[Mapping[Server | None, str]] = {
    Server.VLLM: "schedule the next iteration while this one runs (--async-scheduling), and keep what is left off the "
    "engine's thread",
    Server.SGLANG: "schedule the next batch while this one runs (serve without --disable-overlap-schedule), and keep "
    "what is left off the scheduler's thread",
    Server.TENSORRT_LLM: "schedule the next iteration while this one runs (disable_overlap_scheduler: false), and keep "
    "what is left off the executor's thread",
    None: "schedule the next iteration while this one runs, and keep what is left off the thread that launches",
}


def _issue_in_short(context: Context, *, alone: bool) -> str:
    if alone:
        return "launch the next before waiting"
    return "launch fewer, larger kernels" if context.runs_xpu else "replay launches as a CUDA graph"


def _issue_faster(context: Context, *, alone: bool) -> str:
    """Return advice on how to launch in time.

    Args:
        context: what rules look at.
        alone: whether a step has a single launch, and the device is not busy.
    """
    if alone:
        return "issue the next step's launch before the host waits for this one, so that the device has work queued"
    if context.runs_xpu:
        return "step = torch.compile(step)  # it fuses operators, so that fewer kernels are launched"
    if context.serves:
        return _GRAPHS_OF[context.server]
    if context.runs_pytorch:
        return "step = torch.compile(step, mode='reduce-overhead')  # or capture a CUDA graph: torch.cuda.graph"
    return "capture the launches in a CUDA graph (cudaStreamBeginCapture) and replay it, or launch fewer kernels"


@states(
    RuleDescription(
        Rule.INPUT_PIPELINE,
        "idle time within a DataLoader's fetching",
        f"{percent(_CERTAIN)} to all",
        of_host=True,
    ),
)
def input_pipeline(context: Context) -> Iterator[Draft]:
    """Find a device that waits for a DataLoader."""
    recorded = context.waits.by_kind.get(BoundKind.INPUT, 0) / context.steps
    if context.unprofiled_ns is not None and context.evidence.data_ns > recorded:
        yield from _waiting_as_timed(context)
        return
    yield from _waiting(
        context,
        BoundKind.INPUT,
        Rule.INPUT_PIPELINE,
        "The device waits {time} {words.of} for the next batch to be loaded",
        "load batches ahead of the step",
        _AHEAD,
        _TOO_SLOW,
        _CERTAIN,
        _without_loading(context),
    )


def _waiting_as_timed(context: Context) -> Iterator[Draft]:
    """Find waits for data in the many steps that were timed: a few recorded ones need not hold any."""
    idle, waited = context.idle_for(BoundKind.INPUT), context.evidence.data_ns
    if idle.high < LEAST_SHARE * context.step_ns:
        return
    yield Draft(
        rule=Rule.INPUT_PIPELINE,
        title=f"The host waits {format_ns(waited)} {context.words.of} for the next batch to be loaded",
        where=Where(),
        saving=idle.times(_CERTAIN, 1.0).within(context.step_ns),
        derivation="the wait, as far as the device can idle meanwhile (high), " + f"{_CERTAIN:.0%} of it (low)",
        evidence=(
            measured(nanoseconds(waited), " in a DataLoader, as a mean of the timed steps", source=Source.UNPROFILED),
            derived(share_of(idle.high, context.step_ns), f" {context.words.of_the}", source=Source.UNPROFILED),
        ),
        todo="load batches ahead of the step",
        action=_AHEAD,
        wrong_if=_TOO_SLOW,
        claims=idle_claim(BoundKind.INPUT),
    )


def _without_loading(context: Context) -> Remedy:
    """Return the change that loads batches ahead of the step."""
    return Remedy(
        f"{_LOADED_AHEAD[1]:.0%} ({_LOADED_AHEAD[0]:.0%} to all) of the time in which the thread loads a batch goes: "
        "what workers deliver, and what handing a batch over takes, no trace tells",
        without_host(list(inside_by_thread(context.trace, IdleCause.INPUT).items()), _LOADED_AHEAD),
    )


@states(
    RuleDescription(
        Rule.HOST_WORK,
        f"idle time in which the launching thread issues nothing for {span(PAUSE_NS)} "
        f"({span(PAUSE_UNDER_STACKS_NS)} under "
        "stacks)",
        f"{percent(_CERTAIN)} to all; {percent(_OF_COMPUTING)} of what PyTorch's operators compute on the host "
        "meanwhile",
        of_host=True,
    ),
)
def host_work(context: Context) -> Iterator[Draft]:
    """Find a device that waits while the host does something that launches nothing."""
    compiling = _share_of(context, IdleCause.COMPILING)
    if compiling >= _MOSTLY and compiling * context.idle_for(BoundKind.HOST_WORK).high >= LEAST_COMPILING_NS:
        return  # the rule on torch.compile at work speaks of it
    if _share_of(context, IdleCause.GUARDS) >= _MOSTLY:
        yield from _checking_guards(context)
        return
    computes = _computing_on_the_host(context)
    yield from _waiting(
        context,
        BoundKind.HOST_WORK,
        Rule.HOST_WORK,
        "The device waits {time} {words.of} while the host does other work"
        + (" (PyTorch's operators on tensors of the host)" if computes >= _MOSTLY else ""),
        "compute on the device" if computes >= _MOSTLY else "move host work out of the step",
        "move the tensors to the device first (x = x.to(device)), or prepare them on another thread or process"
        if computes >= _MOSTLY
        else _work_ahead(context),
        "what the device does next depends on it",
        # The device does what operators compute on the host in a small part of the time; no one knows of the rest.
        _OF_COMPUTING * computes + _CERTAIN * (1 - computes),
        _without_other_work(context, computes),
    )


def _work_ahead(context: Context) -> str:
    if context.serves:
        return _AHEAD_OF[context.server]
    return "move that work out of the step, onto the device, or onto another thread or process that works ahead"


def _share_of(context: Context, cause: IdleCause) -> float:
    """Return the share of one cause in the waits for other work of the host."""
    works = context.waits.kinds[BoundKind.HOST_WORK]
    lengths, whole = context.waits.lengths, float(context.waits.lengths[works].sum())
    return float(lengths[works & context.waits.idle.is_any_of((cause,))].sum()) / whole if whole else 0.0


def _checking_guards(context: Context) -> Iterator[Draft]:
    """Find a device that waits while torch.compile looks for code that fits the arguments."""
    yield from _waiting(
        context,
        BoundKind.HOST_WORK,
        Rule.HOST_WORK,
        "The device waits {time} {words.of} while guards of compiled code are checked",
        "check fewer guards",
        "torch.compiler.set_stance(skip_guard_eval_unsafe=True)  # once every variant is compiled; fewer graph breaks "
        "need fewer checks: TORCH_LOGS=graph_breaks names them",
        "arguments change so that guards must be checked",
        _CERTAIN,
        Remedy(
            f"{_LOADED_AHEAD[1]:.0%} ({_LOADED_AHEAD[0]:.0%} to all) of the time of these checks goes",
            without_host(list(inside_by_thread(context.trace, IdleCause.GUARDS).items()), _LOADED_AHEAD),
        ),
    )


def _without_other_work(context: Context, computes: float) -> Remedy:
    """Return the change that moves other work of the host elsewhere.

    Args:
        context: what rules look at.
        computes: the share of it in which operators compute on the host.
    """
    # Other work in a gap in which code is loaded is most likely a part of that, as it is where code is compiled.
    gaps, works = loading_gaps(context), context.waits.kinds[BoundKind.HOST_WORK]
    compiled = compiling_times(context.trace).spans
    apart, perhaps = (work_around(context, np.flatnonzero(some), compiled) for some in (works & ~gaps.all, works))
    shares = (_OF_COMPUTING * computes + _LEAST_MOVED * (1 - computes), _MOVED, 1.0)
    loading = "; in gaps in which code is loaded none, up to all" if gaps.all.any() else ""
    return Remedy(
        f"{shares[1]:.0%} ({shares[0]:.0%} to all) of the time goes in which the thread launches nothing{loading}",
        lambda edit, assumed: without_host(perhaps if assumed is Assumed.HIGH else apart, shares)(edit, assumed),
    )


_MOSTLY: Final = 0.8
# What goes of the time in which the host loads data, and in which it does other work, as assumed for low, likely, high:
# on another thread or process it no longer holds the step back, but handing over takes time, and threads share a lock.
_LOADED_AHEAD: Final = (0.5, 0.85, 1.0)
_LEAST_MOVED: Final = 0.7
_MOVED: Final = 0.97


def _computing_on_the_host(context: Context) -> float:
    """Return in which share of the idle time of this kind operators run that launch nothing."""
    pieces = context.waits.idle.pieces.chosen(context.waits.kinds[BoundKind.HOST_WORK])
    operators = context.trace.operators
    if not pieces.length or not operators.height:
        return 0.0
    nesting = context.links.operators
    launched = np.zeros(operators.height + 1, np.int64)  # the last entry stands for no operator
    launched[context.links.launch_operator] = 1
    # An operator counts as launching if anything inside it launches.
    launching = nesting.subtree_sums(launched[:-1]) > 0
    # The outermost operators that launch nothing cover those inside them.
    outside = (nesting.parent < 0) | np.append(launching, False)[nesting.parent]
    own = np.flatnonzero(~launching & outside)
    spans = Intervals.union_of(column(operators, "start_ns")[own], end_of(operators)[own])
    return pieces.within(spans).length / pieces.length


def _waiting(
    context: Context,
    kind: BoundKind,
    rule: Rule,
    title: str,
    todo: str,
    action: str,
    wrong_if: str,
    certain: float,
    remedy: Remedy,
) -> Iterator[Draft]:
    idle = context.idle_for(kind)
    if idle.high < LEAST_SHARE * context.step_ns:
        return
    pieces = np.flatnonzero(context.waits.kinds[kind])
    # What only a light pass waits for has no place: nothing names what the host did.
    where = context.where_of_pieces(pieces) if len(pieces) else Where()
    lengths = np.sort(context.waits.lengths[pieces])[-1:].tolist()
    longest = [measured("the longest such wait took ", nanoseconds(one), source=Source.IDLE) for one in lengths]
    yield Draft(
        rule=rule,
        title=title.format(time=format_ns(idle.high), words=context.words),
        where=where,
        saving=idle.times(certain, 1.0).within(context.step_ns),
        derivation=f"the device's idle time meanwhile (high), {certain:.0%} of it (low)",
        evidence=(
            *longest,
            derived(share_of(idle.high, context.step_ns), f" {context.words.of_the}", source=Source.IDLE),
            *seen(context, where),
        ),
        todo=todo,
        action=action,
        wrong_if=wrong_if,
        claims=idle_claim(kind),
        remedy=remedy if len(pieces) else None,
        pieces=pieces,
    )
