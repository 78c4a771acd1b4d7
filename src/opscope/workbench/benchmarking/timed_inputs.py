"""The inputs of timed calls, which change from call to call: a kept result is then wrong, and need not be timed."""

import random
from typing import Final

import torch
from msgspec import Struct

_PLACES: Final = 64  # elements of an input that change from call to call
_SCALES: Final = (0.75, 1.25)
_STEP: Final = 17 / 16  # times its value: so near that an input remains of the kind that it was


class _Input(Struct):
    tensor: torch.Tensor
    given: torch.Tensor  # its values, which no candidate gets
    places: list[torch.Tensor]
    values: list[tuple[torch.Tensor, torch.Tensor]]
    half: torch.Tensor | None = None  # the elements that were changed last; the other ones are next


class TimedInputs:
    """Changes floating-point and complex inputs in place, so that neither address nor version tells what they hold.

    They may be the user's own tensors: at the end of a ``with`` block they are as they were given.

    Args:
        inputs: the arguments of the timed calls themselves.
        seed: of what is drawn.
    """

    def __init__(self, inputs: tuple[object, ...], seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self._inputs = [self._kept(one.detach()) for one in inputs if isinstance(one, torch.Tensor) and _changes(one)]
        self._count = 0

    def _kept(self, tensor: torch.Tensor) -> _Input:
        copied = tensor.clone()
        places, values = [], []
        for _ in range(min(_PLACES, tensor.numel())):
            index = tuple(self._draw.randrange(size) for size in tensor.shape)
            places.append(tensor[index])
            values.append((copied[index].clone(), copied[index] * _STEP))
        return _Input(tensor, copied, places, values)

    def __enter__(self) -> "TimedInputs":
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def nudge(self) -> None:
        """Change one element of one input."""
        if not self._inputs:
            return
        self._count += 1
        one = self._inputs[self._count % len(self._inputs)]
        place = self._draw.randrange(len(one.places))
        one.places[place].copy_(one.values[place][self._draw.randrange(2)])

    def renew(self) -> None:
        """Change about half of all elements, by a factor of 0.5 to 1.5: the other half every second time.

        So what recognises its inputs by a few elements sees them unchanged once, beside others that changed.
        """
        for one in self._inputs:
            factor = 0.5 + torch.rand_like(one.given, dtype=torch.float32)
            half = torch.rand_like(factor) < 0.5 if one.half is None else ~one.half
            one.half = half if one.half is None else None
            one.tensor.copy_(torch.where(half, (one.given * factor).to(one.given.dtype), one.given))

    def scale(self, times: int = 1) -> None:
        """Multiply all inputs by a number that was not used before; as often, but the last one alone is written.

        In another process, inputs with the same seed follow.
        """
        factors = [self._draw.uniform(*_SCALES) for _ in range(times)]
        for one in self._inputs:
            torch.mul(one.given, factors[-1], out=one.tensor)

    def restore(self) -> None:
        """Put back the values that were given."""
        for one in self._inputs:
            one.tensor.copy_(one.given)


def _changes(value: torch.Tensor) -> bool:
    """Tell whether a value can be changed in place, element by element."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and (value.is_floating_point() or value.is_complex())
        and value.element_size() > 1  # 8-bit types multiply nothing
        and value.numel() > 0
        and 0 not in value.stride()
        and not value.is_inference()
    )
