"""Text from traces and from users, made safe to show: on one line, and nothing in it steers a terminal."""

import unicodedata

_BREAKS_OR_HIDES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """Replace what breaks lines, steers terminals or hides (control, format and surrogate characters) by spaces."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if unicodedata.category(char) in _BREAKS_OR_HIDES else char for char in text)
