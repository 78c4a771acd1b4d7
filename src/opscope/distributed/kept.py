"""Summaries beside the traces that they are of, found again by content: a job's traces are read once."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from opscope.base.errors import BadInputError, EnvironmentLacksError
from opscope.base.files import is_own, is_own_folder, path_text, regular, write_whole
from opscope.distributed.one_rank import summarise_rank
from opscope.distributed.summary import VERSION, RankSummary
from opscope.record.sweep import KEPT

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
