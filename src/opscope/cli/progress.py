"""How a sweep shows where it is: a bar on a terminal, plain lines elsewhere. Always on standard error."""

import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from opscope.base.text import printable
from opscope.cli.say import say
from opscope.record.sweep import Entry, Manifest
from opscope.workloads.catalog import is_script

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
