"""What a sweep prints: how far it is; then the work that costs most, the comparison, and where the files are."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from opscope.base.errors import BadInputError, OpscopeError
from opscope.base.text import shell_path
from opscope.cli.say import say, show
from opscope.cli.terminal import echo_block, echo_table
from opscope.documents.comparison import SweepComparison, SweepComparisons
from opscope.documents.trace import TraceDocument
from opscope.readers.unpacked import MAX_UNPACKED_BYTES
from opscope.record.codec import encode
from opscope.record.sweep import Entry, Manifest
from opscope.render.blocks import Block, Name, Paragraph, Section, Tone, Toned, Whole
from opscope.render.table_formats import as_csv, as_markdown
from opscope.report.brief import screen_blocks
from opscope.report.comparison import comparison_of
from opscope.report.comparison_report import comparison_table, comparison_values
from opscope.report.overview import costliest_work, own_clock_text
from opscope.report.step_parts import failures, step_text
from opscope.runs.folders import rank_here
from opscope.runs.pipeline import read_documents
from opscope.runs.store import COMPARISON, COMPARISON_REPORT, PAGE, RunDirectory
from opscope.sweep.process import RUNS_AGAIN
from opscope.sweep.runner import failed_entries, worthless_entries
from opscope.workloads.catalog import is_script

_QUOTE = "  | "
_CHAINED = "The above exception was the direct cause of"  # as Python joins tracebacks
_LAST_LINES = 8  # of what a failed process printed
_TAIL = 1 << 14  # bytes at the end of a log that are looked at


def print_sweep(finished: Sequence[tuple[RunDirectory, Manifest]], output_format: str) -> None:
    """Print the results of one or more sweeps to standard output, and problems to standard error.

    Of several ranks that were launched together the first prints its results for people, as the others' are alike.
    """
    rank = rank_here()
    results = [(directory, manifest, list(read_documents(directory, manifest))) for directory, manifest in finished]
    comparisons = {
        str(directory.path): comparison_of(documents, manifest) for directory, manifest, documents in results
    }
    if output_format == "json":
        several = tuple(comparisons.values())
        show(encode(several[0] if len(several) == 1 else SweepComparisons(sweeps=several)).decode())
    elif output_format == "csv":
        show(as_csv(comparison_values(comparisons)))
    else:
        for directory, manifest, documents in results:
            if documents and not rank:
                _print_one(directory, manifest, comparisons[str(directory.path)], documents, output_format)
    if rank == 0 and output_format == "table":
        say(
            f"The other ranks' results are beside it. All together: opscope ranks {_job_of(finished[0][0].path)}",
            err=False,
        )
    for reason in dict.fromkeys(document.device_times_reason for _, _, result in results for document in result):
        if reason is not None:
            say(f"Device times are unknown (null): {reason}. CPU times are shown.")
    for directory, manifest, _ in results:
        _print_problems(directory, manifest)


def _job_of(folder: Path) -> Path:
    """Return the folder with those of all ranks; presets have folders of their own within a rank's."""
    return next((one.parent for one in (folder, *folder.parents) if one.name == f"rank{rank_here()}"), folder.parent)


def _print_one(
    directory: RunDirectory,
    manifest: Manifest,
    comparison: SweepComparison,
    documents: Sequence[TraceDocument],
    output_format: str,
) -> None:
    table = comparison_table(comparison)
    if output_format == "md":
        show(as_markdown(table, f"Comparison: {comparison.description}"))
        return
    if output_format == "brief":
        from opscope.render.brief import render_brief

        first = [block for document in documents for block in _first(document)]
        see = Whole(f"opscope analyze {shell_path(str(directory.path))} --brief")
        blocks = (*first, table, Paragraph.of("One configuration at a time: ", see))
        show(render_brief([Section((Name(comparison.description),), blocks)]))
        return
    for document in documents:
        for block in _first(document):
            echo_block(block)
        say("", err=False)
    echo_table(table)
    say("", err=False)
    say(f"Reports in {directory.path}{_separator(directory.path)}:", err=False)
    for line in _files(directory, manifest):
        say(line, err=False)


def _separator(path: Path) -> str:
    return "" if str(path).endswith("/") else "/"


