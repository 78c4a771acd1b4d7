"""Writes changes into the user's source, and returns the new text and a patch. Needs no PyTorch."""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from opscope.advise.changes.listed import BY_NAME
from opscope.advise.places import ScriptPlaces
from opscope.advise.source import NotWritableError
from opscope.advise.writer import Writer
from opscope.base.text import lazy_pattern

_LINE: Final = lazy_pattern(r"[^\n]*\n|[^\n]+")


class Written(Struct, frozen=True):
    """Changed source.

    Attributes:
        sources: the new text of each file, by its path.
        diff: what changed, as ``git apply`` takes it.
        root: the folder that the paths in the diff start from.
    """

    sources: dict[str, str]
    diff: str
    root: Path


def written(changes: Sequence[str], script: Path, places: ScriptPlaces, settings: Mapping[str, str]) -> Written:
    """Write changes into a script and the user's modules that it imports; no file is touched.

    Args:
        changes: their names.
        script: the script.
        places: where it does what the changes concern.
        settings: values that changes write: ``device``, ``workers``, ``threads``, ``cores``.

    Raises:
        NotWritableError: one of them cannot be written by itself; says why.
    """
    writer = Writer(script, places, settings)
    for name in changes:
        write = BY_NAME[name].edit.write
        if write is None:
            raise NotWritableError(f"{name} has to be written by hand")
        write(writer)
    texts = {path: (source.text, source.edited()) for path, source in writer.sources.items()}
    changed = {path: new for path, (old, new) in texts.items() if old != new}
    for path, text in changed.items():
        try:
            compile(text, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise NotWritableError(f"{path} would no longer be Python: {error}") from error
    root = _root_of(script, changed)
    diffs = [_diff(path, root, texts[path][0], new) for path, new in changed.items()]
    return Written(changed, "".join(diffs), root)


def written_or_why(
    changes: Sequence[str], script: Path, places: ScriptPlaces, settings: Mapping[str, str]
) -> Written | str:
    """Return what `written` does, or why there is nothing."""
    try:
        return written(changes, script, places, settings)
    except NotWritableError as error:
        return str(error)
    except Exception as error:  # the source is the user's, and may be anything: no patch is better than no advice
        return f"its source could not be changed: {type(error).__name__}: {error}"


def _root_of(script: Path, changed: Iterable[str]) -> Path:
    """Return the folder that ``git apply`` takes paths from: that of the repository, else the current one.

    Where a file that is changed lies elsewhere, it is the folder that holds all of them.
    """
    folder = script.absolute().parent
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if root is None:
        current = Path.cwd()
        root = current if folder.is_relative_to(current) else folder
    if all(Path(path).is_relative_to(root) for path in changed):
        return root
    return Path(os.path.commonpath([folder, *(Path(path).parent for path in changed)]))


def _diff(path: str, root: Path, old: str, new: str) -> str:
    name = Path(path).relative_to(root).as_posix() if Path(path).is_relative_to(root) else path.lstrip("/")
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(ended)


def _lines(text: str) -> list[str]:
    """Return the lines of a file with their ends; only a newline ends one, as for git."""
    return _LINE.findall(text)
