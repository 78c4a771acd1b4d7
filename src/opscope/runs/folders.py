"""The folder of runs: a folder for each, a link to the latest, and a list of all."""

import datetime
import fcntl
import itertools
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.documents.comparison import ComparisonRow, RunRow, SweepComparison
from opscope.documents.findings import StepBasis
from opscope.record.capture import EXECUTION, Execution
from opscope.record.codec import UNREADABLE, decode
from opscope.record.sweep import MANIFEST, Entry, Manifest, rank_among_several
from opscope.runs.store import COMPARISON, RunDirectory

# ---------------------------------------------------------------- progress


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


# ---------------------------------------------------------------- folders


RESULTS: Final = Path("profiling_results")
LATEST: Final = "latest"


# ---------------------------------------------------------------- a folder for a run


def new_folder(name: str, results: Path = RESULTS) -> Path:
    """Make a folder for a run: ``RESULTS/NAME-20261123-054712``, and ``.../rank1`` in it for one of several ranks.

    Args:
        name: a name of the workload, for people.
        results: the folder of runs.

    Raises:
        EnvironmentLacksError: the folder cannot be made.
    """
    rank = rank_here()
    moment = datetime.datetime.now() if rank is None else datetime.datetime.fromtimestamp(_launched())
    begin = results / f"{name}-{moment:%Y%m%d-%H%M%S}"
    try:
        results.mkdir(parents=True, exist_ok=True)
        if rank is None:
            return _made(begin)
        begin.mkdir(exist_ok=True)
        return _made(begin / f"rank{rank}")
    except OSError as error:
        raise EnvironmentLacksError(
            f"cannot write to {results}: {error.strerror or error}. Choose another folder with --output-dir."
        ) from error


def _made(begin: Path) -> Path:
    """Make a new folder, with a number after its name if that is taken."""
    numbered = (begin.with_name(f"{begin.name}-{number}") for number in itertools.count(2))
    for folder in itertools.chain((begin,), numbered):
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always a next number")


def named_folder(folder: Path) -> Path:
    """Return this process's folder in a folder that the user named: that folder, or its rank's folder in it."""
    rank = rank_here()
    return folder if rank is None else folder / f"rank{rank}"


def rank_here() -> int | None:
    """Return the rank of this process among several that were launched together; None if it is alone."""
    return rank_among_several(os.environ)


def _launched() -> float:
    """Return when the launcher began, in seconds since the epoch; now if the system does not tell.

    All ranks must agree on the name of the run's folder, and only their launcher's start is the same for all.
    """
    try:
        # The program's name, in brackets, may hold blanks. Field 19 after it is the start, in clock ticks since boot.
        fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        # When the system was started is a whole second, the same for whoever asks: from the time of asking and the time
        # since then, two ranks would compute two times.
        started = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(started.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return time.time()


def point_latest(folder: Path) -> None:
    """Point the link ``latest`` beside a run to it; does nothing if links are not possible there."""
    run = folder.parent if rank_here() is not None else folder
    link, made = run.parent / LATEST, run.parent / f".{LATEST}-{os.getpid()}"
    if link.exists() and not link.is_symlink():
        return
    with suppress(OSError):
        # Made under another name and renamed, so that ``latest`` is there at any time.
        made.symlink_to(run.name)
        made.replace(link)


# ---------------------------------------------------------------- what is there


def past_runs(results: Path) -> Iterator[RunRow]:
    """Yield the configurations and commands in a folder of runs, the oldest first; unreadable ones with the reason.

    Raises:
        UsageError: there is no such folder.
    """
    if not results.is_dir():
        raise UsageError(f"there is no folder {results}: opscope profile and opscope exec make one, or name another")
    result = [run for folder in run_folders(results) for run in _runs_of(folder)]
    yield from sorted(result, key=lambda run: (run.created, run.folder))


def run_folders(results: Path) -> Iterator[Path]:
    """Yield the run folders at or below a folder, down to two levels (runs, and their ranks or presets)."""
    yield from _run_folders(results, depth=2)


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / MANIFEST).is_file() or (folder / EXECUTION).is_file():
        yield folder
    elif depth:
        with suppress(OSError):
            for inner in sorted(folder.iterdir()):
                if inner.is_dir() and not inner.is_symlink():
                    yield from _run_folders(inner, depth - 1)


