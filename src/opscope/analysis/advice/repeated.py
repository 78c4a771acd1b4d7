"""Rules on what a step computes more than once."""

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.advice.context import LEAST_SHARE, Apply, Context, Draft, Range, Remedy
from opscope.analysis.advice.rule import (
    RuleDescription,
    count_of,
    general,
    measured,
    nanoseconds,
    of_bytes,
    percent,
    share_of,
    states,
)
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, count_distinct, end_of, nesting_of
from opscope.analysis.structure.modules import MODULE_FRAME, checkpointing, is_users_frame, recomputed
from opscope.analysis.structure.nesting import Ints
from opscope.base.text import or_unknown
from opscope.base.units import format_ns
from opscope.documents.findings import Fact, Rule, Source, Where
from opscope.knowledge.collectives import Direction, direction_of
from opscope.knowledge.devices import Assumed

_AGAIN: Final = (0.85, 1.4)  # of their time: what a step saved without checkpoints in benchmarks/programs.py


@states(
    RuleDescription(
        Rule.RECOMPUTATION,
        "composite forward operators within the backward pass",
        f"{percent(_AGAIN[0])} to {percent(_AGAIN[1])} of their device time, and their part of the time spent "
        "launching",
    ),
)
def recomputation(context: Context) -> Iterator[Draft]:
    """Find forward work that the backward pass does again."""
    root = recomputed(context.trace, context.links, context.backward())[context.work]
    again = context.work[root >= 0]
    time = float(column(context.trace.activities, "duration_ns")[again].sum()) / context.steps
    if time < LEAST_SHARE * context.step_ns:
        return
    linked = int((context.links.activity_operator[context.work] >= 0).sum())
    calls = count_distinct(root, context.trace.operators.height) / context.steps
    room = _room(context, np.unique(root[root >= 0]))
    fits = room is None or room.fits
    saving = context.of_removed(_AGAIN[0] * time, _AGAIN[1] * time, len(again) / linked)
    yield Draft(
        rule=Rule.RECOMPUTATION,
        title=f"The backward pass computes parts of the forward pass again ({format_ns(time)} {context.words.per})",
        where=_checkpoint(context),
        saving=saving if fits else Range(0.0, saving.high, saving.likely),
        derivation="the device time of forward operators that run within the backward pass "
        f"({percent(_AGAIN[0])}: low; {percent(_AGAIN[1])}: high, with what keeps its results), and their part of "
        "the time spent launching",
        evidence=(
            measured(
                count_of(calls),
                f" forward operators {context.words.each} run in the backward pass, ",
                share_of(time, context.busy_ns),
                " of the device's busy time",
                source=Source.ACTIVITIES,
            ),
            *(() if room is None else (room.fact(),)),
        ),
        todo="checkpoint fewer layers",
        action="checkpoint fewer layers, as memory allows (torch.utils.checkpoint), or selectively "
        "(create_selective_checkpoint_contexts)",
        wrong_if="memory does not allow it",
        claims=context.claims_of_activities(again),
        remedy=Remedy(
            "no forward operator runs in the backward pass; half of their time on the host stays, and of that of "
            "checkpointing itself (low)",
            _once(context, again, root[root >= 0], fits=fits),
        ),
    )


class _Room(Struct, frozen=True):
    """Whether a device has memory for what is computed again.

    Attributes:
        device: how much memory it has, in bytes.
        peak: the most that is allocated.
        again: what the nodes of the backward pass allocate that compute it again, per step.
    """

    device: int
    peak: int
    again: int

    @property
    def fits(self) -> bool:
        """Whether all of it fits beside the peak."""
        return self.peak + self.again <= _FILLED * self.device

    def fact(self) -> Fact:
        """What is known of it."""
        return measured(
            of_bytes(self.peak),
            " of the device's ",
            of_bytes(self.device),
            " are allocated at most; what is computed again allocates ",
            of_bytes(self.again),
            " a step" + ("" if self.fits else ": not all of it fits"),
            source=Source.ACTIVITIES,
        )


_FILLED: Final = 0.9  # of a device's memory: the rest is fragments, libraries and the context


