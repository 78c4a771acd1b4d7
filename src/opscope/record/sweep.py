"""A sweep: its configurations, their files, and what became of each.

The names of files in run directories stand here, too, for those who look for them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field

from opscope.base.text import lazy_pattern
from opscope.record.capture import Clocks
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.machine import Framework, Machine

# ---------------------------------------------------------------- ranks
# Where ``opscope profile`` started the ranks, a record says how many there were and how each ended.


# Per launcher the variable with the rank, and those with the number of processes, the first of which is of the same
# launch: torchrun; Open MPI; MPICH and Intel MPI; PMIx, which has none; srun. SLURM_NTASKS is the whole job's number: a
# batch script that starts a single process has it too.
_LAUNCHERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("RANK", ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("PMIX_RANK", ()),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


class RankEnd(Struct, frozen=True):
    """What became of a rank.

    Attributes:
        rank: its number.
        host: the name of its machine; None if it never began.
        failure: why it has no result; None if it has one.
    """

    rank: int
    host: str | None
    failure: str | None


class JobRecord(Struct, frozen=True, kw_only=True):
    """The ranks of one job.

    Attributes:
        command: the command line, without secrets.
        created: UTC, ISO 8601.
        opscope: the version that measured.
        world: how many ranks there were.
        first_failed: the rank that failed before all others; None if all have results.
        ranks: each of them, in order.
    """

    schema: Literal["opscope.job/1"] = "opscope.job/1"
    command: tuple[str, ...]
    created: str
    opscope: str
    world: int
    first_failed: int | None
    ranks: tuple[RankEnd, ...]


def rank_and_size(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the rank that the first launcher gave a process, and the number of processes; None for what is not said.

    Args:
        environment: the variables of the process.
    """
    ranks = [(rank, sizes) for name, sizes in _LAUNCHERS if (rank := _number(environment, name)) is not None]
    if not ranks:
        return None, None
    first = ranks[0][0]
    # Of PMIx itself there is none; what it ran under may give the same rank, and one.
    of_first = (name for rank, sizes in ranks if rank == first for name in sizes)
    return first, next((size for name in of_first if (size := _number(environment, name)) is not None), None)


def rank_among_several(environment: Mapping[str, str]) -> int | None:
    """Return the rank of a process that was certainly launched together with others; None for any other process.

    Args:
        environment: the variables of the process.
    """
    for name, sizes in _LAUNCHERS:
        rank, size = _number(environment, name), _number(environment, sizes[0]) if sizes else None
        if rank is not None and size is not None and size > 1:
            return rank
    return None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None


# ---------------------------------------------------------------- sweeps


FailureKind = Literal["usage", "environment", "out of memory", "error", "killed", "timeout"]
MANIFEST: Final = "manifest.json"  # a folder with one is the run directory of a sweep
JOB: Final = "job.json"  # what became of a job, in the folder that holds the runs of its ranks
KEPT: Final = ".opscope"  # the folder beside traces that keeps what was read of them
WORD: Final = r"[^/\x00-\x1f]+"
TRACE_NAME: Final = lazy_pattern(rf"{WORD}_trace_{WORD}\.json")  # of the traces in a sweep's run directory
_DOCUMENT: Final = lazy_pattern(rb'\s*\{\s*"schema"\s*:\s*"opscope\.([\w-]+)/')
_BEGINNING: Final = 200  # bytes, in which a document has its schema


def document_kind(path: Path) -> str | None:
    """Return which of opscope's own documents a file is, such as ``job`` or ``bench``; None for any other file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        match = _DOCUMENT.match(file.read(_BEGINNING))
    return match[1].decode() if match else None


class Failure(Struct, frozen=True):
    """Why a configuration has no result.

    Attributes:
        kind: what went wrong; ``usage`` and ``environment`` would stop every configuration alike.
        message: one line for people.
        log: the process's output, relative to the run directory.
        exit_code: what a script ended with that ran out of the device's memory while that was recorded; else None.
    """

    kind: FailureKind
    message: str
    log: str | None = None
    exit_code: int | None = None


class CycleFiles(Struct, frozen=True):
    """The files of one cycle of the profiler's schedule, relative to the run directory."""

    trace: str
    statistics: str
    report: str


class EntryFiles(Struct, frozen=True):
    """The files of a configuration, existing or planned, relative to the run directory. Nothing else names them.

    Attributes:
        record: the capture's record.
        log: the output of the process that measured.
        cycles: the files of each cycle of the profiler's schedule.
        light: the trace of the pass that collects device activities only; None without one.
        snapshot: the memory snapshot; None without one.
        memory: the trace of the pass that records memory; None without one.
    """

    record: str
    log: str
    cycles: tuple[CycleFiles, ...]
    light: str | None = None
    snapshot: str | None = None
    memory: str | None = None


EntryStatus = Literal["pending", "done", "failed"]


class Entry(Struct, frozen=True):
    """One configuration of a sweep and its result.

    Attributes:
        configuration: the configuration.
        files: its files.
        status: how far it is.
        measured: whether its raw files and its record exist.
        failure: why it has no result; None if nothing failed.
        seconds: how long it took; None until it has ended.
        trust: the verdict of the trust checks; None before they were made.
        problem: what makes an existing result worthless; None if nothing does.
    """

    configuration: Configuration
    files: EntryFiles
    status: EntryStatus = "pending"
    measured: bool = False
    failure: Failure | None = None
    seconds: float | None = None
    trust: str | None = None
    problem: str | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """A sweep: what was run, in which environment, and the result of each configuration.

    Attributes:
        command: the command line, without secrets.
        created: UTC, ISO 8601.
        opscope: the version that measured.
        options: how it was measured.
        entries: the configurations.
        machine, framework, git_revision, clocks: those of the first configuration that was measured.
        notes: name the configurations that were measured in another environment.
        target_digest: SHA-256 of the file that defines the user's target; None for other targets.
        digests: BLAKE2b digest of each file that was written, by its name. A file with another digest is no longer
            opscope's, and is never removed.
        page_failure: why there is no page; None if there is one.
    """

    schema: Literal["opscope.sweep/1"] = "opscope.sweep/1"
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
