"""A job: a launcher starts the ranks of a script, each measures itself, and each gets a run directory of its own.

`measure_job` starts the launcher as often as the script has to run, and learns what became of each rank. `report_ranks`
then makes a run directory of what each rank measured, as for any other configuration.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import BadInputError, EnvironmentLacksError
from opscope.base.files import partial_prefix, write_whole
from opscope.base.processes import SAFE_PATH, cores, own_environment, own_process
from opscope.distributed.engines import Lost, engine_for
from opscope.record.capture import Timed
from opscope.record.codec import decode, encode
from opscope.record.configuration import CaptureOptions
from opscope.record.redaction import Redactor
from opscope.record.sweep import JOB, Entry, Failure, JobRecord, Manifest, RankEnd
from opscope.runs.store import RunDirectory
from opscope.sweep.plan import Launch
from opscope.sweep.process import first_run, recording
from opscope.sweep.rank import ENDED_BY_LAUNCHER, REQUEST, JobRequest, RankResult, folder_of
from opscope.sweep.runner import Observer, Plan, run_sweep
from opscope.sweep.worker import Message, Sender

LOG: Final = "launcher.log"
FAILED_LOG: Final = "launcher-failed.log"  # of a job without results, which replaces nothing
_POLL_S: Final = 0.3
_GRACE_S: Final = 40.0  # torchrun gives its ranks 30 s to end
_RUNS: Final = 3  # of the script: one that measures, one that records, and one more where ranks disagree
_ORDER: Final = ("starting", "running the script", "settling", "timing", "profiling", "operators")
_TAIL: Final = 1 << 13  # bytes

Ranks = dict[int, tuple[RunDirectory, Manifest]]


class JobPlan(Struct, frozen=True):
    """A job to be measured.

    Attributes:
        launch: starts its ranks.
        folder: where everything goes: a folder for each rank.
        manifest: the sweep of one configuration that each rank measures.
        timeout_s: how long all runs of the script may take together; None for no limit.
        redactor: knows the secrets that logs and reasons of failures may hold.
    """

    launch: Launch
    folder: Path
    manifest: Manifest
    timeout_s: float | None = None
    redactor: Redactor = field(default_factory=Redactor)

    @property
    def entry(self) -> Entry:
        """The one configuration."""
        return self.manifest.entries[0]


class MeasuredRanks(Struct, frozen=True):
    """What the ranks of a job measured.

    Attributes:
        world: how many ranks there were.
        outcomes: how each ended, by rank; none of those that left no word.
        places: where each of these wrote its raw files.
        scratch: the folder that holds these, to be removed in the end.
    """

    world: int
    outcomes: Mapping[int, RankResult]
    places: Mapping[int, RunDirectory]
    scratch: Path

    def failure_of(self, rank: int) -> Failure | None:
        """Return why a rank has no result; None if it has one."""
        outcome = self.outcomes.get(rank)
        if outcome is None:
            return Failure("killed", "it ended without a word, or was never started")
        if outcome.message.complete:
            return None
        if outcome.message.failure is not None:
            return outcome.message.failure
        if not outcome.ended:
            return Failure("killed", f"it ended without a word ({outcome.message.phase})")
        if outcome.message.error is not None:
            return Failure("error", f"the script failed before its steps were measured ({outcome.message.error})")
        return Failure("error", "the script ended before its steps were measured")

    @property
    def whole(self) -> list[int]:
        """The ranks that have a result."""
        return [rank for rank in range(self.world) if self.failure_of(rank) is None]

    @property
    def first_failed(self) -> int | None:
        """The rank whose failure made others fail; None if all have results.

        A rank that was killed by a signal comes before those whose script failed, as theirs may have failed because it
        was gone; of as good reasons the first counts, and what the launcher ended has none.
        """
        failed = {rank: one for rank, one in self.outcomes.items() if self.failure_of(rank) is not None}
        return min(failed, key=self._order_of_failure, default=None)

    def _order_of_failure(self, rank: int) -> tuple[int, float]:
        outcome, failure = self.outcomes[rank], self.failure_of(rank)
        ended = outcome.ended or float("inf")
        if failure is None or failure.message == ENDED_BY_LAUNCHER:
            return 3, ended
        if failure.kind == "killed" and outcome.ended:
            return 0, ended
        return (2 if outcome.message.again is not None and outcome.message.error is None else 1), ended


def measure_job(job: JobPlan, observer: Observer) -> MeasuredRanks:
    """Start the ranks, and again where the script has to run again; return what they measured.

    Raises:
        EnvironmentLacksError: the launcher cannot be started, or ended before any rank began.
        KeyboardInterrupt: the user stopped it; all ranks were ended.
    """
    scratch = job.folder / f"{partial_prefix()}job"
    request = JobRequest(
        job.entry,
        job.manifest.options,
        job.timeout_s,
        first_run(job.manifest.options),
        safe_path=SAFE_PATH in os.environ,
    )
    observer.configuration(1, job.entry)
    began = time.monotonic()
    measured: MeasuredRanks | None = None
    try:
        for number in range(1, _RUNS + 1):
            left = None if job.timeout_s is None else job.timeout_s - (time.monotonic() - began)
            request = replace(request, timeout_s=left)
            result = _run(job, request, scratch / str(number), observer)
            measured = result if measured is None else _later(measured, result)
            following = _following(request, result)
            if following is None or (job.timeout_s is not None and time.monotonic() - began >= job.timeout_s):
                break
            request = following
            observer.progress("running the script again", 0.0)
    except EnvironmentLacksError:
        if measured is None or not measured.whole:
            shutil.rmtree(scratch, ignore_errors=True)
            raise  # else what an earlier run measured counts
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    assert measured is not None
    return measured


def _following(request: JobRequest, measured: MeasuredRanks) -> JobRequest | None:
    """Return what makes up for a run in which a rank was not profiled; None if that would not help."""
    messages = {rank: one.message for rank, one in measured.outcomes.items()}
    if any(message.error is not None for message in messages.values()):
        return None  # it would fail again
    if _ended_too_soon(request, messages):
        runs = {rank: recording(request.runs.get(rank, request.run)) for rank in messages}
        return replace(request, run=recording(request.run), runs=runs)
    again = {rank: message.again for rank, message in messages.items() if message.again is not None}
    if not again or any(message.failure is not None for message in messages.values()):
        return None
    # All ranks have to run, also those that have a profile. They time their steps together, or none of them does.
    others = replace(again[min(again)], times=Timed())
    if len(again) == measured.world and all(run.times.wall_ns for run in again.values()):
        return replace(request, run=others, runs=again)
    return replace(request, run=others, runs={rank: replace(run, times=Timed()) for rank, run in again.items()})


def _ended_too_soon(request: JobRequest, messages: Mapping[int, Message]) -> bool:
    """Tell whether a second run ended before the ranks had chosen steps together; a recording needs no choice."""
    failed = [message.failure.kind for message in messages.values() if message.failure is not None]
    return bool(failed) and set(failed) == {"usage"} and request.run.reason is not None and not request.run.records


def _later(first: MeasuredRanks, second: MeasuredRanks) -> MeasuredRanks:
    """Return what two runs measured: of each rank the later result."""
    whole = {rank for rank, outcome in second.outcomes.items() if outcome.message.complete}
    kept = {rank for rank, outcome in first.outcomes.items() if outcome.message.complete} - whole
    return replace(
        second,
        outcomes={**second.outcomes, **{rank: first.outcomes[rank] for rank in kept}},
        places={**second.places, **{rank: first.places[rank] for rank in kept}},
    )


def _run(job: JobPlan, request: JobRequest, folder: Path, observer: Observer) -> MeasuredRanks:
    """Start the launcher once, and follow it to its end."""
    folder.mkdir(parents=True)
    write_whole(folder / REQUEST, encode(request))
    log = folder.parent / LOG
    with log.open("ab") as output:
        process = _started(job.launch.of_ranks(folder.absolute()), output.fileno())
        # Ranks end by themselves when their time is over; a launcher may wait for some that never come.
        until = None if request.timeout_s is None else time.monotonic() + request.timeout_s + _GRACE_S
        code = _followed(process, folder, observer, until)
    _scrub(log, job.redactor)
    outcomes = {outcome.rank: outcome for outcome in _outcomes(folder)}
    if not outcomes:
        log = log.replace(job.folder / FAILED_LOG)
        raise EnvironmentLacksError(
            f"{job.launch.before[0]} ended with exit code {code} before any rank began. {log} ends: {_last(log)}"
        )
    world = max(max(outcomes) + 1, *(outcome.world or 0 for outcome in outcomes.values()))
    return MeasuredRanks(world, outcomes, {rank: folder_of(folder, rank) for rank in outcomes}, folder.parent)


def _started(command: Sequence[str], output: int) -> "subprocess.Popen[bytes]":
    """Start a launcher in a session of its own, so that Ctrl-C reaches it through this process alone."""
    # Ranks run a module, which puts the current folder on the path: a msgspec.py there must not shadow ours.
    environment = own_environment(**{SAFE_PATH: os.environ.get(SAFE_PATH, "1")})
    try:
        return subprocess.Popen(
            [*own_process("opscope.base.tethered"), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentLacksError(f"cannot start {command[0]}: {error.strerror or error}") from error


def _followed(process: "subprocess.Popen[bytes]", folder: Path, observer: Observer, until: float | None) -> int:
    """Follow a launcher until it ends, and end it when its time is over; return its exit code."""
    try:
        while process.poll() is None and (until is None or time.monotonic() < until):
            behind = _furthest_behind(list(_outcomes(folder)))
            waits = behind and behind.message.waits and f"rank {behind.rank}: {behind.message.waits}"
            observer.progress(behind.message.phase if behind else "starting", 0.0, waits or "")
            time.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            _end(process)
    return process.returncode


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a launcher to end, and end it with all that it started if it does not."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _furthest_behind(outcomes: Sequence[RankResult]) -> RankResult | None:
    """Return the rank that runs in the earliest phase; of several one that waits."""

    def place(outcome: RankResult) -> tuple[int, bool]:
        phase = outcome.message.phase
        return _ORDER.index(phase) if phase in _ORDER else len(_ORDER), not outcome.message.waits

    return min((outcome for outcome in outcomes if not outcome.ended), key=place, default=None)


def _outcomes(folder: Path) -> Iterator[RankResult]:
    for path in folder.glob("rank*.json"):
        try:
            yield decode(path, RankResult)
        except BadInputError:  # a launcher that starts two processes with one rank
            continue


def _scrub(log: Path, redactor: Redactor) -> None:
    text = log.read_text(encoding="utf-8", errors="surrogateescape")
    if (scrubbed := redactor.scrubbed(text)) != text:
        write_whole(log, scrubbed.encode("utf-8", "surrogateescape"))


def _last(log: Path) -> str:
    lines = [line.strip() for line in log.read_bytes()[-_TAIL:].decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])


# ---------------------------------------------------------------- a run directory for each rank


class OfRank(Struct, frozen=True):
    """A measurer of what a rank has measured already: it takes over its files.

    Attributes:
        place: where they are; None if there are none.
        failure: why there is no result; None if there is one.
    """

    place: RunDirectory | None
    failure: Failure | None

    def measure(
        self,
        entry: Entry,
        options: CaptureOptions,  # noqa: ARG002 (the protocol's argument)
        directory: RunDirectory,
        progress: Sender,  # noqa: ARG002 (the protocol's argument)
    ) -> Failure | None:
        """Move the rank's files to where a configuration is measured; return why it failed, if it did."""
        if self.place is not None and self.place.path.is_dir():
            directory.take(self.place)
        if self.failure is None:
            return None
        there = directory.inside(entry.files.log).is_file()
        return replace(self.failure, log=entry.files.log if there else None)


