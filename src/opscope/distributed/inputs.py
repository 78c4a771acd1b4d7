"""Which files are the traces of a job's ranks, and what is kept of those that were read."""

import glob
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.base.files import is_own, is_own_folder, path_text, regular, write_whole
from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import VERSION, RankSummary
from opscope.readers.formats import TRACE_ENDINGS
from opscope.readers.unpacked import STORE_MANIFEST
from opscope.record.capture import EXECUTION, RAW
from opscope.record.codec import decode
from opscope.record.sweep import JOB, KEPT, MANIFEST, TRACE_NAME, JobRecord, document_kind

# ---------------------------------------------------------------- what is kept


_MOST_BYTES: Final = 1 << 30  # of a summary: a hundred times what a long trace has


def kept_summary(path: Path) -> bytes:
    """Return the summary of a rank's trace, packed: the one that was kept, or else a new one, which is kept.

    Where the folder cannot be written to, or the place in it is a link or another user's, none is kept.

    Raises:
        BadInputError: the file is not a trace, or cannot be read.
        EnvironmentLacksError: a package that reads this kind of trace is not installed.
    """
    return _kept(path)[0]


def keep(path: Path) -> None:
    """Make the summary of a rank's trace and keep it beside it, if none is kept.

    Raises:
        BadInputError: the file is not a trace, or cannot be read.
        EnvironmentLacksError: a package that reads this kind of trace is not installed, or the folder of the trace
            cannot be written to.
    """
    _, failure = _kept(path)
    if failure is not None:
        raise EnvironmentLacksError(f"cannot keep a summary in {path.parent / KEPT}: {failure}")


def _kept(path: Path) -> tuple[bytes, str | None]:
    """Return a summary, and why it could not be kept, if it is not."""
    place = _place(path)
    # Only what this user or root wrote: the folder may be shared, and others would decide what the figures are.
    if is_own(place):
        with suppress(BadInputError, OSError):
            summary = RankSummary.from_bytes(_read(place))
            summary.check()
            return _of_file(summary, path), None
    content = _of_file(summarise_rank(path), path)
    return content, _failure_to_keep(place, content)


def _failure_to_keep(place: Path, content: bytes) -> str | None:
    """Write a summary to its place; return why that cannot be done, None where it was."""
    folder = place.parent
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)  # whatever the umask: what a group may write to is not believed
        # Traces come in archives of anyone's: a link there would lead to a folder that is not the job's.
        if not is_own_folder(folder):
            return "it is a link or a file, or others can write to it: remove it"
        write_whole(place, content, 0o644)
    except (OSError, EnvironmentLacksError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _read(place: Path) -> bytes:
    if place.stat().st_size > _MOST_BYTES:
        raise BadInputError(f"{place} is too large for a summary")
    return place.read_bytes()


def _place(path: Path) -> Path:
    import hashlib  # loads OpenSSL

    try:
        with regular(path).open("rb") as file:
            # What processors have instructions for, as terabytes may be read.
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from error
    return path.parent / KEPT / f"rank-{VERSION}-{digest[:32]}"


def _of_file(summary: RankSummary, path: Path) -> bytes:
    """Pack a summary under the name that its file has now."""
    return summary.changed(replace(summary.facts, path=path_text(path))).to_bytes()


# ---------------------------------------------------------------- inputs


# What is found beside traces: opscope's own records, and what benchmarks and the authors of traces write.
_NOT_TRACES: Final = frozenset({MANIFEST, EXECUTION, JOB, STORE_MANIFEST, "record.json", "results.json", "truth.json"})
_MAGIC: Final = "*?["


def files_of(paths: Iterable[str]) -> list[Path]:
    """Return the files that some paths name: files, patterns, and folders with everything below them.

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
