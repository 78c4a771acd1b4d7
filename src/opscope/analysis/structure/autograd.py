"""Which forward operator a backward operator belongs to, by the sequence number that autograd assigned."""

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, costliest_first, end_of, nesting_of
from opscope.analysis.structure.links import Links, device_time_of_operators
from opscope.analysis.structure.nesting import Bools, Ints, nearest
from opscope.trace.model import Trace

_ENGINE = "autograd::engine::evaluate_function: "


def backward_table(trace: Trace, links: Links, backward: "BackwardPass") -> pl.DataFrame:
    """Return what the backward pass of each forward operator cost.

    One row per ``forward`` operator (null where no sequence number leads to one, as for gradient accumulation) and
    ``backward`` node: ``calls``, ``forward_device_ns`` (of what was launched inside the forward operators) and
    ``backward_device_ns`` (of what the engine launched while it ran the node, without nodes run inside, as
    checkpointing does). Empty where no backward pass was recorded.
    """
    every = np.arange(trace.operators.height)
    nodes = np.flatnonzero(backward.node == every)
    own = device_time_of_operators(trace, links)
    in_node = np.zeros(trace.operators.height, np.int64)
    np.add.at(in_node, backward.node[backward.inside], own[backward.inside])
    forward = backward.through_forward(np.where(backward.inside, -1, every), nodes)
    total = links.operators.subtree_sums(own)
    first_use = np.zeros(len(nodes), np.bool_)
    # A forward operator with several backward nodes counts its device time once.
    first_use[np.unique(forward, return_index=True)[1]] = True
    names = trace.operators["name"]
    rows = (
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
    )
    return costliest_first(rows, ["backward_device_ns"], ["backward", "forward"])


def is_engine(name: str) -> bool:
    """Tell whether an operator is autograd's engine while it evaluates a node of the backward pass."""
    return name.startswith(_ENGINE)


def after_closures(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of optimizers' steps without the closures that they begin with.

    Lightning passes ``Optimizer.step`` a closure with the forward and the backward pass, and LBFGS needs one. A range
    has one if autograd's engine evaluates nodes in it, on whatever thread, and its own thread runs operators that
    autograd records, which carry a sequence number; it then begins where the last of these nodes ended. Without a
    backward pass nothing is cut: an optimizer's own operators are recorded, too, if it does not switch that off.

    Args:
        trace: the trace.
        ranges: rows of its annotations.

    Returns:
        The same rows; ``start_ns`` and ``duration_ns`` are those of the part after the closure.
    """
    if not ranges.height:
        return ranges
    operators = trace.operators
    recorded = column(operators, "sequence_number") >= 0
    engine = names_that(operators, is_engine)
    begin, end = column(ranges, "start_ns"), end_of(ranges)
    result = begin.copy()
    for thread in np.unique(column(ranges, "thread")):
        rows = np.flatnonzero(column(ranges, "thread") == thread)
        own = np.flatnonzero((column(operators, "thread") == thread) & (recorded | engine))
        # A backward pass that goes on beside a step, of another thread's, says nothing of this one.
        has_own = _last_end(operators, own, begin[rows], end[rows]) >= 0
        closed = _last_end(operators, np.flatnonzero(engine), begin[rows], end[rows])
        result[rows] = np.where(has_own & (closed >= 0), closed, begin[rows])
    return ranges.with_columns(
        pl.Series("start_ns", result, dtype=ranges.schema["start_ns"]),
        pl.Series("duration_ns", end - result, dtype=ranges.schema["duration_ns"]),
    )


def _last_end(operators: pl.DataFrame, rows: Ints, begin: Ints, end: Ints) -> Ints:
    """Return per range when the last of some operators that lie in it ended; -1 where none does."""
    start, until = column(operators, "start_ns")[rows], end_of(operators)[rows]
    order = np.argsort(start, kind="stable")
    start, until = start[order], until[order]
    result = np.full(len(begin), -1, np.int64)
    first, last = np.searchsorted(start, begin), np.searchsorted(start, end)
    for place in np.flatnonzero(last > first).tolist():
        inside = until[first[place] : last[place]]
        result[place] = inside[inside <= end[place]].max(initial=-1)
    return result


class BackwardPass(Struct, frozen=True):
    """What autograd's engine ran, and which forward operators it belongs to.

    Attributes:
        node: per operator the row of the innermost node, itself included, that the engine evaluates around it; or -1.
        sequence: per operator the sequence number that it carries, else the nearest operator around it; or -1.
        own_sequence: per operator the sequence number that it carries itself; or -1.
        thread: per operator the number of its thread.
    """

    node: Ints
    sequence: Ints
    own_sequence: Ints
    thread: Ints

    @classmethod
    def of(cls, trace: Trace, links: Links) -> "BackwardPass":
        """Find the backward pass in a trace."""
        sequence = column(trace.operators, "sequence_number")
        around = nearest(links.operators.parent, sequence >= 0)
        numbers = np.where(around >= 0, sequence[np.maximum(around, 0)], -1) if len(around) else around
        return cls(_innermost_engine_range(trace), numbers, sequence, column(trace.operators, "thread"))

    @property
    def inside(self) -> Bools:
        """Per operator whether autograd's engine runs it."""
        result: Bools = self.node >= 0
        return result

    def through_forward(self, known: Ints, rows: Ints | None = None) -> Ints:
        """Return per operator a value that it has itself, else that of the forward operator with its sequence number.

        Args:
            known: the value per operator of the trace; -1 for operators without one.
            rows: the operators to answer for; None for all.

        Returns:
            One value per asked operator; -1 where nothing leads to one.
        """
        keys, values = _by_sequence_number(self.own_sequence, self.thread, known)
        wanted, own = (self.sequence, known) if rows is None else (self.sequence[rows], known[rows])
        if not len(keys):
            return own.copy()
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(own >= 0, own, np.where(keys[place] == wanted, values[place], -1))


def _innermost_engine_range(trace: Trace) -> Ints:
    rows = trace.operators.with_row_index("row").filter(pl.col("name").cat.starts_with(_ENGINE))
    ranges = nesting_of(rows)
    innermost = ranges.innermost_at(column(trace.operators, "thread"), column(trace.operators, "start_ns"))
    result = np.full(len(innermost), -1, np.int64)
    result[innermost >= 0] = column(rows, "row")[innermost[innermost >= 0]]
    return result


def _by_sequence_number(sequence: Ints, thread: Ints, known: Ints) -> tuple[Ints, Ints]:
    """Return the sequence numbers of operators with a known value, in ascending order, and the value of each."""
    numbered = np.flatnonzero((known >= 0) & (sequence >= 0))
    numbered = numbered[np.argsort(sequence[numbered], kind="stable")]
    numbers = sequence[numbered]
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    if not len(first):
        return numbers, numbers
    # Numbers count per forward thread. Traces do not say which thread a backward node belongs to, so a number used on
    # two threads tells nothing.
    users = thread[numbered]
    one_user = np.minimum.reduceat(users, first) == np.maximum.reduceat(users, first)
    # Several nested forward operators carry one number; the last listed is the innermost.
    last = np.append(first[1:], len(numbers)) - 1
    return numbers[first][one_user], known[numbered[last]][one_user]
