"""Summaries of jobs that were recorded or made, read once."""

import functools
from collections.abc import Iterable
from pathlib import Path

from opscope.distributed.job import Job, document_of
from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import RankSummary
from opscope.documents.ranks import RanksDocument
from tests import jobs
from tests.conftest import DATA

RECORDED = DATA / "ranks"


def summaries(paths: Iterable[Path]) -> dict[int, RankSummary]:
    """Return the summaries of some traces, by rank."""
    found = {}
    for path in paths:
        summary = summarise_rank(path)
        assert summary.facts.rank is not None
        found[summary.facts.rank] = summary
    return found


@functools.cache
def recorded(name: str) -> dict[int, RankSummary]:
    return summaries(sorted((RECORDED / name).iterdir()))


def said_of(ranks: dict[int, RankSummary], world: int | None = None) -> RanksDocument:
    return document_of(Job(ranks, len(ranks) if world is None else world, [], {}))


def made(job: jobs.Job, folder: Path) -> dict[int, RankSummary]:
    return summaries(jobs.write_job(job, folder))
