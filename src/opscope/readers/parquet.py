"""A trace's tables as Parquet files in a directory: written once, read back much faster than the trace itself.

::

    DIRECTORY/
        store.json           what it holds and where it came from (schema opscope.store/1)
        operators.parquet, launches.parquet, activities.parquet, annotations.parquet, frames.parquet,
        allocations.parquet, overheads.parquet
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl

from opscope._version import __version__
from opscope.errors import BadInputError, EnvironmentLacksError
from opscope.files import path_text, write_whole, written_whole
from opscope.model import DeviceProperties, Trace, TraceSource
from opscope.readers.source import STORE_MANIFEST
from opscope.schema import SCHEMAS


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


def read(directory: Path) -> Trace:
    """Read a trace back.

    Raises:
        BadInputError: a file is missing or damaged, or holds other columns.
    """
    try:
        manifest = msgspec.json.decode((directory / STORE_MANIFEST).read_bytes(), type=StoreManifest)
        frames = {name: _table(directory / f"{name}.parquet", name, manifest.rows[name]) for name in SCHEMAS}
    except (OSError, KeyError, msgspec.DecodeError, pl.exceptions.PolarsError) as error:
        raise BadInputError(f"{directory} is no whole Parquet store of opscope: {error}") from error
    return Trace(source=manifest.source, devices=manifest.devices, threads=manifest.threads, **frames)


def _table(path: Path, name: str, rows: int) -> pl.DataFrame:
    frame = pl.read_parquet(path if path_text(path) == str(path) else path.read_bytes())
    if dict(frame.schema) != dict(SCHEMAS[name]) or frame.height != rows:
        raise BadInputError(f"{path} has other columns or rows than its manifest says: convert the trace again")
    return frame
