"""What commands read: traces, directories that ``opscope convert`` made, and run directories of ``opscope profile``."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opscope.errors import BadInputError
from opscope.readers import Reading
from opscope.readers.source import MAX_UNPACKED_BYTES

if TYPE_CHECKING:
    from opscope.model import Trace

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


class Size(click.ParamType[int]):
    """A number of bytes: ``500MB``, ``2GiB``, ``1000``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert a size to bytes."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        digits = text.rstrip("BKMGIbkmgi ")
        unit = text[len(digits) :].strip().upper()
        if not digits.isdigit() or unit not in _UNITS:
            self.fail(f"{value!r} is no size; write 500MB or 2GiB", param, ctx)
        return int(digits) * _UNITS[unit]


def input_option(function: F) -> F:
    """Add ``--max-input``, the limit on what a trace may unpack to."""
    return click.option(
        "--max-input",
        type=Size(),
        default=MAX_UNPACKED_BYTES,
        help="Refuse traces that unpack to more.  [default: 16GiB]",
    )(function)


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield what can be read: the paths themselves, and of a run directory the traces of every configuration.

    Raises:
        BadInputError: a run directory holds no trace, or its manifest is damaged.
    """
    for path in paths:
        if not os.path.isdir(path):  # False also for names that no file can have
            yield path
            continue
        from opscope.store import RunDirectory  # slow to import, and most inputs are files

        directory = RunDirectory(path)
        if not directory.manifest.is_file():
            yield path
            continue
        measured = [entry for entry in directory.read_manifest().entries if entry.record is not None]
        if not measured:
            raise BadInputError(f"{path} holds no configuration that was measured")
        for entry in measured:
            yield from (directory.trace_path(name) for name in directory.read_record(entry).traces)


def traces_of(paths: Iterable[Path], max_bytes: int) -> Iterator[tuple[str, "Trace"]]:
    """Yield every trace of the inputs with its path, one after the other; none is read twice.

    The first one is being read from this call on, so call it before importing what the analysis needs.

    Raises:
        BadInputError: a run directory is damaged, or there is no trace at all.
    """
    files = _distinct(files_of(paths))
    first = next(files, None)
    if first is None:
        raise BadInputError("the inputs hold no trace")
    return _read(first, Reading(first, max_bytes), files, max_bytes)


def _distinct(paths: Iterable[Path]) -> Iterator[Path]:
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield path


def _read(first: Path, reading: Reading, others: Iterable[Path], max_bytes: int) -> Iterator[tuple[str, "Trace"]]:
    yield str(first), reading.trace()
    for path in others:
        yield str(path), Reading(path, max_bytes).trace()
