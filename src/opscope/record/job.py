"""The record of a job whose ranks ``opscope profile`` started: how many there were, and what became of each."""

from typing import Literal

from msgspec import Struct


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
