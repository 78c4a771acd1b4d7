"""Rules for steps of which no device works: what fills the step, as far as records of the host show it.

Times are those of the main thread, of recorded steps, scaled to an unprofiled step where one was measured. Each moment
belongs to the innermost record around it: an operator, a function of the user's Python, a named range, or nothing.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.advised import Advice, as_findings
from opscope.analysis.advice.context import LEAST_SHARE, Draft, Range, StepWords, words_for
from opscope.analysis.advice.rule import RuleDescription, count_of, derived, measured, nanoseconds, percent, share_of
from opscope.analysis.advice.timed import what_comes_between, what_is_collected, what_takes_long
from opscope.analysis.idle.causes import loads_in_workers
from opscope.analysis.structure.arrays import Intervals, column, nesting_of
from opscope.analysis.structure.call_tree import self_time
from opscope.analysis.structure.modules import is_users_frame
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import step_table, window_of
from opscope.analysis.verdict.step_evidence import StepEvidence
from opscope.base.parts import Losses
from opscope.base.text import lazy_pattern, or_unknown
from opscope.base.units import NS_PER_US, format_ns
from opscope.documents.findings import Rule, Source, StepBasis, Where
from opscope.record.configuration import Configuration
from opscope.trace.model import Trace

_LOADS: Final = lazy_pattern(r"DataLoader.*__next__")
_STEP: Final = lazy_pattern(r"^ProfilerStep#\d+$")
# Ranges of libraries, and those between the boundaries of a script's steps (opscope.collect.script.windows).
_OWN_RANGE: Final = lazy_pattern(
    r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader|torch/|nn\.Module|autograd::|## |opscope: after )"
)
_TOP_LEVEL: Final = lazy_pattern(r"^(.*)\(\d+\): <module>$")
_DROPS: Final = ("aten::bernoulli_", "aten::native_dropout")
_IN_PARALLEL: Final = lazy_pattern(
    r"^aten::(_?addmm|mm|bmm|baddbmm|convolution|_convolution|mkldnn_|.*attention|linear)"
)
_BACKWARD: Final = lazy_pattern(r"^autograd::engine::evaluate_function")
_LONG_SHARE: Final = 0.1  # of a step: a line or range below it is not a place to begin
_NOT_RECORDED: Final = 0.3  # of a step: more without any record is worth to be recorded
_MOST_PLACES: Final = 2
_SHORT_NS: Final = 10 * NS_PER_US  # an operator call: below it most of it is dispatch, not work (docs/findings.md)
_SHORT_FILL: Final = 0.5  # of a step
_MANY_ITEMS: Final = 50  # in a step: a loop over elements
_GRAPH_NODES: Final = 10  # in a step
_PER_CORE: Final = 2  # PyTorch starts a thread for each physical core, which the system counts twice

CPU_STATEMENTS: Final = (
    RuleDescription(
        Rule.INPUT_PIPELINE,
        f"on a CPU: the main thread is within a DataLoader for {percent(LEAST_SHARE)} of a step",
        "0 to all of it: workers that load ahead need cores that the step leaves idle",
    ),
    RuleDescription(
        Rule.HOST_WORK,
        f"on a CPU: a function of the user's (stacks), or a named range, takes {percent(_LONG_SHARE)} of a step "
        f"outside of any operator; or nothing is recorded of {percent(_NOT_RECORDED)} of it",
        "0 to all of it",
    ),
    RuleDescription(
        Rule.DISPATCH_BOUND,
        f"on a CPU: operator calls of less than {format_ns(_SHORT_NS)} fill {percent(_SHORT_FILL)} of a step",
        "0 to all of their time",
    ),
    RuleDescription(
        Rule.IDLE_CORES,
        "on a CPU: PyTorch has threads for less than half of the cores, in products, convolutions or attention",
        "0 to their time, less what it takes with a thread for each core",
    ),
    RuleDescription(
        Rule.DOUBLE_PRECISION,
        f"on a CPU: operators on float64 tensors take {percent(LEAST_SHARE)} of a step",
        "0 to half of their time: float32 has half the bytes, and twice as many numbers in a vector register",
    ),
    RuleDescription(
        Rule.SCALAR_READS,
        f"on a CPU: a step calls item() {_MANY_ITEMS} times and more, for {percent(LEAST_SHARE)} of its time",
        "0 to their time",
    ),
    RuleDescription(
        Rule.ACTIVE_DROPOUT,
        "on a CPU: dropout draws numbers in steps without a backward pass",
        "0 to all of the time in which it draws",
    ),
    RuleDescription(
        Rule.UNUSED_GRAPH,
        f"on a CPU: steps without a backward pass make {_GRAPH_NODES} nodes of autograd's graph and more",
        "unknown: memory, and the time to make them",
        "another finding is there",
    ),
)


class CpuSteps(Struct, frozen=True, kw_only=True, dict=True):
    """Recorded steps that ran on a CPU.

    Attributes:
        trace: the trace.
        self_ns: per operator its self time; null where that cannot be told.
        evidence: what the verdict on a step rests on.
        threads: how many threads PyTorch uses within an operator, and how many cores the machine has; None if unknown.
        recorded: what opscope ran; None for a trace that it did not record.
        losses: notes the rules that fail.
    """

    trace: Trace
    self_ns: pl.Series
    evidence: StepEvidence
    threads: tuple[int, int] | None
    recorded: Configuration | None
    losses: Losses

    @property
    def steps(self) -> int:
        """How many steps the trace marks; 0 where it marks none."""
        return self.evidence.steps

    @property
    def unprofiled_ns(self) -> float | None:
        """How long an unprofiled step takes; None where that is not known."""
        return self.evidence.wall_ns if self.steps else None

    @property
    def words(self) -> StepWords:
        """The words for a step."""
        return words_for(self.steps)

    @cached_property
    def span(self) -> tuple[int, int]:
        """From when to when the recording is looked at: its steps, else what operators span."""
        window = window_of(self.trace)
        begin = int(window.spans.start[0]) if len(window.spans.start) else 0
        end = int(window.spans.end[-1]) if len(window.spans.end) else 0
        return begin, end

    @property
    def recorded_ns(self) -> float:
        """How long a recorded step takes."""
        return max(window_of(self.trace).duration_ns, 1) / (self.steps or 1)

    @property
    def step_ns(self) -> float:
        """The step that savings refer to."""
        return self.unprofiled_ns or self.recorded_ns

    @property
    def step_kind(self) -> StepBasis:
        """The kind of step that savings refer to."""
        if self.unprofiled_ns is not None:
            return StepBasis.UNPROFILED
        return StepBasis.RECORDED if self.steps else StepBasis.RECORDING

    def per_step(self, recorded_ns: float) -> float:
        """Return a time of the whole recording as one of a step, scaled to an unprofiled one where that is shorter."""
        scale = min(self.step_ns / self.recorded_ns, 1.0)
        return recorded_ns / (self.steps or 1) * scale

    @cached_property
    def main(self) -> int:
        """The number of the thread that the steps run on: where they are marked, else where most operators ran."""
        marked = step_table(self.trace)
        if marked.height:
            return int(marked["thread"][0])
        operators = self.trace.operators.with_columns(self_ns=self.self_ns)
        busiest = operators.group_by("thread").agg(pl.col("self_ns").sum()).sort("self_ns", "thread")
        return int(busiest["thread"][-1]) if busiest.height else -1

    @cached_property
    def within(self) -> Bools:
        """Per operator whether it begins in the steps."""
        begin, end = self.span
        start = column(self.trace.operators, "start_ns")
        return (start >= begin) & (start < end)

    @cached_property
    def operators(self) -> pl.DataFrame:
        """The operators of the steps on the main thread, with ``self_ns``."""
        timed = self.trace.operators.with_columns(self_ns=self.self_ns.fill_null(0))
        return timed.filter(pl.Series(self.within) & (timed["thread"] == self.main))

    @cached_property
    def trains(self) -> bool:
        """Whether a backward pass ran in the steps, on whatever thread."""
        names = self.trace.operators.filter(pl.Series(self.within))["name"].unique().cast(pl.String)
        return any(_BACKWARD.match(name) for name in names)

    @cached_property
    def graph_nodes(self) -> int:
        """How many nodes autograd's graph was given in the steps: its numbers grow by one for each."""
        numbers = self.operators["sequence_number"].drop_nulls()
        numbers = numbers.filter(numbers >= 0)
        return int(numbers.max()) - int(numbers.min()) if len(numbers) else 0  # type: ignore[arg-type]

    @cached_property
    def shares(self) -> "_Shares":
        """What each moment of the main thread belongs to."""
        return _Shares.of(self)


