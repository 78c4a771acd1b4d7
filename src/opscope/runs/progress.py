"""Follows a run that another process measures: whether it goes on, and what it has so far."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from opscope.base.errors import BadInputError
from opscope.documents.runs import RunRow
from opscope.record.codec import decode
from opscope.record.sweep import Entry, Manifest
from opscope.runs.store import RunDirectory


@contextmanager
def in_progress(folder: Path) -> Iterator[None]:
    """Mark a run as in progress within a ``with`` block.

    The mark is a shared lock of the folder itself: it leaves no file behind, and the system takes it away with the
    process, however that ends. On file systems without locks there is none.
    """
    try:
        held = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_SH)
        yield
    finally:
        os.close(held)


def is_in_progress(folder: Path) -> bool:
    """Tell whether a process of this machine measures a run."""
    try:
        ours = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(ours)
    return False


class _Wall(Struct, frozen=True):
    median_ns: float


class _Measurement(Struct, frozen=True):
    wall: _Wall | None


class _Bound(Struct, frozen=True):
    kind: str


class _Told(Struct, frozen=True):
    """The few fields of a configuration's statistics that a line shows."""

    bound: _Bound
    measurement: _Measurement


class Progress(Struct, frozen=True):
    """A run as it stands.

    Attributes:
        ended: what has ended, in the order of the run.
        pending: the ids of what has not.
    """

    ended: tuple[RunRow, ...]
    pending: tuple[str, ...]


def progress_of(folder: Path) -> Progress | None:
    """Return how far a run is; None while its manifest cannot be read."""
    directory = RunDirectory(folder)
    try:
        manifest = directory.read_manifest()
    except BadInputError:
        return None
    rows = tuple(_row(directory, manifest, entry) for entry in manifest.entries if entry.status != "pending")
    return Progress(rows, tuple(one.configuration.id for one in manifest.entries if one.status == "pending"))


def _row(directory: RunDirectory, manifest: Manifest, entry: Entry) -> RunRow:
    outcome, step_ns = entry.failure.message if entry.failure is not None else entry.status, None
    if entry.status == "done" and entry.files.cycles:
        with suppress(BadInputError):
            told = decode(directory.inside(entry.files.cycles[0].statistics), _Told)
            outcome = told.bound.kind
            step_ns = None if told.measurement.wall is None else told.measurement.wall.median_ns
    return RunRow(
        folder=str(directory.path),
        target=entry.configuration.target,
        created=manifest.created,
        configuration=entry.configuration.id,
        outcome=outcome,
        step_ns=step_ns,
    )
