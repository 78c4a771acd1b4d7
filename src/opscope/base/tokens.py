"""How many tokens of a language model a text takes: an upper estimate that needs no vocabulary."""

import math
from typing import Final

from opscope.base.patterns import lazy_pattern

# Words, cut where the case changes, numbers, line ends with the indent after them, wide gaps, and every other character
# by itself.
_PIECES: Final = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+|\d+|\n[ \t]*|[ \t]{2,}|[^\sA-Za-z\d]")
# Fitted on what opscope prints with --brief, so that no text takes more tokens of OpenAI's cl100k_base or of the
# vocabulary that Anthropic published (benchmarks/results/tokens.json). Words are cut into pieces of about this length,
# numbers into three digits.
_LETTERS: Final = 5
_DIGITS: Final = 3
_GAP: Final = 16
_MARGIN: Final = 1.1


def count_tokens(text: str) -> int:
    """Return about how many tokens a text takes, rather too many than too few."""
    return math.ceil(_MARGIN * sum(_of_piece(piece[0]) for piece in _PIECES.finditer(text)))


def _of_piece(piece: str) -> int:
    if piece[0].isspace():
        return 1 + len(piece) // _GAP
    if piece.isascii() and piece.isalpha():
        return math.ceil(len(piece) / _LETTERS)
    if piece.isascii() and piece.isdigit():
        return math.ceil(len(piece) / _DIGITS)
    return max(1, len(piece.encode("utf-8", "replace")) - 1)