def _runs_of(folder: Path) -> Iterator[RunRow]:
    directory = RunDirectory(folder)
    try:
        if directory.manifest.is_file():
            yield from _of_sweep(directory, directory.read_manifest())
        else:
            yield _of_command(folder, decode(folder / EXECUTION, Execution))
    except BadInputError as error:
        outcome = f"cannot be read: {error}"
        yield RunRow(folder=str(folder), target="?", created="", configuration=None, outcome=outcome, step_ns=None)


def _of_sweep(directory: RunDirectory, manifest: Manifest) -> Iterator[RunRow]:
    rows = _compared(directory)
    for entry in manifest.entries:
        row = rows.get(entry.configuration.id)
        bound = None if row is None else row.bound
        outcome = bound or (entry.failure.message if entry.failure is not None else entry.status)
        yield RunRow(
            folder=str(directory.path),
            target=entry.configuration.target,
            created=manifest.created,
            configuration=entry.configuration.id,
            outcome=outcome,
            step_ns=None if row is None else row.step_ns,
            step_basis=None if row is None else row.step_basis,
        )


def _compared(directory: RunDirectory) -> dict[str, ComparisonRow]:
    """Return each configuration's row of the comparison, by its id; empty if that is unreadable."""
    try:
        comparison = msgspec.json.decode(directory.inside(COMPARISON).read_bytes(), type=SweepComparison)
    except (OSError, BadInputError, *UNREADABLE):
        return {}
    return {row.id: _with_step(row) for row in comparison.rows}


def _with_step(row: ComparisonRow) -> ComparisonRow:
    """Return a row with what a step takes; of earlier versions that is the unprofiled step alone."""
    if row.step_ns is not None or row.wall_ns is None:
        return row
    return replace(row, step_ns=row.wall_ns, step_basis=StepBasis.UNPROFILED)


def _of_command(folder: Path, record: Execution) -> RunRow:
    ended = "was cut off" if record.exit_code is None else f"exit code {record.exit_code}"
    count = len(record.recordings)
    outcome = f"{ended}, {count} recording{'' if count == 1 else 's'}"
    return RunRow(
        folder=str(folder),
        target=shlex.join(record.command),
        created=record.created,
        configuration=None,
        outcome=outcome,
        step_ns=None,
    )


def _is_timed(run: RunRow) -> bool:
    return run.step_ns is not None and run.step_basis is not StepBasis.RECORDED


def last_two(results: Path) -> tuple[Path, Path]:
    """Return the folders of the last two runs of the target that was measured last, the older one first.

    Raises:
        UsageError: there are not two runs of it.
    """
    measured = [run for run in past_runs(results) if run.configuration is not None and _is_timed(run)]
    # Without timed steps anywhere, runs without them are compared.
    measured = measured or [run for run in past_runs(results) if run.configuration is not None]
    if not measured:
        raise UsageError(f"{results} holds no run that was measured: name two runs or traces to compare")
    target = measured[-1].target
    # Ranks and presets are parts of one run: a part is compared with the same part of another run.
    folders = [Path(folder) for folder in dict.fromkeys(run.folder for run in measured if run.target == target)]
    last = folders[-1]
    for other in reversed(folders[:-1]):
        if _run_and_part(other, results)[0] != _run_and_part(last, results)[0] and (
            _run_and_part(other, results)[1] == _run_and_part(last, results)[1]
        ):
            return other, last
    raise UsageError(f"{results} holds one run of {target} only, {last}: name what to compare it with")


def _run_and_part(folder: Path, results: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name of a run, and which part of it a folder is: a rank or a preset; empty for the whole run."""
    run, *part = folder.relative_to(results).parts or (".",)
    return run, tuple(part)
