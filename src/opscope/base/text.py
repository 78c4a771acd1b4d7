"""Makes text from traces and users safe to print: on one line, without terminal control sequences.

Also counts the tokens that a text takes.
"""

import math
import os
import shlex
import unicodedata
from typing import Final

from opscope.base.patterns import lazy_pattern

LONGEST_NAME: Final = 120  # characters of a name in a text; kernels' differ at both ends
_BREAKS_OR_HIDES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
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


def printable(text: str) -> str:
    """Replace control, format and surrogate characters and line separators by spaces."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if unicodedata.category(char) in _BREAKS_OR_HIDES else char for char in text)


def shortened(text: str, most: int) -> str:
    """Shorten a text in its middle: names of kernels differ at both ends."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}\u2026{text[len(text) - (most - 1 - head) :]}"


def quoted(text: str, most: int | None = LONGEST_NAME) -> str:
    """Return text of a file as what it is, data: between backticks, on one line, at most so many characters.

    Who reads it may follow what it says, so that nothing in it may end the quotation. Without a limit it is a command,
    whose spaces are its own.
    """
    plain = printable(text).replace("`", "'")
    if most is not None:
        plain = " ".join(plain.split())
    if not any(map(str.isalnum, plain)):  # nothing to follow: a dash, an empty cell, a bar
        return plain
    # Digits and their units are figures.
    if _FIGURE.fullmatch(plain):
        return plain
    return f"`{plain if most is None else shortened(plain, most)}`"


def or_unknown(name: str | None, unknown: str = "unknown") -> str:
    """Return a name of a file for the middle of a sentence: as a quotation.

    Args:
        name: the name; None or empty if it is not known.
        unknown: what is said then.
    """
    return quoted(name) if name else unknown


_FIGURE: Final = lazy_pattern(r"[-+<>~]?[\d.,]+(?: ?(?:%|[num]?s|[KMGT]i?B|B))?")


def shell_path(path: str) -> str:
    """Return a path as a word of a shell (bash, zsh, ksh) that names the same file and is safe to print.

    A path that begins with a dash would be an option, and one that holds control characters or backticks would not be
    printed as it is.
    """
    named = f"./{path}" if path.startswith("-") and path != "-" else path
    if printable(named) == named and "`" not in named:  # commands stand between backticks in Markdown and briefs
        return shlex.quote(named)
    quoted = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"\\'`" else f"\\x{byte:02x}" for byte in os.fsencode(named)
    )
    return f"$'{quoted}'"


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
