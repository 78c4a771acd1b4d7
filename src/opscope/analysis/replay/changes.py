"""Changes that a user names, as edits of a graph: which work they are about, and what becomes of it.

When a replay may promise a saving.
"""

import fnmatch
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.costs.sums import inputs_of_activities
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeKind
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.nesting import Bools, Floats, Ints, nearest
from opscope.base.errors import UsageError
from opscope.base.text import or_unknown
from opscope.documents.limits import LimitedBy, LimitRow
from opscope.knowledge.collectives import Direction, direction_of
from opscope.knowledge.devices import GRAPH_GAP_NS, GRAPH_LAUNCH_NS, Assumed
from opscope.knowledge.kernels.kinds import communicates

# Of 75 recorded traces ten had more residual than this; their replay without residuals was up to 98 % off.
MOST_RESIDUAL: Final = 0.05
# Nine in ten of the same traces replay within 0.4 %: what is further off is not understood.
MOST_ERROR: Final = 0.02
# The estimated step without a profiler was within 8 % of the measured one in nine of ten programs.
MOST_MISSED: Final = 0.1


class ReplayedChange(Struct, frozen=True):
    """A change.

    Attributes:
        text: as the user names it: ``--scale aten::mm=0.5``.
        assumption: what is assumed of the step with it.
        apply: makes it in an edit; returns how many operators, activities or calls of the steps it is about.
    """

    text: str
    assumption: str
    apply: Callable[[Edit], int]


def remove(steps: Steps, pattern: str) -> ReplayedChange:
    """Remove operators, with what they launch and the host time that they take.

    Raises:
        UsageError: the steps have no such operator.
    """
    operators = _operators(steps, pattern, f"--remove {pattern}")
    change = ReplayedChange(
        f"--remove {pattern}",
        "the operators are not called, nothing replaces them, and what others do stays as long",
        lambda edit: edit.remove_operators(operators),
    )
    return _about_steps(steps, change, f"calls such an operator; {_operators_of(steps)}")


def scale(steps: Steps, pattern: str, factor: float) -> ReplayedChange:
    """Let the device's work of some operators, or kernels of some name, take a multiple of its time.

    Raises:
        UsageError: the steps have neither, or the factor is none.
    """
    text = f"--scale {pattern}={factor:g}"
    if factor != 0:
        above_zero(text, factor)
    activities = _work(steps, pattern, text)
    change = ReplayedChange(
        text,
        f"their kernels take {factor:g} times as long; the host launches them as before",
        lambda edit: edit.scale(activities, factor),
    )
    return _about_steps(steps, change, f"has work of that name; {_kernels_of(steps)}")


def to_limit(steps: Steps, pattern: str, rows: Sequence[LimitRow]) -> ReplayedChange:
    """Let the device's work of some operators take the least time that the device allows.

    Args:
        steps: the steps.
        pattern: names of operators or kernels.
        rows: the limits of the trace's work.

    Raises:
        UsageError: the steps have no such work, or none with a known limit.
    """
    text = f"--to-limit {pattern}"
    activities, factor = _work(steps, pattern, text), _shares(steps, rows)
    known = activities[factor[activities] < 1]
    if not len(known):
        raise UsageError(f"{text}: no limit is known for that work; opscope limits says why")
    change = ReplayedChange(
        text,
        "their kernels take the time of opscope limits, which none reaches in full; the host launches them as before",
        lambda edit: edit.scale(known, factor),
    )
    return _about_steps(steps, change, f"has work of that name with a known limit; {_kernels_of(steps)}")


def no_wait(steps: Steps, pattern: str) -> ReplayedChange:
    """Let calls return without waiting for the device: calls of some name, or those that some operators make.

    Raises:
        UsageError: the steps wait in neither.
    """
    text = f"--no-wait {pattern}"
    calls = np.flatnonzero(names_that(steps.trace.launches, _matches(pattern)))
    if not len(calls):
        inside = _inside(steps, _operators(steps, pattern, text))
        calls = np.flatnonzero(np.append(inside, False)[steps.links.launch_operator])
    # The waits that end steps stay, so that a change may be about none; it is an answer that those cost nothing.
    waits = np.isin(steps.graph.kind, (EdgeKind.WAIT, EdgeKind.QUEUE))
    if not np.isin(steps.graph.row[waits], calls).any():
        raise UsageError(f"{text}: no step that is replayed waits in such a call; {_waits_of(steps)}")
    return ReplayedChange(
        text,
        "the host goes on at once, and needs no result; what is queued stays within what the driver takes",
        lambda edit: edit.cut_waits(calls),
    )


