"""Writing files whole: under a temporary name, then renamed. And the names of files as text."""

import gzip
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opscope.errors import BadInputError, EnvironmentLacksError

PARTIAL = ".opscope-partial-"  # begins the name of what is being written


def write_whole(target: Path, content: bytes) -> None:
    """Write a file so that it is there whole, or as it was before.

    Raises:
        EnvironmentLacksError: it cannot be written (no room, no permission).
    """
    with written_whole(target) as partial:
        partial.write_bytes(content)


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give a temporary path to write to; at the end of the block it becomes ``target``.

    Raises:
        EnvironmentLacksError: it cannot be written (no room, no permission).
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=PARTIAL)
        os.close(handle)
        partial = Path(name)
        try:
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.chmod(0o666 & ~_umask())
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {target}: {error.strerror or error}") from error


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process does this in a folder: what is read there and written again is not lost.

    Raises:
        EnvironmentLacksError: the folder cannot be opened.
    """
    import fcntl  # POSIX only

    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot open {folder}: {error.strerror or error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def regular(path: Path) -> Path:
    """Return a path, unless a pipe, a device or a socket stands there, which may never end.

    Raises:
        BadInputError: it does.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadInputError(f"{path} is no regular file")
    return path


def unpacked_gzip(path: Path, most: int) -> bytes:
    """Read a gzip file.

    Raises:
        BadInputError: it is no regular file, or unpacks to more than ``most`` bytes.
        EOFError, zlib.error, OSError: it is damaged.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(regular(path).read_bytes())) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BadInputError(f"{path} unpacks to more than {most:,} bytes")
    return content


def path_text(path: Path) -> str:
    """Return a path as text that any encoding of JSON takes: bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def cache_folder() -> Path:
    """Return where to keep what can be found again: ``$OPSCOPE_CACHE``, else ``opscope`` in the user's cache folder."""
    if chosen := os.environ.get("OPSCOPE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opscope"
