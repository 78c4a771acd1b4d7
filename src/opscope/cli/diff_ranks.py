"""``opscope diff --ranks BEFORE AFTER``: what changed between two jobs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from opscope.base.errors import UsageError
from opscope.base.files import write_output
from opscope.base.processes import cores
from opscope.cli.emit import Output, emit
from opscope.cli.options import INCONCLUSIVE
from opscope.cli.say import say
from opscope.distributed.difference import difference_of, job_gate_of
from opscope.distributed.engines import engine_for
from opscope.distributed.inputs import files_of, record_of
from opscope.distributed.job import Job, read_job
from opscope.documents.difference import Gate
from opscope.documents.ranks import RanksDifference
from opscope.render.markdown import render
from opscope.report.ranks_document import ranks_difference_section, ranks_difference_values

_SAID: Final = 16  # reasons


def difference_of_jobs(before: Path, after: Path, *, any_device: bool) -> RanksDifference:
    """Read two jobs and compare them.

    Args:
        before: the folder of the first job.
        after: that of the second.
        any_device: whether to compare even if their devices differ.

    Raises:
        UsageError: a path names no trace, or the devices differ.
        BadInputError: no file of a side is a trace of a rank.
    """
    jobs = _read(before), _read(after)
    devices = [sorted({one.facts.device for one in job.ranks.values() if one.facts.device}) for job in jobs]
    if all(devices) and devices[0] != devices[1] and not any_device:
        raise UsageError(
            f"these ran on different devices: {', '.join(devices[0])}; {', '.join(devices[1])}. Times say nothing of "
            "the program then; --any-device compares them all the same"
        )
    return difference_of(*jobs, (str(before), str(after)))


def _read(path: Path) -> Job:
    files = files_of([str(path)])
    job = read_job(files, engine_for(len(files), cores(), None), record_of([str(path)]))
    for name, reason in job.unread.items():
        say(f"opscope: {name}: {reason}")
    return job


def show_ranks_difference(document: RanksDifference, top: int | None, output_format: str, report: Path | None) -> None:
    """Print what changed, and write it to a file if one is named."""
    section = ranks_difference_section(document, top)
    emit(Output.of_section(document, lambda: ranks_difference_values(document), lambda: section), output_format)
    if report is not None:
        write_output(report, render(section, level=2).encode())


def exit_code(document: RanksDifference, fail_over: float | None) -> int:
    """Return 1 where steps became longer by more than a share, 5 where that is not decided, else 0; say why.

    Args:
        document: what changed.
        fail_over: the share, 0.05 for 5 %; None where nothing is to fail.
    """
    if fail_over is None:
        return 0
    gate = job_gate_of(document, fail_over)
    for reason in _reasons(document, gate):
        say(f"opscope: {gate}: {reason}")
    return {Gate.FINE: 0, Gate.REGRESSION: 1}.get(gate, INCONCLUSIVE)


def _reasons(document: RanksDifference, gate: Gate) -> Iterator[str]:
    if gate is Gate.INCOMPLETE:
        yield from document.incomplete[:_SAID]
        if len(document.incomplete) > _SAID:
            yield f"and {len(document.incomplete) - _SAID} more"
    elif document.ratio_low is None or document.ratio_high is None:
        yield document.undecided or "steps are not compared"
    elif gate is not Gate.FINE:
        span = f"{_percent(document.ratio_low)} to {_percent(document.ratio_high)}"
        yield f"steps may have changed by {span}, with what they vary"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
