"""Replaces bytes that JSON does not allow, but that profilers write.

PyTorch 2.6, for one, records some Python frames with names that are left-over memory: control characters and bytes that
are not UTF-8. Their meaning is lost, so they become question marks (U+FFFD if they are not UTF-8).
"""

# Tab, line feed and carriage return may stand between values, where a space means the same, but not within strings.
_BLANK = b"\t\n\r"
_CONTROL = bytes(range(0x20)).translate(None, _BLANK)
_CLEAN = bytes.maketrans(_CONTROL + _BLANK, b"?" * len(_CONTROL) + b" " * len(_BLANK))
_REPLACEMENT = "\ufffd"


def repaired(raw: bytes) -> tuple[bytes, int]:
    """Return the content as valid UTF-8 without control characters, and how many bytes were replaced.

    Blanks are replaced by spaces but not counted, because most of them stand between values.
    """
    count = len(raw) - len(raw.translate(None, _CONTROL))
    clean = raw.translate(_CLEAN)
    try:
        clean.decode()
    except UnicodeDecodeError:
        # The content may hold U+FFFD itself: those that `ignore` leaves were there before.
        text = clean.decode("utf-8", "replace")
        count += text.count(_REPLACEMENT) - clean.decode("utf-8", "ignore").count(_REPLACEMENT)
        clean = text.encode()
    return clean, count
