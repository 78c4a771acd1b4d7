"""Follows a run that another process measures: whether it goes on, and what it has so far."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from opscope.base.errors import BadInputError
from opscope.documents.findings import StepBasis
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
    _held.add(held)
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_SH)
        yield
    finally:
        _held.discard(held)
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)


_held: set[int] = set()  # descriptors with a mark, in this process


def _forget() -> None:
    """Close the marks in a process that was forked: it does not measure, and may outlive the one that does."""
    for held in _held:
        with suppress(OSError):
            os.close(held)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


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


class _Step(Struct, frozen=True):
    ns: float
    basis: StepBasis


class _Bound(Struct, frozen=True):
    kind: str


class _Told(Struct, frozen=True):
    """The few fields of a configuration's statistics that a line shows."""

    bound: _Bound
    step_time: _Step | None = None


class RunProgress(Struct, frozen=True):
    """A run as it stands.

    Attributes:
        created: when the run began, as its manifest says.
        ended: what has ended, in the order of the run.
        pending: the ids of what has not.
    """

    created: str
    ended: tuple[RunRow, ...]
    pending: tuple[str, ...]


def progress_of(folder: Path) -> RunProgress | None:
    """Return how far a run is; None while its manifest cannot be read."""
    directory = RunDirectory(folder)
    try:
        manifest = directory.read_manifest()
    except BadInputError:
        return None
    rows = tuple(_row(directory, manifest, entry) for entry in manifest.entries if entry.status != "pending")
    pending = tuple(one.configuration.id for one in manifest.entries if one.status == "pending")
    return RunProgress(manifest.created, rows, pending)


def _row(directory: RunDirectory, manifest: Manifest, entry: Entry) -> RunRow:
    outcome, step = entry.failure.message if entry.failure is not None else entry.status, None
    if entry.status == "done" and entry.files.cycles:
        with suppress(BadInputError):
            statistics = decode(directory.inside(entry.files.cycles[0].statistics), _Told)
            outcome, step = statistics.bound.kind, statistics.step_time
    return RunRow(
        folder=str(directory.path),
        target=entry.configuration.target,
        created=manifest.created,
        configuration=entry.configuration.id,
        outcome=outcome,
        step_ns=None if step is None else step.ns,
        step_basis=None if step is None else step.basis,
    )
