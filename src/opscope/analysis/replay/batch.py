"""A step with other batches: of another size, or delivered faster and ahead of the step.

The costs of another size are fitted to two traces of one program.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.costs.sums import inputs_of_activities
from opscope.analysis.idle.causes import inside_by_thread, loads_in_workers
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.changes import ReplayedChange, above_zero
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeKind
from opscope.analysis.structure.arrays import Intervals, column
from opscope.analysis.structure.nesting import Ints
from opscope.base.errors import UsageError
from opscope.documents.verdict import IdleCause

# So much of the work must be by the same operators, and so many of the sizes that differ by the same ratio: else more
# than the batch changed.
_ALIKE: Final = 0.9
_MOST_COMPARED: Final = 5_000  # calls of steps that do not run the same operators one after the other
# A loader with workers is why the step is as long as it is only if the step waits for it; taking what is ready is
# quicker: pinned batches that were there took 0.1 to 0.3 ms of steps of 6 to 40 ms in recorded programs.
_WAITS: Final = 0.05
_ROUNDS: Final = 20


def more_workers(steps: Steps, factor: float) -> ReplayedChange:
    """Let a DataLoader load batches so many times as fast, in processes of its own.

    Args:
        steps: the steps.
        factor: how many times as many batches it loads a second: as many as it gets workers instead of the main
            process, or as its workers become more.

    Raises:
        UsageError: the trace shows no DataLoader at work in its steps, or one that the step does not wait for, or the
            factor is none.
    """
    text = f"--workers {factor:g}x"
    above_zero(text, factor)
    threads = {thread: spans for thread, spans in inside_by_thread(steps.trace, IdleCause.INPUT).items() if len(spans)}
    edit = Edit(steps)
    waits = sum(edit.host_time(thread, spans) for thread, spans in threads.items()) / edit.graph.count
    has_workers = loads_in_workers(steps.trace)
    if not waits:
        raise UsageError(f"{text}: no step of the trace loads a batch with a DataLoader")
    if has_workers and waits < _WAITS * edit.graph.step_ns:
        raise UsageError(f"{text}: the DataLoader has workers, and no step waits for them")

    def apply(edit: Edit) -> int:
        # Its workers take as long as a recorded step for a batch, or they would be ahead, whatever else is changed; the
        # main process takes as long as it loads.
        before = recorded if has_workers else sum(edit.host_time(*one) for one in threads.items()) / count
        for thread, spans in threads.items():
            edit.remove_host(thread, spans)
        _not_faster_than(edit, _ends(edit, threads), before / factor)
        return count

    count, recorded = edit.graph.count, edit.graph.step_ns
    return ReplayedChange(
        text,
        f"at best: batches are loaded ahead, {factor:g} times as fast, as far as the host has free cores, and taking a "
        "batch that is ready costs nothing (in two recorded programs it cost 0.3 and 2.7 ms)",
        apply,
    )


def _ends(edit: Edit, threads: dict[int, Intervals]) -> Ints:
    """Return the moments at which threads have a batch."""
    graph, result = edit.graph, []
    for thread, spans in threads.items():
        own = np.flatnonzero(graph.thread == thread)
        own = own[np.argsort(graph.time_ns[own], kind="stable")]
        at = np.searchsorted(graph.time_ns[own], spans.end)
        result.append(own[np.unique(at[at < len(own)])])
    return np.concatenate(result)


def _not_faster_than(edit: Edit, moments: Ints, least_ns: float) -> None:
    """Delay some moments, all alike, until a step takes some time."""
    if not len(moments) or edit.step_ns >= least_ns:
        return
    low, high = 0, int(least_ns * edit.graph.count)  # a single step may have to wait for all
    for _ in range(_ROUNDS):
        tried = edit.copy()
        tried.delay(moments, (low + high) // 2)
        low, high = (low, (low + high) // 2) if tried.step_ns >= least_ns else ((low + high) // 2, high)
    edit.delay(moments, high)


class _Call(Struct):
    """What a call of an operator launched in a step, or a kernel without an operator.

    Attributes:
        name: the operator, or the kernel.
        operator: the operator's row, or -1.
        dims: the recorded sizes of its inputs.
        types: their types.
        rows: the activities.
        time_ns: how long these take.
    """

    name: str
    operator: int
    dims: str | None
    types: str | None
    rows: list[int]
    time_ns: int


def other_batch(steps: Steps, factor: float, other: Steps) -> ReplayedChange:
    """Let the device's work take what it would take with a batch of another size.

    The time of each call is on the line through what it took in both traces.

    Args:
        steps: the steps.
        factor: how many times their batch.
        other: the steps of another trace of the same program, with another batch size.

    Raises:
        UsageError: the traces' steps do not run the same operators, shapes were not recorded, or the sizes of inputs
            do not differ by one ratio, or the factor is none.
    """
    text = f"--batch-size {factor:g}x"
    above_zero(text, factor)
    own, theirs = list(_calls_of(steps)), _median_step(list(_calls_of(other)))
    if not theirs or not any(own):
        raise UsageError(f"{text}: no work of a device was recorded")
    pairs = [_pairs(text, calls, theirs) for calls in own]
    ratio = _ratio(text, pairs[0])
    share = np.ones(steps.trace.activities.height)
    for one, beside in itertools.chain.from_iterable(pairs):
        taken = one.time_ns + (beside.time_ns - one.time_ns) * (factor - 1) / (ratio - 1)
        # A smaller batch takes at least its share, and a larger one no less than the quickest that was seen.
        least = min(one.time_ns, beside.time_ns) * min(factor, 1.0)
        share[one.rows] = max(taken, least) / max(one.time_ns, 1)
    rows = np.array([row for calls in pairs for one, _ in calls for row in one.rows], np.int64)
    where = "between" if min(1.0, ratio) <= factor <= max(1.0, ratio) else "beyond"
    return ReplayedChange(
        text,
        f"each call takes what the line through both traces tells, {where} their batches (1x and {ratio:g}x), or as "
        "long as here where the other trace has no such call; kernels are chosen alike, memory suffices, and the host "
        "takes as long as here",
        lambda edit: edit.scale(rows, share),
    )


def _calls_of(steps: Steps) -> Iterator[list[_Call]]:
    """Yield per step its calls that launch work, in the order of their launches."""
    trace, links = steps.trace, steps.links
    rows = steps.graph.row[steps.graph.kind == EdgeKind.ACTIVITY]
    launch, owner = links.activity_launch[rows], links.activity_operator[rows]
    start, took = column(trace.activities, "start_ns")[rows], column(trace.activities, "duration_ns")
    launched = np.where(launch >= 0, np.append(column(trace.launches, "start_ns"), 0)[launch], start)
    inputs = inputs_of_activities(trace, links)
    dims, types = (inputs[name].cast(pl.String).to_list() for name in ("input_dims", "input_types"))
    operators, kernels = trace.operators["name"], trace.activities["name"]
    order = np.lexsort((start, launched))
    for begin, end in steps.chosen.marks:
        inside = order[(launched[order] >= begin) & (launched[order] < end)]
        calls: list[_Call] = []
        for at in inside.tolist():
            row, operator = int(rows[at]), int(owner[at])
            if calls and operator >= 0 and operator == calls[-1].operator:
                calls[-1].rows.append(row)
                calls[-1].time_ns += int(took[row])
            else:
                name = str(operators[operator] if operator >= 0 else kernels[row])
                calls.append(_Call(name, operator, dims[row], types[row], [row], int(took[row])))
        yield calls


def _pairs(text: str, own: list[_Call], theirs: list[_Call]) -> list[tuple[_Call, _Call]]:
    """Return the calls of the same operators at the same places; what only one of the steps does is left out."""
    here, there = ([call.name for call in calls] for calls in (own, theirs))
    if here == there:
        return list(zip(own, theirs, strict=True))
    pairs: list[tuple[_Call, _Call]] = []
    if max(len(here), len(there)) <= _MOST_COMPARED:
        pairs = [(own[at], theirs[beside]) for at, beside in _common(here, there)]
    for calls, place in ((own, 0), (theirs, 1)):
        whole, paired = sum(call.time_ns for call in calls), sum(pair[place].time_ns for pair in pairs)
        if paired < _ALIKE * whole:
            first = next((f": {a} here, {b} there" for a, b in zip(here, there, strict=False) if a != b), "")
            raise UsageError(f"{text}: the steps of the traces do not run the same operators{first}")
    return pairs


def _common(here: list[str], there: list[str]) -> list[tuple[int, int]]:
    """Return the places of the longest common subsequence of two lists of names."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys((*here, *there)))}
    own, theirs = (np.array([numbers[name] for name in names], np.int64) for names in (here, there))
    # The entry (i, j) is the length for the first i and the first j names.
    lengths = np.zeros((len(own) + 1, len(theirs) + 1), np.int16)
    for at, name in enumerate(own):
        result = np.maximum(lengths[at, 1:], lengths[at, :-1] + (theirs == name))
        lengths[at + 1, 1:] = np.maximum.accumulate(result)
    pairs, at, beside = [], len(own), len(theirs)
    while at and beside:
        if lengths[at, beside] == lengths[at - 1, beside]:
            at -= 1
        elif lengths[at, beside] == lengths[at, beside - 1]:
            beside -= 1
        else:
            at, beside = at - 1, beside - 1
            pairs.append((at, beside))
    return pairs[::-1]


