"""What every collector returns: raw files, and a record of what the files do not say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

RecordT_co = TypeVar("RecordT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Collected(Generic[RecordT_co]):
    """What a collector leaves behind.

    Attributes:
        files: the raw files, as the collecting tool wrote them; readers make traces and counters of them.
        record: what the files do not say, such as versions or how the command ended.
    """

    files: tuple[Path, ...]
    record: RecordT_co
