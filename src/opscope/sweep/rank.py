"""The process of one rank of a job, in the place of its script: ``python -m opscope.sweep.rank``.

A launcher starts it. It starts the worker that runs the script, with all that the launcher gave it, follows it to its
end, and writes down how it ended, so that the job's parent learns what became of each rank.
"""

import os
import shlex
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import BadInputError, EnvironmentLacksError, OpscopeError
from opscope.base.files import write_whole
from opscope.base.processes import SAFE_PATH, end_with_parent
from opscope.record.capture import ScriptRun
from opscope.record.codec import decode, encode
from opscope.record.configuration import CaptureOptions
from opscope.record.sweep import Entry, Failure, rank_and_size
from opscope.runs.store import RunDirectory
from opscope.sweep.plan import JOB_OPTION
from opscope.sweep.process import InProcess
from opscope.sweep.worker import Message, Sender

REQUEST: Final = "request.json"
ENDED_BY_LAUNCHER: Final = "ended by the launcher, as another rank had failed"


class JobRequest(Struct, frozen=True):
    """What the ranks of a job are to measure.

    Attributes:
        entry: the script, with its arguments as they are written down, and the names of each rank's files.
        options: how it is measured.
        timeout_s: how long a rank may take; None for no limit.
        run: which run of the script it is.
        runs: the same by rank, for ranks that differ from the others.
        safe_path: whether ``PYTHONSAFEPATH`` is the user's own; otherwise the script is not to find it set.
    """

    entry: Entry
    options: CaptureOptions
    timeout_s: float | None
    run: ScriptRun
    runs: dict[int, ScriptRun] = field(default_factory=dict)
    safe_path: bool = False


class RankResult(Struct, frozen=True):
    """What became of a rank.

    Attributes:
        rank: its number.
        world: how many ranks its launcher started; None if it does not say.
        host: the name of its machine.
        ended: seconds since the epoch; 0 while it runs.
        message: how its worker ended, or what it is doing.
    """

    rank: int
    world: int | None
    host: str
    ended: float
    message: Message


def folder_of(job: Path, rank: int) -> RunDirectory:
    """Return where a rank writes what it measures."""
    return RunDirectory(job / f"rank{rank}")


def outcome_path(job: Path, rank: int) -> Path:
    """Return the file in which a rank says what becomes of it."""
    return job / f"rank{rank}.json"


class _EndedByLauncher(BaseException):
    """The launcher asked this process to end."""


def main() -> None:
    """Measure a rank, and end with exit code 0 if that worked, or if the script has to run again."""
    end_with_parent(signal.SIGTERM)
    job = next((Path(word.removeprefix(JOB_OPTION)) for word in sys.argv if word.startswith(JOB_OPTION)), None)
    try:
        if job is None:
            raise BadInputError(f"{JOB_OPTION}FOLDER is missing: opscope profile starts this module")
        sys.exit(_measured(job, [word for word in sys.argv[1:] if not word.startswith(JOB_OPTION)]))
    except OpscopeError as error:
        sys.stderr.write(f"opscope: {error}\n")
        sys.exit(3)


def _measured(job: Path, arguments: list[str]) -> int:
    """Run the script of a job as this rank; return the exit code.

    Raises:
        EnvironmentLacksError: another process has this rank, or the job's folder cannot be read here.
    """
    rank, world = rank_and_size(os.environ)
    if not (job / REQUEST).is_file():
        raise EnvironmentLacksError(
            f"there is no {job / REQUEST} on {socket.gethostname()}: the results must go to a folder that all hosts "
            "of the job share (--output-dir)"
        )
    rank, world = (0, 1) if rank is None else (rank, world)  # accelerate starts a single process as any program
    _claim(job, rank)
    request = decode(job / REQUEST, JobRequest)
    if not request.safe_path:
        os.environ.pop(SAFE_PATH, None)
    running = RankResult(rank, world, socket.gethostname(), 0.0, Message(phase="starting"))

    def tell(message: Message, ended: float = 0.0) -> None:
        write_whole(outcome_path(job, rank), encode(replace(running, message=message, ended=ended)))

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent and its launcher end the ranks
    tell(running.message)
    ended: Message | None = None
    with suppress(_EndedByLauncher):
        ended = _worker_of(request, job, rank, arguments, tell)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what became of the rank is written, whatever ends it now
    if ended is None and decode(outcome_path(job, rank), RankResult).message.complete:
        ended = Message(complete=True)  # its results are on disk
    tell(ended or Message(failure=Failure("killed", ENDED_BY_LAUNCHER, request.entry.files.log)), time.time())
    if ended is None:
        return 128 + signal.SIGTERM
    return 0 if ended.failure is None else 1


def _claim(job: Path, rank: int) -> None:
    """Take a rank for this process alone."""
    try:
        outcome_path(job, rank).touch(exist_ok=False)
    except FileExistsError:
        raise EnvironmentLacksError(
            f"two processes are rank {rank}: their launcher has to give each its own (RANK, PMI_RANK, ...)"
        ) from None
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write to {job}: {error.strerror or error}") from error


def _worker_of(request: JobRequest, job: Path, rank: int, arguments: list[str], tell: Sender) -> Message:
    directory = folder_of(job, rank)
    directory.create()
    measurer = InProcess(request.timeout_s, {"arguments": shlex.join(arguments)})
    return measurer.run_once(request.entry, request.options, directory, request.runs.get(rank, request.run), tell)


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not keep the worker from being ended
    raise _EndedByLauncher


if __name__ == "__main__":
    main()
