"""Which work of the backward pass repeats the forward pass, as checkpointing does."""

from typing import Final

import numpy as np

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints, nearest
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


def _below(mask: Bools, parent: Ints) -> Bools:
    """Tell per operator whether one of those around it is in a mask."""
    found = np.zeros(len(mask), np.bool_)
    inner = np.flatnonzero(parent >= 0)
    found[inner] = nearest(parent, mask)[parent[inner]] >= 0
    return found
