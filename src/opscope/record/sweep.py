"""A sweep: its configurations, their files, and what became of each."""

from dataclasses import dataclass, field
from typing import Literal

from opscope.record.capture import Clocks
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.machine import Framework, Machine

FailureKind = Literal["usage", "environment", "out of memory", "error", "killed", "timeout"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a configuration has no result.

    Attributes:
        kind: what went wrong; ``usage`` and ``environment`` would hit every configuration alike.
        message: one line for people.
        log: the process's output, relative to the run directory.
    """

    kind: FailureKind
    message: str
    log: str | None = None


@dataclass(frozen=True, slots=True)
class CycleFiles:
    """The files of one cycle of the profiler's schedule, relative to the run directory."""

    trace: str
    statistics: str
    report: str


@dataclass(frozen=True, slots=True)
class EntryFiles:
    """The files that a configuration has or will have, relative to the run directory. Nothing else names them.

    ``light`` is the trace of the pass that collects device activities only.
    """

    record: str
    log: str
    cycles: tuple[CycleFiles, ...]
    light: str | None = None


Status = Literal["pending", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One configuration of a sweep and what became of it.

    ``measured`` says that raw files and record are there, ``trust`` is the verdict of the trust checks, ``problem``
    says what makes a result worthless although it exists.
    """

    configuration: Configuration
    files: EntryFiles
    status: Status = "pending"
    measured: bool = False
    failure: Failure | None = None
    seconds: float | None = None
    trust: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A sweep: what was run, with what, and what became of each configuration.

    ``machine``, ``framework``, ``git_revision`` and ``clocks`` are those of the first configuration that was measured;
    ``notes`` name configurations that were measured in another environment. ``target_digest`` is the SHA-256 of the
    file that defines a target of the user's. ``digests`` holds the BLAKE2b digest of each file that was written, by its
    name: what differs from it is not opscope's any more. ``page_failure`` says why there is no page.
    """

    schema: Literal["opscope.sweep/2"] = "opscope.sweep/2"
    command: tuple[str, ...]
    created: str
    opscope: str
    options: CaptureOptions
    entries: tuple[Entry, ...]
    machine: Machine | None = None
    framework: Framework | None = None
    git_revision: str | None = None
    clocks: Clocks | None = None
    notes: tuple[str, ...] = ()
    target_digest: str | None = None
    digests: dict[str, str] = field(default_factory=dict)
    page_failure: str | None = None
