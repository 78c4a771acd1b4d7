"""The names of files in run directories, for those who look for them."""

from pathlib import Path
from typing import Final

from opscope.base.patterns import lazy_pattern

MANIFEST: Final = "manifest.json"  # a folder with one is the run directory of a sweep
JOB: Final = "job.json"  # what became of a job, in the folder that holds the runs of its ranks
KEPT: Final = ".opscope"  # the folder beside traces that keeps what was read of them
WORD: Final = r"[^/\x00-\x1f]+"
TRACE_NAME: Final = lazy_pattern(rf"{WORD}_trace_{WORD}\.json")  # of the traces in a sweep's run directory
_JOB_SCHEMA: Final = b'"opscope.job/'
_BEGINNING: Final = 200  # bytes, in which a record has its schema


def is_job_record(path: Path) -> bool:
    """Tell whether a file is the record of a job: other tools, and users, call files of theirs so.

    Raises:
        OSError: it cannot be read.
    """
    if path.name != JOB:
        return False
    with path.open("rb") as file:
        return _JOB_SCHEMA in file.read(_BEGINNING)