def no_launch_gaps() -> ReplayedChange:
    """Launch each step's work at once, as a CUDA graph does."""
    gap, launch = GRAPH_GAP_NS[Assumed.LIKELY], GRAPH_LAUNCH_NS[Assumed.LIKELY]

    def apply(edit: Edit) -> int:
        edit.launch_as_graph(gap, launch)
        return edit.graph.count

    return ReplayedChange(
        "--no-launch-gaps",
        f"one launch of {launch / 1e3:g} us between two waits, {gap / 1e3:g} us between kernels; the host waits, and "
        "does other work, as before",
        apply,
    )


def overlap_collectives(steps: Steps) -> ReplayedChange:
    """Let other work never wait for collectives.

    Raises:
        UsageError: the trace has no collectives, or only on streams that other work uses too.
    """
    text = "--overlap collectives"
    activities = steps.trace.activities
    collective = names_that(activities, communicates)
    if not collective.any():
        raise UsageError(f"{text}: the trace has no collectives")
    streams = activities.select("device", "stream")
    shared = streams.filter(~collective).unique()
    if streams.filter(collective).join(shared, on=["device", "stream"], how="anti", nulls_equal=True).is_empty():
        raise UsageError(f"{text}: the collectives run on a stream of other work, in its order: nothing can overlap")

    def apply(edit: Edit) -> int:
        edges, before, after = edit.waits_of_streams()
        chosen = edges[collective[before] & ~collective[after]]
        edit.let_run_on(chosen)
        return len(chosen)

    return ReplayedChange(
        text, "no work waits for a collective; collectives take as long, and the step still ends after them", apply
    )


LINKS: Final = ("nvlink", "pcie", "memory")


def bandwidth(steps: Steps, link: str, factor: float, rows: Sequence[LimitRow]) -> ReplayedChange:
    """Let what moves data over a link take less time.

    Args:
        steps: the steps.
        link: of `LINKS`: ``nvlink``, what collectives and copies between devices use; ``pcie``, copies between host and
            device; ``memory``, the device's own.
        factor: how many times as fast the link is.
        rows: the limits of the trace's work.

    Raises:
        UsageError: the trace has nothing that uses the link, or the factor is none.
    """
    text, activities = f"--bandwidth {link}={factor:g}x", steps.trace.activities
    above_zero(text, factor)
    if link not in LINKS:
        raise UsageError(f"{text}: there is no such link; there are: {', '.join(LINKS)}")
    if link == "memory":
        limited = {_key(row) for row in rows if row.limited_by == LimitedBy.MEMORY}
        chosen = np.flatnonzero([key in limited for key in _keys(steps)])
        what = "work whose limit is the memory's bandwidth is"
    else:
        directions = _OVER_NVLINK if link == "nvlink" else _OVER_PCIE
        is_it = names_that(activities, lambda name: direction_of(name) in directions)
        if link == "nvlink":
            is_it |= names_that(activities, communicates)
        chosen = np.flatnonzero(is_it)
        what = "collectives and copies between devices are" if link == "nvlink" else "copies over the bus are"
    if not len(chosen):
        raise UsageError(f"{text}: the trace has nothing that uses it, as far as names and shapes tell")
    return ReplayedChange(
        text,
        f"{what} {factor:g} times as fast, all of their time: latency, and waiting for other ranks, would stay",
        lambda edit: edit.scale(chosen, 1 / factor),
    )


_OVER_NVLINK: Final = (Direction.BETWEEN_DEVICES,)
_OVER_PCIE: Final = (Direction.TO_DEVICE, Direction.TO_HOST)


# ---------------------------------------------------------------- which work


def above_zero(text: str, factor: float) -> float:
    """Return a factor that a change can have.

    Raises:
        UsageError: it is not above 0, or absurdly large or small.
    """
    if not 1 / _LARGEST <= factor <= _LARGEST:
        raise UsageError(f"{text}: a factor is a number above 0, and at most a million, not {factor:g}")
    return factor


