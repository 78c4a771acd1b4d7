"""Archives of traces, as people pack those of a job: unpacked into a temporary folder, and then read as any folder."""

import atexit
import functools
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Final

from opscope.base.errors import BadInputError
from opscope.base.files import kept_scratch, path_text
from opscope.readers.unpacked import MAX_RATIO, MAX_UNPACKED_BYTES, UNSUSPICIOUS_BYTES

ENDINGS: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_MOST_FILES: Final = 10_000  # a job has fewer ranks
_PIECE: Final = 1 << 20


def is_archive(path: Path) -> bool:
    """Tell whether a path is that of an archive, by its name."""
    return path.name.lower().endswith(ENDINGS) and path.is_file()


@functools.cache
def unpacked(path: Path) -> Path:
    """Return a folder with the files of an archive, which is removed when the process ends.

    Links and devices in it are left out. A folder that holds all of it stands for the archive.

    Raises:
        BadInputError: the archive cannot be read, leads out of its folder, or holds far more than its size.
    """
    import tarfile  # slow to import, and most inputs are no archives
    import zipfile

    folder = kept_scratch()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    root = folder / path.name.partition(".")[0]
    root.mkdir()
    left = min(MAX_UNPACKED_BYTES, max(UNSUSPICIOUS_BYTES, MAX_RATIO * path.stat().st_size))
    try:
        for number, (name, file) in enumerate(_files(path)):
            with closing(file):
                left -= _written(file, _place(root, path, name), left)
            if left < 0 or number >= _MOST_FILES:
                raise BadInputError(f"{path_text(path)} holds more than archives of traces do: unpack it yourself")
    except (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise BadInputError(f"{path_text(path)} cannot be unpacked: {error}") from error
    return _innermost(root)


def _files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the plain files of an archive: names, and contents to read."""
    if path.name.lower().endswith(".zip"):
        import zipfile

        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield entry.filename, archive.open(entry)
        return
    import tarfile

    with tarfile.open(path) as tape:
        for member in tape:
            if member.isfile() and (content := tape.extractfile(member)) is not None:
                yield member.name, content


def _place(root: Path, path: Path, name: str) -> Path:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in name:
        raise BadInputError(f"{path_text(path)} holds a file that leads out of it: it is not unpacked")
    place = root.joinpath(*parts.parts)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _written(content: IO[bytes], place: Path, most: int) -> int:
    """Write a file, and return its size; stop beyond a limit."""
    size = 0
    with place.open("xb") as target:
        while size <= most and (piece := content.read(_PIECE)):
            target.write(piece)
            size += len(piece)
    return size


def _innermost(folder: Path) -> Path:
    """Return the folder in a folder, where that holds nothing else."""
    inside = list(folder.iterdir())
    return _innermost(inside[0]) if len(inside) == 1 and inside[0].is_dir() else folder