class _Shares(Struct, frozen=True):
    """What the main thread's time in the steps belongs to, in nanoseconds of the whole recording.

    Attributes:
        loading: within a DataLoader.
        frames: per function of the user's: in Python, outside of operators.
        ranges: per named range of the user's: outside of operators, and of functions.
        nothing: of which no record tells anything.
    """

    loading: int
    frames: dict[str, int]
    ranges: dict[str, int]
    nothing: int

    @classmethod
    def of(cls, steps: CpuSteps) -> "_Shares":
        trace, (begin, end) = steps.trace, steps.span
        frames, ranges, operators = trace.frames, trace.annotations, trace.operators
        tables = [
            table.select("thread", pl.col("name").cast(pl.String), "start_ns", "duration_ns").with_columns(
                kind=pl.lit(kind)
            )
            for kind, table in enumerate((frames, ranges, operators))
        ]
        every = pl.concat(tables).with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
        every = every.filter((pl.col("thread") == steps.main) & (pl.col("end_ns") > begin) & (pl.col("start_ns") < end))
        names = every["name"].unique()
        users = {name for name in names if is_users_frame(name) and not _is_pythons(name)}
        loads = {name for name in names if _LOADS.search(name)}
        is_load = every["name"].is_in(list(loads)) & (every["kind"] != 0)
        kept = every.filter(is_load | (every["kind"] != 0) | every["name"].is_in(list(users)))
        kept = kept.filter(~kept["name"].str.contains(_STEP.pattern) | (kept["kind"] != 1))
        clipped = kept.with_columns(
            start_ns=pl.col("start_ns").clip(begin, end), end_ns=pl.col("end_ns").clip(begin, end)
        ).with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
        nesting = nesting_of(clipped)
        own, kind = self_time(nesting), clipped["kind"].to_numpy()
        load = (clipped["name"].is_in(list(loads)) & (clipped["kind"] != 0)).to_numpy()
        inside = _below(nesting.parent, load)
        window = window_of(trace)
        covered = Intervals.union_of(nesting.start, nesting.end).within(window.spans).length
        loading = int((nesting.end - nesting.start)[load & ~inside].sum())
        texts = clipped["name"].to_list()
        results: tuple[dict[str, int], dict[str, int]] = {}, {}
        unnamed = 0
        for place in np.flatnonzero((kind < 2) & ~load & ~inside & (own > 0)).tolist():
            name = texts[place]
            if kind[place] == 1 and _OWN_RANGE.match(name):
                unnamed += int(own[place])
                continue
            results[kind[place]][name] = results[kind[place]].get(name, 0) + int(own[place])
        return cls(loading, results[0], results[1], max(window.duration_ns - covered, 0) + unnamed)


