"""Stores a trace's tables as Parquet files in a directory, which read back much faster than the trace itself.

::

    DIRECTORY/
        store.json           what it holds and where it came from (schema opscope.store/1)
        operators.parquet, launches.parquet, activities.parquet, annotations.parquet, frames.parquet,
        allocations.parquet, overheads.parquet, ranges.parquet, synchronizations.parquet, migrations.parquet,
        communications.parquet
"""

import functools
import io
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import polars as pl
from msgspec import Struct, field

from opscope._version import __version__
from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.base.files import digest_of, partial_prefix, path_text, regular, write_whole
from opscope.base.processes import together
from opscope.readers.events import KINDS, LATEST_NS
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, STORE_MANIFEST, UNSUSPICIOUS_BYTES
from opscope.trace.model import DeviceProperties, Trace, TraceSource
from opscope.trace.schema import SCHEMAS

_STORE_FILES: Final = frozenset({STORE_MANIFEST, *(f"{name}.parquet" for name in SCHEMAS)})
_ATTEMPTS: Final = 100
# Bytes of a row in memory; categorical columns hold 32-bit codes.
_ROW_BYTES: Final = {
    name: sum(4 if dtype in (pl.Int32, pl.Categorical) else 8 for dtype in schema.values())
    for name, schema in SCHEMAS.items()
}
_RATIO: Final = 100  # tables of traces take ten to thirty times as much as their files
_LOWEST: Final[dict[Any, int]] = {pl.Int32: -(1 << 31), pl.Int64: -(1 << 63)}
_ALWAYS_KNOWN: Final = frozenset({"name", "kind", "thread", "start_ns", "duration_ns", "time_ns"})
# Tables and columns that earlier versions did not write.
_ADDED_LATER: Final = frozenset({"ranges", "synchronizations", "migrations", "communications", "counters"})
_COLUMNS_ADDED_LATER: Final = frozenset(
    {
        ("launches", "status"), ("allocations", "address"), ("allocations", "total_reserved_bytes"),
        ("activities", "context"),
        ("synchronizations", "awaited_stream"), ("synchronizations", "recorded_by"),
    }
)  # fmt: skip
_LISTS: Final = frozenset({"input_dims", "input_types", "input_strides", "concrete_inputs"})  # JSON text of lists


class StoreManifest(Struct, frozen=True, kw_only=True):
    """What a directory of Parquet files holds.

    Attributes:
        opscope: the version that wrote it.
        source, devices, threads: as in `Trace`.
        rows: the number of rows of each table.
        digests: the BLAKE2b digest of each table's file; empty in stores of earlier versions.
    """

    schema: Literal["opscope.store/1"] = "opscope.store/1"
    opscope: str
    source: TraceSource
    devices: tuple[DeviceProperties, ...]
    threads: tuple[tuple[str, str], ...]
    rows: dict[str, int]
    digests: dict[str, str] = field(default_factory=dict)


def write(trace: Trace, directory: Path) -> StoreManifest:
    """Write a trace's tables to a temporary folder, which replaces ``directory`` once it is complete.

    Raises:
        EnvironmentLacksError: a file cannot be written; an older store stays as it was.
        UsageError: the directory holds other files than a store's.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=partial_prefix()) as scratch:
            whole = Path(scratch) / "new"
            whole.mkdir()
            manifest = _written(trace, whole)
            _put(whole, directory, Path(scratch))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise EnvironmentLacksError(f"cannot write to {directory}: {error}") from error
    return manifest


def refuse_target(directory: Path, trace: Path, *, overwrite: bool) -> None:
    """Check that a trace may be converted into a directory, before any work is done.

    Args:
        directory: the directory to write.
        trace: the trace to read.
        overwrite: whether an existing store may be replaced.

    Raises:
        UsageError: the directory holds the trace itself or anything but an intact store, or a store and ``overwrite``
            is false.
    """
    if not directory.exists() and not directory.is_symlink():
        return
    if directory.is_symlink() or not directory.is_dir():
        raise UsageError(f"{directory} is not a folder: name another")
    if trace.exists() and trace.resolve().is_relative_to(directory.resolve()):
        raise UsageError(f"{directory} is what is read, or holds it: name another folder")
    if not any(directory.iterdir()):
        return
    if not overwrite:
        raise UsageError(f"{directory} is there already: name another folder, or --overwrite replaces it")
    try:
        manifest = msgspec.json.decode(regular(directory / STORE_MANIFEST).read_bytes(), type=StoreManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{directory} holds something else than a converted trace, and is not replaced") from error
    for name, digest in manifest.digests.items():
        path = directory / f"{name}.parquet"
        if name not in SCHEMAS or path.is_symlink() or (path.exists() and digest_of(path) != digest):
            raise UsageError(f"{directory} is not replaced: {path.name} is not what opscope wrote")


def _written(trace: Trace, directory: Path) -> StoreManifest:
    frames: dict[str, pl.DataFrame] = {name: getattr(trace, name) for name in SCHEMAS}
    digests = {}
    for name, frame in frames.items():
        path = directory / f"{name}.parquet"
        with path.open("wb+") as file:  # polars takes no names that are not UTF-8, but open files
            frame.write_parquet(file, compression="zstd", compression_level=1)
            file.flush()
            os.fsync(file.fileno())
        digests[name] = digest_of(path)
    manifest = StoreManifest(
        opscope=__version__,
        source=trace.source,
        devices=trace.devices,
        threads=trace.threads,
        rows={name: frame.height for name, frame in frames.items()},
        digests=digests,
    )
    write_whole(directory / STORE_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def _put(whole: Path, directory: Path, scratch: Path) -> None:
    """Rename a folder to its final place, after moving an older store away. Other processes may do the same at once."""
    for attempt in range(_ATTEMPTS):
        try:
            whole.rename(directory)  # over nothing, or an empty folder
            return
        except OSError:
            if not whole.is_dir():
                raise
        with suppress(FileNotFoundError):  # another one may have moved it away meanwhile
            if foreign := {path.name for path in directory.iterdir()} - _STORE_FILES:
                raise UsageError(f"{directory} holds other files than a store's, such as {min(foreign)}: name another")
            directory.rename(scratch / f"old{attempt}")
    raise EnvironmentLacksError(f"cannot write to {directory}: others write there all the time")


def read_parquet(directory: Path, max_bytes: int = MAX_UNPACKED_BYTES) -> Trace:
    """Read a trace back.

    A store comes from anywhere, so its values are checked against what readers of traces guarantee.

    Args:
        directory: the store.
        max_bytes: refuse tables that take more memory than this.

    Raises:
        BadInputError: a file is missing or damaged, or holds other columns, values that no trace has, or too many rows.
    """
    try:
        manifest = msgspec.json.decode(regular(directory / STORE_MANIFEST).read_bytes(), type=StoreManifest)
        files = {
            name: _Table(regular(directory / f"{name}.parquet"), name, manifest.rows[name], manifest.digests.get(name))
            for name in SCHEMAS
            if name in manifest.rows or name not in _ADDED_LATER
        }
        _check_size(directory, files.values(), max_bytes)
        frames = {name: pl.DataFrame(schema=SCHEMAS[name]) for name in _ADDED_LATER}
        reading = (functools.partial(file.read, len(manifest.threads)) for file in files.values())
        frames |= zip(files, together(reading, events=manifest.source.event_count), strict=True)
        _check_counts(directory, manifest.source)
    except (OSError, KeyError, msgspec.DecodeError, pl.exceptions.PolarsError) as error:
        raise BadInputError(f"{directory} is not a whole Parquet store of opscope: {error}") from error
    return Trace(source=manifest.source, devices=manifest.devices, threads=manifest.threads, around=None, **frames)


def _check_size(directory: Path, files: Iterable["_Table"], max_bytes: int) -> None:
    """Compare the tables' size in memory with the limits, before any is read."""
    files = list(files)
    unpacked = sum(file.rows * _ROW_BYTES[file.name] for file in files)
    packed = sum(file.path.stat().st_size for file in files)
    if unpacked > max_bytes or (
        max_bytes == MAX_UNPACKED_BYTES and unpacked > max(UNSUSPICIOUS_BYTES, _RATIO * packed)
    ):
        raise BadInputError(
            f"{directory} holds {unpacked:,} bytes of tables in {packed:,} bytes of files: set the limit with "
            "--max-input if it is what you expect"
        )


