"""File helpers: atomic writes that never replace an input or a device, bounded reads, and the private cache.

Also tells which source files are the user's.

Temporary files carry the process id of their writer, so that a later process can remove them once the writer is gone.
"""

import functools
import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.base.text import lazy_pattern

PARTIAL: Final = ".opscope-partial-"  # prefix of files that are being written
_SCRATCH: Final = "opscope-"  # prefix of temporary folders
STANDARD_OUTPUT: Final = Path("-")
_DESCRIPTOR: Final = lazy_pattern(
    r"/dev/(?:stdin|stdout|stderr|fd/\d+)|/proc/(?:self|thread-self|\d+)/(?:task/\d+/)?fd/\d+"
)
_PACKAGES: Final = ("site-packages", "dist-packages")  # folders of code that is installed, and not the user's
_DERIVED: Final = (".html", ".md")  # computed from results, and can be computed again


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Tell whether a file is the user's source: neither opscope's, nor the standard library's, nor installed."""
    path = Path(file).absolute()
    if not file or file.startswith("<") or str(path).startswith(_not_users()):
        return False
    return not any(part in _PACKAGES for part in path.parts)


@functools.cache
def _not_users() -> tuple[str, str]:
    import sysconfig

    return str(Path(__file__).resolve().parents[1]), sysconfig.get_path("stdlib")


# ---------------------------------------------------------------- what commands write where their user says


def refuse_output(target: Path, inputs: Iterable[Path] = (), *, overwrite: bool = False) -> None:
    """Check that a result may be written to a path, before any work is done.

    Args:
        target: a file, a pipe, a device, or ``-`` for standard output.
        inputs: what the command reads; a folder stands for everything in it except reports (``.html``, ``.md``).
        overwrite: whether the user allowed an existing file to be replaced.

    Raises:
        UsageError: the target is an input, a folder, or an existing file and ``overwrite`` is false.
        EnvironmentLacksError: the target's folder does not exist.
    """
    if target == STANDARD_OUTPUT or _is_stream(target):
        return
    if target.is_dir():
        raise UsageError(f"{target} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise EnvironmentLacksError(f"cannot write {target}: {target.parent} is not a folder")
    if not target.exists():
        return
    for path in inputs:
        if path.exists() and (target.samefile(path) or _is_result_in(target, path)):
            raise UsageError(f"{target} is what is read: write the result somewhere else")
    if not overwrite:
        raise UsageError(f"{target} is there already: --overwrite replaces it")


def refuse_outputs(targets: Iterable[Path | None], inputs: Iterable[Path] = (), *, overwrite: bool = False) -> None:
    """Check the targets of all results of one command; see `refuse_output`.

    Args:
        targets: where the results go; None for a result that is not written.
        inputs: as for `refuse_output`.
        overwrite: as for `refuse_output`.

    Raises:
        UsageError: two targets are the same file, or `refuse_output` refuses one.
        EnvironmentLacksError: the folder of a target does not exist.
    """
    inputs, seen = tuple(inputs), set[Path]()
    for target in targets:
        if target is None:
            continue
        refuse_output(target, inputs, overwrite=overwrite)
        # One pipe or device may take several results; standard output may not.
        place = target if target == STANDARD_OUTPUT else target.resolve()
        if place in seen and (target == STANDARD_OUTPUT or not _is_stream(target)):
            raise UsageError(f"{target} is named for two results: give each a name of its own")
        seen.add(place)


def _is_result_in(target: Path, folder: Path) -> bool:
    return folder.is_dir() and target.suffix not in _DERIVED and target.resolve().is_relative_to(folder.resolve())


def _is_stream(target: Path) -> bool:
    """Tell whether a path is written into rather than replaced: a pipe, a device, or a descriptor's name."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):  # a shell may have redirected a descriptor to a file; /dev/shm holds files like any other
        return _DESCRIPTOR.fullmatch(str(target.absolute())) is not None
    return not stat.S_ISDIR(mode)


@contextmanager
def output(target: Path) -> Iterator[BinaryIO]:
    """Open a file object for the result of a command.

    A regular file is replaced atomically at the end of the block, and a link stays a link. Pipes, devices and standard
    output (``-``) are written to directly.

    Raises:
        EnvironmentLacksError: the target cannot be written.
    """
    if target == STANDARD_OUTPUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif _is_stream(target):
        # Opened without O_CREAT and O_TRUNC: what a shell redirected there before stays.
        with _told(target), os.fdopen(os.open(target, os.O_WRONLY | os.O_APPEND), "wb") as file:
            yield file
    else:
        with written_whole(target.resolve()) as partial, partial.open("wb") as file:
            yield file


def write_output(target: Path, content: bytes) -> None:
    """Write the result of a command; see `output`.

    Raises:
        EnvironmentLacksError: the target cannot be written.
    """
    with output(target) as file:
        file.write(content)


@contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe has gone: the command line decides what that means
        raise
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {target}: {error.strerror or error}") from error


# ---------------------------------------------------------------- what opscope writes by itself


def write_whole(target: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically: on failure it stays as it was.

    Args:
        target: the file.
        content: its new content.
        mode: permission bits; None takes 0o666 less the process's umask.

    Raises:
        EnvironmentLacksError: the file cannot be written (no room, no permission, a device stands there).
    """
    with written_whole(target, mode) as partial:
        partial.write_bytes(content)


@contextmanager
def written_whole(target: Path, mode: int | None = None) -> Iterator[Path]:
    """Provide a temporary path to write to; at the end of the block it replaces ``target``.

    Args:
        target: the file.
        mode: permission bits; None takes 0o666 less the process's umask.

    Raises:
        EnvironmentLacksError: the file cannot be written (no room, no permission, a device stands there).
    """
    with _told(target):
        if _is_stream(target) or target.is_dir():
            raise EnvironmentLacksError(f"cannot write {target}: it is not a regular file")
        sweep(target.parent)
        # In the target's folder, because a rename is atomic only within one file system.
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=partial_prefix())
        os.close(handle)
        partial = Path(name)
        try:
            yield partial
            # Before the rename: else a power cut could leave the new name with no content.
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            # mkstemp makes files that only their owner may read; results get the mode of an ordinary new file.
            partial.chmod(0o666 & ~_umask() if mode is None else mode)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def alone_in(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on a folder, so that no other process updates its files at the same time.

    The system releases the lock when the process ends, however it ends.

    Args:
        folder: the folder to lock.
        waiting: called once if another process holds the lock.

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
    mask = os.umask(0)  # a umask can only be read by setting it
    os.umask(mask)
    return mask


# ---------------------------------------------------------------- what processes that were killed leave


@functools.cache
def _place() -> str:
    """Return a short id of this machine and its process namespace, as others may share its folders."""
    import hashlib  # loads OpenSSL

    # A process id means something only within one boot of one machine and one PID namespace (containers).
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.blake2b("".join(parts).encode(), digest_size=4).hexdigest()


def _of_process() -> str:
    return f"{_place()}-{os.getpid()}-"


def partial_prefix() -> str:
    """Return the prefix of temporary files that this process writes."""
    return PARTIAL + _of_process()


@contextmanager
def scratch() -> Iterator[Path]:
    """Provide an empty temporary folder, which is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH + _of_process()) as folder:
        _sweep_temporary()
        yield Path(folder)


def kept_scratch() -> Path:
    """Make an empty temporary folder that stays until its user, or a later process, removes it."""
    _sweep_temporary()
    return Path(tempfile.mkdtemp(prefix=_SCRATCH + _of_process()))


@functools.cache
def _sweep_temporary() -> None:
    _sweep(Path(tempfile.gettempdir()), _SCRATCH)


@functools.lru_cache(maxsize=256)
def sweep(folder: Path) -> None:
    """Remove temporary files of ended processes from a folder; a folder is swept once per process."""
    _sweep(folder, PARTIAL)


def _sweep(folder: Path, beginning: str) -> None:
    # Files of other machines and containers are left alone: whether their writers run cannot be seen from here.
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
    except (OSError, OverflowError):  # another user's process, or a number too large to be one: nothing is removed
        return True
    return True


# ---------------------------------------------------------------- reading


def regular(path: Path) -> Path:
    """Return a path, unless it is a pipe, a device or a socket, which may never end.

    A path that does not exist is returned too; reading it fails later.

    Raises:
        BadInputError: the path is neither a regular file nor a folder.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadInputError(f"{path} is not a regular file")
    return path


def digest_of(path: Path) -> str:
    """Return the BLAKE2b digest (32 bytes) of a file's content, in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    import hashlib  # loads OpenSSL

    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def unpacked_gzip(path: Path, most: int) -> bytes:
    """Read a gzip file.

    Args:
        path: the file.
        most: the most bytes that it may unpack to.

    Raises:
        BadInputError: it is not a regular file, or unpacks to more than ``most`` bytes.
        EOFError, zlib.error, OSError: it is damaged.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(regular(path).read_bytes())) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BadInputError(f"{path} unpacks to more than {most:,} bytes")
    return content