def _is_pythons(frame: str) -> bool:
    """Tell whether a frame is of Python's own library, whose files are named from its folder on: json/encoder.py."""
    return re.split(r"[/.(]", frame, maxsplit=1)[0] in sys.stdlib_module_names


def _below(parent: Ints, marked: Bools) -> Bools:
    """Return per slice whether any slice around it is marked."""
    inside = np.zeros(len(parent), bool)
    around = parent.copy()
    while (going := around >= 0).any():
        inside[going] |= marked[around[going]]
        around[going] = parent[around[going]]
    return inside


_Find = Callable[[CpuSteps], Iterator[Draft]]


def advice_on_cpu(steps: CpuSteps) -> Advice:
    """Return what could make steps on a CPU faster."""
    return Advice(as_findings(steps, _drafts(steps)))


def _drafts(steps: CpuSteps) -> list[Draft]:
    """Return what rules find, the largest likely saving first."""
    results = [
        draft for rule in _RULES for draft in steps.losses.part(_name(rule), partial(_found, rule, steps), list[Draft])
    ]
    results = [replace(draft, saving=draft.saving.within(steps.step_ns)) for draft in results]
    results = [draft for draft in results if draft.saving.high >= LEAST_SHARE * steps.step_ns]
    results.sort(key=lambda draft: -draft.rank)
    return results or steps.losses.part(_name(_unused_graph), partial(_found, _unused_graph, steps), list[Draft])