def _check_counts(directory: Path, source: TraceSource) -> None:
    counts = (source.replaced_bytes, source.odd_events, source.unreadable_bytes, *source.not_understood.values())
    if not all(0 <= count < LATEST_NS for count in counts):
        raise BadInputError(f"{directory} is not a valid Parquet store of opscope: it has a negative row count")


class _Table(Struct, frozen=True):
    """The file of one table, and the manifest's number of rows and digest of it (None if it has none)."""

    path: Path
    name: str
    rows: int
    digest: str | None

    def read(self, threads: int) -> pl.DataFrame:
        if self.digest is not None and digest_of(self.path) != self.digest:
            raise self._unlike("content than its manifest says")
        content = self.path if path_text(self.path) == str(self.path) else io.BytesIO(self.path.read_bytes())
        lazy = pl.scan_parquet(content)
        schema, result = dict(SCHEMAS[self.name]), dict(lazy.collect_schema())
        lacking = {name: schema[name] for name in schema.keys() - result.keys()}
        if any((self.name, name) not in _COLUMNS_ADDED_LATER for name in lacking) or list(result.items()) != [
            (name, dtype) for name, dtype in schema.items() if name not in lacking
        ]:
            raise self._unlike("columns than its manifest says")
        if self._counted(lazy) != self.rows:
            raise self._unlike("rows than its manifest says")
        added = [pl.lit(None, dtype).alias(name) for name, dtype in lacking.items()]
        frame = lazy.collect().with_columns(added).select(list(schema))
        for name in _ALWAYS_KNOWN & set(frame.columns):
            if frame[name].null_count():
                raise self._unlike(f"values than a trace has: {name} is missing in some rows")
        if not all(_within_bounds(frame[name]) for name in frame.columns):
            raise self._unlike("numbers than a trace has")
        if not frame.select(_possible_times(frame)).to_series().all():
            raise self._unlike("times than a trace has")
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
                raise self._unlike(f"values than a trace has: {name} is not a list in some rows") from error

    def _unlike(self, what: str) -> BadInputError:
        return BadInputError(f"{self.path} has other {what}: convert the trace again")


def _within_bounds(values: pl.Series) -> bool:
    """Tell whether readers keep such values: neither a type's lowest integer, which means null, nor infinity."""
    if values.dtype in (pl.Int32, pl.Int64):
        return not (values == _LOWEST[values.dtype]).any()
    return values.dtype != pl.Float64 or bool(values.is_finite().all())


def _possible_times(frame: pl.DataFrame) -> pl.Expr:
    """Return an expression that tells per row whether start, duration and end are within every reader's bounds."""
    begin = pl.col("time_ns" if "time_ns" in frame.columns else "start_ns")
    duration = pl.col("duration_ns") if "duration_ns" in frame.columns else pl.lit(0)
    return pl.all_horizontal(
        time.is_between(-LATEST_NS, LATEST_NS, closed="none") for time in (begin, duration, begin + duration)
    )
