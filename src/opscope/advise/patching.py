"""Writes what is proven into a script's source, and tries that: patched, it runs as it is and is timed again."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.changes import settings_of
from opscope.advise.comparing import Comparing
from opscope.advise.edits import Written, written
from opscope.advise.messages import Built, Job
from opscope.advise.search import Names
from opscope.advise.session import Session, Worker
from opscope.advise.source import NotWritableError
from opscope.documents.advise import Patch
from opscope.workbench.benchmarking.statistics import median_interval, ratios


class Patching(Struct):
    """What a patch is written and tried with.

    Attributes:
        session: starts processes.
        job: the script as written.
        comparing: tells whether a longer run is another one.
        time: times processes beside the first of them, as often as finalists are timed.
        say: gets what goes on, a line each.
    """

    session: Session
    job: Job
    comparing: Comparing
    time: Callable[[Sequence[Worker]], None]
    say: Callable[[str], None]

    def patches(self, proven: Sequence[Names], built: Built) -> dict[Names, Patch]:
        """Return a patch for each of some combinations, tried; or why there is none.

        Args:
            proven: the combinations.
            built: the script as written, with the places in its source.
        """
        self.say("the patched script")
        texts = {names: self._written(names, built) for names in proven}
        ready = {names: text for names, text in texts.items() if isinstance(text, Written)}
        jobs = {names: replace(self.job, sources=text.sources) for names, text in ready.items()}
        base, *workers = self.session.build([self.job, *jobs.values()])
        self.time([base, *(worker for worker in workers if worker.broken is None)])
        tried = dict(zip(ready, workers, strict=True))
        running = [names for names in ready if tried[names].broken is None]
        longer: Mapping[Names, str | None] = {}
        if built.facts.training and running:
            reasons = self.comparing.longer([jobs[names] for names in running])
            longer = dict(zip(running, reasons, strict=True))
        found = {names: _patch(text, base, tried.get(names), longer.get(names)) for names, text in texts.items()}
        self.session.close([base, *workers])
        return found

    def _written(self, names: Names, built: Built) -> Written | str:
        try:
            return written(names, Path(self.job.configuration.target), built.places, settings_of(built.facts))
        except NotWritableError as error:
            return str(error)


def _patch(text: Written | str, base: Worker, worker: Worker | None, longer: str | None) -> Patch:
    if isinstance(text, str) or worker is None:
        return Patch(reason=str(text))
    if worker.broken is not None or not worker.blocks:
        said = "it was not timed" if worker.broken is None else worker.broken.reason
        return Patch(reason=f"written into the source it fails: {said}")
    if longer is not None:
        return Patch(reason=f"written into the source it is another training: {longer}")
    gain = median_interval(ratios(worker.blocks, base.blocks[-len(worker.blocks) :]))
    return Patch(diff=text.diff, folder=str(text.root), ratio=gain.median, ci_low=gain.low, ci_high=gain.high)