def _found(rule: _Find, steps: CpuSteps) -> list[Draft]:
    return list(rule(steps))


def _name(rule: _Find) -> str:
    return f"the rule {getattr(rule, '__name__', rule)}"


def _loading(steps: CpuSteps) -> Iterator[Draft]:
    time = steps.evidence.data_ns or steps.per_step(
        steps.shares.loading
    )  # what was measured says more than a few steps
    if time < LEAST_SHARE * steps.step_ns:
        return
    source = Source.UNPROFILED if steps.evidence.data_ns else Source.HOST
    has_workers = loads_in_workers(steps.trace)
    yield Draft(
        rule=Rule.INPUT_PIPELINE,
        title=f"The main thread spends {format_ns(time)} {steps.words.of} in a DataLoader",
        where=Where(annotation="enumerate(DataLoader)"),
        saving=Range(0.0, time),
        derivation="none of it, where the step leaves no core idle (low), to all of it (high)",
        evidence=(
            measured(nanoseconds(time), " in a DataLoader, ", share_of(time, steps.step_ns), " of it", source=source),
        ),
        todo="give the loader more workers" if has_workers else "load batches in worker processes",
        action="DataLoader(..., num_workers=N) with a larger N than now, or less work for each sample"
        if has_workers
        else "DataLoader(..., num_workers=N, persistent_workers=True), and less work for each sample",
        wrong_if="the step uses all cores: workers then take them from it",
        claims=frozenset({"loading"}),
    )


def _python(steps: CpuSteps) -> Iterator[Draft]:
    for name, time in _largest(steps.shares.frames):
        took = steps.per_step(time)
        if took < _LONG_SHARE * steps.step_ns:
            continue
        # The line of a frame that was open when recording began is where it stood then, not what takes the time.
        whole_file = _TOP_LEVEL.match(name)
        what = or_unknown(name) if whole_file is None else f"Code at the top level of {or_unknown(whole_file[1])}"
        yield Draft(
            rule=Rule.HOST_WORK,
            title=f"{what} takes {format_ns(took)} {steps.words.of} in Python, outside of any operator",
            where=Where(python=name) if whole_file is None else Where(),
            saving=Range(0.0, took),
            derivation="none of it to all of it: it depends on what that function does",
            evidence=(
                measured(
                    nanoseconds(took),
                    ", ",
                    share_of(took, steps.step_ns),
                    " of it, as recorded with stacks",
                    source=Source.HOST,
                ),
            ),
            todo="move this Python out of the step" if whole_file is None else "name parts of the step",
            action="do it once before the steps, in workers of a DataLoader, or by operators on whole tensors"
            if whole_file is None
            else "put parts of the loop into functions, or name them with record_function, and record again",
            wrong_if="recording stacks slows Python down more than operators: compare the unprofiled step",
            claims=frozenset({f"python {name}"}),
        )
    stacks = steps.trace.frames.height > 0
    for name, time in _largest(steps.shares.ranges):
        took = steps.per_step(time)
        if took < _LONG_SHARE * steps.step_ns:
            continue
        yield Draft(
            rule=Rule.HOST_WORK,
            title=f"The range {or_unknown(name)} takes {format_ns(took)} {steps.words.of} in which no operator runs",
            where=Where(annotation=name),
            saving=Range(0.0, took),
            derivation="none of it to all of it: it depends on what runs there",
            evidence=(measured(nanoseconds(took), ", ", share_of(took, steps.step_ns), " of it", source=Source.HOST),),
            todo="name parts of it" if stacks else "record stacks to see its lines",
            action="name parts of it with torch.profiler.record_function"
            if stacks
            else "record stacks to see its lines (opscope profile --with-stack; with_stack=True)",
            wrong_if="that is work that must be done in each step",
            claims=frozenset({f"range {name}"}),
        )


