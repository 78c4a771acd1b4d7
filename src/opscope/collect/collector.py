"""What every collector returns: raw files, and a record of what the files do not say."""

from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

RecordT_co = TypeVar("RecordT_co", covariant=True)


class Collected(Struct, Generic[RecordT_co], frozen=True):
    """What a collector leaves behind.

    Attributes:
        files: the raw files, as the collecting tool wrote them; readers make traces and counters of them.
        record: what the files do not say, such as versions or how the command ended.
    """

    files: tuple[Path, ...]
    record: RecordT_co
