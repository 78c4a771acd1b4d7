"""Summaries beside the traces that they are of, found again by content: a job's traces are read once."""

from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from opscope.base.errors import BadInputError, EnvironmentLacksError
from opscope.base.files import is_own, path_text, write_whole
from opscope.distributed.one_rank import summarise
from opscope.distributed.summary import VERSION, RankSummary
from opscope.record.run_files import KEPT


def kept_summary(path: Path) -> bytes:
    """Return the summary of a rank's trace, packed: the one that was kept, or else a new one, which is kept.

    A folder that cannot be written to keeps none.

    Raises:
        BadInputError: the file is no trace, or cannot be read.
        EnvironmentLacksError: a package that reads this kind of trace is not installed.
    """
    return _kept(path)[0]


def keep(path: Path) -> None:
    """Make the summary of a rank's trace and keep it beside it, if none is kept.

    Raises:
        BadInputError: the file is no trace, or cannot be read.
        EnvironmentLacksError: a package that reads this kind of trace is not installed, or the folder of the trace
            cannot be written to.
    """
    _, failure = _kept(path)
    if failure is not None:
        said = f"cannot keep a summary in {path.parent / KEPT}: {failure.strerror or failure}"
        raise EnvironmentLacksError(said) from failure


def _kept(path: Path) -> tuple[bytes, OSError | None]:
    """Return a summary, and why it could not be kept, if it is not."""
    place = _place(path)
    # Only what this user or root wrote: the folder may be shared, and others would decide what the figures are.
    if is_own(place):
        with suppress(BadInputError, OSError):
            return _of_file(RankSummary.from_bytes(place.read_bytes()), path), None
    content = _of_file(summarise(path), path)
    try:
        place.parent.mkdir(mode=0o755, exist_ok=True)
        place.parent.chmod(0o755)  # whatever the umask: what a group may write to is not believed
        write_whole(place, content, 0o644)
    except OSError as error:
        return content, error
    return content, None


def _place(path: Path) -> Path:
    import hashlib  # loads OpenSSL

    try:
        with path.open("rb") as file:
            # What processors have instructions for, as terabytes may be read.
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from error
    return path.parent / KEPT / f"rank-{VERSION}-{digest[:32]}"


def _of_file(summary: RankSummary, path: Path) -> bytes:
    """Pack a summary under the name that its file has now."""
    return summary.changed(replace(summary.facts, path=path_text(path))).to_bytes()