def _nothing_recorded(steps: CpuSteps) -> Iterator[Draft]:
    # Collections of garbage have a finding of their own.
    took = steps.per_step(steps.shares.nothing) - steps.evidence.collecting_ns
    if took < _NOT_RECORDED * steps.step_ns:
        return
    stacks = steps.trace.frames.height > 0
    yield Draft(
        rule=Rule.HOST_WORK,
        title=f"Nothing was recorded on the main thread for {format_ns(took)} {steps.words.of}: Python, waiting, input "
        "or output",
        where=Where(),
        saving=Range(0.0, took),
        derivation="none of it to all of it: what runs then was not recorded",
        evidence=(measured(nanoseconds(took), ", ", share_of(took, steps.step_ns), " of it", source=Source.HOST),),
        todo="name parts of the step" if stacks else "record stacks to see its lines",
        action="name parts of the step with torch.profiler.record_function"
        if stacks
        else "record stacks to see which lines that is (opscope profile --with-stack; with_stack=True)",
        wrong_if="operators run on other threads meanwhile",
        claims=frozenset({"nothing"}),
    )


def _garbage(steps: CpuSteps) -> Iterator[Draft]:
    yield from what_is_collected(steps.evidence, steps.step_ns, steps.words)


def _long(steps: CpuSteps) -> Iterator[Draft]:
    if steps.unprofiled_ns is not None:
        yield from what_takes_long(steps.evidence, steps.step_ns, steps.words)


def _between(steps: CpuSteps) -> Iterator[Draft]:
    if steps.unprofiled_ns is not None:
        yield from what_comes_between(steps.evidence, steps.step_ns, steps.words)


def _short_operators(steps: CpuSteps) -> Iterator[Draft]:
    own = column(steps.operators.select(pl.col("self_ns").cast(pl.Int64)), "self_ns")
    calls = own[(own > 0) & (own < _SHORT_NS)]
    time = steps.per_step(float(calls.sum()))
    if time < _SHORT_FILL * steps.step_ns:
        return
    number = len(calls) / (steps.steps or 1)
    yield Draft(
        rule=Rule.DISPATCH_BOUND,
        title=f"{number:,.0f} short operator calls {steps.words.each} take {format_ns(time)}",
        where=Where(),
        saving=Range(0.0, time),
        derivation="none of it to all of it: how much of a short call is work, no record tells",
        evidence=(
            measured(
                count_of(number), " calls of less than ", nanoseconds(_SHORT_NS), " take ",
                share_of(time, steps.step_ns), f" {steps.words.of_the}", source=Source.HOST,
            ),
        ),
        todo="torch.compile, or larger tensors",
        action="torch.compile, or fewer operators on larger tensors",
        wrong_if="recording makes short calls longer: compare the unprofiled step",
        claims=frozenset({"short"}),
    )  # fmt: skip


def _idle_cores(steps: CpuSteps) -> Iterator[Draft]:
    if steps.threads is None:
        return
    threads, cores = steps.threads
    if _PER_CORE * threads >= cores:
        return
    names = steps.operators["name"].cast(pl.String)
    time = steps.per_step(float(steps.operators["self_ns"].filter(names.str.contains(_IN_PARALLEL.pattern)).sum()))
    most = time * (1 - threads / cores)
    if most < LEAST_SHARE * steps.step_ns:
        return
    yield Draft(
        rule=Rule.IDLE_CORES,
        title=f"PyTorch uses {threads} of {cores} cores in products, convolutions and attention",
        where=Where(),
        saving=Range(0.0, most),
        derivation="nothing, where their sizes are small (low), to what as many threads as cores save (high)",
        evidence=(measured(nanoseconds(time), f" {steps.words.of} in them", source=Source.HOST),),
        todo="let PyTorch use more threads",
        action=f"torch.set_num_threads({cores // _PER_CORE}), or OMP_NUM_THREADS",
        wrong_if="other programs, or workers of a DataLoader, use the other cores",
        claims=frozenset({"threads"}),
    )


def _double_precision(steps: CpuSteps) -> Iterator[Draft]:
    inputs = steps.operators.select(pl.col("input_types", "input_dims").cast(pl.String))
    kinds = {row: _has_doubles(*row) for row in inputs.unique().iter_rows()}
    doubles = steps.operators.filter(pl.Series([kinds[row] for row in inputs.iter_rows()], dtype=pl.Boolean))
    time = steps.per_step(float(doubles["self_ns"].sum()))
    if time < LEAST_SHARE * steps.step_ns or not doubles.height:
        return
    by_name = doubles.group_by(pl.col("name").cast(pl.String)).agg(pl.col("self_ns").sum()).sort("self_ns", "name")
    dearest = str(by_name["name"][-1])
    yield Draft(
        rule=Rule.DOUBLE_PRECISION,
        title=f"Operators on float64 tensors take {format_ns(time)} {steps.words.of}",
        where=Where(operator=dearest),
        saving=Range(0.0, time / 2),
        derivation="nothing to half of their time: float32 has half the bytes",
        evidence=(measured(nanoseconds(time), f" {steps.words.of} with float64 inputs", source=Source.HOST),),
        todo="use float32",
        action="use float32: tensors made of numpy arrays are float64, and so is what they are combined with",
        wrong_if="the results need more than 24 bits of precision",
        claims=frozenset({"double"}),
    )


