"""Tells a model's first generation of tokens from later ones: pure, without PyTorch."""

from collections.abc import Hashable, Sequence
from typing import Final

# What is prepared once for each length (plans of cuDNN's attention, compiled kernels) is new at every token of the
# first generation: on an H200, GPT-2's tokens took 43 ms in the first generation of 300 and 4 ms in all later ones,
# and that first one lasted 13 s.
PATIENCE_S: Final = 20.0
_SHAPES: Final = 1  # the place of the arguments' shapes in a call's first key


class Generations:
    """Knows whether a loop of tokens is still in its first generation.

    A generation begins with the call for a whole prompt. The calls after it are like it, but one long in a dimension.

    Args:
        calls: the first keys of the calls so far, the repeating ones last.
        first: where the repetition begins in them.
    """

    def __init__(self, calls: Sequence[Hashable], first: int) -> None:
        self._token = calls[-1]
        self.is_first = any(is_prompt_of(call, self._token) for call in calls[max(0, first - 1) : first + 1])

    def call(self, key: Hashable) -> None:
        """Take the first key of the next call."""
        if self.is_first and is_prompt_of(key, self._token):
            self.is_first = False


def is_prompt_of(call: Hashable, token: Hashable) -> bool:
    """Tell whether one call has a whole prompt where another of the same module has a single token.

    Both are the first keys of calls: the module's number and the shapes of its arguments.
    """
    if not (isinstance(call, tuple) and isinstance(token, tuple)) or call[0] != token[0]:
        return False
    shapes, others = call[_SHAPES], token[_SHAPES]
    if not (isinstance(shapes, tuple) and isinstance(others, tuple)):
        return False
    return any(_is_shortened(shape, other) for shape, other in zip(shapes, others, strict=False))


def _is_shortened(shape: Sequence[int] | None, other: Sequence[int] | None) -> bool:
    """Tell whether two shapes differ in one dimension, which is 1 in the second."""
    if shape is None or other is None or len(shape) != len(other):
        return False
    different = [(size, shorter) for size, shorter in zip(shape, other, strict=True) if size != shorter]
    return len(different) == 1 and different[0][1] == 1
