"""Bytes that must not stand in JSON, and yet do in files that profilers write.

PyTorch 2.6, for one, records some Python frames with names that are left-over memory: control characters and bytes that
are not UTF-8. What they stand for cannot be known, so they become question marks (U+FFFD where they are not UTF-8).
"""

# Tab, line feed and carriage return may stand between values, where a space means the same, but not within strings.
_BLANK = b"\t\n\r"
_CONTROL = bytes(range(0x20)).translate(None, _BLANK)
_CLEAN = bytes.maketrans(_CONTROL + _BLANK, b"?" * len(_CONTROL) + b" " * len(_BLANK))
_REPLACEMENT = "\ufffd"


def repaired(raw: bytes) -> tuple[bytes, int]:
    """Return the content without any control character and as valid UTF-8, and how many bytes had to be replaced.

    Blanks are not counted: whether one stood within a string is not looked at.
    """
    count = len(raw) - len(raw.translate(None, _CONTROL))
    clean = raw.translate(_CLEAN)
    try:
        clean.decode()
    except UnicodeDecodeError:
        text = clean.decode("utf-8", "replace")
        count += text.count(_REPLACEMENT) - clean.decode("utf-8", "ignore").count(_REPLACEMENT)
        clean = text.encode()
    return clean, count