def _first(document: TraceDocument) -> Iterator[Block]:
    """Yield what is read first of a configuration, and the work that costs most."""
    yield Paragraph((Toned(f"{document.name}: {step_text(document.step_time)}, {document.bound.kind}", Tone.STRONG),))
    if document.capture is not None and document.capture.steady_state:
        yield Paragraph.of(f"  {document.capture.steady_state}")
    step = document.measurement.step
    if step is not None and step.sentence is not None:
        yield Paragraph.of(f"  {step.sentence}")
    if document.measurement.own_clock is not None and step is not None:
        yield Paragraph.of(f"  {own_clock_text(document.measurement.own_clock, step)}")
    doubts = list(failures(document.trust))
    for doubt in doubts:
        yield Paragraph((Toned(f"  NOT TO BE TRUSTED: {doubt}", Tone.BAD),))
    if document.first_screen is not None:
        # Checks that fail are named above, with what to do about them, and so is the step.
        warned = tuple(line for line in document.first_screen.failed if not line.startswith("FAIL"))
        yield from screen_blocks(replace(document.first_screen, failed=warned, step=None))
    yield from costliest_work(document)


def _files(directory: RunDirectory, manifest: Manifest) -> Iterator[str]:
    page = f"{PAGE} (for a browser), " if directory.inside(PAGE).is_file() else ""
    yield f"  {page}{COMPARISON_REPORT}, {COMPARISON}, manifest.json"
    for entry in manifest.entries:
        if entry.status == "done":
            first = entry.files.cycles[0]
            recording = directory.read_record(entry).memory_recording
            snapshot = None if recording is None else recording.snapshot
            kept = "" if snapshot is None else f", {snapshot}"
            yield f"  {first.report}, {first.statistics}, {first.trace}{kept}"
            if snapshot is not None:
                yield f"  What fills the memory: opscope memory {shell_path(str(directory.path / snapshot))}"


def _print_problems(directory: RunDirectory, manifest: Manifest) -> None:
    lines = []
    for entry in failed_entries(manifest):
        if entry.failure is not None:
            log = f" (log: {directory.path / entry.failure.log})" if entry.failure.log else ""
            lines.append(f"{entry.configuration.id} failed: {entry.failure.message}{log}")
            lines += last_lines(directory, entry.failure.log)
            lines += _why_out_of_memory(directory, entry)
    if manifest.page_failure is not None:
        lines.append(f"{PAGE} was not written: {manifest.page_failure}")
    for entry in worthless_entries(manifest):
        lines.append(f"{entry.configuration.id}: {entry.problem}")
        if is_script(entry.configuration.target):  # which may have said what it lacks
            lines += last_lines(directory, entry.files.log)
    pending = [entry.configuration.id for entry in manifest.entries if entry.status == "pending"]
    if pending:
        lines.append(f"not run: {', '.join(pending)}; --resume runs them")
    for line in lines:
        say(line if line.startswith(_QUOTE) else f"opscope: {line}")


def _why_out_of_memory(directory: RunDirectory, entry: Entry) -> Iterator[str]:
    """Yield what a snapshot says that was kept when a script ran out of memory."""
    failure, name = entry.failure, entry.files.snapshot
    if failure is None or failure.kind != "out of memory" or name is None or failure.log is None:
        return
    path = directory.path / Path(failure.log).parent.parent / name  # where the log is, also if nothing is replaced
    if not path.is_file():
        return
    from opscope.report.memory_document import out_of_memory_lines
    from opscope.runs.inputs import memory_of

    try:
        document = memory_of(path, max_bytes=MAX_UNPACKED_BYTES).document
    except OpscopeError as error:
        yield f"{path} was kept and cannot be explained: {error}"
        return
    lines = list(out_of_memory_lines(document))
    yield from lines or ["its history was not recorded then, as steps were timed or profiled; what was alive is kept"]
    yield f"all of it: opscope memory {shell_path(str(path))}"


def last_lines(directory: RunDirectory, log: str | None) -> Sequence[str]:
    """Return the last lines that a process printed, each as a quotation, without opscope's own lines.

    Args:
        directory: the run.
        log: the file with what it printed, relative to the run; None where there is none.
    """
    if log is None:
        return ()
    try:
        with directory.inside(log).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except (OSError, BadInputError):
        return ()
    ours = next(
        (at for at, line in enumerate(lines) if line.startswith("Traceback") and _is_ours(lines[at + 1 :])), None
    )
    shown = [line for line in lines[:ours] if line.strip() and not line.startswith(("USDT:", _CHAINED))]
    shown = shown[1 + max((at for at, line in enumerate(shown) if line == RUNS_AGAIN), default=-1) :]
    if shown and shown[-1].startswith("SystemExit"):  # the program said before why it ended
        shown = shown[: max((at for at, line in enumerate(shown) if line.startswith("Traceback")), default=len(shown))]
    return [f"{_QUOTE}{line}" for line in shown[-_LAST_LINES:]]


def _is_ours(following: Sequence[str]) -> bool:
    return bool(following) and "opscope" in following[0] and "worker" in following[0]
