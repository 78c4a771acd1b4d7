"""Makes text from traces and users safe to print: on one line, without terminal control sequences."""

import os
import shlex
import unicodedata

_BREAKS_OR_HIDES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """Replace control, format and surrogate characters and line separators by spaces."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if unicodedata.category(char) in _BREAKS_OR_HIDES else char for char in text)


def shell_path(path: str) -> str:
    """Return a path as a word of a shell (bash, zsh, ksh) that names the same file and is safe to print.

    A path that begins with a dash would be an option, and one that holds control characters would not be printed as it
    is.
    """
    named = f"./{path}" if path.startswith("-") and path != "-" else path
    if printable(named) == named:
        return shlex.quote(named)
    quoted = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}" for byte in os.fsencode(named)
    )
    return f"$'{quoted}'"
