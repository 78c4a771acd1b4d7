"""Makes text from traces and users safe to print: on one line, without terminal control sequences.

Also counts the tokens that a text takes, and holds regular expressions that are compiled when they are first used:
opscope has some two hundred, a command needs few.
"""

import math
import os
import re
import shlex
import unicodedata
from typing import Any, AnyStr, Final, cast

LONGEST_NAME: Final = 120  # characters of a name in a text; kernels' differ at both ends
_BREAKS_OR_HIDES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Fitted on what opscope prints with --brief, so that no text takes more tokens of OpenAI's cl100k_base or of the
# vocabulary that Anthropic published (benchmarks/results/tokens.json). Words are cut into pieces of about this length,
# numbers into three digits.
_LETTERS: Final = 5
_DIGITS: Final = 3
_GAP: Final = 16
_MARGIN: Final = 1.1


class _Lazy:
    """Stands for a pattern: has the pattern's attributes, and compiles it when one of them is asked for."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        # Python comes here only for what the object does not have yet, so each attribute is looked up once.
        if name.startswith("__"):  # what copying and pickling ask of any object
            raise AttributeError(name)
        if "_compiled" not in self.__dict__:
            self.__dict__["_compiled"] = re.compile(self._text, self._flags)
        result = getattr(self.__dict__["_compiled"], name)
        self.__dict__[name] = result
        return result

    def __reduce__(self) -> tuple[type["_Lazy"], tuple[str | bytes, int]]:
        return _Lazy, (self._text, self._flags)

    def __repr__(self) -> str:
        return f"lazy_pattern({self._text!r}, {self._flags})"


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what behaves as ``re.compile(text, flags)`` and costs nothing until it is used.

    It is not a pattern to the functions of `re`, such as ``re.search``: call its own methods.
    """
    return cast("re.Pattern[AnyStr]", _Lazy(text, flags))


# Words, cut where the case changes, numbers, line ends with the indent after them, wide gaps, and every other character
# by itself.
_PIECES: Final = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+|\d+|\n[ \t]*|[ \t]{2,}|[^\sA-Za-z\d]")


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
