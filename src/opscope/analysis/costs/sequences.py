"""Sequences of work that a stream runs again and again: how often, how long, and the bytes that they must move."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Floats, Ints
from opscope.knowledge.categories import Category, Classifier
from opscope.knowledge.kernels.kinds import short_name
from opscope.trace.model import Trace

LONGEST: Final = 8  # activities of a sequence; longer repetitions are steps and layers, which have tables of their own
_OFTEN: Final = 3
_LISTED: Final = 200
_OVERLAP: Final = 0.5  # of a sequence that lies within those listed before it: from here on it says nothing new
_LOOKED_AT: Final = 2_000  # sequences, those with most device time
# Work that a compiler can put into one kernel.
_ELEMENTWISE: Final = frozenset({Category.ELEMENTWISE, Category.ACTIVATION})
ELEMENTWISE, MIXED = "elementwise", "mixed"
_SEPARATOR: Final = " > "


class _Found(Struct, frozen=True):
    """Where a sequence begins, without overlaps: positions in the order of all streams; and how long it is."""

    starts: Ints
    length: int


def sequence_table(trace: Trace, links: Links, classifier: Classifier, call_bytes: Floats, steps: int) -> pl.DataFrame:
    """Return chains of elementwise work, and other sequences that streams run several times a step.

    Activities of a stream are named by their operators, those of no operator by their kernels. Chains are runs of
    elementwise activities, as long as they are; other sequences have two to eight activities, of at least two names.
    Of sequences that overlap, the one with the most device time is listed.

    Args:
        trace: the trace.
        links: its links.
        classifier: of operators.
        call_bytes: per activity the least bytes that its call moves, at the call's first activity; 0 at its others,
            nan where they are not known.
        steps: how many steps the trace marks; 0 for none.

    Returns:
        ``sequence``, ``kind`` (``elementwise`` or ``mixed``), ``length``, ``count``, ``total_ns`` (durations added up),
        ``mean_ns`` of one, ``least_bytes`` of all (null where they are not known of every call). The most device time
        first.
    """
    order, token, names = _tokens(trace, links)
    duration = column(trace.activities, "duration_ns")[order]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(duration)])
    elementwise = np.array([classifier.classify(name).category in _ELEMENTWISE for name in names], np.bool_)
    same_stream = _same_stream(order, trace)
    chains = list(_chains(token, elementwise[token] if len(token) else np.zeros(0, np.bool_), same_stream))
    often = [one for one in _repeated(token, same_stream, before) if len(one.starts) > steps]
    result = _apart_from_each_other([*chains, *sorted(often, key=lambda one: -_time(one, before))], len(token))
    result.sort(key=lambda one: -_time(one, before))
    moved = np.concatenate([np.zeros(1), np.cumsum(np.nan_to_num(call_bytes[order]))])
    unknown = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.isnan(call_bytes[order]))])
    rows = [_row(one, token, names, elementwise, before, moved, unknown) for one in result[:_LISTED]]
    schema = {
        **{"sequence": pl.String, "kind": pl.String, "length": pl.Int64, "count": pl.Int64, "total_ns": pl.Int64},
        **{"mean_ns": pl.Float64, "least_bytes": pl.Int64},
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _same_stream(order: Ints, trace: Trace) -> Bools:
    """Tell per place whether the next one is on the same stream."""
    device, stream = (column(trace.activities, key)[order] for key in ("device", "stream"))
    same: Bools = np.append((np.diff(device) == 0) & (np.diff(stream) == 0), np.zeros(min(len(order), 1), np.bool_))
    return same


def _chains(token: Ints, elementwise: Bools, same_stream: Bools) -> Iterator[_Found]:
    """Yield the runs of elementwise work of at least two activities; equal ones together."""
    joined = np.zeros(len(token), np.bool_)
    joined[:-1] = elementwise[:-1] & elementwise[1:] & same_stream[:-1]
    edges = np.diff(joined.astype(np.int8), prepend=0, append=0)
    groups: dict[tuple[int, ...], list[int]] = {}
    for start, end in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        groups.setdefault(tuple(token[start : end + 1].tolist()), []).append(start)
    for parts, starts in groups.items():
        yield _Found(np.array(starts, np.int64), len(parts))


def _apart_from_each_other(results: Sequence[_Found], size: int) -> list[_Found]:
    """Return sequences in their order, without those of which most lies within earlier ones."""
    taken = np.zeros(size, np.bool_)
    kept = []
    for one in results:
        places = (one.starts[:, None] + np.arange(one.length)).reshape(-1)
        if taken[places].mean() < _OVERLAP:
            kept.append(one)
            taken[places] = True
    return kept


def _tokens(trace: Trace, links: Links) -> tuple[Ints, Ints, Sequence[str]]:
    """Return the order of all activities by stream and time, and per place in it the number of its name."""
    activities = trace.activities
    owner = pl.Series(links.activity_operator, dtype=pl.Int64).replace(-1, None)
    own = trace.operators["name"].cast(pl.String).gather(owner)
    kernels = activities["name"].cast(pl.String)
    short = {name: short_name(name) for name in kernels.filter(own.is_null()).unique().to_list()}
    name = own.fill_null(kernels.replace(short) if short else kernels)
    order = np.lexsort(tuple(column(activities, key) for key in ("start_ns", "stream", "device")))
    names = name.unique().sort().to_list()
    numbers = {text: number for number, text in enumerate(names)}
    codes = (
        name.gather(order).replace_strict(numbers, return_dtype=pl.Int64) if names else pl.Series([], dtype=pl.Int64)
    )
    return order, codes.to_numpy(), names


def _repeated(token: Ints, same_stream: Bools, before: Ints) -> Iterator[_Found]:
    """Yield the sequences that occur often enough, but not those that are always a part of the next longer one."""
    code = token.copy()
    valid = np.ones(len(token), np.bool_)
    shorter: dict[int, _Found] = {}
    for length in range(2, LONGEST + 1):
        # The number of a sequence is that of its first part and its last activity.
        valid = valid[:-1] & same_stream[length - 2 :][: len(valid) - 1]
        if not valid.any():
            break
        pairs = code[:-1] * (int(token.max()) + 1) + token[length - 1 :]
        _, code = np.unique(pairs, return_inverse=True)
        longer = _often(code, valid, length, token, before)
        yield from _not_part_of(shorter, longer)
        shorter = longer
    yield from shorter.values()


def _often(code: Ints, valid: Bools, length: int, token: Ints, before: Ints) -> dict[int, _Found]:
    """Return the sequences of a length that occur often, by their first start."""
    places = np.flatnonzero(valid)
    order = places[np.argsort(code[places], kind="stable")]
    bounds = np.flatnonzero(np.diff(code[order], prepend=-1))
    groups = [group for group in np.split(order, bounds[1:]) if len(group) >= _OFTEN]
    groups.sort(key=lambda group: -int((before[group + length] - before[group]).sum()))
    results = {}
    for group in groups[:_LOOKED_AT]:
        first = int(group[0])
        if len(set(token[first : first + length].tolist())) < 2:
            continue
        starts = _apart(group, length)
        if len(starts) >= _OFTEN:
            results[first] = _Found(starts, length)
    return results


def _apart(starts: Ints, length: int) -> Ints:
    """Return starts of which none lies within the one before."""
    if (np.diff(starts) >= length).all():
        return starts
    kept, end = [], -1
    for start in starts.tolist():
        if start >= end:
            kept.append(start)
            end = start + length
    return np.array(kept, np.int64)


def _not_part_of(shorter: dict[int, _Found], longer: dict[int, _Found]) -> Iterator[_Found]:
    """Yield sequences that also occur elsewhere than within a longer one."""
    covered: dict[int, int] = {}  # by start: how often the longest sequence that holds it occurs
    for one in longer.values():
        for shift in (0, 1):
            for start in (one.starts + shift).tolist():
                covered[start] = max(covered.get(start, 0), len(one.starts))
    for one in shorter.values():
        if any(covered.get(start, 0) < _OFTEN for start in one.starts.tolist()):
            yield one


def _time(one: _Found, before: Ints) -> int:
    return int((before[one.starts + one.length] - before[one.starts]).sum())


def _row(
    one: _Found, token: Ints, names: Sequence[str], elementwise: Bools, before: Ints, moved: Floats, unknown: Ints
) -> tuple[object, ...]:
    first, ends = int(one.starts[0]), one.starts + one.length
    parts = token[first : first + one.length]
    total, count = _time(one, before), len(one.starts)
    known = int((unknown[ends] - unknown[one.starts]).sum()) == 0
    least = round(float((moved[ends] - moved[one.starts]).sum())) if known else None
    kind = ELEMENTWISE if elementwise[parts].all() else MIXED
    return _SEPARATOR.join(names[part] for part in parts), kind, one.length, count, total, total / count, least
