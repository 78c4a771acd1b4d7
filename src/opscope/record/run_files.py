"""The names of files in run directories, for those who look for them."""

from pathlib import Path
from typing import Final

from opscope.base.patterns import lazy_pattern

MANIFEST: Final = "manifest.json"  # a folder with one is the run directory of a sweep
JOB: Final = "job.json"  # what became of a job, in the folder that holds the runs of its ranks
KEPT: Final = ".opscope"  # the folder beside traces that keeps what was read of them
WORD: Final = r"[^/\x00-\x1f]+"
TRACE_NAME: Final = lazy_pattern(rf"{WORD}_trace_{WORD}\.json")  # of the traces in a sweep's run directory
_DOCUMENT: Final = lazy_pattern(rb'\s*\{\s*"schema"\s*:\s*"opscope\.(\w+)/')
_BEGINNING: Final = 200  # bytes, in which a document has its schema


def document_kind(path: Path) -> str | None:
    """Return which of opscope's own documents a file is, such as ``job`` or ``bench``; None for any other file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        match = _DOCUMENT.match(file.read(_BEGINNING))
    return match[1].decode() if match else None
