"""Makes text from traces and users safe to print: on one line, without terminal control sequences."""

import unicodedata

_BREAKS_OR_HIDES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """Replace control, format and surrogate characters and line separators by spaces."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if unicodedata.category(char) in _BREAKS_OR_HIDES else char for char in text)
