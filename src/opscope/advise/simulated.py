"""A variant in float64, against which others are compared; and what results would be in a lower precision.

The latter is computed in float64, with operands and results rounded to fewer bits.

The error of such a run is what the precision alone explains; an error that is much larger is a mistake. In a probe on
one H200 it met the measured error of BERT and GPT-2 within 2 % for TF32, bfloat16 and float16.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opscope.advise.changes.listed import BY_NAME
from opscope.advise.messages import AS_WRITTEN
from opscope.advise.variant import Casting, Variant

_MANTISSA: Final = 52  # bits behind the point of a float64
_CONVOLUTIONS: Final = frozenset(
    f"aten::{name}" for name in ("convolution", "convolution_backward", "mkldnn_convolution")
)
_PRODUCTS: Final = _CONVOLUTIONS | frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "linear"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_attention_math"),
    )
)


def rounded(value: Any, bits: int) -> Any:
    """Return a float64 tensor rounded to so many bits behind the point; anything else as it is, lists by element."""
    if isinstance(value, list | tuple):
        return type(value)(rounded(one, bits) for one in value)
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64:
        return value
    shift = _MANTISSA - bits
    whole = value.contiguous().view(torch.int64)
    return ((whole + (1 << (shift - 1))) & ~((1 << shift) - 1)).view(torch.float64)


class Rounding(TorchDispatchMode):  # type: ignore[misc]
    """Rounds operands, and what comes out, of products of matrices; or what comes out of everything.

    Args:
        bits: how many bits behind the point stay: 10 of TF32 and float16, 7 of bfloat16.
        results: whether results of products are rounded too, as 16-bit products return 16-bit numbers.
        everything: whether results of all other operators are.
        products: names of the products.
    """

    def __init__(self, bits: int, *, results: bool, everything: bool, products: frozenset[str] = _PRODUCTS) -> None:
        super().__init__()
        self._bits, self._results, self._everything, self._products = bits, results, everything, products

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator."""
        kwargs = kwargs or {}
        name: str = func._schema.name  # type: ignore[attr-defined]
        if name in self._products:
            result = func(*rounded(args, self._bits), **kwargs)
            return rounded(result, self._bits) if self._results else result
        result = func(*args, **kwargs)
        # What an operator writes in place is the same tensor as before, for everybody who holds it.
        in_place = name.endswith("_") or "out" in kwargs
        return rounded(result, self._bits) if self._everything and not in_place else result


def round_weights(name: str, tops: Sequence[torch.nn.Module]) -> None:
    """Round the weights of modules in float64 as a change does; changes that leave them alone do nothing here."""
    change = BY_NAME.get(name)
    arithmetic = change.arithmetic if change is not None else None
    if arithmetic is None:
        return
    if arithmetic.rows_of_eight_bits:
        for part in (part for top in tops for part in top.modules() if isinstance(part, torch.nn.Linear)):
            part.weight.data = _in_eight_bits(part.weight.data)
    if arithmetic.weight_bits is not None:
        for tensor in (tensor for top in tops for tensor in (*top.parameters(), *top.buffers())):
            tensor.data = rounded(tensor.data, arithmetic.weight_bits)


def _in_eight_bits(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight with each row rounded to multiples of a 127th of its largest element."""
    step = weight.abs().amax(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / 127
    return (weight / step).round() * step


def rounding(name: str) -> Rounding | None:
    """Return what simulates a change's arithmetic; None for changes that compute as precisely as before."""
    if name == AS_WRITTEN:
        # PyTorch lets cuDNN compute in TF32 unless it is told not to: which convolutions do depends on the algorithm.
        return Rounding(10, results=False, everything=False, products=_CONVOLUTIONS)
    arithmetic = BY_NAME[name].arithmetic
    if arithmetic is None or arithmetic.bits is None:
        return None
    return Rounding(arithmetic.bits, results=arithmetic.results, everything=arithmetic.everything)


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
