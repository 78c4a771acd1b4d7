"""Which files are the traces of a job's ranks, and what is kept of those that were read."""

import glob
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from opscope.base.errors import BadInputError, UsageError
from opscope.base.files import path_text
from opscope.readers.archives import is_archive, unpacked
from opscope.readers.formats import TRACE_ENDINGS
from opscope.readers.unpacked import STORE_MANIFEST
from opscope.record.capture import EXECUTION, RAW
from opscope.record.codec import decode
from opscope.record.sweep import JOB, MANIFEST, TRACE_NAME, JobRecord, document_kind

# What is found beside traces: opscope's own records, and what benchmarks and the authors of traces write.
_NOT_TRACES: Final = frozenset({MANIFEST, EXECUTION, JOB, STORE_MANIFEST, "record.json", "results.json", "truth.json"})
_MAGIC: Final = "*?["


def files_of(paths: Iterable[str]) -> list[Path]:
    """Return the files that some paths name: files, patterns, and folders and archives with everything in them.

    Raises:
        UsageError: a path names nothing.
    """
    results: dict[Path, Path] = {}  # by where they really are: one may be named twice
    for text in paths:
        files = list(_named(text))
        if not files:
            raise UsageError(f"{text}: there is no trace")
        results |= {path.resolve(): path for path in files if path.resolve() not in results}
    return list(results.values())


class Recorded(Struct, frozen=True):
    """What ``opscope profile`` wrote of a job when it started its ranks.

    Attributes:
        record: that; None where another tool recorded the job.
        damaged: files that should hold it and do not, with why.
    """

    record: JobRecord | None = None
    damaged: dict[str, str] = field(default_factory=dict)


def record_of(paths: Iterable[str]) -> Recorded:
    """Return what ``opscope profile`` wrote of the one job that is named."""
    results = [path for text in paths if (path := Path(text) / JOB).is_file()]
    if len(results) != 1:
        return Recorded()
    try:
        if document_kind(results[0]) != "job":
            return Recorded()
        record = decode(results[0], JobRecord)
    except (OSError, BadInputError) as error:
        return Recorded(None, {path_text(results[0]): str(error)})
    numbers = [end.rank for end in record.ranks]
    if len(numbers) != record.world or numbers != list(range(len(numbers))):
        return Recorded(None, {path_text(results[0]): f"its {len(numbers)} ranks are not those of {record.world}"})
    return Recorded(record)


def _named(text: str) -> Iterator[Path]:
    path = Path(text)
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if not _is_hidden(one.relative_to(path)))
        runs = {one.parent for one in inside if one.name == MANIFEST}
        yield from (one for one in inside if _may_be_trace(one) and _is_named_as_trace(one, runs))
    elif is_archive(path):
        yield from _named(str(unpacked(path)))
    elif path.exists():
        yield path
    elif any(character in text for character in _MAGIC):
        for one in sorted(glob.glob(text, recursive=True)):
            yield from _named(one)


def _is_hidden(path: Path) -> bool:
    """Tell whether a file is in a hidden folder: what is kept beside traces, and runs that were cut off."""
    return any(part.startswith(".") for part in path.parts[:-1])


def _may_be_trace(path: Path) -> bool:
    # A pipe too: it is then said why that rank is not read.
    return path.name.endswith(TRACE_ENDINGS) and path.name not in _NOT_TRACES and path.exists() and not path.is_dir()


def _is_named_as_trace(path: Path, runs: Collection[Path]) -> bool:
    """Tell whether a file is a trace by its name, if it is in a run directory of ``opscope profile``; else True."""
    if path.parent in runs:
        return TRACE_NAME.fullmatch(path.name) is not None
    return not (path.parent.name == RAW and path.parent.parent in runs)
