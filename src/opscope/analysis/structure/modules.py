"""Device time per ``nn.Module``, and where operator calls come from: the module and line of the user's program.

Also which forward passes are recomputed. All of it needs recorded stacks.
"""

from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, costliest_first, end_of, nesting_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links, device_time_of_operators, operator_self_cpu
from opscope.analysis.structure.nesting import Bools, Ints, Nesting, nearest
from opscope.base.text import lazy_pattern
from opscope.trace.model import Trace

# ---------------------------------------------------------------- Python's stacks


# Frames that all models share say nothing about this one.
_NOT_THE_USERS = lazy_pattern(
    r"^(torch/|opscope/|src/opscope/|<built-in|<string>|<frozen |nn\.Module: |contextlib\.py|threading\.py|runpy\.py)"
    r"|/torch/|/opscope/|lib/python3|(?:^|/)triton/(?:runtime|compiler|backends)/"
    # Plumbing of Python and of frameworks: the frame above says who called.
    r"|: (__(getattribute|getattr|setattr|hash|eq|bool|len|enter|exit)__|is_tensor|is_torch_\w+|decorate_context)$"
)


def callers(trace: Trace, links: Links, frame: Ints) -> pl.DataFrame | None:
    """Return where operators were called from: ``name``, ``called_from``, ``calls`` and their self times.

    That is the innermost Python frame of the user's program around the call; a backward operator has the frame of the
    forward operator with its sequence number. None where no stacks were recorded.

    Args:
        trace: the trace.
        links: its links.
        frame: per operator the row of that frame, or -1; see `user_frame_of_operators`.
    """
    if not trace.frames.height:
        return None
    places = trace.frames["name"].gather(pl.Series(frame).replace(-1, None))
    rows = (
        pl.DataFrame(
            {
                "name": trace.operators["name"],
                "called_from": places,
                "self_device_ns": device_time_of_operators(trace, links),
                "self_cpu_ns": operator_self_cpu(links),
            }
        )
        .drop_nulls("called_from")
        .group_by("name", "called_from")
        .agg(pl.len().alias("calls"), pl.col("self_device_ns", "self_cpu_ns").sum())
        .with_columns(pl.col("name", "called_from").cast(pl.String))
    )
    return costliest_first(rows, ["self_device_ns", "self_cpu_ns"], ["name", "called_from"])


def is_users_frame(frame: str) -> bool:
    """Tell whether a Python frame is of the user's program: not of PyTorch, Triton, opscope or Python's own library."""
    return _NOT_THE_USERS.search(frame) is None


def user_frame_of_operators(trace: Trace, backward: BackwardPass) -> Ints:
    """Return per operator the row of the innermost Python frame of the user's program around it, or -1.

    A backward operator has the frame of the forward operator with its sequence number.
    """
    frame = _user_frame_around_operators(trace)
    # On a CPU the backward pass runs on the caller's own thread, under the frame that called ``backward``.
    through = backward.through_forward(np.where(backward.inside, -1, frame))
    return np.where(through >= 0, through, frame)


def _user_frame_around_operators(trace: Trace) -> Ints:
    frames = nesting_of(trace.frames)
    frame = frames.innermost_at(column(trace.operators, "thread"), column(trace.operators, "start_ns"))
    own = nearest(frames.parent, names_that(trace.frames, is_users_frame))
    return np.where(frame >= 0, own[np.maximum(frame, 0)], -1)


# ---------------------------------------------------------------- modules


MODULE_FRAME = "nn.Module: "
NO_MODULE = "(in no module)"


class Origins(Struct, frozen=True):
    """Rows of ``trace.frames`` per operator, or -1; a backward operator has those of its forward operator.

    Attributes:
        module: the innermost call of an ``nn.Module``.
        frame: the innermost Python frame of the user's program.
    """

    module: Ints
    frame: Ints

    @classmethod
    def of(cls, trace: Trace, backward: BackwardPass) -> "Origins":
        """Find the origins of all operators; all -1 where no stacks were recorded."""
        if not trace.frames.height:
            nowhere = np.full(trace.operators.height, -1, np.int64)
            return cls(nowhere, nowhere)
        rows = trace.frames.with_row_index("row").filter(pl.col("name").cat.starts_with(MODULE_FRAME))
        module = module_of_operators(trace, backward, nesting_of(rows))
        # -1, no module, picks the appended -1.
        row = np.append(rows["row"].cast(pl.Int64).to_numpy(), -1)
        return cls(row[module], user_frame_of_operators(trace, backward))


def module_table(trace: Trace, links: Links, backward: BackwardPass) -> pl.DataFrame | None:
    """Return the device time per module instance: ``module``, ``calls``, ``self_device_ns``, ``total_device_ns``.

    An activity belongs to the innermost module around its operator; one of the backward pass to the module of the
    forward operator with its sequence number. ``total_device_ns`` adds the modules inside. What no module launched is a
    row of its own, so that ``self_device_ns`` adds up to the device sum. None where no modules were recorded.
    """
    modules = trace.frames.filter(pl.col("name").cat.starts_with(MODULE_FRAME))
    if not modules.height:
        return None
    nesting = nesting_of(modules)
    module = _innermost(trace, links, backward, nesting)
    self_device = np.zeros(modules.height, np.int64)
    durations = trace.activities["duration_ns"].to_numpy()
    np.add.at(self_device, module[module >= 0], durations[module >= 0])
    code = modules["name"].to_physical().cast(pl.Int64).to_numpy()
    # Of a module nested in itself, only the outermost call counts in calls and totals.
    outermost = ~nesting.inside_same(code)
    rows = (
        pl.DataFrame(
            {
                "module": modules["name"].cast(pl.String).str.strip_prefix(MODULE_FRAME),
                "outermost": outermost,
                "self_device_ns": self_device,
                "total_device_ns": np.where(outermost, nesting.subtree_sums(self_device), 0),
            }
        )
        .group_by("module")
        .agg(pl.col("outermost").sum().alias("calls"), pl.col("self_device_ns", "total_device_ns").sum())
    )
    rows = costliest_first(rows, ["total_device_ns", "self_device_ns"], ["module"])
    elsewhere = int(durations.sum()) - int(self_device.sum())
    if not elsewhere:
        return rows
    rest = pl.DataFrame([(NO_MODULE, 0, elsewhere, elsewhere)], schema=rows.schema, orient="row")
    return pl.concat([rows, rest]).sort("total_device_ns", descending=True, maintain_order=True)


