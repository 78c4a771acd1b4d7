"""Archives of traces, as people pack those of a job: unpacked into a temporary folder, and then read as any folder."""

import atexit
import functools
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Final

from opscope.base.errors import BadInputError
from opscope.base.files import kept_scratch, path_text, show_as
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

    Links and devices in it are left out. Where a single folder holds everything, that folder is returned.

    Raises:
        BadInputError: the archive cannot be read, leads out of its folder, or holds far more than its size.
    """
    import lzma  # these are slow to import, and most inputs are plain files
    import tarfile
    import zipfile
    import zlib

    folder = kept_scratch()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    root = folder / (path.name.partition(".")[0] or "traces")
    show_as(root, path)
    left = min(MAX_UNPACKED_BYTES, max(UNSUSPICIOUS_BYTES, MAX_RATIO * path.stat().st_size))
    try:
        root.mkdir()
        for name, file in _files(path, left):
            with closing(file):
                left -= _written(file, _place(root, path, name), left)
            if left < 0:
                raise BadInputError(_too_much(path))
    except (OSError, EOFError, RuntimeError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise BadInputError(f"{path_text(path)} cannot be unpacked: {error}") from error
    except (zipfile.BadZipFile, tarfile.TarError) as error:
        raise BadInputError(f"{path_text(path)} cannot be unpacked: {error}") from error
    return _innermost(root)


def _too_much(path: Path) -> str:
    return f"{path_text(path)} holds more than archives of traces do: unpack it yourself"


def _files(path: Path, most: int) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the plain files of an archive: names, and contents to read. What systems add beside files is left out."""
    members = _zipped(path) if path.name.lower().endswith(".zip") else _taped(path, most)
    for number, (name, content) in enumerate(members):
        if number >= _MOST_FILES:
            raise BadInputError(_too_much(path))
        hidden = (part for part in _parts(name) if part.startswith((".", "__MACOSX")) and part not in (".", ".."))
        if content is not None and not any(hidden):
            yield name, content


def _zipped(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    import zipfile

    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            yield entry.filename, None if entry.is_dir() else archive.open(entry)


def _taped(path: Path, most: int) -> Iterator[tuple[str, IO[bytes] | None]]:
    import tarfile

    class Bounded(tarfile.TarInfo):
        """An entry whose own description is short: Python reads that whole."""

        def _proc_member(self, tape: tarfile.TarFile) -> tarfile.TarInfo:
            if self.type in _DESCRIPTIONS and self.size > _LONGEST_DESCRIPTION:
                raise tarfile.ReadError("the description of an entry is too long")
            return super()._proc_member(tape)  # type: ignore[misc, no-any-return]

    with tarfile.open(path, tarinfo=Bounded) as tape:
        for member in tape:
            yield member.name, tape.extractfile(member) if member.isfile() else None
        # The checksum of what is packed stands at its end.
        while most > 0 and (rest := tape.fileobj.read(_PIECE)):
            most -= len(rest)


_DESCRIPTIONS: Final = (b"x", b"g", b"X", b"L", b"K")  # pax headers, and GNU's long names
_LONGEST_DESCRIPTION: Final = 1 << 16


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name.replace("\\", "/")).parts


def _place(root: Path, path: Path, name: str) -> Path:
    parts = [part for part in _parts(name) if part != "."]
    if not parts or parts[0] == "/" or ".." in parts or (os.name == "nt" and ":" in name):
        raise BadInputError(f"{path_text(path)} holds a file that leads out of the archive: nothing is unpacked")
    place = root.joinpath(*parts)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _written(content: IO[bytes], place: Path, most: int) -> int:
    """Write a file, the last one of a name, and return its size; stop beyond a limit."""
    size = 0
    with place.open("wb") as target:
        while size <= most and (piece := content.read(_PIECE)):
            target.write(piece)
            size += len(piece)
    return size


def _innermost(folder: Path) -> Path:
    """Return the folder in a folder, where that holds nothing else."""
    inside = list(folder.iterdir())
    return _innermost(inside[0]) if len(inside) == 1 and inside[0].is_dir() else folder
