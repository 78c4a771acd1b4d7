"""Which forward operator a backward operator belongs to: by sequence number, as autograd assigned it."""

import numpy as np
import numpy.typing as npt
import polars as pl

from opscope.analysis.columns import column, end_of
from opscope.analysis.links import Links, device_time_of_operators
from opscope.analysis.nesting import Ints, Nesting
from opscope.model import Trace

_ENGINE = "autograd::engine::evaluate_function: "


def backward_table(trace: Trace, links: Links) -> pl.DataFrame:
    """Return what the backward pass of each forward operator cost.

    One row per ``forward`` operator (null where no sequence number leads to one, as for gradient accumulation) and
    ``backward`` node: ``calls``, ``forward_device_ns`` (of the forward operators' own ranges) and
    ``backward_device_ns`` (of what the engine launched while it ran the node; nodes that run others inside, as
    checkpointing does, do not count them). Empty where no backward pass was recorded.
    """
    engine_of = _innermost_engine_range(trace)
    nodes = np.flatnonzero(engine_of == np.arange(trace.operators.height))
    forward_of = through_forward(trace, links, np.where(engine_of < 0, np.arange(trace.operators.height), -1))
    own = device_time_of_operators(trace, links)
    in_node = np.zeros(trace.operators.height, np.int64)
    np.add.at(in_node, engine_of[engine_of >= 0], own[engine_of >= 0])
    forward = forward_of[nodes]
    total = links.operators.subtree_sums(own)
    first_use = np.zeros(len(nodes), np.bool_)
    first_use[np.unique(forward, return_index=True)[1]] = True
    names = trace.operators["name"]
    return (
        pl.DataFrame(
            {
                "forward": names.gather(pl.Series(forward, dtype=pl.Int64).replace(-1, None)),
                "backward": names.gather(nodes),
                "forward_device_ns": np.where((forward >= 0) & first_use, total[np.maximum(forward, 0)], 0),
                "backward_device_ns": in_node[nodes],
            }
        )
        .group_by("forward", "backward")
        .agg(pl.len().alias("calls"), pl.col("forward_device_ns", "backward_device_ns").sum())
        .with_columns(pl.col("forward").cast(pl.String), pl.col("backward").cast(pl.String).str.strip_prefix(_ENGINE))
        .select("forward", "backward", "calls", "forward_device_ns", "backward_device_ns")
        .sort("backward_device_ns", "backward", "forward", descending=[True, False, False])
    )


def in_backward(trace: Trace) -> npt.NDArray[np.bool_]:
    """Tell per operator whether autograd's engine runs it."""
    inside: npt.NDArray[np.bool_] = _innermost_engine_range(trace) >= 0
    return inside


def _innermost_engine_range(trace: Trace) -> Ints:
    """Return per operator the row of the node that the engine evaluates around it, itself included; or -1."""
    rows = trace.operators.with_row_index("row").filter(pl.col("name").cat.starts_with(_ENGINE))
    ranges = Nesting.of(column(rows, "thread"), column(rows, "start_ns"), end_of(rows))
    found = ranges.innermost_at(column(trace.operators, "thread"), column(trace.operators, "start_ns"))
    result = np.full(len(found), -1, np.int64)
    result[found >= 0] = column(rows, "row")[found[found >= 0]]
    return result


def through_forward(trace: Trace, links: Links, known: Ints) -> Ints:
    """Return per operator what the forward operator with the sequence number around it has, or -1.

    Args:
        trace: with its operators.
        links: of the same trace.
        known: what is asked about, per operator: a number that forward operators have, and -1 for all others. Where it
            is known it stays.
    """
    sequence = column(trace.operators, "sequence_number")
    keys, values = _by_sequence_number(sequence, column(trace.operators, "thread"), known)
    around = np.where(sequence >= 0, np.arange(len(sequence)), links.operators.parent)
    climbing = np.flatnonzero(around >= 0)
    while len(climbing):
        climbing = climbing[sequence[around[climbing]] < 0]
        around[climbing] = links.operators.parent[around[climbing]]
        climbing = climbing[around[climbing] >= 0]
    wanted = np.where(around >= 0, sequence[np.maximum(around, 0)], -1)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1) if len(keys) else np.full(len(wanted), -1)
    found = np.where(keys[place] == wanted, values[place], -1) if len(keys) else place
    return np.where(known >= 0, known, found)


def _by_sequence_number(sequence: Ints, thread: Ints, known: Ints) -> tuple[Ints, Ints]:
    """Return the sequence numbers of the operators that are known, in ascending order, and what is known of each."""
    numbered = np.flatnonzero((known >= 0) & (sequence >= 0))
    numbered = numbered[np.argsort(sequence[numbered], kind="stable")]
    numbers = sequence[numbered]
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    if not len(first):
        return numbers, numbers
    # Numbers count per forward thread. Traces do not say which thread a backward node belongs to, so a number that
    # two threads used tells nothing.
    users = thread[numbered]
    one_user = np.minimum.reduceat(users, first) == np.maximum.reduceat(users, first)
    # Several nested forward operators carry one number; the last listed is the innermost.
    last = np.append(first[1:], len(numbers)) - 1
    return numbers[first][one_user], known[numbered[last]][one_user]
