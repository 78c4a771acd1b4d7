"""The Python API for the traces of a job: ``opscope.ranks``."""

import functools
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from msgspec import Struct

from opscope.base.summary import Summarised, Summary
from opscope.base.units import format_ns
from opscope.distributed.difference import difference_of
from opscope.distributed.engines import engine_for
from opscope.distributed.frames import communications_of, steps_of, work_of
from opscope.distributed.inputs import files_of, record_of
from opscope.distributed.job import Job, document_of, read_job
from opscope.documents.ranks import RanksDifference, RanksDocument, RankState


class JobOfRanks(Summarised, Struct, frozen=True, dict=True):
    """The traces of a job's ranks together.

    Attributes:
        document: what is said of them: late ranks, clocks, collectives, findings.
        job: the summaries that it rests on.
    """

    document: RanksDocument
    job: Job

    @functools.cached_property
    def steps(self) -> pl.DataFrame:
        """One row per rank and step; ``late_ns`` is by how much the rank is late. Times are nanoseconds."""
        return steps_of(self.job)

    @functools.cached_property
    def communications(self) -> pl.DataFrame:
        """One row per rank and collective; ``begin_ns`` and ``finish_ns`` are on the clock of all ranks."""
        return communications_of(self.job)

    @functools.cached_property
    def work(self) -> pl.DataFrame:
        """One row per rank, step and kind of work: operator, kernel, sizes, calls, nanoseconds."""
        return work_of(self.job)

    def difference(self, after: "JobOfRanks", names: tuple[str, str] = ("before", "after")) -> RanksDifference:
        """Return what changed from this job to another.

        Args:
            after: the other job.
            names: what the two are called.
        """
        return difference_of(self.job, after.job, names)

    def summary(self) -> Summary:
        """Summarise what there is, and who is late."""
        document = self.document
        whole = sum(one.state is RankState.WHOLE for one in document.ranks)
        rows = [
            ("ranks", f"{whole} of {document.world or len(document.ranks)} whole"),
            ("steps", str(len(document.steps))),
        ]
        rows += [
            (f"rank {one.rank}", f"late by {format_ns(one.late_ns)} of {format_ns(one.of_step_ns)}: {one.cause}")
            for one in document.late
        ]
        return Summary("Job", tuple(rows))


def ranks(paths: str | Path | Sequence[str | Path], *, jobs: int = 1, dask: str | None = None) -> JobOfRanks:
    """Read the traces of a job's ranks together: which ranks are late, why, and what collectives cost.

    A summary of each trace is kept in a folder ``.opscope`` beside it and found again by the trace's content.

    Args:
        paths: traces of single ranks, folders of these, or patterns.
        jobs: how many processes read traces; more than one needs a script that starts under ``if __name__ ==
            "__main__":``, as Python starts them anew.
        dask: the address of a Dask scheduler whose workers read them instead.

    Raises:
        UsageError: a path names nothing.
        BadInputError: no file is a trace of a rank.
        EnvironmentLacksError: Dask is not installed, or its scheduler does not answer.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    files = files_of(map(str, names))
    # Workers of a cluster are in folders of their own.
    files = files if dask is None else [path.absolute() for path in files]
    job = read_job(files, engine_for(len(files), jobs, dask), record_of(map(str, names)))
    return JobOfRanks(document_of(job), job)
