"""Which line of the user's Python called an operator, where stacks were recorded."""

import numpy as np
import polars as pl

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, costliest_first, nesting_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links, device_time_of_operators, operator_self_cpu
from opscope.analysis.structure.nesting import Ints, nearest
from opscope.base.text import lazy_pattern
from opscope.trace.model import Trace

# Frames that all models share say nothing about this one.
_NOT_THE_USERS = lazy_pattern(
    r"^(torch/|opscope/|src/opscope/|<built-in|<string>|<frozen |nn\.Module: |contextlib\.py|threading\.py|runpy\.py)"
    r"|/torch/|/opscope/|lib/python3"
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
    """Tell whether a Python frame is of the user's program: not of PyTorch, opscope or Python's own library."""
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
