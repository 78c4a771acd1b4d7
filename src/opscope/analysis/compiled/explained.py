"""Says what ``torch.compile`` did, with what the recorded steps show of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.compiled.graphs import REGION, GraphCalls, compilation_of, graph_calls, kernels_of_activities
from opscope.analysis.structure.arrays import Intervals, column, end_of, latest_around
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints, Nesting
from opscope.analysis.structure.step_work import activities_of_steps, step_table
from opscope.base.text import lazy_pattern
from opscope.base.units import format_count, format_ns, format_times
from opscope.documents.compiled import (
    BreakEntry,
    CompiledKernelEntry,
    CompileDocument,
    RecompilationEntry,
    RegionEntry,
)
from opscope.trace.compile_log import CodePlace, Compilation, CompileLog, FailedGuard, GraphBreak
from opscope.trace.model import Trace

_GUARDS: Final = "TorchDynamo Cache Lookup"
# What Dynamo calls the rest of a function after a break (``torch/_dynamo/resume_execution.py``).
_RESUMED: Final = lazy_pattern(r"^torch_dynamo_resume_in_.+_at_(\d+)$")
_MADE: Final = lazy_pattern(r"^dynamo_data: compile_id=((?:!\d+/)?\d+/\d+)")  # the profiler's record of a compilation


def explained(log: CompileLog, trace: Trace, links: Links, ranges: pl.DataFrame | None = None) -> CompileDocument:
    """Join what PyTorch wrote while it compiled with the recorded steps.

    Args:
        log: what it wrote.
        trace: the trace of the same process.
        links: the trace's links.
        ranges: the annotations of the whole recording, where steps that are unlike the others were left out of the
            trace: the ones that compile are.

    Raises:
        BadInputError: durations add up to more than 64 bits of nanoseconds hold.
    """
    return _Explained(log, _Steps.of(trace, links), _made_in_steps(trace, ranges)).document()


# ---------------------------------------------------------------- what the trace shows


class _Steps(Struct, frozen=True):
    """The compiled functions of the recorded steps, or of the whole trace if it marks none.

    Attributes:
        count: how many steps there are; 0 without.
        region: per execution of a compiled function, its number; by thread and start.
        thread, start, end: of these executions.
        own_ns: per execution the time that it is in no other one inside it.
        calls: the calls of graphs.
        inside: per call of a graph whether it is of these steps.
        guards_ns: how long guards were checked; None where the trace does not record that.
    """

    trace: Trace
    links: Links
    count: int
    region: tuple[str, ...]
    thread: Ints
    start: Ints
    end: Ints
    own_ns: Ints
    calls: GraphCalls
    inside: Bools
    activities: Ints
    guards_ns: int | None

    @classmethod
    def of(cls, trace: Trace, links: Links) -> "_Steps":
        """Find them."""
        table = step_table(trace)
        spans = Intervals.union_of(column(table, "start_ns"), column(table, "end_ns")) if table.height else None
        names, start = trace.operators["name"].cast(pl.String), column(trace.operators, "start_ns")
        within = _within(spans, start)
        numbers = names.str.extract(REGION.pattern)
        rows = np.flatnonzero(numbers.is_not_null().to_numpy() & within)
        rows = rows[np.lexsort((start[rows], column(trace.operators, "thread")[rows]))]
        thread, begin, end = column(trace.operators, "thread")[rows], start[rows], end_of(trace.operators)[rows]
        nesting, own = Nesting.of(thread, begin, end), end - begin
        inner = np.flatnonzero(nesting.parent >= 0)
        np.subtract.at(own, nesting.parent[inner], (end - begin)[inner])
        checks = np.flatnonzero((names == _GUARDS).to_numpy() & within)
        durations = column(trace.operators, "duration_ns")
        calls = graph_calls(trace, links)
        called = column(trace.annotations, "start_ns")[calls.row]
        return cls(
            trace=trace,
            links=links,
            count=table.height,
            region=tuple(numbers[rows].to_list()),
            thread=thread,
            start=begin,
            end=end,
            own_ns=own,
            calls=calls,
            inside=_within(spans, called),
            activities=activities_of_steps(trace, links, table) if table.height else np.arange(trace.activities.height),
            guards_ns=int(durations[checks].sum()) if len(checks) else None,
        )

    @property
    def of_what(self) -> str:
        """What the figures are of, in words."""
        return "a step" if self.count else "the recording"

    def of_step(self, value: float) -> float:
        """Return what a step has of a sum over all."""
        return value / max(self.count, 1)


def _made_in_steps(trace: Trace, ranges: pl.DataFrame | None) -> frozenset[str] | None:
    """Return the compilations that were made in any recorded step; None where the recording has no records of any."""
    whole = trace if ranges is None else replace(trace, annotations=ranges)
    made = whole.annotations["name"].cast(pl.String).str.extract(_MADE.pattern)
    if made.null_count() == len(made):
        return None
    table = step_table(whole)
    spans = Intervals.union_of(column(table, "start_ns"), column(table, "end_ns")) if table.height else None
    inside = _within(spans, column(whole.annotations, "start_ns"))
    return frozenset(made.filter(inside).drop_nulls().to_list())


def _within(spans: Intervals | None, time: Ints) -> Bools:
    return np.ones(len(time), np.bool_) if spans is None else latest_around(spans.start, spans.end, time) >= 0


class _Gap(Struct, frozen=True):
    """What lies between two calls of graphs in one call from outside.

    Attributes:
        ns: how long it is.
        begun: the compiled functions that begin in it.
        around: the innermost one that the graph before it is of.
    """

    ns: int
    begun: frozenset[str]
    around: str


def _gaps(steps: _Steps) -> Iterator[_Gap]:
    """Yield the time between graphs that one call of a compiled function runs."""
    rows = steps.calls.row[steps.inside]
    thread = column(steps.trace.annotations, "thread")[rows]
    start, end = column(steps.trace.annotations, "start_ns")[rows], end_of(steps.trace.annotations)[rows]
    nesting = Nesting.of(steps.thread, steps.start, steps.end)
    innermost = nesting.innermost_at(thread, start)
    outermost = innermost.copy()
    while (nested := np.flatnonzero((outermost >= 0) & (nesting.parent[outermost] >= 0))).size:
        outermost[nested] = nesting.parent[outermost[nested]]
    order = np.lexsort((start, thread))
    # The compiled functions are sorted by thread and start.
    of_thread = {
        int(number): np.searchsorted(steps.thread, [number, number + 1]).tolist() for number in np.unique(steps.thread)
    }
    for one, other in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        if outermost[one] < 0 or outermost[one] != outermost[other]:
            continue
        low, high = of_thread[int(thread[one])]
        first, last = low + np.searchsorted(steps.start[low:high], [end[one], start[other]])
        began = frozenset(steps.region[first:last])
        yield _Gap(max(int(start[other] - end[one]), 0), began, steps.region[innermost[one]])


# ---------------------------------------------------------------- the answers


_Alike = tuple[str | None, str, str, tuple[CodePlace, ...], tuple[str, ...]]


class _Explained(Struct, frozen=True, dict=True):
    log: CompileLog
    steps: _Steps
    made: frozenset[str] | None

    def document(self) -> CompileDocument:
        known = [one.duration_ns for one in self.log.compilations if one.duration_ns is not None]
        kernels, graphs_ns, known_ns = self._kernels()
        guards = self.steps.guards_ns
        return CompileDocument(
            log=self.log.path,
            of=self.steps.of_what,
            compilations=len(self.log.compilations),
            compile_ns=sum(known) if known else None,
            breaks=tuple(sorted(self._breaks(), key=lambda one: -(one.between_ns or 0.0))),
            recompilations=tuple(sorted(self._recompilations(), key=lambda one: -(one.compile_ns or 0))),
            skipped=self.log.skipped,
            recorded_sizes=len(self.log.recorded),
            guards_ns=None if guards is None else self.steps.of_step(guards),
            regions=tuple(sorted(self._regions(), key=lambda one: (-one.device_ns, -one.host_ns))),
            kernels=kernels,
            graphs_ns=graphs_ns,
            known_ns=known_ns,
            notes=tuple(self._notes()),
        )

    def _breaks(self) -> Iterator[BreakEntry]:
        places: dict[tuple[str, int], list[GraphBreak]] = defaultdict(list)
        for one in self.log.breaks:
            places[one.place.file, one.place.line].append(one)
        between = self._between({place: frozenset(one.id for one in several) for place, several in places.items()})
        for place, several in places.items():
            first = several[0]
            ids = tuple(dict.fromkeys(one.id for one in several))
            passes = self._passes(first.place, ids)
            entry = BreakEntry(
                place=first.place,
                reason=first.title,
                explanation=first.explanation,
                hints=tuple(dict.fromkeys(hint for one in several for hint in one.hints)),
                compilations=ids,
                passes=passes,
                between_ns=between.get(place),
                sentence=_break_sentence(first, passes, between.get(place), of=self.steps.of_what),
            )
            yield entry

    def _passes(self, place: CodePlace, ids: Sequence[str]) -> float | None:
        """Return how often a step runs a line at which its function's compilations end."""
        if not self.steps.region:
            return None
        runs, callers, own = Counter(self.steps.region), Counter[str](), 0
        for one in ids:
            callers[_frame(one)] += runs[one]
            of = self.compiled.get(one)
            if of is not None and (of.file, of.function) == (place.file, place.function):
                own += runs[one]
        # The line's function may have no operators, and so be no region: then its callers' graphs end there.
        return self.steps.of_step(own or max(callers.values(), default=0))

    def _between(self, ids: dict[tuple[str, int], frozenset[str]]) -> dict[tuple[str, int], float]:
        """Return per break the time between the graphs that it separates.

        A gap is the break's after which a function begins that resumes there, else the break's at which the functions
        end that begin in it, else that of the function before it. Several breaks share it.
        """
        resumed = self._resumed(ids)
        result: dict[tuple[str, int], float] = {}
        for gap in _gaps(self.steps):
            by_resumed = [place for number in gap.begun if (place := resumed.get(number)) is not None]
            by_begun = [place for place, own in ids.items() if gap.begun & own]
            by_around = [place for place, own in ids.items() if gap.around in own]
            those = sorted(set(by_resumed or by_begun or by_around))
            for place in those:
                result[place] = result.get(place, 0.0) + self.steps.of_step(gap.ns) / len(those)
        return result

    def _resumed(self, places: Iterable[tuple[str, int]]) -> dict[str, tuple[str, int]]:
        """Return per compilation of the rest of a function the break that it goes on after."""
        known = set(places)
        result = {}
        for one in self.log.compilations:
            match = None if one.place is None else _RESUMED.match(one.place.function)
            if one.place is not None and match and (one.place.file, int(match[1])) in known:
                result[one.id] = one.place.file, int(match[1])
        return result

    @cached_property
    def compiled(self) -> dict[str, CodePlace | None]:
        """Per compilation of the log the first line of its function."""
        return {one.id: one.place for one in self.log.compilations}

    def _recompilations(self) -> Iterator[RecompilationEntry]:
        compiled = {one.id: one for one in self.log.compilations}
        first = {_frame(one.id): one for one in reversed(self.log.compilations)}
        limited = {_frame(number) for number in self.log.limited}
        causes: dict[tuple[str, str], list[tuple[str, FailedGuard | None]]] = defaultdict(list)
        for one in self.log.recompilations:
            guard = one.guards[0]  # the newest compilation's: what differs from the call before
            causes[_frame(one.id), guard.text].append((one.id, guard))
        for frame in limited - {frame for frame, _ in causes}:
            causes[frame, ""].append(("", None))
        for (frame, text), several in causes.items():
            guards = [guard for _, guard in several if guard is not None]
            # What the limit stopped has a reason, but no record; text alone has no records at all.
            new = [one for one, _ in several if one in compiled or (not compiled and one not in self.log.limited)]
            times = [ns for one in new if one in compiled and (ns := compiled[one].duration_ns) is not None]
            of = first.get(frame)
            entry = RecompilationEntry(
                function="" if of is None or of.place is None else of.place.function,
                place=next((guard.place for guard in guards if guard.place is not None), _called(of)),
                guard=text,
                expected=tuple(dict.fromkeys(guard.expected for guard in guards if guard.expected is not None)),
                actual=tuple(dict.fromkeys(guard.actual for guard in guards if guard.actual is not None)),
                compilations=tuple(one for one in new if one),
                compile_ns=sum(times) if times else None,
                in_steps=None if self.made is None else len(self.made.intersection(new)),
                limited=frame in limited,
                hint=next((guard.hint for guard in guards if guard.hint), ""),
                sentence="",
            )
            yield replace(entry, sentence=_recompilation_sentence(entry, self.steps.of_what))

    def _regions(self) -> Iterator[RegionEntry]:
        steps, compiled = self.steps, {one.id: one for one in self.log.compilations}
        nesting = Nesting.of(steps.thread, steps.start, steps.end)
        launched = steps.activities[steps.links.activity_launch[steps.activities] >= 0]
        call = steps.links.activity_launch[launched]
        thread, time = (column(steps.trace.launches, name)[call] for name in ("thread", "start_ns"))
        region = nesting.innermost_at(thread, time)
        duration = column(steps.trace.activities, "duration_ns")[launched]
        backward = self._outside(launched[region < 0])
        device, count = np.zeros(len(steps.region), np.int64), np.zeros(len(steps.region), np.int64)
        np.add.at(device, region[region >= 0], duration[region >= 0])
        np.add.at(count, region[region >= 0], 1)
        executions: dict[str, list[int]] = defaultdict(list)
        for at, number in enumerate(steps.region):
            executions[number].append(at)
        for number, those in executions.items():
            of = compiled.get(number)
            yield RegionEntry(
                compilation=number,
                function="" if of is None or of.place is None else of.place.function,
                place=None if of is None else of.place,
                executions=steps.of_step(len(those)),
                host_ns=steps.of_step(int(steps.own_ns[those].sum())),
                device_ns=steps.of_step(int(device[those].sum())),
                elsewhere_ns=steps.of_step(backward[number]),
                launches=steps.of_step(int(count[those].sum())),
            )

    def _outside(self, activities: Ints) -> Counter[str]:
        """Return per compilation the time of what its graphs launch outside of compiled functions: backward passes."""
        ids: dict[str, set[str]] = defaultdict(set)
        for kernel in self.log.kernels:
            if kernel.graph is not None:
                ids[kernel.graph].add(kernel.id)
        calls = self.steps.calls
        result = Counter[str]()
        duration = column(self.steps.trace.activities, "duration_ns")
        for row, call in zip(activities.tolist(), self.steps.calls.of_activity[activities].tolist(), strict=True):
            own = None if call < 0 else compilation_of(calls.region[call], ids[calls.key[call]])
            if own is not None:
                result[own] += int(duration[row])
        return result

    def _kernels(self) -> tuple[tuple[CompiledKernelEntry, ...], float, float]:
        """Return the kernels with known lines, and what the device worked for graphs in all, and for these."""
        steps, duration = self.steps, column(self.steps.trace.activities, "duration_ns")
        of_graphs = steps.activities[steps.calls.of_activity[steps.activities] >= 0]
        known = kernels_of_activities(steps.trace, steps.links, steps.calls, self.log.kernels, steps.activities)
        alike: dict[_Alike, tuple[list[int], set[int]]] = defaultdict(lambda: ([], set()))
        for row, kernel in known.items():
            durations, numbers = alike[kernel.graph, kernel.id, kernel.name, kernel.places, kernel.operators]
            durations.append(int(duration[row]))
            numbers.add(kernel.number)
        entries = [
            CompiledKernelEntry(
                compilation=compiled,
                name=name,
                numbers=tuple(sorted(numbers)),
                places=places,
                operators=operators,
                activities=steps.of_step(len(durations)),
                device_ns=steps.of_step(sum(durations)),
            )
            for (_, compiled, name, places, operators), (durations, numbers) in alike.items()
        ]
        entries.sort(key=lambda one: -one.device_ns)
        with_lines = sum(one.device_ns for one in entries if one.places)
        return tuple(entries), steps.of_step(int(duration[of_graphs].sum())), with_lines

    def _notes(self) -> Iterator[str]:
        steps, log = self.steps, self.log
        if log.damage is not None:
            yield f"The log ends early: {log.damage}."
        processes = {process for process, _ in steps.trace.threads}
        unknown = sorted(set(steps.region) - set(self.compiled)) if self.compiled else []
        keys = {kernel.graph for kernel in log.kernels}
        if not steps.region and not len(steps.calls.row):
            yield "The trace has no compiled functions, so nothing that the log has can be placed in it."
        elif log.process is not None and str(log.process) not in processes:
            yield (
                f"The log is of process {log.process}, which the trace does not have. If it is of another run, what "
                "stands here is not true of the trace."
            )
        elif unknown:
            yield f"The log does not have the compilations {', '.join(unknown[:5])} of the trace: is it of another run?"
        elif log.kernels and steps.calls.key and not keys.intersection(steps.calls.key):
            yield "The log does not have the graphs that the trace calls: is it of another run?"
        if len(steps.calls.row) and not log.kernels:
            yield "Which lines the kernels compute is not known: the log has no code that Inductor wrote."
        if not log.tells_skipped:
            yield "Whether CUDA graphs were skipped is not known: only TORCH_LOGS=cudagraphs tells that."
        if log.broken:
            yield f"{format_count(log.broken)} records of the log cannot be read."


