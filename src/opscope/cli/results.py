"""What a sweep prints: how far it is; then the work that costs most, the comparison, and where the files are."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from opscope.base.errors import BadInputError
from opscope.base.text import printable, shell_path
from opscope.cli.say import say, show
from opscope.cli.terminal import echo_block, echo_table
from opscope.documents.comparison import SweepComparison, SweepComparisons
from opscope.documents.trace import TraceDocument
from opscope.record.codec import encode
from opscope.record.sweep import Entry, Manifest
from opscope.render.blocks import Block, Name, Paragraph, Section, Tone, Toned, Whole
from opscope.render.table_formats import as_csv, as_markdown
from opscope.report.brief import screen_blocks
from opscope.report.comparison import comparison_of
from opscope.report.comparison_report import comparison_table, comparison_values
from opscope.report.overview import dearest_work, own_clock_text
from opscope.report.step_parts import failures, step_text
from opscope.runs.folders import rank_here
from opscope.runs.pipeline import read_documents
from opscope.runs.store import COMPARISON, COMPARISON_REPORT, PAGE, RunDirectory
from opscope.sweep.process import RUNS_AGAIN
from opscope.sweep.runner import failed_entries, worthless_entries
from opscope.workloads.catalog import is_script

# ---------------------------------------------------------------- progress


# How much of a configuration's time each phase takes, roughly: only for the bar to move evenly.
_PHASE_SHARES: Final = {
    "starting": 0.2,
    "building": 0.15,
    "first step": 0.1,
    "timing": 0.3,
    "profiling": 0.15,
    "operators": 0.05,
    "reporting": 0.05,
}
_SCRIPT_SHARES: Final = {
    "starting": 0.1,
    "running the script": 0.5,
    "settling": 0.1,
    "timing": 0.1,
    "profiling": 0.1,
    "reporting": 0.1,
}
_HEARTBEAT_S: Final = 15.0  # silence after which somebody who reads a log wants to know that something goes on


class SweepProgress:
    """Shows a sweep's configuration, phase and time left."""

    def __init__(self, manifest: Manifest) -> None:
        self._names = [entry.configuration.id for entry in manifest.entries]
        self._open = [number for number, entry in enumerate(manifest.entries, 1) if entry.status != "done"]
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._number = 0
        self._seconds: list[float] = []
        self._shares = _PHASE_SHARES
        self._began = self._spoke = 0.0

    def __enter__(self) -> "SweepProgress":
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=len(self._open), left="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def configuration(self, number: int, entry: Entry) -> None:
        """Show that a configuration begins.

        Args:
            number: which one of the sweep, from 1.
            entry: its entry in the manifest.
        """
        self._number, self._began = number, time.monotonic()
        self._spoke = self._began
        self._shares = _SCRIPT_SHARES if is_script(entry.configuration.target) else _PHASE_SHARES
        if self._bar is None:
            say(f"[{number}/{len(self._names)}] {entry.configuration.id} ...")
        else:
            self.progress("starting", 0.0)

    def progress(self, phase: str, fraction: float, waits: str = "") -> None:
        """Show how far the current configuration is.

        Args:
            phase: what it does now.
            fraction: how much of the phase is done, from 0 to 1.
            waits: since when no step of a script has come, and where it is.
        """
        doing = f"{phase}, {waits}" if waits else phase
        if self._bar is None or self._task is None:
            self._beat(phase, waits)
            return
        # Earlier phases count whole, and the current one by its fraction.
        before = 0.0
        for name, share in self._shares.items():
            if name == phase:
                before += share * fraction
                break
            before += share
        done = len(self._seconds) + before
        self._bar.update(
            self._task,
            completed=done,
            description=printable(f"[{self._number}/{len(self._names)}] {self._names[self._number - 1]}: {doing}"),
            left=self._time_left(before),
        )

    def _beat(self, phase: str, waits: str) -> None:
        now = time.monotonic()
        if now - self._spoke >= _HEARTBEAT_S:
            self._spoke = now
            where = f"[{self._number}/{len(self._names)}] {self._names[self._number - 1]}"
            still = f"; {waits}" if waits else ""
            say(f"{where}: {phase}, {now - self._began:.0f} s so far{still}")

    def finished(self, number: int, entry: Entry) -> None:
        """Show that a configuration has ended, and how.

        Args:
            number: which one of the sweep, from 1.
            entry: its entry in the manifest, with the outcome.
        """
        self._seconds.append(time.monotonic() - self._began)
        result = "done" if entry.failure is None else f"FAILED ({entry.failure.kind}): {entry.failure.message}"
        line = printable(
            f"[{number}/{len(self._names)}] {entry.configuration.id}: {result} ({self._seconds[-1]:.1f} s)"
        )
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            say(line)

    def _time_left(self, fraction: float) -> str:
        """Estimate from the configurations that are done; unknown during the first."""
        if not self._seconds:
            return "time left: after the first configuration"
        each = sum(self._seconds) / len(self._seconds)
        left = each * (len(self._open) - len(self._seconds) - fraction)
        return f"about {max(0, round(left))} s left"


# ---------------------------------------------------------------- results


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
    yield from dearest_work(document)


def _files(directory: RunDirectory, manifest: Manifest) -> Iterator[str]:
    page = f"{PAGE} (for a browser), " if directory.inside(PAGE).is_file() else ""
    yield f"  {page}{COMPARISON_REPORT}, {COMPARISON}, manifest.json"
    for entry in manifest.entries:
        if entry.status == "done":
            first = entry.files.cycles[0]
            yield f"  {first.report}, {first.statistics}, {first.trace}"


def _print_problems(directory: RunDirectory, manifest: Manifest) -> None:
    lines = []
    for entry in failed_entries(manifest):
        if entry.failure is not None:
            log = f" (log: {directory.path / entry.failure.log})" if entry.failure.log else ""
            lines.append(f"{entry.configuration.id} failed: {entry.failure.message}{log}")
            lines += last_lines(directory, entry.failure.log)
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
