"""The parent of a sweep: every configuration measured, outputs after each, a manifest that is always up to date.

A configuration that dies (out of memory, a crash, a kill) is recorded with its reason and the others go on. PyTorch is
never imported here.
"""

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, TypeVar

from opscope.pipeline import write_comparison, write_outputs, write_page
from opscope.record.capture import CaptureRecord
from opscope.record.configuration import CaptureOptions
from opscope.record.redaction import Redactor
from opscope.record.settings import Value
from opscope.record.sweep import Entry, Failure, Manifest
from opscope.store import RunDirectory, with_entry
from opscope.sweep.worker import Request, Sender, failure_of, run

T = TypeVar("T")


class Observer(Protocol):
    """Whoever shows how a sweep goes."""

    def configuration(self, number: int, entry: Entry) -> None:
        """Configuration ``number`` (from 1) begins."""

    def progress(self, phase: str, fraction: float) -> None:
        """The current configuration is in ``phase``, of which ``fraction`` is done."""

    def finished(self, number: int, entry: Entry) -> None:
        """Configuration ``number`` has ended, for better or worse."""


class Measurer(Protocol):
    """Whoever measures one configuration: in a process of its own (`InProcess`), in this one (`Here`)."""

    def measure(
        self, entry: Entry, options: CaptureOptions, directory: RunDirectory, progress: Sender
    ) -> Failure | None:
        """Leave the raw files that the entry names; return why that failed, if it did."""


