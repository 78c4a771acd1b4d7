"""Reads and writes records as JSON, by field names. A field that a file lacks gets its default."""

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from opscope.base.errors import BadInputError
from opscope.base.files import regular

T = TypeVar("T")


# What decoding raises for a damaged file, or one that is not a record.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)


def encode(value: object) -> bytes:
    """Encode a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def decode(path: Path, kind: type[T]) -> T:
    """Read a record.

    Args:
        path: the file.
        kind: the record's type.

    Raises:
        BadInputError: the file is missing, damaged, a pipe, or not such a record.
    """
    try:
        return msgspec.json.decode(regular(path).read_bytes(), type=kind)
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror or error}") from error
    except UNREADABLE as error:
        raise BadInputError(f"{path} is not what opscope wrote there: {error}") from error