def _called(of: Compilation | None) -> CodePlace | None:
    return None if of is None else of.called_from


def _frame(compilation: str) -> str:
    """Return what all compilations of one function share in their numbers."""
    return compilation.rpartition("/")[0]


# ---------------------------------------------------------------- sentences


def _break_sentence(broken: GraphBreak, passes: float | None, between_ns: float | None, *, of: str) -> str:
    why = broken.title.rstrip(".") or "PyTorch could not trace this line"
    parts = [f"{why}."]
    if passes is not None:
        parts.append(f"The line runs {_times(passes)} in {of}.")
    if between_ns:
        spent = format_ns(between_ns)
        parts.append(f"Between the graphs that it separates the host spends {spent} of {of}, as recorded.")
    return " ".join(parts)


def _times(count: float) -> str:
    return "once" if count == 1 else f"{format_times(count)} times"


def _recompilation_sentence(entry: RecompilationEntry, of: str) -> str:
    name, times = entry.function or "A function", len(entry.compilations)
    guard = f" A guard failed: {_condition(entry)}." if entry.guard else ""
    parts = []
    if times:
        took = "" if entry.compile_ns is None else f", which took {format_ns(entry.compile_ns)}"
        often = "once more" if times == 1 else f"{times:,} times more"
        parts.append(f"{name} was compiled {often}{took}.{guard}")
    elif entry.limited:
        parts.append(f"{name} was not compiled again.{guard}")
    else:
        parts.append(f"{name} was to be compiled again, but the log has no record of that.{guard}")
    if entry.in_steps:
        where = "the recorded steps" if of == "a step" else of
        parts.append(f"{entry.in_steps} of {times} took place in {where}." if times > 1 else f"That was in {where}.")
    if entry.limited:
        parts.append("PyTorch reached its limit of compilations: calls that none of them fits run uncompiled.")
    return " ".join(parts)


def _condition(entry: RecompilationEntry) -> str:
    if not entry.expected:
        return entry.guard
    values = [*entry.expected, *entry.actual]
    shown = ", ".join(dict.fromkeys(values[:4])) + (", and others" if len(dict.fromkeys(values)) > 4 else "")
    return f"{entry.guard} (values: {shown})"
