"""A variant in float64, against which others are compared; with arithmetic of fewer bits, if asked."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from opscope.advise.simulated import round_weights, rounding
from opscope.advise.variant import Casting, Variant


def compute_in_float64(variant: Variant, simulated: Sequence[str] = ()) -> None:
    """Let a variant compute in float64: its modules, their inputs and the optimizers' state.

    Args:
        variant: has only run as written.
        simulated: names of changes whose arithmetic is simulated.
    """
    for top in variant.tops:
        top.to(torch.float64)
    for optimizer in variant.optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point():
                    state[name] = value.double()
    variant.wrap(Casting(torch.float64))
    for name in simulated:
        round_weights(name, variant.tops)
        mode = rounding(name)
        if mode is not None:
            variant.within(partial(_itself, mode))


def _itself(mode: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    return mode
