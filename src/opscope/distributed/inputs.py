"""Which files are the traces of a job's ranks."""

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from opscope.base.errors import UsageError
from opscope.readers.formats import TRACE_ENDINGS

_NOT_TRACES: Final = frozenset({"record.json", "manifest.json", "store.json", "truth.json", "results.json"})
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


def _named(text: str) -> Iterator[Path]:
    path = Path(text)
    if path.is_dir():
        yield from sorted(one for one in path.rglob("*") if _may_be_trace(one))
    elif path.exists():
        yield path
    elif any(character in text for character in _MAGIC):
        for one in sorted(glob.glob(text, recursive=True)):
            yield from _named(one)


def _may_be_trace(path: Path) -> bool:
    return path.name.endswith(TRACE_ENDINGS) and path.name not in _NOT_TRACES and path.is_file()
