"""The parent of a sweep: every configuration measured, outputs after each, a manifest that is always up to date.

A configuration that dies (out of memory, a crash, a kill) is recorded with its reason and the others go on. PyTorch is
never imported here.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import fields, replace

from opscope.base.errors import OpscopeError
from opscope.base.parts import raises
from opscope.base.processes import cores
from opscope.record.capture import CaptureRecord
from opscope.record.configuration import CaptureOptions, Value
from opscope.record.redaction import Redactor
from opscope.record.sweep import Entry, Failure, Manifest
from opscope.runs.folders import in_progress
from opscope.runs.pipeline import PageParts, Result, functions_of, write_comparison, write_outputs, write_page
from opscope.runs.store import RunDirectory, with_entry
from opscope.sweep.worker import Message, Request, Sender, failure_of, run

# ---------------------------------------------------------------- reports
# On a GPU the next configuration first builds and warms up, for longer than a report takes; on a CPU, or with few
# cores, a report would slow the measurement down, and comes before it.


_CORES: Final = 4  # with fewer, a report takes from what the next worker does


class Reports(Struct):
    """Makes reports, in the order in which they are asked for.

    Attributes:
        directory: of the run.
        parts: what the page is made of; None where it has to be made of the files instead.
    """

    directory: RunDirectory
    parts: PageParts | None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _pending: list[tuple[int, "Future[Entry]"]] = field(default_factory=list)

    def begin(self, number: int, entry: Entry) -> None:
        """Begin to report a configuration.

        Args:
            number: which one of the sweep, from 1; `ended` gives it back.
            entry: its entry in the manifest.
        """
        self._pending.append((number, self._thread.submit(self._reported, entry)))

    def ended(self) -> Iterator[tuple[int, Entry]]:
        """Wait for the reports that were begun; yield each configuration's number, and its entry as it then stands."""
        pending, self._pending = self._pending, []
        for number, report in pending:
            yield number, report.result()

    def may_run_beside(self, entry: Entry) -> bool:
        """Tell whether a report does not disturb the next measurement."""
        try:
            return cores() >= _CORES and self.directory.read_record(entry).ran_on_gpu
        except OpscopeError:  # the report says it
            return False

    def _reported(self, entry: Entry) -> Entry:
        began = time.monotonic()
        ended, results = report(self.directory, entry)
        if results and self.parts is not None:
            self._add(ended, results[0])
        return replace(ended, seconds=round((entry.seconds or 0.0) + time.monotonic() - began, 3))

    def _add(self, entry: Entry, result: Result) -> None:
        """Add what the page shows of a configuration; where that fails, the page is made of the files, and says why."""
        assert self.parts is not None
        try:
            record = self.directory.read_record(entry)
            functions = functions_of(self.directory, record)
            self.parts.add(result.measured, functions, record.traces[0].file, self.directory)
        except Exception:  # whatever it is, the files tell it again
            self.parts = None


def report(directory: RunDirectory, entry: Entry, *, allow_damaged: bool = False) -> tuple[Entry, tuple[Result, ...]]:
    """Write the statistics and the report of a configuration that was measured.

    Whatever goes wrong is a failure of that configuration alone, and raises nothing, unless
    `opscope.base.parts.raises`.

    Args:
        directory: of the run.
        entry: the configuration's.
        allow_damaged: whether a trace that ends before its end is reported.

    Returns:
        Its entry as it then stands, and what its cycles say; none where that failed.
    """
    measured = replace(entry, status="done", failure=None, measured=True)
    directory.remove_reports(entry)  # none that contradicts the outcome may stay
    try:
        done = write_outputs(directory, measured, allow_damaged=allow_damaged)
    except Exception as error:
        if raises() and not isinstance(error, OpscopeError):
            raise
        return replace(measured, status="failed", failure=failure_of(error)), ()
    return done.entry, done.results


# ---------------------------------------------------------------- runs


T = TypeVar("T")


