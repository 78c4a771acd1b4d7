"""Which work of the backward pass repeats the forward pass, as checkpointing does."""

from typing import Final

import numpy as np

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, end_of, nesting_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.intervals import Intervals
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints, nearest
from opscope.analysis.structure.stacks import is_users_frame
from opscope.trace.model import Trace

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