def module_of_activities(trace: Trace, links: Links, backward: BackwardPass) -> tuple[pl.Series, Ints] | None:
    """Return the module names of all module calls, and per activity the position of its call, or -1.

    None where no modules were recorded.
    """
    modules = trace.frames.filter(pl.col("name").cat.starts_with(MODULE_FRAME))
    if not modules.height:
        return None
    names = modules["name"].cast(pl.String).str.strip_prefix(MODULE_FRAME)
    return names, _innermost(trace, links, backward, nesting_of(modules))


def module_of_operators(trace: Trace, backward: BackwardPass, nesting: Nesting) -> Ints:
    """Return per operator the innermost module call around it or its forward operator, as a row of ``nesting``; or -1.

    Args:
        trace: the trace.
        backward: its backward pass.
        nesting: the nesting of the module calls alone.
    """
    own = nesting.innermost_at(column(trace.operators, "thread"), column(trace.operators, "start_ns"))
    return backward.through_forward(np.where(backward.inside, -1, own))


def _innermost(trace: Trace, links: Links, backward: BackwardPass, nesting: Nesting) -> Ints:
    """Return per activity the innermost call of a module around its operator, or -1."""
    module_of = module_of_operators(trace, backward, nesting)
    result = np.full(trace.activities.height, -1, np.int64)
    launched = np.flatnonzero(links.activity_operator >= 0)
    result[launched] = module_of[links.activity_operator[launched]]
    return result


# ---------------------------------------------------------------- recomputed forward passes


# Composite operators of the forward pass, which no backward formula calls.
_FORWARD_ONLY: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("linear", "conv1d", "conv2d", "conv3d", "layer_norm", "group_norm", "batch_norm", "rms_norm", "gelu"),
        *("relu", "silu", "softmax", "log_softmax", "dropout", "embedding", "scaled_dot_product_attention"),
    )
)


def recomputed(trace: Trace, links: Links, backward: BackwardPass) -> Ints:
    """Return per activity the row of the outermost forward operator in the backward pass that launched it, or -1."""
    result = np.full(trace.activities.height, -1, np.int64)
    forward = names_that(trace.operators, lambda name: name in _FORWARD_ONLY) & backward.inside
    if not forward.any():
        return result
    parent = links.operators.parent
    owner = links.activity_operator
    known = np.flatnonzero(owner >= 0)
    result[known] = nearest(parent, forward & ~_below(forward, parent))[owner[known]]
    return result


_CHECKPOINT: Final = "torch/utils/checkpoint.py"
_WRAPPED: Final = ("torch/nn/", "torch/autograd/", "nn.Module: ")  # what it calls, beside the user's own functions


def checkpointing(trace: Trace) -> list[tuple[int, Intervals]]:
    """Return by thread when torch.utils.checkpoint itself runs, not what it wraps; empty without stacks."""
    frames = trace.frames
    own = names_that(frames, lambda name: _CHECKPOINT in name)
    if not own.any():
        return []
    wrapped = names_that(frames, lambda name: name.startswith(_WRAPPED) or is_users_frame(name)) & ~own
    parent = nesting_of(frames).parent
    # Frames at which it begins, or what it wraps does; those of wrapped code that is in no checkpoint do not count.
    within = np.append(own, False)[nearest(parent, own | wrapped)]
    outside = np.append(within, False)[parent]
    changes = within != outside
    level, around = np.zeros(len(parent), np.int64), np.append(nearest(parent, changes), -1)
    above = around[parent]
    climbing = np.flatnonzero(changes & (above >= 0))
    at = above[climbing]
    while len(climbing):
        level[climbing] += 1
        at = above[at]
        climbing, at = climbing[at >= 0], at[at >= 0]
    thread, start, end = column(frames, "thread"), column(frames, "start_ns"), end_of(frames)
    results = []
    for number in np.unique(thread[own]).tolist():
        time = Intervals.union_of(start[:0], end[:0])
        for depth in range(int(level[changes].max()) + 1):
            rows = np.flatnonzero(changes & (level == depth) & (thread == number))
            spans = Intervals.union_of(start[rows], end[rows])
            if depth % 2 == 0:
                time = Intervals.union_of(np.append(time.start, spans.start), np.append(time.end, spans.end))
            elif len(time):
                time = time.within(spans.gaps(int(time.start[0]), int(time.end[-1])))
        results.append((number, time))
    return results


def _below(mask: Bools, parent: Ints) -> Bools:
    """Tell per operator whether one of those around it is in a mask."""
    result = np.zeros(len(mask), np.bool_)
    inner = np.flatnonzero(parent >= 0)
    result[inner] = nearest(parent, mask)[parent[inner]] >= 0
    return result
