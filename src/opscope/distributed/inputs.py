"""Which files are the traces of a job's ranks."""

import glob
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from opscope.base.errors import UsageError
from opscope.readers.formats import TRACE_ENDINGS
from opscope.readers.unpacked import STORE_MANIFEST
from opscope.record.codec import decode
from opscope.record.execution import EXECUTION, RAW
from opscope.record.job import JOB, JobRecord
from opscope.record.run_files import MANIFEST, TRACE_NAME

# What is found beside traces: opscope's own records, and what benchmarks and the authors of traces write.
_NOT_TRACES: Final = frozenset({MANIFEST, EXECUTION, JOB, STORE_MANIFEST, "record.json", "results.json", "truth.json"})
_MAGIC: Final = "*?["


def files_of(paths: Iterable[str]) -> list[Path]:
    """Return the files that some paths name: files, patterns, and folders with everything below them.

    Raises:
        UsageError: a path names nothing.
    """
    found: dict[Path, Path] = {}  # by where they really are: one may be named twice
    for text in paths:
        files = list(_named(text))
        if not files:
            raise UsageError(f"{text}: there is no trace")
        found |= {path.resolve(): path for path in files if path.resolve() not in found}
    return list(found.values())


def record_of(paths: Iterable[str]) -> JobRecord | None:
    """Return what ``opscope profile`` wrote of the one job that is named; None if it did not start the job.

    Raises:
        BadInputError: the record is damaged.
    """
    found = [path for text in paths if (path := Path(text) / JOB).is_file()]
    return decode(found[0], JobRecord) if len(found) == 1 else None


def _named(text: str) -> Iterator[Path]:
    path = Path(text)
    if path.is_dir():
        inside = sorted(path.rglob("*"))
        runs = {one.parent for one in inside if one.name == MANIFEST}
        yield from (one for one in inside if _may_be_trace(one) and _is_named_as_trace(one, runs))
    elif path.exists():
        yield path
    elif any(character in text for character in _MAGIC):
        for one in sorted(glob.glob(text, recursive=True)):
            yield from _named(one)


def _may_be_trace(path: Path) -> bool:
    return path.name.endswith(TRACE_ENDINGS) and path.name not in _NOT_TRACES and path.is_file()


def _is_named_as_trace(path: Path, runs: Collection[Path]) -> bool:
    """Tell whether a file is a trace by its name, if it is in a run directory of ``opscope profile``; else True."""
    if path.parent in runs:
        return TRACE_NAME.fullmatch(path.name) is not None
    return not (path.parent.name == RAW and path.parent.parent in runs)
