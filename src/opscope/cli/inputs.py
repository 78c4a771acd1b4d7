"""What commands read: traces, directories that ``opscope convert`` made, and run directories of ``opscope profile``."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from opscope.errors import BadInputError
from opscope.model import Trace
from opscope.readers import read
from opscope.readers.source import MAX_UNPACKED_BYTES
from opscope.store import RunDirectory

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
        directory = RunDirectory(path)
        if not directory.manifest.is_file():
            yield path
            continue
        measured = [entry for entry in directory.read_manifest().entries if entry.record is not None]
        if not measured:
            raise BadInputError(f"{path} holds no configuration that was measured")
        for entry in measured:
            yield from (directory.trace_path(name) for name in directory.read_record(entry).traces)


def traces_of(paths: Iterable[Path], max_bytes: int) -> Iterator[tuple[str, Trace]]:
    """Read every trace of the inputs, one after the other; yield each with its path. None is read twice."""
    seen: set[Path] = set()
    for path in files_of(paths):
        if path.resolve() not in seen:
            seen.add(path.resolve())
            yield str(path), read(path, max_bytes=max_bytes)
