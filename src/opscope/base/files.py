"""Writing files: whole or not at all, never over an input or a device. And the names of files as text.

What a process leaves half written carries its number, so that the next one can sweep it once that process is gone.
"""

import functools
import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError

PARTIAL: Final = ".opscope-partial-"  # begins the name of what is being written
_SCRATCH: Final = "opscope-"  # begins the name of a temporary folder
STANDARD_OUTPUT: Final = Path("-")
_DESCRIPTOR: Final = re.compile(
    r"/dev/(?:stdin|stdout|stderr|fd/\d+)|/proc/(?:self|thread-self|\d+)/(?:task/\d+/)?fd/\d+"
)
_DERIVED: Final = (".html", ".md")  # endings of what is computed from results, and can be computed again


# ---------------------------------------------------------------- what commands write where their user says


def refuse_output(target: Path, inputs: Iterable[Path] = (), *, overwrite: bool = False) -> None:
    """Check where a result is to go, before any work is done.

    Args:
        target: a file, a pipe, a device, or ``-`` for standard output.
        inputs: what the command reads; a folder stands for all that is in it.
        overwrite: whether its user said that a file that is there may be replaced.

    Raises:
        UsageError: it is an input, a folder, or a file that is there and may not be replaced.
        EnvironmentLacksError: its folder is not there.
    """
    if target == STANDARD_OUTPUT or _is_stream(target):
        return
    if target.is_dir():
        raise UsageError(f"{target} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise EnvironmentLacksError(f"cannot write {target}: {target.parent} is no folder")
    if not target.exists():
        return
    for path in inputs:
        if path.exists() and (target.samefile(path) or _is_result_in(target, path)):
            raise UsageError(f"{target} is what is read: write the result somewhere else")
    if not overwrite:
        raise UsageError(f"{target} is there already: --overwrite replaces it")


def refuse_outputs(targets: Iterable[Path | None], inputs: Iterable[Path] = (), *, overwrite: bool = False) -> None:
    """Check where the results of one command are to go; see `refuse_output`.

    Raises:
        UsageError: two of them are one file, or `refuse_output` refuses one.
        EnvironmentLacksError: the folder of one is not there.
    """
    inputs, seen = tuple(inputs), set[Path]()
    for target in targets:
        if target is None:
            continue
        refuse_output(target, inputs, overwrite=overwrite)
        place = target if target == STANDARD_OUTPUT else target.resolve()
        if place in seen and (target == STANDARD_OUTPUT or not _is_stream(target)):
            raise UsageError(f"{target} is named for two results: give each a name of its own")
        seen.add(place)


def _is_result_in(target: Path, folder: Path) -> bool:
    return folder.is_dir() and target.suffix not in _DERIVED and target.resolve().is_relative_to(folder.resolve())


def _is_stream(target: Path) -> bool:
    """Tell whether something is written to, and not replaced: a pipe, a device, or a descriptor's name."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):  # a shell may have redirected a descriptor to a file; /dev/shm holds files like any other
        return _DESCRIPTOR.fullmatch(str(target.absolute())) is not None
    return not stat.S_ISDIR(mode)


@contextmanager
def output(target: Path) -> Iterator[BinaryIO]:
    """Give a file object for the result of a command.

    A file is there whole at the end of the block, or as it was before, and a link stays a link. Pipes, devices and
    standard output (``-``) are written to.

    Raises:
        EnvironmentLacksError: it cannot be written.
    """
    if target == STANDARD_OUTPUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif _is_stream(target):
        # Neither made nor cut: what a shell redirected there before stays.
        with _told(target), os.fdopen(os.open(target, os.O_WRONLY | os.O_APPEND), "wb") as file:
            yield file
    else:
        with written_whole(target.resolve()) as partial, partial.open("wb") as file:
            yield file


def write_output(target: Path, content: bytes) -> None:
    """Write the result of a command; see `output`."""
    with output(target) as file:
        file.write(content)


@contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {target}: {error.strerror or error}") from error


# ---------------------------------------------------------------- what opscope writes by itself


def write_whole(target: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file so that it is there whole, or as it was before.

    Args:
        target: where.
        content: what.
        mode: who may do what with it; None leaves that to the process's mask.

    Raises:
        EnvironmentLacksError: it cannot be written (no room, no permission, a device stands there).
    """
    with written_whole(target, mode) as partial:
        partial.write_bytes(content)


@contextmanager
def written_whole(target: Path, mode: int | None = None) -> Iterator[Path]:
    """Give a temporary path to write to; at the end of the block it becomes ``target``.

    Raises:
        EnvironmentLacksError: it cannot be written (no room, no permission, a device stands there).
    """
    with _told(target):
        if _is_stream(target) or target.is_dir():
            raise EnvironmentLacksError(f"cannot write {target}: it is no regular file")
        sweep(target.parent)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=partial_prefix())
        os.close(handle)
        partial = Path(name)
        try:
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.chmod(0o666 & ~_umask() if mode is None else mode)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def alone_in(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wait until no other process does this in a folder: what is read there and written again is not lost.

    The system gives the folder free when a process ends, however it ends.

    Args:
        folder: where.
        waiting: called if another process is there.

    Raises:
        EnvironmentLacksError: the folder cannot be opened.
    """
    import fcntl  # POSIX only

    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot open {folder}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---------------------------------------------------------------- what processes that were killed leave


@functools.cache
def _place() -> str:
    """Return what tells this machine, and the processes seen here, from others that share its folders."""
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.blake2b("".join(parts).encode(), digest_size=4).hexdigest()


def _of_process() -> str:
    return f"{_place()}-{os.getpid()}-"


def partial_prefix() -> str:
    """Return how the names of what this process is writing begin."""
    return PARTIAL + _of_process()


@contextmanager
def scratch() -> Iterator[Path]:
    """Give an empty temporary folder, which is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH + _of_process()) as folder:
        _sweep_temporary()
        yield Path(folder)


