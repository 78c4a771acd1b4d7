"""Finds the traces in the inputs of commands: files, converted traces, run directories, folders.

Imports nothing large: commands start reading a file before they import numpy and polars.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from opscope.base.errors import BadInputError, UsageError
from opscope.base.files import path_text, regular
from opscope.base.text import lazy_pattern
from opscope.base.units import NS_PER_MS
from opscope.readers.archives import is_archive, unpacked
from opscope.readers.formats import TRACE_ENDINGS, is_snapshot_file
from opscope.readers.unpacked import STORE_MANIFEST
from opscope.record.capture import EXECUTION, RAW, RECORDING_ENDING, Execution
from opscope.record.sweep import MANIFEST, document_kind

_RUNS: Final = (MANIFEST, EXECUTION)  # a folder with one of these is a run
_RECORDING: Final = lazy_pattern(rf"[\w.-]{{1,200}}{re.escape(RECORDING_ENDING)}(\.xz|\.gz|\.zst)?", re.ASCII)

if TYPE_CHECKING:
    from opscope.analysis.measured import Measured
    from opscope.analysis.memory.answered import Answered
    from opscope.knowledge.devices import Device
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.record.capture import CaptureRecord
    from opscope.runs.store import RunDirectory
    from opscope.trace.model import Trace


class Capture(Struct, frozen=True):
    """The origin of a trace in a run directory: the capture's record, and the cycle's number from 0."""

    directory: "RunDirectory"
    record: "CaptureRecord"
    cycle: int


class TraceFile(Struct, frozen=True):
    """A trace to read.

    Attributes:
        path: the file.
        capture: its capture, if it is from a run directory; else None.
        guessed: whether it was found in a folder and taken for a trace by its name alone.
    """

    path: Path
    capture: Capture | None = None
    guessed: bool = False

    def __str__(self) -> str:
        return path_text(self.path)

    @property
    def name(self) -> str:
        """What commands take for it: of a run RUN/CONFIGURATION, which has the record that a file alone has not."""
        if self.capture is None:
            return path_text(self.path)
        cycle = f",{self.capture.cycle + 1}" if len(self.capture.record.traces) > 1 else ""
        return f"{self.capture.directory.path}/{self.capture.record.configuration.id}{cycle}"


def traces_below(paths: Iterable[Path]) -> Iterator[TraceFile]:
    """Yield the traces of some paths: files as they are, and the traces in run directories, folders and archives.

    ``RUN/CONFIGURATION`` names one configuration of a run directory, ``RUN/CONFIGURATION,2`` its second cycle.

    Raises:
        BadInputError: a run directory holds no trace, or its manifest or a record is damaged; a folder holds no trace.
    """
    for path in paths:
        if is_archive(path):
            yield from _of_archive(path)
        elif not os.path.isdir(path):  # False also for names that no file can have
            yield from _of_configuration(path) or (TraceFile(path),)
        else:
            yield from _inside(path)


def _inside(folder: Path) -> Iterator[TraceFile]:
    from opscope.runs.store import RunDirectory  # slow to import, and most inputs are files

    directory = RunDirectory(folder)
    if directory.manifest.is_file():
        yield from _of_run(directory)
    elif is_execution(folder):
        yield from _of_execution(folder)
    elif (folder / STORE_MANIFEST).is_file():
        yield TraceFile(folder)
    else:
        yield from _of_folder(folder)


def _of_archive(path: Path) -> Iterator[TraceFile]:
    folder = unpacked(path)
    try:
        yield from list(_inside(folder))
    except BadInputError:
        below = [file for file in sorted(folder.rglob("*")) if _is_named_as_trace(file)]
        if not below:
            raise
        yield from (TraceFile(file, guessed=len(below) > 1) for file in below)


def _of_configuration(path: Path) -> list[TraceFile]:
    """Return what a path names of a run directory by the name of a configuration; nothing if it is another file."""
    from_run = not os.path.lexists(path) and os.path.isfile(path.parent / MANIFEST)
    return [file for file in _inside(path.parent) if _is_called(file, path.name)] if from_run else []


def _is_called(file: TraceFile, name: str) -> bool:
    return Path(file.name).name == name or (file.capture is not None and file.capture.record.configuration.id == name)


def _of_run(directory: "RunDirectory") -> Iterator[TraceFile]:
    measured = [entry for entry in directory.read_manifest().entries if entry.measured]
    if not measured:
        raise BadInputError(f"{directory.path} holds no configuration that was measured")
    for entry in measured:
        record = directory.read_record(entry)
        for cycle, trace in enumerate(record.traces):
            yield TraceFile(directory.trace_path(trace.file), Capture(directory, record, cycle))


def unmeasured_of(paths: Iterable[Path]) -> dict[str, str]:
    """Return the configurations of run directories that have no result, each with the reason.

    Raises:
        BadInputError: a manifest is damaged.
    """
    from opscope.runs.store import RunDirectory

    results: dict[str, str] = {}
    for path in paths:
        directory = RunDirectory(path)
        for entry in directory.read_manifest().entries if directory.manifest.is_file() else ():
            if not entry.measured:
                reason = "it was not run" if entry.failure is None else f"it failed: {entry.failure.message}"
                results[entry.configuration.id] = reason
    return results


def is_execution(folder: Path) -> bool:
    """Tell whether a folder is a run of ``opscope exec``."""
    return (folder / EXECUTION).is_file()


def _of_execution(folder: Path) -> Iterator[TraceFile]:
    """Yield the recordings of a command's processes in the order in which they began.

    The record may come from anyone, so links and names that lead out of the folder are refused.
    """
    from opscope.record.codec import decode

    path = folder / EXECUTION
    if path.is_symlink() and not _is_within(path, folder):
        raise BadInputError(f"{path} leads out of {folder}: it is not read")
    record = decode(regular(path), Execution)
    names = record.recordings or (_left_in(folder) if record.cut_off else ())
    if not names:
        program = record.command[0] if record.command else "the command"
        raise BadInputError(f"{folder} holds no recording: no process of {program} used CUDA")
    if len(set(names)) < len(names):
        raise BadInputError(f"{folder / EXECUTION} names a recording twice")
    for name in names:
        yield TraceFile(_recording(folder, name))


def _left_in(folder: Path) -> tuple[str, ...]:
    """Return the recordings of a command during which opscope was killed, in the order in which they began."""
    # Names end with the time at which the collector of the process began.
    result = (path.name for path in (folder / RAW).glob(f"*{RECORDING_ENDING}"))
    return tuple(sorted(result, key=lambda name: name.removesuffix(RECORDING_ENDING).rpartition("-")[2]))


def _recording(folder: Path, name: str) -> Path:
    """Return the path of a recording that a record names. The record may come from anyone.

    Raises:
        BadInputError: it is not the name of a recording, or leads out of the folder.
    """
    path = folder / RAW / name
    if not _RECORDING.fullmatch(name):
        raise BadInputError(f"{folder / EXECUTION} names a recording as opscope does not: {name[:60]!r}")
    if (folder / RAW).is_symlink() or not _is_within(path, folder):
        raise BadInputError(f"{path} leads out of {folder}: it is not read")
    return regular(path)


def _is_within(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links that lead to each other
        return False


def _of_folder(folder: Path) -> Iterator[TraceFile]:
    """Yield the traces, converted traces and runs in a folder, by name."""
    results = [
        path for path in sorted(folder.iterdir()) if _is_named_as_trace(path) or _holds_one(path, (STORE_MANIFEST,))
    ]
    runs = [path for path in sorted(folder.iterdir()) if not path.is_symlink() and _holds_one(path, _RUNS)]
    if not results and not runs:
        endings = ", ".join(TRACE_ENDINGS)
        raise BadInputError(
            f"{folder} holds no trace: no file ends in {endings}, and nothing in it is a converted one or a run"
        )
    for path in results:
        yield TraceFile(path, guessed=True)
    for path in runs:  # the ranks of a job, the sweeps of a preset
        yield from _inside(path)


def _is_named_as_trace(path: Path) -> bool:
    """Tell whether a file's name is that of a trace, and the file no document of opscope's own, such as a benchmark."""
    if not path.name.endswith(TRACE_ENDINGS) or not path.is_file():
        return False
    try:
        return document_kind(path) is None
    except OSError:  # whoever reads it says why that is not possible
        return True


def _holds_one(folder: Path, names: Iterable[str]) -> bool:
    return any((folder / name).is_file() for name in names)


def measured_of(
    file: TraceFile,
    trace: "Trace",
    functions: "NativeFunctions",
    graph_capture: "Trace | None" = None,
    *,
    step_time_ms: float | None = None,
    gpu: "Device | None" = None,
    as_marked: bool = False,
) -> "tuple[Measured, NativeFunctions]":
    """Analyse a trace and join it with its record, as ``opscope export --reports`` does.

    Args:
        file: the trace's file.
        trace: the trace, read from it.
        functions: the operator table of a PyTorch release.
        graph_capture: another trace, in which the CUDA graphs were captured; None without.
        step_time_ms: the time of a step without a profiler, from the user; None if unknown.
        gpu: the model of its devices, from the user; None takes what the trace says.
        as_marked: as for `opscope.analysis.analyzed.analyze`.

    Returns:
        The result, and the operator table of the PyTorch that ran, or ``functions`` if no record names it.

    Raises:
        UsageError: a step time or a GPU is given for a trace that has a record, or a step time for one without steps.
        BadInputError: the operator table of the capture cannot be read.
    """
    from opscope.analysis.analyzed import analyze
    from opscope.analysis.measured import Measured

    if file.capture is None:
        step_time_ns = None if step_time_ms is None else step_time_ms * NS_PER_MS
        # A mean of steps is of all of them, of those that are unlike the others too.
        every = step_time_ns is not None
        analysis = analyze(
            trace, functions, graph_capture=graph_capture, gpu=gpu, as_marked=as_marked, every_step=every
        )
        measured = Measured(analysis, step_time_ns=step_time_ns)
        if step_time_ms is not None and not measured.step_count:
            raise UsageError(f"--step-time: {file} marks no steps that it could be compared with")
        return measured, functions
    if step_time_ms is not None:
        raise UsageError(f"--step-time: {file} is of a run directory, which has its own step times")
    if gpu is not None:
        raise UsageError(f"--gpu: {file} is of a run directory, which says what it ran on")
    from opscope.runs.pipeline import functions_of, measured_capture

    capture = file.capture
    own = functions_of(capture.directory, capture.record)
    measured = measured_capture(trace, capture.record, capture.cycle, own, graph_capture, directory=capture.directory)
    return measured, own


def memory_of(path: Path, *, max_bytes: int) -> "Answered":
    """Return what fills the memory, by a snapshot, a run that recorded it, or a trace with allocations.

    Args:
        path: the file, or the run directory.
        max_bytes: the largest input that is read.

    Raises:
        UsageError: a trace has no allocations of GPUs, or a run none or several snapshots.
        BadInputError: something cannot be read.
    """
    from opscope.analysis.memory.answered import answered, cases_of
    from opscope.readers.snapshot import read_snapshot
    from opscope.runs.store import RunDirectory

    notes: tuple[str, ...] = ()
    directory = RunDirectory(path if path.is_dir() else path.parent)
    try:
        entries = directory.with_snapshots(directory.read_manifest()) if directory.manifest.is_file() else {}
        if path.is_dir() and entries:
            if len(entries) > 1:
                raise UsageError(
                    f"{path} holds {len(entries)} memory snapshots: name one, such as {next(iter(entries))}"
                )
            (path,) = entries
        if (entry := entries.get(path)) is not None and entry.measured:
            record = directory.read_record(entry)
            recording = record.memory_recording
            if recording is not None and recording.snapshot == entry.files.snapshot:
                from opscope.runs.pipeline import measured_cycle

                measured, _ = measured_cycle(directory, record, 0, allow_damaged=True)
                if measured.memory is not None:
                    return measured.memory
    except BadInputError as error:
        if not is_snapshot_file(path):
            raise
        notes = (f"Read without its run: {error}",)
    if is_snapshot_file(path) or path.suffix in (".pickle", ".pkl", ".html", ".htm"):
        snapshot = read_snapshot(path, max_bytes=max_bytes)
        return answered(snapshot.path, cases_of(snapshot), notes)
    return _memory_in_trace(path, max_bytes)


def _memory_in_trace(path: Path, max_bytes: int) -> "Answered":
    from opscope.knowledge.native_functions import NativeFunctions
    from opscope.readers.reading import read

    files = list(traces_below([path]))
    if len(files) > 1:
        raise UsageError(f"{path} holds {len(files)} traces: name one, such as {files[0].name}")
    trace = read(files[0].path, max_bytes=max_bytes)
    measured, _ = measured_of(files[0], trace, NativeFunctions.shipped())
    if measured.memory is None:
        raise UsageError(
            f"{path} has no allocations of a GPU with addresses and totals: record them with opscope profile --memory, "
            "or with torch.profiler.profile(profile_memory=True)"
        )
    return measured.memory


def distinct(files: Iterable[TraceFile]) -> Iterator[TraceFile]:
    """Yield files without duplicates, by path. Two links to one file are kept, as two files of their folder."""
    seen: set[str] = set()
    for file in files:
        place = os.path.abspath(file.path)
        if place not in seen:
            seen.add(place)
            yield file
