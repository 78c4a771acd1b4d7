"""Proves combinations: written into the source where they can be, timed in new processes, compared with float64."""

import difflib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.changes.listed import BY_NAME, settings_of
from opscope.advise.comparing import Comparing, Finalist, exact_part
from opscope.advise.measured import (
    CLEARLY,
    ChangeResult,
    Known,
    is_faster,
    is_noisy,
    least_gain,
    timed_beside,
    verdict,
)
from opscope.advise.messages import Built, VariantJob
from opscope.advise.proof import Judgement
from opscope.advise.search import ChangeNames, compiles
from opscope.advise.session import AdviseError, Session, Worker
from opscope.advise.source import NotWritableError, ScriptPlaces
from opscope.advise.telling import Budget
from opscope.advise.writer import Writer
from opscope.base.text import lazy_pattern
from opscope.documents.advise import UNDECIDED, Facts, Patch
from opscope.workloads.catalog import is_script

# ---------------------------------------------------------------- edits of the user's source


_LINE: Final = lazy_pattern(r"[^\n]*\n|[^\n]+")


class Written(Struct, frozen=True):
    """Changed source.

    Attributes:
        sources: the new text of each file, by its path.
        diff: what changed, as ``git apply`` takes it.
        root: the folder that the paths in the diff start from.
    """

    sources: dict[str, str]
    diff: str
    root: Path


