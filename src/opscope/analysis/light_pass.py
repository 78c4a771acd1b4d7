"""Joins a light pass (device activities only, which costs the host least) with the pass that has the names.

Both ran the same steps. Launch order, names and grids tell which activity is which. So the steps of the light pass are
known, although a profiler that records no ranges of the host marks none.
"""

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.links import Links, link
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.step_work import step_of_activities
from opscope.analysis.structure.window import step_table
from opscope.analysis.trust.plausible import plausible
from opscope.base.text import or_unknown
from opscope.trace.model import Trace

_IDENTITY = ("device", "kind", "name", "grid", "block")


class LightPass(Struct, frozen=True):
    """What a light pass says.

    Attributes:
        analysis: of the light pass, with the steps of the other pass; None where the two did not run the same.
        sentence: how they were joined, or why they could not be.
    """

    analysis: Analysis | None
    sentence: str


def light_pass(light: Trace, full: Analysis) -> LightPass:
    """Join a light pass with the analysis of the pass that has the names.

    Args:
        light: the trace of the light pass.
        full: the analysis of the other pass, whose trace marks steps.

    Raises:
        BadInputError: durations of the light pass add up to more than 64 bits of nanoseconds hold.
    """
    if light.source.damage is not None:
        return LightPass(None, f"The light pass is not whole: {light.source.damage}.")
    trace, _ = plausible(light)
    links = link(trace)
    own, theirs = _in_order(trace, links), _in_order(full.trace, full.links)
    table = step_table(full.trace)
    step = step_of_activities(full.trace, full.links, table)[theirs]
    theirs, step = theirs[step >= 0], step[step >= 0]
    # The light pass runs one more step in front, which tells where the first of the others begins.
    before, own = np.split(own, [max(len(own) - len(theirs), 0)])
    if not len(own) or not len(theirs):
        return LightPass(None, "The light pass could not be joined with the one with names: nothing was launched.")
    difference = _difference(trace, own, full.trace, theirs)
    if difference is not None:
        return LightPass(None, f"The light pass did not run the same as the one with names: {difference}")
    marked = _with_steps(trace, links, before, own, step, table["step"].to_list())
    analysis = analyze(marked, full.functions, graph_capture=full.graph_capture)
    sentence = (
        f"Busy and idle time and steps are of a light pass (device activities only): its {len(own):,} activities have "
        "the names and grids of the other pass, in the order of their launches."
    )
    return LightPass(analysis, sentence)


def _in_order(trace: Trace, links: Links) -> Ints:
    """Return the activities with a recorded launch, in launch order; those of one graph launch as they ran."""
    rows = np.flatnonzero(links.activity_launch >= 0)
    launched = column(trace.launches, "start_ns")[links.activity_launch[rows]]
    order: Ints = rows[np.lexsort((column(trace.activities, "start_ns")[rows], launched))]
    return order


def _difference(one: Trace, first: Ints, other: Trace, second: Ints) -> str | None:
    """Return where two sequences of activities differ, in words; None where they do not."""
    if len(first) != len(second):
        return f"{len(first):,} activities were launched, not {len(second):,}."
    names = [trace.activities.select(pl.col(_IDENTITY).cast(pl.String)) for trace in (one, other)]
    # A null on either side, such as the grid of a copy, counts as equal.
    same = (names[0][first] == names[1][second]).select(pl.all_horizontal(pl.all().fill_null(True))).to_series()
    if same.all():
        return None
    at = int(same.arg_min() or 0)
    results = [
        or_unknown(str(table["name"][int(rows[at])])) for table, rows in zip(names, (first, second), strict=True)
    ]
    return f"the launch number {at + 1:,} is {results[0]}, not {results[1]}."


def _with_steps(trace: Trace, links: Links, before: Ints, rows: Ints, step: Ints, numbers: list[int]) -> Trace:
    """Return the trace with ranges of its steps, and without what was launched before them.

    A step ends where the host has waited for it, else with its last launch. What the host does after that belongs to
    the next step.
    """
    host = HostTime(trace, links)
    call = links.activity_launch[rows]
    start, thread = host.start[call], host.thread[call]
    result, place = np.unique(step, return_inverse=True)
    first, last = np.full(len(result), np.iinfo(np.int64).max), np.zeros(len(result), np.int64)
    np.minimum.at(first, place, start)
    np.maximum.at(last, place, host.end[call])
    following = np.append(first[1:], int(end_of(trace.launches).max()))
    earlier = host.end[links.activity_launch[before]]
    # One entry more in front, for the step before the first: where that ends, the first one begins.
    last, following = np.append(earlier.max(initial=0), last), np.append(first[0], following)
    waited = np.sort(host.end[host.drains])
    position = np.searchsorted(waited, following, side="right") - 1
    # The last wait before the next step launches anything, if it comes after this step's last launch.
    waits = (position >= 0) & (np.append(waited, 0)[position] > last)
    ends = np.where(waits, np.append(waited, 0)[position], last)
    begin, end = ends[:-1], ends[1:]
    if not len(before):
        begin[0] = first[0]
    ranges = pl.DataFrame(
        {
            "thread": np.full(len(result), int(np.bincount(thread).argmax())),
            "name": [f"ProfilerStep#{numbers[int(number)]}" for number in result],
            "start_ns": begin,
            "duration_ns": end - begin,
        }
    )
    schema = trace.annotations.schema
    ranges = ranges.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    kept = np.ones(trace.activities.height, np.bool_)
    kept[before] = False
    return replace(trace, annotations=ranges, activities=trace.activities.filter(kept))
