"""Tells a model's first generation of tokens from later ones; pure functions, without PyTorch."""

from collections.abc import Hashable, Sequence
from typing import Final

# At every token of the first generation, something is prepared once for that length (plans of cuDNN's attention,
# compiled kernels). On an H200, GPT-2's tokens took 43 ms in the first generation of 300 and 4 ms in all later ones,
# and that first generation lasted 13 s.
PATIENCE_S: Final = 20.0
_SHAPES: Final = 1  # the place of the arguments' shapes in a call's first key


class Generations:
    """Knows whether a loop of tokens is still in its first generation.

    A generation begins with a call for a whole prompt. The calls after it have the same shapes, except for one
    dimension of length 1.

    Args:
        calls: the first keys of the calls so far; the repeating ones are last.
        first: the index of the first repeating call.
    """

    def __init__(self, calls: Sequence[Hashable], first: int) -> None:
        self._token = calls[-1]  # the prompt is looked for in the first repeating call, and in the one before it
        self.is_first = any(is_prompt_of(call, self._token) for call in calls[max(0, first - 1) : first + 1])

    def call(self, key: Hashable) -> None:
        """Take the first key of the next call; a call for a whole prompt ends the first generation."""
        if self.is_first and is_prompt_of(key, self._token):
            self.is_first = False


def is_prompt_of(call: Hashable, token: Hashable) -> bool:
    """Tell whether one call has a whole prompt where another call of the same module has a single token.

    Args:
        call: the first key of a call: the module's number, the shapes of its arguments, and what follows.
        token: the first key of the call with a single token.
    """
    if not (isinstance(call, tuple) and isinstance(token, tuple)) or call[0] != token[0]:
        return False
    shapes, others = call[_SHAPES], token[_SHAPES]
    if not (isinstance(shapes, tuple) and isinstance(others, tuple)):
        return False
    return any(_is_shortened(shape, other) for shape, other in zip(shapes, others, strict=False))


def _is_shortened(shape: Sequence[int] | None, other: Sequence[int] | None) -> bool:
    """Tell whether two shapes differ in exactly one dimension, and that is 1 in ``other``."""
    if shape is None or other is None or len(shape) != len(other):
        return False
    different = [(size, shorter) for size, shorter in zip(shape, other, strict=True) if size != shorter]
    return len(different) == 1 and different[0][1] == 1