class Observer(Protocol):
    """Whoever shows how a sweep goes."""

    def configuration(self, number: int, entry: Entry) -> None:
        """Show that configuration ``number`` (from 1) begins."""

    def progress(self, phase: str, fraction: float, waits: str = "") -> None:
        """Show that the current configuration is in ``phase``, of which ``fraction`` (0 to 1) is done.

        ``waits`` says since when no step of a script has come, and where it is.
        """

    def finished(self, number: int, entry: Entry) -> None:
        """Show that configuration ``number`` has ended, with a result or without."""


class Measurer(Protocol):
    """Whoever measures one configuration: in a process of its own (`InProcess`), in this one (`Here`)."""

    def measure(
        self, entry: Entry, options: CaptureOptions, directory: RunDirectory, progress: Sender
    ) -> Failure | None:
        """Write the raw files that the entry names; return why that failed, or None."""


class Here(Struct, frozen=True):
    """Measures in this process. What the workload prints goes to standard error: standard output is for results.

    Attributes:
        actual: the true values of settings that are redacted where they are written.
    """

    actual: Mapping[str, Value] = field(default_factory=dict)

    def measure(
        self, entry: Entry, options: CaptureOptions, directory: RunDirectory, progress: Sender
    ) -> Failure | None:
        """Measure a configuration; return why it failed, or None."""
        request = Request(entry.configuration, options, str(directory.path), entry.files, -1, self.actual)
        with contextlib.redirect_stdout(sys.stderr):
            return run(request, progress, isolated=False).failure