def _room(context: Context, roots: Ints) -> _Room | None:
    """Return what of the device's memory is free; None where allocations or the device's size were not recorded."""
    own = context.device.device
    size = next((one.memory_bytes for one in context.trace.devices if one.index == own), None)
    table = context.trace.allocations
    if not size or not table.height:
        return None
    table = table.filter((pl.col("device") == own) & (pl.col("device_type").fill_null(0) != 0))
    peak = table["total_allocated_bytes"].max()
    if not isinstance(peak, int):
        return None
    # The outermost operators around what is known to run again, with all else that runs in them.
    operators, parent, allocated = context.trace.operators, context.links.operators.parent, 0
    while (above := np.unique(np.where(parent[roots] >= 0, parent[roots], roots))).tolist() != roots.tolist():
        roots = above
    thread, start, end = (
        column(operators, "thread")[roots],
        column(operators, "start_ns")[roots],
        end_of(operators)[roots],
    )
    for number in np.unique(thread).tolist():
        spans = Intervals.union_of(start[thread == number], end[thread == number])
        made = table.filter((pl.col("thread") == number) & (pl.col("bytes") > 0))
        moment = column(made, "time_ns")
        allocated += int(column(made, "bytes")[spans.holds(moment, moment)].sum())
    return _Room(size, peak, allocated // max(context.steps, 1))


def _once(context: Context, again: Ints, roots: Ints, *, fits: bool) -> Apply:
    """Return the change that leaves out work that is done again, and all that the host does from its first to its last.

    Args:
        context: what rules look at.
        again: the activities.
        roots: per activity the operator of the forward pass that it belongs to.
        fits: whether memory is known to suffice, or not known: else nothing changes at the low end.
    """
    launch = context.links.activity_launch[again]
    operators, calls = context.trace.operators, context.trace.launches
    rows = np.unique(roots)
    thread, start, end = column(operators, "thread")[rows], column(operators, "start_ns")[rows], end_of(operators)[rows]
    others = np.ones(calls.height, np.bool_)
    others[launch[launch >= 0]] = False
    stretches = dict(checkpointing(context.trace))
    for number in np.unique(thread).tolist():
        ours = np.flatnonzero(thread == number)
        ours = ours[np.argsort(start[ours], kind="stable")]
        launched = np.sort(column(calls, "start_ns")[others & (column(calls, "thread") == number)])
        # Two operators with no other launch between them are parts of one run.
        joined = np.searchsorted(launched, end[ours[:-1]]) == np.searchsorted(launched, start[ours[1:]])
        first, last = np.append(True, ~joined), np.append(~joined, True)
        own = stretches.get(number, Intervals.union_of(start[:0], end[:0]))
        begins, ends = np.append(own.start, start[ours[first]]), np.append(own.end, end[ours[last]])
        stretches[number] = Intervals.union_of(begins, ends)

    def apply(edit: Edit, assumed: Assumed) -> int:
        if assumed is Assumed.LOW and not fits:
            return len(again)
        result = edit.remove_activities(again)
        edit.remove_calls(launch[launch >= 0])
        for number, spans in stretches.items():
            edit.remove_host(number, spans, 0.5 if assumed is Assumed.LOW else 1.0)
        return result

    return apply


def _checkpoint(context: Context) -> Where:
    frames = context.trace.frames
    result = names_that(frames, lambda name: "torch/utils/checkpoint.py" in name)
    if not result.any():
        return Where()
    row = int(np.flatnonzero(result)[0])
    nesting = nesting_of(frames)
    above = int(nesting.parent[row])
    names = frames["name"]
    # The user's line that asks for the checkpoint says more than PyTorch's own frames.
    while above >= 0 and not is_users_frame(str(names[above])):
        above = int(nesting.parent[above])
    return Where(python=str(names[above]) if above >= 0 else str(names[row]))


_MOST_RUNS: Final = 4


@states(
    RuleDescription(
        Rule.DUPLICATE_WORK,
        "a module that runs several equal times a step; that the inputs are the same no trace tells, so it is never "
        "ranked "
        "by its range",
        "0 to all runs but one",
        "data come from the host between the runs; training",
    ),
)
def duplicate_work(context: Context) -> Iterator[Draft]:
    """Find modules that run several times a step with inputs of the same shapes, perhaps with the same inputs."""
    if context.backward().inside.any():
        return  # what runs again may belong to another micro-batch
    for name, calls, time in itertools.islice(_repeated_modules(context), 1):
        saved = time * (1 - 1 / calls)
        if calls > _MOST_RUNS:  # a loop such as a sampler's: each run continues from the one before
            return
        if saved < LEAST_SHARE * context.step_ns:
            return
        high = context.of_device(0.0, saved).high
        yield Draft(
            rule=Rule.DUPLICATE_WORK,
            title=f"{or_unknown(name)} runs {calls:.0f} times {context.words.each} with inputs of the same shapes",
            where=Where(module=name),
            # No trace tells whether the inputs are the same, so this ranks behind everything that was seen.
            saving=Range(0.0, high, 0.01 * high),
            derivation="all of its runs but one, if their inputs are the same (high)",
            evidence=(
                measured(
                    "it takes ",
                    nanoseconds(time),
                    f" of device time {context.words.each}, in ",
                    count_of(calls),
                    " runs of the same kernels",
                    source=Source.ACTIVITIES,
                ),
                general("a trace does not record whether tensors hold the same values"),
            ),
            todo="compute it once, and use it again",
            action="if the inputs are the same, compute it once and use the result again",
            wrong_if="the inputs differ from run to run",
            claims=frozenset({"duplicates"}),
        )


def _copies_from_host(context: Context) -> Ints:
    """Return when copies from the host to the device were launched, in nanoseconds, in no particular order."""
    launch = context.links.activity_launch
    copies = names_that(context.trace.activities, lambda name: direction_of(name) is Direction.TO_DEVICE)
    return column(context.trace.launches, "start_ns")[launch[copies & (launch >= 0)]]


def _work_between(begin: Ints, end: Ints, each: int, launched: Ints) -> bool:
    """Tell whether something is launched between any two neighbouring runs of the same step.

    Args:
        begin: when the runs begin, ascending.
        end: when they end.
        each: how many runs a step has.
        launched: when anything is launched, ascending.
    """
    between = np.searchsorted(launched, begin[1:]) > np.searchsorted(launched, end[:-1])
    # Runs of two different steps may follow each other directly.
    within = np.arange(1, len(begin)) % each != 0
    return bool(between[within].all())


def _new_data_between(starts: Ints, each: int, copied: Ints) -> bool:
    """Tell whether data came from the host between the runs of any step: then their inputs differ."""
    groups = starts[: len(starts) // each * each].reshape(-1, each)
    first, last = np.searchsorted(copied, groups[:, 0]), np.searchsorted(copied, groups[:, -1])
    return bool((last > first).any())


def _repeated_modules(context: Context) -> Iterator[tuple[str, float, float]]:
    """Yield name, runs per step and device time per step of modules that run alike several times in every step.

    Runs are alike if they launch as many activities. The most time comes first; times are nanoseconds.
    """
    frames = context.trace.frames
    modules = frames.filter(names_that(frames, lambda name: name.startswith(MODULE_FRAME)))
    launch = context.links.activity_launch
    launched = np.flatnonzero(launch >= 0)
    if not modules.height or not len(launched):
        return
    nesting = nesting_of(modules)
    thread, start = (column(context.trace.launches, name)[launch[launched]] for name in ("thread", "start_ns"))
    owner = nesting.innermost_at(thread, start)
    inside = owner >= 0
    duration, kernels = np.zeros(modules.height, np.int64), np.zeros(modules.height, np.int64)
    np.add.at(duration, owner[inside], column(context.trace.activities, "duration_ns")[launched[inside]])
    np.add.at(kernels, owner[inside], 1)
    names = modules["name"].cast(pl.String)
    table = pl.DataFrame(
        {
            "name": names,
            "around": names.gather(pl.Series(nesting.parent).replace(-1, None)),
            "time": nesting.subtree_sums(duration),
            "kernels": nesting.subtree_sums(kernels),
        }
    )
    runs = table.group_by("name").agg(
        pl.len().alias("runs"),
        pl.col("time").sum(),
        pl.col("kernels").min().alias("least"),
        pl.col("kernels").max(),
        pl.col("around").first(),
    )
    repeated = runs.filter(
        (pl.col("runs") >= 2 * context.steps)
        & (pl.col("runs") % context.steps == 0)
        & (pl.col("least") == pl.col("kernels"))
        & (pl.col("kernels") > 0)
    )
    outer = set(repeated["name"])
    begun, ended = column(modules, "start_ns"), end_of(modules)
    copied, launches = np.sort(_copies_from_host(context)), np.sort(start)
    of_name = _rows_by_name(modules["name"], begun)
    for name, count, time, _, _, around in repeated.sort("time", "name", descending=[True, False]).iter_rows():
        # It repeats because the module around it does.
        if around in outer:
            continue
        own, each = of_name(name), count // context.steps
        if _new_data_between(begun[own], each, copied):
            continue
        # A run right after another one probably takes its result.
        if _work_between(begun[own], ended[own], each, launches):
            yield str(name).removeprefix(MODULE_FRAME), count / context.steps, time / context.steps


def _rows_by_name(names: pl.Series, begun: Ints) -> Callable[[str], Ints]:
    """Return a function that gives the rows of a name, by time."""
    code = names.to_physical().to_numpy()
    order = np.lexsort((begun, code))
    codes = {str(name): int(number) for name, number in zip(names.cast(pl.String), code, strict=True)}

    def rows(name: str) -> Ints:
        low, high = (np.searchsorted(code[order], codes[name], side=side) for side in ("left", "right"))
        result: Ints = order[low:high]
        return result

    return rows
