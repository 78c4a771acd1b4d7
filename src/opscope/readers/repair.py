"""Bytes that must not stand in JSON, and yet do in files that profilers write.

PyTorch 2.6, for one, records some Python frames with names that are left-over memory: control characters and bytes that
are not UTF-8. What they stand for cannot be known, so they become question marks (U+FFFD where they are not UTF-8).
"""

# JSON allows tab, line feed and carriage return between values, and no control character within strings.
_CONTROL = bytes(range(0x20)).translate(None, b"\t\n\r")
_TO_QUESTION_MARKS = bytes.maketrans(_CONTROL, b"?" * len(_CONTROL))
_REPLACEMENT = "\ufffd"


def repaired(raw: bytes) -> tuple[bytes, int]:
    """Return the content with every such byte replaced, and how many there were."""
    count = len(raw) - len(raw.translate(None, _CONTROL))
    clean = raw.translate(_TO_QUESTION_MARKS) if count else raw
    try:
        clean.decode()
    except UnicodeDecodeError:
        text = clean.decode("utf-8", "replace")
        count += text.count(_REPLACEMENT) - clean.decode("utf-8", "ignore").count(_REPLACEMENT)
        clean = text.encode()
    return clean, count
