"""A trace's tables as Parquet files in a directory: written once, read back much faster than the trace itself.

::

    DIRECTORY/
        store.json           what it holds and where it came from (schema opscope.store/1)
        operators.parquet, launches.parquet, activities.parquet, annotations.parquet, frames.parquet,
        allocations.parquet, overheads.parquet
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import polars as pl

from opscope._version import __version__
from opscope.errors import BadInputError, EnvironmentLacksError
from opscope.files import path_text, regular, write_whole, written_whole
from opscope.model import DeviceProperties, Trace, TraceSource
from opscope.readers.events import KINDS
from opscope.readers.source import MAX_UNPACKED_BYTES, STORE_MANIFEST
from opscope.schema import SCHEMAS

_ROW_BYTES: Final = {
    name: sum(4 if dtype in (pl.Int32, pl.Categorical) else 8 for dtype in schema.values())
    for name, schema in SCHEMAS.items()
}
_UNSUSPICIOUS: Final = 256 << 20  # what tables may take however small their files are
_RATIO: Final = 100  # tables of traces take ten to thirty times as much as their files
_ALWAYS_KNOWN: Final = frozenset({"name", "kind", "thread", "start_ns", "duration_ns", "time_ns"})
_LISTS: Final = frozenset({"input_dims", "input_types", "input_strides", "concrete_inputs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreManifest:
    """What a directory of Parquet files holds. ``rows`` is the number of rows of each table."""

    schema: Literal["opscope.store/1"] = "opscope.store/1"
    opscope: str
    source: TraceSource
    devices: tuple[DeviceProperties, ...]
    threads: tuple[tuple[str, str], ...]
    rows: dict[str, int]


def write(trace: Trace, directory: Path) -> StoreManifest:
    """Write a trace's tables. The manifest comes last, so a directory that has one is whole.

    Raises:
        EnvironmentLacksError: a file cannot be written.
    """
    frames: dict[str, pl.DataFrame] = {name: getattr(trace, name) for name in SCHEMAS}
    manifest = StoreManifest(
        opscope=__version__,
        source=trace.source,
        devices=trace.devices,
        threads=trace.threads,
        rows={name: frame.height for name, frame in frames.items()},
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / STORE_MANIFEST).unlink(missing_ok=True)
        for name, frame in frames.items():
            # polars takes no names that are not UTF-8, but open files.
            with written_whole(directory / f"{name}.parquet") as partial, partial.open("wb") as file:
                frame.write_parquet(file, compression="zstd", compression_level=1)
        write_whole(directory / STORE_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise EnvironmentLacksError(f"cannot write to {directory}: {error}") from error
    return manifest


def read(directory: Path, max_bytes: int = MAX_UNPACKED_BYTES) -> Trace:
    """Read a trace back.

    Args:
        directory: the store.
        max_bytes: refuse tables that take more memory.

    Raises:
        BadInputError: a file is missing or damaged, holds other columns, values that no trace has, or too many rows.
    """
    try:
        manifest = msgspec.json.decode(regular(directory / STORE_MANIFEST).read_bytes(), type=StoreManifest)
        files = {name: _Table(regular(directory / f"{name}.parquet"), name, manifest.rows[name]) for name in SCHEMAS}
        _check_size(directory, files.values(), max_bytes)
        frames = {name: file.read(len(manifest.threads)) for name, file in files.items()}
    except (OSError, KeyError, msgspec.DecodeError, pl.exceptions.PolarsError) as error:
        raise BadInputError(f"{directory} is no whole Parquet store of opscope: {error}") from error
    return Trace(source=manifest.source, devices=manifest.devices, threads=manifest.threads, **frames)


def _check_size(directory: Path, files: Iterable["_Table"], max_bytes: int) -> None:
    """Compare what the tables will take with the limits, before any is read."""
    files = list(files)
    unpacked = sum(file.rows * _ROW_BYTES[file.name] for file in files)
    packed = sum(file.path.stat().st_size for file in files)
    if unpacked > max_bytes or (max_bytes == MAX_UNPACKED_BYTES and unpacked > max(_UNSUSPICIOUS, _RATIO * packed)):
        raise BadInputError(
            f"{directory} holds {unpacked:,} bytes of tables in {packed:,} bytes of files: set the limit with "
            "--max-input if it is what you expect"
        )


@dataclass(frozen=True, slots=True)
class _Table:
    """The file of one table; ``rows`` is how many its manifest says."""

    path: Path
    name: str
    rows: int

    def read(self, threads: int) -> pl.DataFrame:
        content = self.path if path_text(self.path) == str(self.path) else io.BytesIO(self.path.read_bytes())
        lazy = pl.scan_parquet(content)
        if dict(lazy.collect_schema()) != dict(SCHEMAS[self.name]) or self._counted(lazy) != self.rows:
            raise self._unlike("columns or rows than its manifest says")
        frame = lazy.collect()
        for name in _ALWAYS_KNOWN & set(frame.columns):
            if frame[name].null_count():
                raise self._unlike(f"values than a trace has: {name} is missing in some rows")
        if "thread" in frame.columns and not frame["thread"].is_between(0, threads - 1).all():
            raise self._unlike("threads than its manifest lists")
        if "kind" in frame.columns and not frame["kind"].cast(pl.String).is_in(KINDS).all():
            raise self._unlike(f"kinds of activities than {', '.join(KINDS)}")
        for name in _LISTS & set(frame.columns):
            self._check_lists(name, frame[name].drop_nulls().unique().cast(pl.String))
        return frame

    @staticmethod
    def _counted(lazy: pl.LazyFrame) -> int:
        return int(lazy.select(pl.len()).collect().item())

    def _check_lists(self, name: str, texts: pl.Series) -> None:
        for text in texts:
            try:
                msgspec.json.decode(text, type=list)
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
                raise self._unlike(f"values than a trace has: {name} is no list in some rows") from error

    def _unlike(self, what: str) -> BadInputError:
        return BadInputError(f"{self.path} has other {what}: convert the trace again")