def _has_doubles(types: str | None, dims: str | None) -> bool:
    """Tell whether an operator takes a float64 tensor; numbers of Python are recorded as such, without dimensions."""
    if not types or not dims or '"double"' not in types:
        return False
    return any(kind == "double" and shape for kind, shape in zip(json.loads(types), json.loads(dims), strict=False))


def _scalar_reads(steps: CpuSteps) -> Iterator[Draft]:
    items = steps.operators.filter(pl.col("name").cast(pl.String) == "aten::item")
    number = items.height / (steps.steps or 1)
    time = steps.per_step(float(items["duration_ns"].sum()))
    if number < _MANY_ITEMS or time < LEAST_SHARE * steps.step_ns:
        return
    yield Draft(
        rule=Rule.SCALAR_READS,
        title=f"item() is called {number:,.0f} times {steps.words.each}",
        where=Where(operator="aten::item"),
        saving=Range(0.0, time),
        derivation="none of their time to all of it",
        evidence=(measured(count_of(number), " calls take ", nanoseconds(time), source=Source.HOST),),
        todo="read all values at once: tolist()",
        action="compute on whole tensors, or take all values at once with tolist()",
        wrong_if="the values steer the program one by one",
        claims=frozenset({"items"}),
    )


def _active_dropout(steps: CpuSteps) -> Iterator[Draft]:
    if steps.trains:
        return
    names = pl.col("name").cast(pl.String)
    drawing = steps.operators.filter(names == _DROPS[1])
    if not drawing.height:  # native_dropout contains the other
        drawing = steps.operators.filter(names == _DROPS[0])
    time = steps.per_step(float(drawing["duration_ns"].sum()))
    # Where autograd's graph is made, a backward pass may follow that was not recorded.
    if not time or steps.graph_nodes or not steps.operators.filter(names == "aten::dropout").height:
        return
    yield Draft(
        rule=Rule.ACTIVE_DROPOUT,
        title=f"Dropout is active in steps without a backward pass, {format_ns(time)} {steps.words.of}",
        where=Where(operator=str(drawing["name"].cast(pl.String)[0])),
        saving=Range(0.0, time),
        derivation="none to all of the time of the operators that draw",
        evidence=(measured(nanoseconds(time), " in operators that draw random numbers", source=Source.HOST),),
        todo="call model.eval() before inference",
        action="model.eval() before inference: with dropout its results are random, too",
        wrong_if="random results are wanted, as for Monte Carlo dropout",
        claims=frozenset({"dropout"}),
    )


def _unused_graph(steps: CpuSteps) -> Iterator[Draft]:
    nodes = steps.graph_nodes / (steps.steps or 1)
    if steps.trains or nodes < _GRAPH_NODES:
        return
    yield Draft(
        rule=Rule.UNUSED_GRAPH,
        title=f"Each step adds {nodes:,.0f} nodes to autograd's graph and runs no backward pass",
        where=Where(),
        saving=Range(0.0, 0.0),
        derivation="what making them costs, no record tells",
        evidence=(derived(count_of(nodes), " numbers of autograd are given out per step", source=Source.HOST),),
        todo="run under torch.inference_mode()",
        action="with torch.inference_mode(): around inference",
        wrong_if="a backward pass follows after what was recorded",
    )


def _largest(times: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(times.items(), key=lambda one: (-one[1], one[0]))[:_MOST_PLACES]


_RULES: Final[tuple[_Find, ...]] = (
    _loading,
    _python,
    _nothing_recorded,
    _between,
    _long,
    _garbage,
    _short_operators,
    _idle_cores,
    _double_precision,
    _scalar_reads,
    _active_dropout,
)