def kept_scratch() -> Path:
    """Make an empty temporary folder that stays until its user, or the next process, removes it."""
    _sweep_temporary()
    return Path(tempfile.mkdtemp(prefix=_SCRATCH + _of_process()))


@functools.cache
def _sweep_temporary() -> None:
    _sweep(Path(tempfile.gettempdir()), _SCRATCH)


@functools.lru_cache(maxsize=256)
def sweep(folder: Path) -> None:
    """Remove, once, what processes that are gone left half written in a folder."""
    _sweep(folder, PARTIAL)


def _sweep(folder: Path, beginning: str) -> None:
    ours = f"{beginning}{_place()}-"
    with suppress(OSError):
        for entry in os.scandir(folder):
            number, dash, _ = entry.name.removeprefix(ours).partition("-")
            if not entry.name.startswith(ours) or not dash or not number.isdecimal() or _runs(int(number)):
                continue
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another user's
        return True
    return True


# ---------------------------------------------------------------- reading


def regular(path: Path) -> Path:
    """Return a path, unless a pipe, a device or a socket stands there, which may never end.

    Raises:
        BadInputError: it does.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadInputError(f"{path} is no regular file")
    return path


def digest_of(path: Path) -> str:
    """Return the BLAKE2b digest of a file's content.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


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


# ---------------------------------------------------------------- the cache

PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return where to keep what can be found again: ``$OPSCOPE_CACHE``, else ``opscope`` in the user's cache folder."""
    if chosen := os.environ.get("OPSCOPE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opscope"


def private_folder(name: str) -> Path:
    """Make a folder of the cache that its user alone may use, whatever the mask; return it.

    Where the cache is another user's, or cannot be made private, it is a temporary folder: whoever can write to a cache
    decides what runs of it.

    Raises:
        EnvironmentLacksError: it cannot be made.
    """
    root = cache_folder()
    folder = root / name
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        for level in (root, *(root / part for part in reversed(list(map(str, Path(name).parents))[:-1])), folder):
            with suppress(FileExistsError):
                level.mkdir(mode=_PRIVATE_FOLDER)
            found = level.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                return kept_scratch()
            if found.st_mode & 0o777 != _PRIVATE_FOLDER:
                level.chmod(_PRIVATE_FOLDER)
    except OSError as error:
        raise EnvironmentLacksError(
            f"cannot write to {folder}: {error.strerror or error}; OPSCOPE_CACHE names another folder"
        ) from error
    return folder


def is_own(path: Path) -> bool:
    """Tell whether a file is one that nobody but its user, or the system's, can have written: a library may be loaded.

    Its folder is checked as well; links are not followed.
    """
    try:
        found, folder = path.lstat(), path.parent.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and all(
        one.st_uid in (os.geteuid(), 0) and not one.st_mode & _OTHERS_WRITE for one in (found, folder)
    )
