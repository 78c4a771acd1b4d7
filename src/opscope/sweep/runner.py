"""The parent of a sweep: one process per configuration, outputs after each, a manifest that is always up to date.

A configuration that dies (out of memory, a crash, a kill) is recorded with its reason and the others go on. PyTorch is
never imported here.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Protocol

import msgspec

from opscope.errors import OpscopeError
from opscope.record import CaptureOptions, Configuration, Entry, Failure, Manifest
from opscope.store import RunDirectory, log_name, record_name, with_entry
from opscope.sweep.outputs import write_comparison, write_outputs
from opscope.sweep.worker import Message, Request, failure_of

# What would hit every configuration alike ends the sweep.
_FATAL = ("usage", "environment")


class Observer(Protocol):
    """Whoever shows how a sweep goes."""

    def configuration(self, number: int, entry: Entry) -> None:
        """Configuration ``number`` (from 1) begins."""

    def progress(self, phase: str, fraction: float) -> None:
        """The current configuration is in ``phase``, of which ``fraction`` is done."""

    def finished(self, number: int, entry: Entry) -> None:
        """Configuration ``number`` has ended, for better or worse."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep is to do.

    Attributes:
        manifest: the sweep as it stands; entries that are done are not run again.
        directory: where everything goes.
        isolate: one process per configuration; otherwise all of them in this one.
    """

    manifest: Manifest
    directory: RunDirectory
    isolate: bool = True


def run_sweep(plan: Plan, observer: Observer) -> Manifest:
    """Run what is not done yet; return the manifest as it then stands (it is also on disk).

    Raises:
        EnvironmentLacksError: the run directory cannot be written to; what is done stays.
        KeyboardInterrupt: the user stopped it; the configuration that ran is left pending.
    """
    manifest, directory = plan.manifest, plan.directory
    directory.write_manifest(manifest)
    try:
        for number, entry in enumerate(manifest.entries, 1):
            if entry.status == "done":
                continue
            ended = _run_one(plan, number, entry, observer)
            manifest = _with_environment(with_entry(manifest, ended), directory, ended)
            directory.write_manifest(manifest)
            observer.finished(number, ended)
            if ended.failure is not None and ended.failure.kind in _FATAL:
                break
    except KeyboardInterrupt:
        write_comparison(directory, manifest)
        raise
    write_comparison(directory, manifest)
    return manifest


def _run_one(plan: Plan, number: int, entry: Entry, observer: Observer) -> Entry:
    """Measure and report one configuration; return its entry as it then stands."""
    observer.configuration(number, entry)
    began = time.monotonic()
    measure = _measure_in_process if plan.isolate else _measure_here
    failure = measure(entry.configuration, plan.manifest.options, plan.directory, observer)
    if failure is None:
        observer.progress("reporting", 0.0)
    ended = _reported(plan.directory, entry) if failure is None else _failed(entry, failure)
    return replace(ended, seconds=round(time.monotonic() - began, 3))


def _failed(entry: Entry, failure: Failure) -> Entry:
    return replace(entry, status="failed", failure=failure)


def _reported(directory: RunDirectory, entry: Entry) -> Entry:
    """Write the statistics and the report of a configuration that was measured."""
    measured = replace(entry, status="done", failure=None, record=record_name(entry.configuration))
    try:
        return write_outputs(directory, measured)
    except OpscopeError as error:
        return _failed(measured, failure_of(error))


def _with_environment(manifest: Manifest, directory: RunDirectory, entry: Entry) -> Manifest:
    """Copy device, versions and clocks into the manifest from the first configuration that has them."""
    if manifest.environment is not None or entry.record is None or entry.status != "done":
        return manifest
    record = directory.read_record(entry)
    clocks = record.benchmark.clocks if record.benchmark else None
    return replace(
        manifest, environment=record.environment, git_revision=record.environment.git_revision, clocks=clocks
    )


def _measure_here(
    configuration: Configuration, options: CaptureOptions, directory: RunDirectory, observer: Observer
) -> Failure | None:
    from opscope.sweep.worker import run

    request = Request(configuration, options, str(directory.path), messages=-1)
    return run(request, lambda message: observer.progress(message.phase, message.fraction))


def _measure_in_process(
    configuration: Configuration, options: CaptureOptions, directory: RunDirectory, observer: Observer
) -> Failure | None:
    log = log_name(configuration)
    reading, writing = os.pipe()
    request = Request(configuration, options, str(directory.path.resolve()), writing)
    with directory.inside(log).open("wb") as output, os.fdopen(reading, "rb") as messages:
        process = _start(request, output)
        os.close(writing)
        try:
            failure = _follow(messages, observer)
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    if failure is None and code != 0:
        failure = _death(code)
    if failure is not None:
        failure = replace(failure, log=log)
    return failure


def _start(request: Request, output: IO[bytes]) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "opscope.sweep.worker"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=(request.messages,),
        env=_environment(),
    )
    if process.stdin is not None:
        process.stdin.write(msgspec.json.encode(request))
        process.stdin.close()
    return process


def _environment() -> dict[str, str]:
    """Let the child find opscope where this process found it, installed or not."""
    source = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": source if not inherited else f"{source}{os.pathsep}{inherited}"}


def _follow(messages: IO[bytes], observer: Observer) -> Failure | None:
    """Pass progress on until the child closes the pipe; return the failure it reported, if any."""
    failure = None
    for message in _decoded(messages):
        if message.failure is not None:
            failure = message.failure
        else:
            observer.progress(message.phase, message.fraction)
    return failure


def _decoded(messages: IO[bytes]) -> Iterator[Message]:
    for line in messages:
        try:
            yield msgspec.json.decode(line, type=Message)
        except msgspec.DecodeError:  # the child was killed while it wrote
            return


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _death(code: int) -> Failure:
    """Say what a process that ended without a word died of."""
    if code >= 0:
        return Failure("error", f"the process ended with exit code {code} and no reason; see its log")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hints = {
        "SIGKILL": "; the system does this when memory runs out",
        "SIGSEGV": "; native code crashed",
        "SIGABRT": "; native code gave up",
        "SIGBUS": "; native code crashed, or a disk is full",
    }
    return Failure("killed", f"the process was killed by {name}{hints.get(name, '')}")


def failed_entries(manifest: Manifest) -> Sequence[Entry]:
    """Return the configurations that have no result although they were tried."""
    return [entry for entry in manifest.entries if entry.status == "failed"]
