"""Writes what is proven into a script's source, and tries that: patched, it runs as it is and is timed again."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.changes import settings_of
from opscope.advise.comparing import Comparing
from opscope.advise.edits import Written, written
from opscope.advise.measured import Measured, is_faster, least_gain, measured, verdict
from opscope.advise.messages import Built, Job
from opscope.advise.search import Names
from opscope.advise.session import AdviseError, Session, Worker
from opscope.advise.source import NotWritableError
from opscope.documents.advise import Facts, Patch

_REWRITTEN: Final = "fused_attention"  # rewrites what a function computes


class Patching(Struct):
    """What a patch is written and tried with.

    Attributes:
        session: starts processes.
        job: the script as written.
        comparing: tells whether results, or a longer run, are others.
        time: times processes beside the script as written, in two processes, as often as finalists are timed.
        say: gets what goes on, a line each.
    """

    session: Session
    job: Job
    comparing: Comparing
    time: Callable[[Sequence[Worker], Sequence[Worker]], None]
    say: Callable[[str], None]

    def jobs(self, combinations: Sequence[Names], built: Built) -> list[Job]:
        """Return the processes that patches of some combinations will need: they may start before it is proven."""
        texts = {names: self._written(names, built) for names in combinations}
        results = []
        for names, text in texts.items():
            if not isinstance(text, Written):
                continue
            job = replace(self.job, sources=text.sources)
            compared = [self.comparing.proving(job)] if self._is_compared(names, built.facts) else []
            results += [job, *compared, *([job] if built.facts.training else [])]
        return results

    def patches(self, proven: Sequence[Names], built: Built, written: Sequence[Worker] = ()) -> dict[Names, Patch]:
        """Return a patch for each of some combinations, tried; or why there is none.

        With ``written``, those that may succeed without the processes of the search are left out.

        Args:
            proven: the combinations.
            built: the script as written, with the places in its source.
            written: the script as written in two processes that run; empty where they have to start.
        """
        self.say("the patched script")
        texts = {names: self._written(names, built) for names in proven}
        ready = {names: text for names, text in texts.items() if isinstance(text, Written)}
        jobs = {names: replace(self.job, sources=text.sources) for names, text in ready.items()}
        base, twin = written or self.session.build([self.job, self.job])
        workers = self.comparing.started(list(jobs.values()))
        self.time([base, twin], [worker for worker in workers if worker.broken is None])
        for worker in (base, twin):
            if worker.broken is not None:
                self.session.close(workers)
                if written:  # they were started long ago, and their script may be at its end
                    return {}
                raise AdviseError(f"the script as written fails: {worker.broken.reason}")
        tried = dict(zip(ready, workers, strict=True))
        running = [names for names in ready if tried[names].broken is None]
        least = least_gain(base, twin)
        known = {names: measured([base, twin], tried[names], least) for names in ready}
        self.session.close(workers if written else [base, twin, *workers])
        try:
            wrong = self._wrong({names: jobs[names] for names in running if is_faster(known[names])}, built.facts)
        finally:
            self.comparing.drop_early()
        patches = {names: _patch(text, known.get(names), wrong.get(names)) for names, text in texts.items()}
        # Beside the processes of the search there may be too little memory or time: then they are tried after it.
        again = {names for names, one in known.items() if written and (one.lacks_memory or one.is_passing)}
        return {names: patch for names, patch in patches.items() if names not in again}

    def _wrong(self, jobs: Mapping[Names, Job], facts: Facts) -> dict[Names, str]:
        """Return why a patched script does something else, for those that do: by its losses, or by its results."""
        if not jobs:
            return {}
        # What was proven of a rewritten function was proven of its trace; losses tell too little of it.
        rewritten = {names: job for names, job in jobs.items() if self._is_compared(names, facts)}
        wrong: dict[Names, str] = {}
        if rewritten:
            self.say("comparing the patched script")
            judged = self.comparing.compared(rewritten, list(jobs.values()) if facts.training else ())
            wrong = {names: one.reason for names, one in judged.items() if not one.right}
        left = {names: job for names, job in jobs.items() if names not in wrong}
        if facts.training and left:
            self.say("a longer run of the patched script")
            reasons = self.comparing.longer(list(left.values()))
            wrong |= {names: why for names, why in zip(left, reasons, strict=True) if why is not None}
        return wrong

    def _is_compared(self, names: Names, facts: Facts) -> bool:
        return _REWRITTEN in names or not facts.training

    def _written(self, names: Names, built: Built) -> Written | str:
        try:
            return written(names, Path(self.job.configuration.target), built.places, settings_of(built.facts))
        except NotWritableError as error:
            return str(error)
        except Exception as error:  # the source is the user's, and may be anything: no patch is better than no advice
            return f"its source could not be changed: {type(error).__name__}: {error}"


def _patch(text: Written | str, known: Measured | None, wrong: str | None) -> Patch:
    if isinstance(text, str) or known is None:
        return Patch(reason=str(text))
    if known.gain is None:
        return Patch(reason=f"written into the source it fails: {known.broken}")
    if not is_faster(known):
        return Patch(reason=f"written into the source it is not faster: {verdict(known, None)[1]}")
    if wrong is not None:
        return Patch(reason=f"written into the source it does something else: {wrong}")
    gain = known.gain
    return Patch(diff=text.diff, folder=str(text.root), ratio=gain.median, ci_low=gain.low, ci_high=gain.high)
