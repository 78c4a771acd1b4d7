"""Changes that a user names, as edits of a graph: which work they are about, and what becomes of it."""

import fnmatch
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.costs.launch_shapes import inputs_of_activities
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.edit import GRAPH_GAP_NS, Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.nesting import Bools, Ints, nearest
from opscope.base.errors import UsageError
from opscope.documents.limits import LimitRow


class Change(Struct, frozen=True):
    """A change.

    Attributes:
        text: as the user names it: ``--scale aten::mm=0.5``.
        assumption: what is assumed of the step with it.
        apply: makes it in an edit; returns how many operators, activities or calls of the steps it is about.
    """

    text: str
    assumption: str
    apply: Callable[[Edit], int]


def remove(steps: Steps, pattern: str) -> Change:
    """Remove operators, with what they launch and the host time that they take.

    Raises:
        UsageError: the trace has no such operator.
    """
    operators = _operators(steps, pattern, f"--remove {pattern}")
    return Change(
        f"--remove {pattern}",
        "the operators are not called, nothing replaces them, and what others do stays as long",
        lambda edit: edit.remove_operators(operators),
    )


def scale(steps: Steps, pattern: str, factor: float) -> Change:
    """Let the device's work of some operators, or kernels of some name, take a multiple of its time.

    Raises:
        UsageError: the trace has neither.
    """
    text = f"--scale {pattern}={factor:g}"
    activities = _work(steps, pattern, text)
    return Change(
        text,
        f"their kernels take {factor:g} times as long; the host launches them as before",
        lambda edit: edit.scale(activities, factor),
    )


def to_limit(steps: Steps, pattern: str, rows: Sequence[LimitRow]) -> Change:
    """Let the device's work of some operators take the least time that the device allows.

    Args:
        steps: the steps.
        pattern: names of operators or kernels.
        rows: the limits of the trace's work.

    Raises:
        UsageError: the trace has no such work, or none with a known limit.
    """
    text = f"--to-limit {pattern}"
    activities, factor = _work(steps, pattern, text), _shares(steps, rows)
    known = activities[factor[activities] < 1]
    if not len(known):
        raise UsageError(f"{text}: no limit is known for that work; opscope limits says why")
    return Change(
        text,
        "their kernels take the time of opscope limits, which none reaches in full; the host launches them as before",
        lambda edit: edit.scale(known, factor),
    )


def no_wait(steps: Steps, pattern: str) -> Change:
    """Let calls return without waiting for the device: calls of some name, or those that some operators make.

    Raises:
        UsageError: the trace has neither.
    """
    text = f"--no-wait {pattern}"
    calls = np.flatnonzero(names_that(steps.trace.launches, _matches(pattern)))
    if not len(calls):
        inside = _inside(steps, _operators(steps, pattern, text))
        calls = np.flatnonzero(np.append(inside, False)[steps.links.launch_operator])
    return Change(
        text,
        "the host goes on at once, and needs no result; what is queued stays within what the driver takes",
        lambda edit: edit.cut_waits(calls),
    )


def no_launch_gaps() -> Change:
    """Launch each step's work at once, as a CUDA graph does."""

    def apply(edit: Edit) -> int:
        edit.launch_as_graph()
        return edit.graph.count

    return Change(
        "--no-launch-gaps",
        f"one launch a step, {GRAPH_GAP_NS / 1e3:g} us between kernels; the host waits, and does other work, as before",
        apply,
    )


# ---------------------------------------------------------------- which work


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda name: fnmatch.fnmatchcase(name, pattern)


def _operators(steps: Steps, pattern: str, option: str) -> Bools:
    found = names_that(steps.trace.operators, _matches(pattern))
    if not found.any():
        raise UsageError(f"{option}: the trace has no operator of that name")
    return found


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
        raise UsageError(f"{option}: the trace has neither an operator nor a kernel of that name")
    return kernels


def _shares(steps: Steps, rows: Sequence[LimitRow]) -> Ints:
    """Return per activity the share of its time that its work would take at its limit; 1 where no limit is known."""
    ideal: dict[tuple[str | None, str | None, str | None, int | None], list[float]] = {}
    for row in rows:
        if row.ideal_ns is not None:
            sums = ideal.setdefault((row.operator, row.input_dims, row.input_types, row.device), [0.0, 0.0])
            sums[0] += row.ideal_ns * row.calls
            sums[1] += row.device_ns
    inputs = inputs_of_activities(steps.trace, steps.links).select(
        pl.col("operator", "input_dims", "input_types").cast(pl.String)
    )
    keys = inputs.with_columns(steps.trace.activities["device"])
    shares = {key: min(1.0, least / took) for key, (least, took) in ideal.items() if took}
    return np.array([shares.get(key, 1.0) for key in keys.iter_rows()], np.float64)