def written(changes: Sequence[str], script: Path, places: ScriptPlaces, settings: Mapping[str, str]) -> Written:
    """Write changes into a script and the user's modules that it imports; no file is touched.

    Args:
        changes: their names.
        script: the script.
        places: where it does what the changes concern.
        settings: values that changes write: ``device``, ``workers``, ``threads``, ``cores``.

    Raises:
        NotWritableError: one of them cannot be written by itself; says why.
    """
    writer = Writer(script, places, settings)
    for name in changes:
        write = BY_NAME[name].edit.write
        if write is None:
            raise NotWritableError(f"{name} has to be written by hand")
        write(writer)
    texts = {path: (source.text, source.edited()) for path, source in writer.sources.items()}
    changed = {path: new for path, (old, new) in texts.items() if old != new}
    for path, text in changed.items():
        try:
            compile(text, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise NotWritableError(f"{path} would no longer be Python: {error}") from error
    root = _root_of(script, changed)
    diffs = [_diff(path, root, texts[path][0], new) for path, new in changed.items()]
    return Written(changed, "".join(diffs), root)


def written_or_why(
    changes: Sequence[str], script: Path, places: ScriptPlaces, settings: Mapping[str, str]
) -> Written | str:
    """Return what `written` does, or why there is nothing."""
    try:
        return written(changes, script, places, settings)
    except NotWritableError as error:
        return str(error)
    except Exception as error:  # the source is the user's, and may be anything: no patch is better than no advice
        return f"its source could not be changed: {type(error).__name__}: {error}"


def _root_of(script: Path, changed: Iterable[str]) -> Path:
    """Return the folder that ``git apply`` takes paths from: that of the repository, else the current one.

    Where a file that is changed lies elsewhere, it is the folder that holds all of them.
    """
    folder = script.absolute().parent
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if root is None:
        current = Path.cwd()
        root = current if folder.is_relative_to(current) else folder
    if all(Path(path).is_relative_to(root) for path in changed):
        return root
    return Path(os.path.commonpath([folder, *(Path(path).parent for path in changed)]))


def _diff(path: str, root: Path, old: str, new: str) -> str:
    name = Path(path).relative_to(root).as_posix() if Path(path).is_relative_to(root) else path.lstrip("/")
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(ended)


def _lines(text: str) -> list[str]:
    """Return the lines of a file with their ends; only a newline ends one, as for git."""
    return _LINE.findall(text)


# ---------------------------------------------------------------- proofs


FIRST_ROUNDS: Final = 6  # the fewest whose median has an interval
LAST_ROUNDS: Final = 13
TURN_S: Final = 0.15  # of one variant in one round
_NOISY: Final = 1.03
# Of a gain: where the low end of its interval has as much, no further round is timed. A choice: it decides how long is
# measured, and no verdict.
_CLEAR_SHARE: Final = 0.5
_LONGEST_S: Final = 20.0  # of all rounds of the finalists
_ROUNDS_SHARE: Final = 0.07  # of the whole time, for the same: building and comparing them need several times as long
_LISTED: Final = 3  # combinations that a line names


def time_finalists(
    session: Session, written: Sequence[Worker], others: Sequence[Worker], longest_s: float = _LONGEST_S
) -> None:
    """Time variants in turns with the step as written and its twin: with more rounds for a small gain, or in noise.

    Args:
        session: the session.
        written: the step as written, in two processes: what it differs from itself is what a gain must exceed.
        others: the variants.
        longest_s: no further round begins after so many seconds.
    """
    began, rounds = time.monotonic(), FIRST_ROUNDS
    session.time([*written, *others], rounds, TURN_S)
    base, twin = written
    while base.broken is None and twin.broken is None and time.monotonic() - began < longest_s:
        if others and all(worker.broken is not None or _is_clear(written, worker) for worker in others):
            break
        if rounds >= LAST_ROUNDS and (not others or least_gain(base, twin) <= _NOISY):
            break
        session.time([*written, *others], 1, TURN_S)
        rounds += 1


def _is_clear(written: Sequence[Worker], worker: Worker) -> bool:
    """Tell whether a variant is faster by so much that more rounds would decide nothing."""
    known = timed_beside(written, worker, least_gain(written[0], written[1]))
    if known.gain is None or known.gain.low is None or not is_faster(known):
        return False
    return known.gain.low - 1 > _CLEAR_SHARE * (known.gain.median - 1)


class Prover:
    """Proves combinations.

    Args:
        session: starts the processes.
        job: the step as written.
        known: what is known of combinations, and gets what comes of a proof.
        budget: the time that is left.
        say: gets what goes on, a line each.

    Attributes:
        comparing: compares with float64.
        built: the step as written, with the places in its source; None before it has started.
        takes_s: how long a proof takes, as far as is known.
        unwritten: why a combination has no patch, as the search has shown.
    """

    def __init__(
        self, session: Session, job: VariantJob, known: Known, budget: Budget, say: Callable[[str], None]
    ) -> None:
        self._session, self._job, self._known, self._budget, self._say = session, job, known, budget, say
        self.comparing = Comparing(session, job, say)
        self.built: Built | None = None
        self.takes_s = 0.0
        self.unwritten: dict[ChangeNames, str] = {}

    # ---------------------------------------------------------------- what is proven

    def prove(self, finalists: Sequence[ChangeNames], facts: Facts) -> set[ChangeNames]:
        """Measure some combinations again, in new processes, and compare with float64 what is faster then.

        Those of a script are written into its source where they can be, and that is what is measured and compared:
        what is proven is the patch. What fails so is proven once more as it was searched.

        Returns:
            Those that failed for lack of memory or time: they may pass at another time.
        """
        known = self._known
        known.again |= set(finalists)
        searched = {names: known.measured[names] for names in finalists}
        texts = self._texts(finalists)
        sources = _sources(texts)
        lacking, broken = self._prove_written(finalists, texts, facts)
        timed = [names for names in sources if names not in lacking | broken]
        noisy = [names for names in timed if is_noisy(known.measured[names])]
        otherwise = f"{listed(noisy)} was not timed again as a patch, though the machine was busy"
        if noisy and self._budget.has_time(otherwise, self.takes_s):
            self._say(f"timing again, as the machine was busy: {listed(noisy)}")
            more_lacking, more_broken = self._prove_written(noisy, texts, facts)
            lacking, broken = lacking | more_lacking, broken | more_broken
        failed = [
            names
            for names in sources
            if names not in lacking and (names in broken or self._fails_as_patch(names, searched[names]))
        ]
        if failed:
            why = "; ".join(f"{' + '.join(names)}: {known.patches[names].reason}" for names in failed)
            self._say(f"no patch: {why}")
            known.measured |= {names: searched[names] for names in failed}
            self._forget_proofs(failed)
            self._budget.phase("what fails as a patch", lambda: lacking.update(self._prove_unpatched(failed, facts)))
        return lacking

    def prove_at_once(self, names: ChangeNames, written: Sequence[Worker], facts: Facts, within_s: float) -> None:
        """Time a combination that nothing was known of and prove it, with all that its proof needs started beside it.

        It is chosen before anything was timed, so that it is not the luckiest of several, and need not be timed again
        in new processes.

        Args:
            names: the combination.
            written: the step as written, in two processes.
            facts: of the step.
            within_s: for so long a process may take to start.

        What fails for lack of memory, or as a patch, is left to the search: alone, or without a patch, it may run.
        """
        began = time.monotonic()
        texts = self._texts([names])
        sources = _sources(texts)
        job = self.job_of(names, sources)
        compared = self._compared({names: job}, sources)
        try:
            (worker,) = self.comparing.started([job], self.comparing.needed(compared, facts), within_s)
            time_finalists(self._session, written, running([worker]), self._rounds_s)
            self._session.leave([worker])
            if any(one.broken is not None for one in written):
                return
            result = timed_beside(written, worker, least_gain(*written))
            if self.is_unwritten(names, worker) or result.lacks_memory:
                return
            self._known.measured[names] = result
            if not is_faster(result) or self._known.gains()[names] < CLEARLY:
                return
            proof = self.comparing.proofs(compared, facts)[names]
            self.takes_s = time.monotonic() - began
            if proof.right or not (sources or self.comparing.lacked_memory):
                self._known.again.add(names)
                self._known.proofs[names], self._known.jobs[names] = proof, job
                self._known.patches |= {one: patch_of(text, result, proof) for one, text in texts.items()}
                self._say_proven([names])
            else:
                self._forget_proofs([names])
        finally:
            self.comparing.drop_early()

    def forget(self, failed: Mapping[ChangeNames, ChangeResult]) -> None:
        """Take combinations whose proof failed for lack of memory for what the search has shown of them."""
        self._known.measured |= failed
        self._known.again -= set(failed)
        self._forget_proofs(failed)
        patches = self._known.patches.items()
        self._known.patches = {names: patch for names, patch in patches if names not in failed}

    def _forget_proofs(self, failed: Mapping[ChangeNames, ChangeResult] | Sequence[ChangeNames]) -> None:
        self.comparing.right -= set(failed)
        proofs = self._known.proofs.items()
        self._known.proofs = {names: proof for names, proof in proofs if names not in failed}

    # ---------------------------------------------------------------- as patches, and without

    def sources_of(self, tries: Sequence[ChangeNames]) -> dict[ChangeNames, dict[str, str]]:
        """Return the changed sources of those combinations that can be written into the script."""
        return _sources(self._texts(tries))

    def job_of(self, names: ChangeNames, sources: Mapping[ChangeNames, dict[str, str]]) -> VariantJob:
        """Return a combination's job: as it stands in changed sources, or with changes applied from outside."""
        if names in sources:
            return replace(self._job, sources=sources[names], compiles=compiles(names))
        return replace(self._job, changes=names, compiles=compiles(names))

    def is_unwritten(self, names: ChangeNames, worker: Worker) -> bool:
        """Tell whether a combination fails as a patch, and note why: it is tried without one then."""
        broken = worker.broken
        if not worker.job.sources or broken is None or broken.is_passing or broken.lacks_memory or broken.has_ended:
            return False
        self.unwritten[names] = f"written into the source it fails: {broken.reason}"
        return True

    def check_written(self, written: Sequence[Worker]) -> None:
        """Raise an `AdviseError` where the step as written has failed."""
        for worker in written:
            if worker.broken is not None:
                text = f"as written fails while it is timed: {worker.broken.reason}"
                raise AdviseError(f"{self._job.configuration.target} {text}")

    def _texts(self, tries: Sequence[ChangeNames]) -> dict[ChangeNames, Written | str]:
        """Return for each combination what it is as a patch of the script, or why there is none."""
        target = self._job.configuration.target
        if self.built is None or not is_script(target):
            return {}
        places, settings = self.built.places, settings_of(self.built.facts)
        return {
            names: self.unwritten.get(names) or written_or_why(names, Path(target), places, settings) for names in tries
        }

    def _prove_written(
        self, finalists: Sequence[ChangeNames], texts: Mapping[ChangeNames, Written | str], facts: Facts
    ) -> tuple[set[ChangeNames], set[ChangeNames]]:
        """Prove combinations as they stand in the source, where they can, and note what became of their patches.

        Returns:
            Those that failed for lack of memory or time, and those whose patch broke before it was timed.
        """
        known, sources = self._known, _sources({names: texts[names] for names in finalists if names in texts})
        known.patches = {names: patch for names, patch in known.patches.items() if names not in finalists}
        lacking = self._prove_jobs({names: self.job_of(names, sources) for names in finalists}, facts, sources)
        broken = set(known.patches) & set(sources)  # of these it is noted already
        for names in finalists:
            text = texts.get(names)
            if text is not None and names not in broken:
                known.patches[names] = patch_of(text, known.measured[names], known.proofs.get(names))
        return lacking, broken

    def _prove_unpatched(self, failed: Sequence[ChangeNames], facts: Facts) -> set[ChangeNames]:
        if not self._budget.has_time("what fails as a patch was not proven without one", self.takes_s):
            return set()
        self._say(f"without a patch: {listed(failed)}")
        return self._prove_jobs({names: self.job_of(names, {}) for names in failed}, facts, {})

    def _fails_as_patch(self, names: ChangeNames, searched: ChangeResult) -> bool:
        """Tell whether a combination fails once it is written into the source, where it did not as it was searched."""
        known = self._known
        patch, again, proof = known.patches[names], known.measured[names], known.proofs.get(names)
        if patch.diff is not None or (proof is not None and proof.right is None) or is_noisy(again):
            return False
        return proof is not None or (searched.gain is not None and searched.gain.median >= CLEARLY)

    def _prove_jobs(
        self, jobs: Mapping[ChangeNames, VariantJob], facts: Facts, sources: Mapping[ChangeNames, dict[str, str]]
    ) -> set[ChangeNames]:
        """Measure jobs again and compare them; return those that failed for lack of memory or time.

        What the comparison needs starts beside them, where there are the cores and a gain is to be expected. A patch
        that breaks says nothing of the changes: what the search has shown of them stands.
        """
        began, known = time.monotonic(), self._known
        compared = self._compared(jobs, sources)
        gains = known.gains()
        clear = {names: compared[names] for names in jobs if gains.get(names, 0.0) >= CLEARLY}
        try:
            results = self._measure_again(jobs, self.comparing.needed(clear, facts))
            lacking = {names for names, one in results.items() if one.lacks_memory or one.is_passing}
            for names, one in results.items():
                if names in sources and one.gain is None:
                    known.patches[names] = Patch(reason=f"written into the source it fails: {one.broken}")
                else:
                    known.measured[names] = one
            faster = {names: compared[names] for names, one in results.items() if is_faster(one)}
            known.proofs |= self.comparing.proofs(faster, facts)
        finally:
            self.comparing.drop_early()
        if faster:
            self.takes_s = time.monotonic() - began
        if self.comparing.lacked_memory:
            lacking |= {names for names in faster if not known.is_right(names)}
        known.jobs |= {names: jobs[names] for names in faster}
        self._say_proven(list(faster))
        return lacking

    def _say_proven(self, some: Sequence[ChangeNames]) -> None:
        proven = self._known.proven()
        for names in some:
            if names in proven:
                self._say(f"proven: {' + '.join(names)}, {proven[names]:.2f} times as fast")

    def _compared(
        self, jobs: Mapping[ChangeNames, VariantJob], sources: Mapping[ChangeNames, dict[str, str]]
    ) -> dict[ChangeNames, Finalist]:
        """Return what is compared of some jobs: each as a whole, and what is exact of it."""
        exact = self.sources_of([part for names in sources if (part := exact_part(names))])
        return {names: (job, self._exact_job(names, names in sources, exact)) for names, job in jobs.items()}

    def _exact_job(
        self, names: ChangeNames, is_patched: bool, exact: Mapping[ChangeNames, dict[str, str]]
    ) -> VariantJob | None:
        """Return the job of what is exact in a combination; None where that is nothing, or all of it."""
        part = exact_part(names)
        return self.job_of(part, exact if is_patched else {}) if part and part != names else None

    # ---------------------------------------------------------------- in new processes

    @property
    def _rounds_s(self) -> float:
        return min(_LONGEST_S, _ROUNDS_SHARE * self._budget.seconds)

    def _measure_again(
        self, jobs: Mapping[ChangeNames, VariantJob], later: Sequence[VariantJob]
    ) -> dict[ChangeNames, ChangeResult]:
        """Measure in new processes: those that came first were lucky, too."""
        self._say(f"again, in new processes: {', '.join(' + '.join(names) for names in jobs)}")
        base, twin, *workers = self._timed_again(list(jobs.values()), later)
        if self.comparing.has_early and any(one.broken and one.broken.lacks_memory for one in (base, twin, *workers)):
            self.comparing.drop_early()  # there is too little memory beside what the comparison needs
            self._session.close([base, twin, *workers])
            base, twin, *workers = self._timed_again(list(jobs.values()), ())
        self.check_written([base, twin])
        least = least_gain(base, twin)
        self._known.note_written([base, twin])
        self._session.close([base, twin, *workers])
        # What was compiled then lies in caches now: how long the first start takes was seen in the search.
        return {
            names: replace(timed_beside([base, twin], worker, least), first_s=self._known.measured[names].first_s)
            for names, worker in zip(jobs, workers, strict=True)
        }

    def _timed_again(self, jobs: Sequence[VariantJob], later: Sequence[VariantJob]) -> list[Worker]:
        base, twin, *workers = self.comparing.started([self._job, self._job, *jobs], later)
        if base.broken is None and twin.broken is None:
            time_finalists(self._session, [base, twin], running(workers), self._rounds_s)
        return [base, twin, *workers]


def patch_of(text: Written | str, known: ChangeResult, proof: Judgement | None) -> Patch:
    """Return what became of some changes as they stand in the source; without a patch, why there is none."""
    if isinstance(text, str):
        return Patch(reason=text)
    if (why := _fails_in_source(known, proof)) is not None:
        return Patch(reason=why)
    gain = known.gain
    assert gain is not None
    return Patch(diff=text.diff, folder=str(text.root), ratio=gain.median, ci_low=gain.low, ci_high=gain.high)


def _fails_in_source(known: ChangeResult, proof: Judgement | None) -> str | None:
    """Return why changes are of no use once they are written into the source, or may be; None where they are."""
    if known.gain is None:
        return f"written into the source it fails: {known.broken}"
    if not is_faster(known):
        noisy = "whether it is faster once it is in the source is not decidable"
        return f"{noisy if is_noisy(known) else 'written into the source it is not faster'}: {verdict(known, None)[1]}"
    if proof is None:
        return "it was not compared with float64 as it stands in the source"
    if proof.right is None:
        why = proof.reason.removeprefix(f"{UNDECIDED}: ")
        return f"whether it is right once it is in the source is not decidable: {why}"
    return None if proof.right else f"written into the source it does something else: {proof.reason}"


def _sources(texts: Mapping[ChangeNames, Written | str]) -> dict[ChangeNames, dict[str, str]]:
    return {names: text.sources for names, text in texts.items() if isinstance(text, Written)}


def running(workers: Sequence[Worker]) -> list[Worker]:
    """Return those of some processes that have not failed."""
    return [worker for worker in workers if worker.broken is None]


def listed(some: Sequence[ChangeNames]) -> str:
    """Return the first of some combinations as text, and how many more there are."""
    shown = ", ".join(" + ".join(names) for names in some[:_LISTED])
    return f"{shown} and {len(some) - _LISTED} more" if len(some) > _LISTED else shown
