"""``opscope profile --nproc N SCRIPT`` and ``opscope profile -- LAUNCHER ... SCRIPT``: all ranks of a job."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from opscope.base.errors import BadInputError, UsageError
from opscope.base.files import PARTIAL
from opscope.base.processes import cores
from opscope.cli.emit import Output, emit
from opscope.cli.progress import SweepProgress
from opscope.cli.results import last_lines
from opscope.cli.say import say
from opscope.record.codec import decode
from opscope.record.sweep import JOB, Entry, JobRecord, Manifest
from opscope.runs.pipeline import read_documents
from opscope.runs.store import PAGE, RunDirectory
from opscope.sweep.job import FAILED_LOG, LOG, JobPlan, MeasuredRanks, Ranks, measure_job, report_ranks
from opscope.sweep.runner import worthless_entries

_SHOWN = 8  # ranks, a line each


class Replaced(Struct, frozen=True):
    """Results in a job's folder that give way to new ones.

    Attributes:
        ranks: the manifest of each rank.
    """

    ranks: Mapping[int, Manifest]


def job_folder(folder: Path, entry: Entry, *, overwrite: bool) -> Replaced:
    """Check that a job's results may go to a folder; return what they replace there.

    Args:
        folder: where the user wants them.
        entry: names the files that each rank writes.
        overwrite: whether the user said that results there may be replaced.

    Raises:
        UsageError: it holds something, and may not be replaced, or opscope did not write it.
    """
    if not overwrite or not folder.exists():
        RunDirectory(folder).refuse_if_used("choose another --output-dir, or replace the results with --overwrite")
        return Replaced({})
    try:
        decode(folder / JOB, JobRecord)
    except BadInputError as error:
        # A job that was killed, or whose launcher failed, leaves nothing that can be lost.
        if any(path.name != FAILED_LOG and not path.name.startswith(PARTIAL) for path in folder.iterdir()):
            raise UsageError(f"{folder} cannot be overwritten: {error}. Choose another --output-dir") from error
        return Replaced({})
    results: dict[int, Manifest] = {}
    for path in folder.glob("rank*"):
        number = path.name.removeprefix("rank")
        if number.isdecimal():
            if path.is_symlink():
                raise UsageError(f"{path} is a link: a rank's results are written into a folder of its own")
            results[int(number)] = RunDirectory(path).replaceable()
            RunDirectory(path).refuse_foreign(results[int(number)], [entry])
    return Replaced(results)


def profile_job(job: JobPlan, replaced: Replaced, output_format: str) -> list[Manifest]:
    """Measure a job, print what its ranks say together, and return the manifests of its ranks.

    Raises:
        EnvironmentLacksError: the launcher cannot be started, or a folder cannot be written.
    """
    with SweepProgress(job.manifest) as progress:
        measured = measure_job(job, progress)
        if measured.whole:
            _make_way(job.folder, replaced, measured.world)
            replaced = Replaced({})
        done = report_ranks(job, measured, replaced.ranks, progress)
    if measured.whole:
        _print_job(job.folder, measured, done, output_format)
    _print_problems(job.folder, measured, done)
    return [manifest for _, manifest in done.values()]


def _make_way(folder: Path, replaced: Replaced, world: int) -> None:
    """Remove the results that new ones replace, also those of ranks that there are not any more."""
    for rank, manifest in replaced.ranks.items():
        directory = RunDirectory(folder / f"rank{rank}")
        directory.remove_written(manifest)
        if rank >= world:
            directory.remove_run()


def _print_job(folder: Path, measured: MeasuredRanks, done: Ranks, output_format: str) -> None:
    from opscope.distributed.engines import engine_for
    from opscope.distributed.inputs import files_of, record_of
    from opscope.distributed.job import document_of, read_job
    from opscope.report.ranks_document import ranks_section, ranks_values

    files = files_of([str(folder)])
    document = document_of(read_job(files, engine_for(len(files), cores(), None), record_of([str(folder)])))
    emit(
        Output.of_section(document, lambda: ranks_values(document, "late"), lambda: ranks_section(document)),
        output_format,
    )
    if output_format != "table":
        return
    say("", err=False)
    say(f"Results of each rank in {folder}/:", err=False)
    for rank in measured.whole[:_SHOWN]:
        say(f"  rank {rank}: {_step_of(*done[rank])}", err=False)
    if len(measured.whole) > _SHOWN:
        say(f"  and {len(measured.whole) - _SHOWN} more", err=False)
    say(f"The same again: opscope ranks {shlex.quote(str(folder))}", err=False)
    if document.clocks:
        say(f"On one clock, for Perfetto: opscope export --ranks {shlex.quote(str(folder))} -o job.json", err=False)


def _step_of(directory: RunDirectory, manifest: Manifest) -> str:
    """Say how long the steps of a rank take, and what bounds them."""
    from opscope.report.step_parts import step_text

    document = next(iter(read_documents(directory, manifest)), None)
    if document is None:
        return "no report"
    page = f"rank{directory.path.name.removeprefix('rank')}/{PAGE}"
    return f"{step_text(document.step_time)}, {document.bound.kind}, {page}"


def _print_problems(folder: Path, measured: MeasuredRanks, done: Ranks) -> None:
    """Print which ranks have no result: the one that failed first with its reason, then the others by theirs."""
    first = measured.first_failed
    reasons: dict[str, list[int]] = {}
    for rank in range(measured.world):
        failure = measured.failure_of(rank)
        if failure is None:
            continue
        if rank == first:
            directory, manifest = done[rank]
            failed = manifest.entries[0].failure or failure
            where = f" (log: {directory.path / failed.log})" if failed.log else ""
            say(f"opscope: rank {rank} failed first: {failed.message}{where}")
            for line in last_lines(directory, failed.log):
                say(line)
        else:
            reasons.setdefault(failure.message, []).append(rank)
    for reason, ranks in reasons.items():
        say(f"opscope: {_ranks_text(ranks)} failed: {reason}")
    problems: dict[str, list[int]] = {}
    for rank, (_, manifest) in done.items():
        for entry in worthless_entries(manifest):
            problems.setdefault(entry.problem or "unknown", []).append(rank)
    for problem, ranks in problems.items():
        say(f"opscope: {_ranks_text(ranks)}: {problem}")
    if first is not None:
        say(f"opscope: what the launcher said: {folder / (LOG if measured.whole else FAILED_LOG)}")


def _ranks_text(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
