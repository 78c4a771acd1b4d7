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
    for top in (*variant.tops, *variant.not_called):
        top._apply(_wide)
    for optimizer in variant.optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    state[name] = _wide(value)
    variant.wrap(Casting(torch.float64, writes_back=True))
    for name in simulated:
        round_weights(name, variant.tops)
        mode = rounding(name)
        if mode is not None:
            variant.within(partial(_itself, mode))


def _wide(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64; a complex one in complex128, as both of its parts are needed."""
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def _itself(mode: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    return mode