class Plan(Struct, frozen=True):
    """What a sweep is to do.

    Attributes:
        manifest: the sweep as it stands; entries that are done are not run again.
        directory: where everything goes.
        measurer: measures one configuration.
        replaced: the manifest of results in the directory that give way to the first new one; None if there are none.
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
    sweep = _Sweep(plan, observer)
    with in_progress(plan.directory.path):
        try:
            sweep.run()
        except KeyboardInterrupt:
            sweep.interrupted()
            raise
        return sweep.finished()


class _Sweep:
    """A sweep as it goes: its manifest, and where the next configuration is measured."""

    def __init__(self, plan: Plan, observer: Observer) -> None:
        self._plan, self._observer = plan, observer
        self._directory, self._replaced = plan.directory, plan.replaced
        self._manifest = plan.manifest
        # As long as earlier results may come to stay, their manifest is not touched.
        if self._replaced is None:
            self._directory.write_manifest(self._manifest)
        self._staged = self._directory.staging()
        entries = plan.manifest.entries
        anew = all(entry.status != "done" for entry in entries)  # else the page is of what was there too
        self._reports = Reports(self._directory, PageParts(len(entries)) if anew else None)

    def run(self) -> None:
        """Measure and report what is not done yet."""
        open_ = [(number, entry) for number, entry in enumerate(self._manifest.entries, 1) if entry.status != "done"]
        previous: Failure | None = None
        for place, (number, entry) in enumerate(open_, 1):
            measured = _measured(replace(self._plan, directory=self._staged), number, entry, self._observer)
            failed = self._keep_reported()  # the report of the one before was made meanwhile
            self._take(measured)
            if measured.failure is not None:
                self._keep(number, measured)
            else:
                self._reports.begin(number, measured)
                if place == len(open_) or not self._reports.may_run_beside(measured):
                    self._observer.progress("reporting", 0.0)
                    failed = self._keep_reported() or failed
            if _would_hit_all(failed or measured.failure, previous):
                break
            previous = measured.failure
        self._keep_reported()

    def interrupted(self) -> None:
        """Keep what is done after the user stopped the sweep."""
        self._keep_reported()
        self._staged.discard()
        if self._replaced is None:
            write_comparison(self._directory, self._manifest)
            self._directory.write_manifest(self._directory.with_digests(self._manifest))

    def finished(self) -> Manifest:
        """Write what is of the sweep as a whole; return the manifest as it then stands."""
        # Nothing was measured, so the earlier results stayed, and the logs lie where they were written.
        if self._replaced is not None:
            return _with_logs_in(self._staged.path.name, self._manifest)
        self._staged.discard()
        return written_sweep(self._directory, self._manifest, parts=self._reports.parts)

    def _take(self, measured: Entry) -> None:
        """Move what was measured to its place, where it may be."""
        if self._replaced is not None and measured.measured:
            self._directory.remove_written(self._replaced)
            self._replaced = None
        if self._replaced is None:
            self._directory.take(self._staged)
            self._staged = self._directory.staging()

    def _keep_reported(self) -> Failure | None:
        """Keep what was reported meanwhile; return the last failure of it."""
        failure = None
        for number, entry in self._reports.ended():
            self._keep(number, entry)
            failure = entry.failure or failure
        return failure

    def _keep(self, number: int, entry: Entry) -> None:
        self._manifest = _with_environment(with_entry(self._manifest, entry), self._directory, entry)
        if self._replaced is None:
            self._manifest = self._directory.with_digests(self._manifest, (entry,))
            self._directory.write_manifest(self._manifest)
        self._observer.finished(number, entry)


def _with_logs_in(folder: str, manifest: Manifest) -> Manifest:
    """Return the manifest of a sweep without any result: its logs are where they do not replace earlier ones."""
    entries = tuple(
        replace(entry, failure=replace(entry.failure, log=f"{folder}/{entry.failure.log}"))
        if entry.failure is not None and entry.failure.log is not None
        else entry
        for entry in manifest.entries
    )
    return replace(manifest, entries=entries)


def written_sweep(
    directory: RunDirectory, manifest: Manifest, *, allow_damaged: bool = False, parts: PageParts | None = None
) -> Manifest:
    """Write what is of the sweep as a whole: comparison, page, manifest.

    Args:
        directory: of the run.
        manifest: the sweep.
        allow_damaged: whether traces that are cut off count.
        parts: what the page is made of, where that was gathered already.

    Returns:
        The manifest as it then stands.
    """
    write_comparison(directory, manifest)
    failure = write_page(directory, manifest, allow_damaged=allow_damaged, parts=parts)
    manifest = directory.with_digests(replace(manifest, page_failure=failure))
    directory.write_manifest(manifest)
    return manifest


def _would_hit_all(failure: Failure | None, previous: Failure | None) -> bool:
    """Tell whether to give up: the environment lacks something, or the same wrong usage was met twice in a row."""
    if failure is None or failure.kind == "environment":
        return failure is not None
    return failure.kind == "usage" and previous is not None and failure.message == previous.message


def _measured(plan: Plan, number: int, entry: Entry, observer: Observer) -> Entry:
    """Measure one configuration; return its entry: that it was measured, or why not."""
    observer.configuration(number, entry)
    began = time.monotonic()
    options = plan.manifest.options

    def show(message: Message) -> None:
        if not message.complete:
            observer.progress(message.phase, message.fraction, message.waits)

    failure = plan.measurer.measure(entry, options, plan.directory, show)
    _scrub_log(plan, entry)
    seconds = round(time.monotonic() - began, 3)
    if failure is None:
        return replace(entry, measured=True, seconds=seconds)
    failure = replace(failure, message=plan.redactor.scrubbed(failure.message))
    return replace(entry, status="failed", failure=failure, seconds=seconds)


def _scrub_log(plan: Plan, entry: Entry) -> None:
    """Take out of a log what was taken out of the command line: programs print their arguments."""
    path = plan.directory.inside(entry.files.log)
    if not plan.redactor.secrets or not path.is_file():
        return
    log = path.read_text(encoding="utf-8", errors="surrogateescape")
    if (scrubbed := plan.redactor.scrubbed(log)) != log:
        plan.directory.write(entry.files.log, scrubbed.encode("utf-8", "surrogateescape"))


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
    """Return the manifest with the environment that its first configuration was measured in."""
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
    """Return the configurations that were tried and have no result."""
    return [entry for entry in manifest.entries if entry.status == "failed"]


def worthless_entries(manifest: Manifest) -> Sequence[Entry]:
    """Return the configurations whose result exists but says nothing."""
    return [entry for entry in manifest.entries if entry.status == "done" and entry.problem is not None]
