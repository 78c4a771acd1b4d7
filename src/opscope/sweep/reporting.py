"""Makes reports of measured configurations, and their parts of the page, beside the next measurement.

On a GPU the next configuration first builds and warms up, for longer than a report takes; on a CPU, or with few
cores, a report would take from what is measured, and comes before it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.errors import OpscopeError
from opscope.base.losses import raises
from opscope.base.threads import cores
from opscope.record.sweep import Entry
from opscope.runs.pipeline import PageParts, Result, functions_of, write_outputs
from opscope.runs.store import RunDirectory
from opscope.sweep.worker import failure_of

_CORES: Final = 4  # with fewer, a report takes from what the next worker does


class Reports(Struct):
    """Makes reports, in the order in which they are asked for.

    Attributes:
        directory: of the run.
        parts: what the page is made of; None where it has to be made of the files instead.
    """

    directory: RunDirectory
    parts: PageParts | None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _pending: list[tuple[int, "Future[Entry]"]] = field(default_factory=list)

    def begin(self, number: int, entry: Entry) -> None:
        """Begin to report a configuration.

        Args:
            number: which one of the sweep, from 1; `ended` gives it back.
            entry: its entry in the manifest.
        """
        self._pending.append((number, self._thread.submit(self._reported, entry)))

    def ended(self) -> Iterator[tuple[int, Entry]]:
        """Wait for the reports that were begun; yield each configuration's number, and its entry as it then stands."""
        pending, self._pending = self._pending, []
        for number, report in pending:
            yield number, report.result()

    def may_run_beside(self, entry: Entry) -> bool:
        """Tell whether a report does not disturb the next measurement."""
        try:
            return cores() >= _CORES and self.directory.read_record(entry).ran_on_gpu
        except OpscopeError:  # the report says it
            return False

    def _reported(self, entry: Entry) -> Entry:
        began = time.monotonic()
        ended, results = report(self.directory, entry)
        if results and self.parts is not None:
            self._add(ended, results[0])
        return replace(ended, seconds=round((entry.seconds or 0.0) + time.monotonic() - began, 3))

    def _add(self, entry: Entry, result: Result) -> None:
        """Add what the page shows of a configuration; where that fails, the page is made of the files, and says why."""
        assert self.parts is not None
        try:
            record = self.directory.read_record(entry)
            functions = functions_of(self.directory, record)
            self.parts.add(result.measured, functions, record.traces[0].file, self.directory)
        except Exception:  # whatever it is, the files tell it again
            self.parts = None


def report(directory: RunDirectory, entry: Entry, *, allow_damaged: bool = False) -> tuple[Entry, tuple[Result, ...]]:
    """Write the statistics and the report of a configuration that was measured.

    Whatever goes wrong is a failure of that configuration alone, and raises nothing, unless
    `opscope.base.losses.raises`.

    Args:
        directory: of the run.
        entry: the configuration's.
        allow_damaged: whether a trace that ends before its end is reported.

    Returns:
        Its entry as it then stands, and what its cycles say; none where that failed.
    """
    measured = replace(entry, status="done", failure=None, measured=True)
    directory.remove_reports(entry)  # none that contradicts the outcome may stay
    try:
        done = write_outputs(directory, measured, allow_damaged=allow_damaged)
    except Exception as error:
        if raises() and not isinstance(error, OpscopeError):
            raise
        return replace(measured, status="failed", failure=failure_of(error)), ()
    return done.entry, done.results