def path_text(path: Path) -> str:
    """Return a path as text that JSON can hold: bytes that are not UTF-8 become U+FFFD.

    What `show_as` named is shown by the name that its user knows.
    """
    for folder, name in _SHOWN_AS.items():
        if path.is_relative_to(folder):
            path = name / path.relative_to(folder)
    return os.fsencode(path).decode("utf-8", "replace")


_SHOWN_AS: Final[dict[Path, Path]] = {}


def show_as(folder: Path, name: Path) -> None:
    """Have what is in a temporary folder shown by the path of what it was made from."""
    _SHOWN_AS[folder] = name


# ---------------------------------------------------------------- the cache

PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return the cache folder: ``$OPSCOPE_CACHE``, else ``opscope`` in the user's cache folder."""
    if chosen := os.environ.get("OPSCOPE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opscope"


def private_folder(name: str) -> Path:
    """Make a folder of the cache that only its user can access, whatever the umask.

    Whoever can write to the cache decides which code runs from it. So where the cache belongs to another user or is not
    a real folder, a temporary folder is used instead.

    Args:
        name: the folder's path below the cache folder.

    Returns:
        The folder.

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
            result = level.lstat()  # not stat: a link could lead to a folder that others can write to
            if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.geteuid():
                return kept_scratch()
            if result.st_mode & 0o777 != _PRIVATE_FOLDER:
                level.chmod(_PRIVATE_FOLDER)
    except OSError as error:
        raise EnvironmentLacksError(
            f"cannot write to {folder}: {error.strerror or error}; OPSCOPE_CACHE names another folder"
        ) from error
    return folder


def is_own(path: Path) -> bool:
    """Tell whether only this user or root can have written a file, so that it may be loaded as a library.

    The file's folder is checked as well; links are not followed.
    """
    return _is_ours(path, stat.S_ISREG) and is_own_folder(path.parent)


def is_own_folder(path: Path) -> bool:
    """Tell whether a path is a real folder, not a link to one, that only this user or root can write to."""
    return _is_ours(path, stat.S_ISDIR)


def _is_ours(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        result = path.lstat()
    except OSError:
        return False
    return is_kind(result.st_mode) and result.st_uid in (os.geteuid(), 0) and not result.st_mode & _OTHERS_WRITE
