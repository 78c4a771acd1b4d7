"""The record of a job whose ranks ``opscope profile`` started: how many there were, and what became of each."""

from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

JOB: Final = "job.json"  # the record's file in the folder that holds those of the ranks
_SCHEMA: Final = b'"opscope.job/'
_BEGINNING: Final = 200  # bytes, in which a record has its schema


class RankEnd(Struct, frozen=True):
    """What became of a rank.

    Attributes:
        rank: its number.
        host: the name of its machine; None if it never began.
        failure: why it has no result; None if it has one.
    """

    rank: int
    host: str | None
    failure: str | None


class JobRecord(Struct, frozen=True, kw_only=True):
    """The ranks of one job.

    Attributes:
        command: the command line, without secrets.
        created: UTC, ISO 8601.
        opscope: the version that measured.
        world: how many ranks there were.
        first_failed: the rank that failed before all others; None if all have results.
        ranks: each of them, in order.
    """

    schema: Literal["opscope.job/1"] = "opscope.job/1"
    command: tuple[str, ...]
    created: str
    opscope: str
    world: int
    first_failed: int | None
    ranks: tuple[RankEnd, ...]


def is_job_record(path: Path) -> bool:
    """Tell whether a file is the record of a job: other tools, and users, call files of theirs so.

    Raises:
        OSError: it cannot be read.
    """
    if path.name != JOB:
        return False
    with path.open("rb") as file:
        return _SCHEMA in file.read(_BEGINNING)