class _Silent:
    """An observer of reports that other processes make."""

    def configuration(self, number: int, entry: Entry) -> None:
        """Show nothing."""

    def progress(self, phase: str, fraction: float, waits: str = "") -> None:
        """Show nothing."""

    def finished(self, number: int, entry: Entry) -> None:
        """Show nothing."""


class RankPlan(Struct, frozen=True):
    """The run directory that a rank is to have.

    Attributes:
        rank: its number.
        plan: of a sweep whose one configuration was measured.
    """

    rank: int
    plan: Plan


def report_ranks(
    job: JobPlan, measured: MeasuredRanks, replaced: Mapping[int, Manifest], observer: Observer
) -> "Ranks":
    """Make a run directory for each rank, in several processes; return them by rank.

    Args:
        job: the job.
        measured: what its ranks measured.
        replaced: by rank, the results in its folder that give way.
        observer: shows how that goes.

    Raises:
        OpscopeError: a folder cannot be written.
    """
    plans = [
        RankPlan(rank, _plan(job, rank, measured.places.get(rank), measured.failure_of(rank), replaced.get(rank)))
        for rank in range(measured.world)
    ]
    engine = engine_for(len(plans), cores(), None)
    done: Ranks = {}
    whole = bool(measured.whole)
    (measured.scratch / LOG).replace(job.folder / (LOG if whole else FAILED_LOG))
    if whole or not replaced:  # a record of ranks whose results stay is not replaced
        write_whole(job.folder / JOB, encode(_record(job, measured)))
    for item, manifest in engine.run(reported, plans):
        # What a process of its own could not do, as for lack of memory, this one may; else the raw files stay.
        result = reported(item) if isinstance(manifest, Lost) else manifest
        done[item.rank] = (item.plan.directory, result)
        observer.progress("reporting", len(done) / len(plans))
    shutil.rmtree(measured.scratch, ignore_errors=True)
    return dict(sorted(done.items()))


def _record(job: JobPlan, measured: MeasuredRanks) -> JobRecord:
    ends = []
    for rank in range(measured.world):
        outcome, failure = measured.outcomes.get(rank), measured.failure_of(rank)
        why = None if failure is None else job.redactor.scrubbed(failure.message)
        ends.append(RankEnd(rank, None if outcome is None else outcome.host, why))
    return JobRecord(
        command=job.manifest.command,
        created=job.manifest.created,
        opscope=job.manifest.opscope,
        world=measured.world,
        first_failed=measured.first_failed,
        ranks=tuple(ends),
    )


def _plan(
    job: JobPlan, rank: int, place: RunDirectory | None, failure: Failure | None, replaced: Manifest | None
) -> Plan:
    directory = RunDirectory(job.folder / f"rank{rank}")
    return Plan(job.manifest, directory, OfRank(place, failure), replaced, job.redactor)


def reported(item: RankPlan) -> Manifest:
    """Make the run directory of one rank."""
    item.plan.directory.create()
    return run_sweep(item.plan, _Silent())