_LARGEST: Final = 1e6  # what is meant is far below, and sums of larger times do not fit into 64 bits


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda name: fnmatch.fnmatchcase(name, pattern)


def _operators(steps: Steps, pattern: str, option: str) -> Bools:
    result = names_that(steps.trace.operators, _matches(pattern))
    if not result.any():
        raise UsageError(f"{option}: the trace has no operator of that name; {_operators_of(steps)}")
    return result


# ---------------------------------------------------------------- what there is


def _about_steps(steps: Steps, change: ReplayedChange, what: str) -> ReplayedChange:
    """Return a change, unless it is about nothing of the steps: a saving of 0 would be not an answer to what was meant.

    Raises:
        UsageError: it is; ``what`` ends the sentence.
    """
    if not change.apply(Edit(steps)):
        raise UsageError(f"{change.text}: no step that is replayed {what}")
    return change


def _operators_of(steps: Steps) -> str:
    start, chosen = pl.col("start_ns"), steps.chosen
    inside = steps.trace.operators.filter((start >= chosen.begin_ns) & (start < chosen.end_ns))
    return _there_are("operators", inside["name"])


def _kernels_of(steps: Steps) -> str:
    return _there_are("kernels", _named(steps.trace.activities, steps, EdgeKind.ACTIVITY))


def _waits_of(steps: Steps) -> str:
    return _there_are("calls that wait", _named(steps.trace.launches, steps, EdgeKind.WAIT))


def _named(table: pl.DataFrame, steps: Steps, kind: EdgeKind) -> pl.Series:
    """Return the names of the rows of a table that edges of a kind stand for."""
    return table["name"].gather(np.unique(steps.graph.row[steps.graph.kind == kind]))


def _there_are(what: str, names: pl.Series) -> str:
    """Say which names there are, the most frequent first."""
    counted = names.cast(pl.String).drop_nulls().value_counts(sort=True)[names.name].to_list()
    more = f" and {len(counted) - _LISTED:,} more" if len(counted) > _LISTED else ""
    listed = ", ".join(or_unknown(str(name)) for name in counted[:_LISTED])
    return f"the replayed steps have these {what}: {listed or 'none'}{more}"


_LISTED: Final = 6


def _inside(steps: Steps, operators: Bools) -> Bools:
    """Tell per operator whether it is one of some, or runs inside one."""
    return nearest(steps.links.operators.parent, operators) >= 0


def _work(steps: Steps, pattern: str, option: str) -> Ints:
    """Return the activities that operators of a name launched, themselves or by others; else kernels of that name."""
    matches = _matches(pattern)
    operators = names_that(steps.trace.operators, matches)
    if operators.any():
        inside = np.append(_inside(steps, operators), False)
        return np.flatnonzero(inside[steps.links.activity_operator])
    kernels = np.flatnonzero(names_that(steps.trace.activities, matches))
    if not len(kernels):
        raise UsageError(
            f"{option}: the trace has neither an operator nor a kernel of that name; {_operators_of(steps)}; "
            f"{_kernels_of(steps)}"
        )
    return kernels


def _shares(steps: Steps, rows: Sequence[LimitRow]) -> Floats:
    """Return per activity the share of its time that its work would take at its limit; 1 where no limit is known."""
    ideal: dict[_Key, list[float]] = {}
    for row in rows:
        if row.ideal_ns is not None:
            sums = ideal.setdefault(_key(row), [0.0, 0.0])
            sums[0] += row.ideal_ns * row.calls
            sums[1] += row.device_ns
    shares = {key: min(1.0, least / took) for key, (least, took) in ideal.items() if took}
    return np.array([shares.get(key, 1.0) for key in _keys(steps)], np.float64)


_Key = tuple[str | None, str | None, str | None, int | None]


def _key(row: LimitRow) -> _Key:
    """Return what tells the work of a row: operator, inputs and device."""
    return row.operator, row.input_dims, row.input_types, row.device


def _keys(steps: Steps) -> list[_Key]:
    """Return the same per activity of the trace."""
    inputs = inputs_of_activities(steps.trace, steps.links).select(
        pl.col("operator", "input_dims", "input_types").cast(pl.String)
    )
    results: list[_Key] = inputs.with_columns(steps.trace.activities["device"]).rows()
    return results