def _median_step(steps: list[list[_Call]]) -> list[_Call]:
    """Return the step whose work takes the median time."""
    order = sorted(steps, key=lambda calls: sum(call.time_ns for call in calls))
    return order[(len(order) - 1) // 2] if order else []


def _ratio(text: str, pairs: list[tuple[_Call, _Call]]) -> float:
    """Return how many times as large the other trace's batch is, by the sizes of inputs that differ."""
    odd = next(((a, b) for a, b in pairs if a.types and b.types and a.types != b.types), None)
    if odd is not None:
        raise UsageError(f"{text}: {odd[0].name} takes {odd[0].types} here, {odd[1].types} there")
    ratios: Counter[float] = Counter()
    for one, other in pairs:
        ratios.update(b / a for a, b in zip(_sizes(one.dims), _sizes(other.dims), strict=False) if a != b and a and b)
    if not ratios:
        known = any(one.dims and other.dims for one, other in pairs)
        reason = "no input differs in size between the traces" if known else "it needs traces with shapes"
        raise UsageError(f"{text}: {reason}")
    ratio, count = ratios.most_common(1)[0]
    if count < _ALIKE * ratios.total():
        raise UsageError(f"{text}: the inputs of the traces do not differ by one ratio: more than the batch changed")
    return ratio


def _sizes(dims: str | None) -> list[int]:
    """Return all sizes of a call's inputs, one after the other."""
    try:
        open_ = json.loads(dims or "[]")
    except ValueError:
        return []
    results: list[int] = []
    while open_:
        one = open_.pop()
        if isinstance(one, list):
            open_.extend(one)
        elif isinstance(one, int):
            results.append(one)
    return results