@dataclass(frozen=True, slots=True)
class Here:
    """Measures in this process. What the workload prints goes to standard error: standard output is for results.

    Attributes:
        actual: the true values of settings whose written ones are redacted.
    """

    actual: Mapping[str, Value] = field(default_factory=dict)

    def measure(
        self, entry: Entry, options: CaptureOptions, directory: RunDirectory, progress: Sender
    ) -> Failure | None:
        """Measure a configuration; return why it failed, if it did."""
        request = Request(entry.configuration, options, str(directory.path), entry.files, -1, self.actual)
        with contextlib.redirect_stdout(sys.stderr):
            return run(request, progress, isolated=False).failure


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep is to do.

    Attributes:
        manifest: the sweep as it stands; entries that are done are not run again.
        directory: where everything goes.
        measurer: measures one configuration.
        replaced: the manifest of results that stand in the directory and give way to the first new one.
        redactor: knows the secrets that logs and reasons of failures may hold.
    """

    manifest: Manifest
    directory: RunDirectory
    measurer: Measurer
    replaced: Manifest | None = None
    redactor: Redactor = field(default_factory=Redactor)


def run_sweep(plan: Plan, observer: Observer) -> Manifest:
    """Run what is not done yet; return the manifest as it then stands (it is also on disk).

    Each configuration is measured in a folder of its own, and moved to its place when it has ended. Results that are
    to be replaced stay until the first configuration was measured: if none can be, all is as it was.

    Raises:
        EnvironmentLacksError: the run directory cannot be written to; what is done stays.
        KeyboardInterrupt: the user stopped it; the configuration that ran is left pending.
    """
    manifest, directory, replaced = plan.manifest, plan.directory, plan.replaced
    if replaced is None:
        directory.write_manifest(manifest)
    previous: Failure | None = None
    staged = directory.staging()
    try:
        for number, entry in enumerate(manifest.entries, 1):
            if entry.status == "done":
                continue
            ended = _run_one(replace(plan, directory=staged), number, entry, observer)
            if replaced is not None and ended.measured:
                directory.remove_written(replaced)
                replaced = None
            if replaced is None:
                directory.take(staged)
                staged = directory.staging()
            manifest = _with_environment(with_entry(manifest, ended), directory, ended)
            if replaced is None:
                manifest = directory.with_digests(manifest, (ended,))
                directory.write_manifest(manifest)
            observer.finished(number, ended)
            if _would_hit_all(ended.failure, previous):
                break
            previous = ended.failure
    except KeyboardInterrupt:
        staged.discard()
        if replaced is None:
            write_comparison(directory, manifest)
            directory.write_manifest(directory.with_digests(manifest))
        raise
    if replaced is not None:
        return _with_logs_in(staged.path.name, manifest)
    staged.discard()
    return written_sweep(directory, manifest)


def _with_logs_in(folder: str, manifest: Manifest) -> Manifest:
    """Return the manifest of a sweep without any result: its logs are where they do not replace earlier ones."""
    entries = tuple(
        replace(entry, failure=replace(entry.failure, log=f"{folder}/{entry.failure.log}"))
        if entry.failure is not None and entry.failure.log is not None
        else entry
        for entry in manifest.entries
    )
    return replace(manifest, entries=entries)


def written_sweep(directory: RunDirectory, manifest: Manifest, *, allow_damaged: bool = False) -> Manifest:
    """Write what is of the sweep as a whole: comparison, page, manifest. Return the manifest as it then stands."""
    write_comparison(directory, manifest)
    failure = write_page(directory, manifest, allow_damaged=allow_damaged)
    manifest = directory.with_digests(replace(manifest, page_failure=failure))
    directory.write_manifest(manifest)
    return manifest


def _would_hit_all(failure: Failure | None, previous: Failure | None) -> bool:
    """Tell whether to give up: the environment lacks something, or the same wrong usage was met twice in a row."""
    if failure is None or failure.kind == "environment":
        return failure is not None
    return failure.kind == "usage" and previous is not None and failure.message == previous.message


def _run_one(plan: Plan, number: int, entry: Entry, observer: Observer) -> Entry:
    """Measure and report one configuration; return its entry as it then stands."""
    observer.configuration(number, entry)
    began = time.monotonic()
    options = plan.manifest.options
    failure = plan.measurer.measure(entry, options, plan.directory, lambda m: observer.progress(m.phase, m.fraction))
    if failure is not None:
        failure = replace(failure, message=plan.redactor.scrubbed(failure.message))
    _scrub_log(plan, entry)
    if failure is None:
        observer.progress("reporting", 0.0)
    ended = reported(plan.directory, entry) if failure is None else replace(entry, status="failed", failure=failure)
    return replace(ended, seconds=round(time.monotonic() - began, 3))


def _scrub_log(plan: Plan, entry: Entry) -> None:
    """Take out of a log what was taken out of the command line: programs print their arguments."""
    path = plan.directory.inside(entry.files.log)
    if not plan.redactor.secrets or not path.is_file():
        return
    said = path.read_text(encoding="utf-8", errors="surrogateescape")
    if (scrubbed := plan.redactor.scrubbed(said)) != said:
        plan.directory.write(entry.files.log, scrubbed.encode("utf-8", "surrogateescape"))


def reported(directory: RunDirectory, entry: Entry, *, allow_damaged: bool = False) -> Entry:
    """Write the statistics and the report of a configuration that was measured; return its entry.

    Whatever goes wrong with one trace is a result of that configuration alone.
    """
    measured = replace(entry, status="done", failure=None, measured=True)
    directory.remove_reports(entry)  # none that contradicts the outcome may stay
    try:
        return write_outputs(directory, measured, allow_damaged=allow_damaged).entry
    except Exception as error:
        return replace(measured, status="failed", failure=failure_of(error))


def _with_environment(manifest: Manifest, directory: RunDirectory, entry: Entry) -> Manifest:
    """Copy machine, versions and clocks into the manifest from the first result, and note where another one differs."""
    if entry.status != "done":
        return manifest
    record = directory.read_record(entry)
    if manifest.machine is None:
        return described(manifest, record)
    differing = ", ".join((*_differences(manifest.machine, record.machine), *_differing_framework(manifest, record)))
    if not differing:
        return manifest
    note = f"{entry.configuration.id} was measured in another environment: {differing}"
    return replace(manifest, notes=(*manifest.notes, note))


def described(manifest: Manifest, record: CaptureRecord) -> Manifest:
    """Return the manifest with where its first configuration was measured."""
    return replace(
        manifest,
        machine=record.machine,
        framework=record.framework,
        git_revision=record.git_revision,
        clocks=record.benchmark.clocks if record.benchmark else None,
    )


def _differing_framework(manifest: Manifest, record: CaptureRecord) -> Sequence[str]:
    first, other = manifest.framework, record.framework
    return () if first is None or other is None else _differences(first, other)


def _differences(first: T, other: T) -> Sequence[str]:
    """Name what changes results: hardware, drivers, library versions."""
    names = [field.name for field in fields(first) if field.name != "platform"]  # type: ignore[arg-type]
    return [
        f"{name} {getattr(other, name)} instead of {getattr(first, name)}"
        for name in names
        if getattr(other, name) != getattr(first, name)
    ]


def failed_entries(manifest: Manifest) -> Sequence[Entry]:
    """Return the configurations that have no result although they were tried."""
    return [entry for entry in manifest.entries if entry.status == "failed"]


def worthless_entries(manifest: Manifest) -> Sequence[Entry]:
    """Return the configurations whose result exists but says nothing."""
    return [entry for entry in manifest.entries if entry.status == "done" and entry.problem is not None]
