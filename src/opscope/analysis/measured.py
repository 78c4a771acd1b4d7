"""A trace joined with its capture's record: the one place that decides steps, bound, throughput and trust.

Samples are summarised here, by order statistics only.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.advised import Advice
from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.compiled.explained import explained
from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.unlike import in_short
from opscope.analysis.memory.answered import Answered, answered, cases_of
from opscope.analysis.memory.case import Case
from opscope.analysis.memory.traced import Recorded, cases_of_trace, joined_cases, recorded_in
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.links import Links, link
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.step_work import Window, step_of_activities, step_table
from opscope.analysis.trust.checks import (
    check_cpu_contention,
    check_limits,
    check_overhead,
    check_parts,
    check_same_steps,
    check_steady,
    made,
)
from opscope.analysis.trust.plausible import plausible
from opscope.analysis.trust.step_time import RUN_TO_RUN, RUN_TO_RUN_ON_CPU, steadiness_of, step_time
from opscope.analysis.verdict.bounds import bound_of
from opscope.analysis.verdict.step_evidence import LightEvidence, StepEvidence, busiest
from opscope.base.errors import BadInputError
from opscope.base.medians import median_rank
from opscope.base.parts import Stage, staged
from opscope.base.text import or_unknown
from opscope.base.units import NS_PER_S, format_bytes
from opscope.documents.compiled import CompileDocument
from opscope.documents.findings import Finding, StepBasis, StepFigure
from opscope.documents.trace import Measurement, SampleSummary, StepTime
from opscope.documents.verdict import Bound, BoundKind, Check, CheckName, Trust
from opscope.readers.reading import read
from opscope.readers.snapshot import read_snapshot
from opscope.record.capture import Benchmark, CaptureRecord
from opscope.trace.compile_log import CompileLog
from opscope.trace.model import Trace

# ---------------------------------------------------------------- the light pass
# Both ran the same steps. Launch order, names and grids tell which activity is which. So the steps of the light pass
# are known, although a profiler that records no ranges of the host marks none.


_IDENTITY = ("device", "kind", "name", "grid", "block")


class LightPass(Struct, frozen=True):
    """What a light pass says.

    Attributes:
        analysis: of the light pass, with the steps of the other pass; None where the two did not run the same.
        sentence: how they were joined, or why they could not be.
    """

    analysis: Analysis | None
    sentence: str


def light_pass(light: Trace, full: Analysis) -> LightPass:
    """Join a light pass with the analysis of the pass that has the names.

    Args:
        light: the trace of the light pass.
        full: the analysis of the other pass, whose trace marks steps.

    Raises:
        BadInputError: durations of the light pass add up to more than 64 bits of nanoseconds hold.
    """
    if light.source.damage is not None:
        return LightPass(None, f"The light pass is not whole: {light.source.damage}.")
    trace, _ = plausible(light)
    links = link(trace)
    own, theirs = _in_order(trace, links), _in_order(full.trace, full.links)
    table = step_table(full.trace)
    step = step_of_activities(full.trace, full.links, table)[theirs]
    theirs, step = theirs[step >= 0], step[step >= 0]
    # The light pass runs one more step in front, which tells where the first of the others begins.
    before, own = np.split(own, [max(len(own) - len(theirs), 0)])
    if not len(own) or not len(theirs):
        return LightPass(None, "The light pass could not be joined with the one with names: nothing was launched.")
    difference = _difference(trace, own, full.trace, theirs)
    if difference is not None:
        return LightPass(None, f"The light pass did not run the same as the one with names: {difference}")
    marked = _with_steps(trace, links, before, own, step, table["step"].to_list())
    analysis = analyze(marked, full.functions, graph_capture=full.graph_capture, as_marked=True)
    sentence = (
        f"Busy and idle time and steps are of a light pass (device activities only): its {len(own):,} activities have "
        "the names and grids of the other pass, in the order of their launches."
    )
    return LightPass(analysis, sentence)


def _in_order(trace: Trace, links: Links) -> Ints:
    """Return the activities with a recorded launch, in launch order; those of one graph launch as they ran."""
    rows = np.flatnonzero(links.activity_launch >= 0)
    launched = column(trace.launches, "start_ns")[links.activity_launch[rows]]
    order: Ints = rows[np.lexsort((column(trace.activities, "start_ns")[rows], launched))]
    return order


def _difference(one: Trace, first: Ints, other: Trace, second: Ints) -> str | None:
    """Return where two sequences of activities differ, in words; None where they do not."""
    if len(first) != len(second):
        return f"{len(first):,} activities were launched, not {len(second):,}."
    names = [trace.activities.select(pl.col(_IDENTITY).cast(pl.String)) for trace in (one, other)]
    # A null on either side, such as the grid of a copy, counts as equal.
    same = (names[0][first] == names[1][second]).select(pl.all_horizontal(pl.all().fill_null(True))).to_series()
    if same.all():
        return None
    at = int(same.arg_min() or 0)
    results = [
        or_unknown(str(table["name"][int(rows[at])])) for table, rows in zip(names, (first, second), strict=True)
    ]
    return f"the launch number {at + 1:,} is {results[0]}, not {results[1]}."


def _with_steps(trace: Trace, links: Links, before: Ints, rows: Ints, step: Ints, numbers: list[int]) -> Trace:
    """Return the trace with ranges of its steps, and without what was launched before them.

    A step ends where the host has waited for it, else with its last launch. What the host does after that belongs to
    the next step.
    """
    host = HostTime(trace, links)
    call = links.activity_launch[rows]
    start, thread = host.start[call], host.thread[call]
    result, place = np.unique(step, return_inverse=True)
    first, last = np.full(len(result), np.iinfo(np.int64).max), np.zeros(len(result), np.int64)
    np.minimum.at(first, place, start)
    np.maximum.at(last, place, host.end[call])
    following = np.append(first[1:], int(end_of(trace.launches).max()))
    earlier = host.end[links.activity_launch[before]]
    # One entry more in front, for the step before the first: where that ends, the first one begins.
    last, following = np.append(earlier.max(initial=0), last), np.append(first[0], following)
    waited = np.sort(host.end[host.drains])
    position = np.searchsorted(waited, following, side="right") - 1
    # The last wait before the next step launches anything, if it comes after this step's last launch.
    waits = (position >= 0) & (np.append(waited, 0)[position] > last)
    ends = np.where(waits, np.append(waited, 0)[position], last)
    begin, end = ends[:-1], ends[1:]
    if not len(before):
        begin[0] = first[0]
    ranges = pl.DataFrame(
        {
            "thread": np.full(len(result), int(np.bincount(thread).argmax())),
            "name": [f"ProfilerStep#{numbers[int(number)]}" for number in result],
            "start_ns": begin,
            "duration_ns": end - begin,
        }
    )
    schema = trace.annotations.schema
    ranges = ranges.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    kept = np.ones(trace.activities.height, np.bool_)
    kept[before] = False
    return replace(trace, annotations=ranges, activities=trace.activities.filter(kept))


# ---------------------------------------------------------------- what was measured


_NOTHING_ON_CPU: Final = "No rule for work on a CPU found anything that is worth more than 2 % of a step"
_FAILED: Final = "The findings failed to be computed (see the trust checks)."
_NO_VERDICT: Final = Bound(
    BoundKind.UNKNOWN, None, None, "What bounds the step is not known: that part of the analysis failed."
)


def summarise_samples(samples_ns: Sequence[int]) -> SampleSummary | None:
    """Summarise samples; None where there are none. The interval of the median is None where samples are too few."""
    if not samples_ns:
        return None
    ordered = np.sort(np.asarray(samples_ns, np.int64))
    p25, median, p75 = np.percentile(ordered, [25, 50, 75])
    rank = median_rank(len(ordered))
    return SampleSummary(
        count=len(ordered),
        median_ns=float(median),
        min_ns=int(ordered[0]),
        max_ns=int(ordered[-1]),
        p25_ns=float(p25),
        p75_ns=float(p75),
        median_low_ns=None if rank is None else int(ordered[rank]),
        median_high_ns=None if rank is None else int(ordered[-1 - rank]),
    )


class MemoryFiles(Struct, frozen=True):
    """What a capture has kept of a GPU's memory.

    Attributes:
        snapshot: the file; None where its name is refused.
        trace: the trace of the same steps; None where that is the capture's own, or unknown.
        error: why something of it cannot be read.
    """

    snapshot: Path | None
    trace: Path | None
    error: str | None = None


_SAME_PEAK: Final = 1.001  # what the profiler itself allocates between two steps is no other peak


class Measured(Struct, frozen=True, dict=True):
    """What one trace and its record say together; without a record, what the trace alone says.

    Attributes:
        analysis: of the trace.
        record: what the capture left beside it; None for a trace that opscope did not capture.
        step_time_ns: how long a step takes without a profiler, if the user says so; used where the record has no time.
        light: the light pass; None where the capture has none.
        kept: the files of the memory that the capture recorded; None where it has none.
        compile_log: what PyTorch wrote while it compiled, if the user has it.
    """

    analysis: Analysis
    record: CaptureRecord | None = None
    step_time_ns: float | None = None
    light: LightPass | None = None
    kept: MemoryFiles | None = None
    compile_log: CompileLog | None = None

    @property
    def timed(self) -> Analysis:
        """The analysis whose busy and idle time count: that of the light pass, if it ran the same."""
        return self.analysis if self.light is None or self.light.analysis is None else self.light.analysis

    @property
    def ran_on_gpu(self) -> bool | None:
        """Whether the workload ran on a GPU; None where only the trace can tell."""
        return None if self.record is None else self.record.ran_on_gpu

    @property
    def device_key(self) -> str:
        """The dispatch key of the device that the workload ran on: ``CUDA`` or ``CPU``."""
        on_gpu = self.analysis.has_device_times if self.ran_on_gpu is None else self.ran_on_gpu
        return "CUDA" if on_gpu else "CPU"

    @property
    def step_count(self) -> int:
        """How many steps the trace holds; 0 if unknown.

        Without CPU activities the profiler marks none, but the schedule knows; for a script only the marks tell.
        """
        by_schedule = self.record is not None and self.record.steady_state is None
        schedule = self.record.options.schedule if self.record and by_schedule else None
        return self.analysis.step_count or (schedule.active if schedule else 0)

    @property
    def window(self) -> Window:
        """What idle time refers to: the first device's window, or the host's where no device worked."""
        return self.analysis.devices[0].window if self.analysis.devices else self.analysis.window

    @cached_property
    def measurement(self) -> Measurement:
        """Times of whole steps, profiled and not, and what was measured with them."""
        return self.analysis.losses.part("times of steps", self._measurement, Measurement)

    def _measurement(self) -> Measurement:
        record, benchmark = self.record, self._benchmark
        step, profiled = self._step, summarise_samples(self._step_spans())
        sequences, tokens = self._throughput()
        return Measurement(
            cold_step_ns=record.cold_step_ns if record else None,
            step=step,
            wall=summarise_samples(benchmark.wall_ns) if benchmark else None,
            event=summarise_samples(benchmark.event_ns or ()) if benchmark else None,
            profiled_step=profiled,
            profiler_overhead_percent=None if step is None or profiled is None else _overhead(profiled, step),
            benchmark_reason=self._benchmark_reason(),
            synchronised=benchmark.synchronised if benchmark else True,
            between_marks=benchmark.between_marks if benchmark else False,
            own_clock=record.own_clock if record else None,
            memory=record.memory if record else None,
            clocks=benchmark.clocks if benchmark else None,
            clocks_reason=benchmark.clocks_reason if benchmark else "no unprofiled steps were run",
            sequences_per_second=sequences,
            tokens_per_second=tokens,
        )

    @cached_property
    def step_time(self) -> StepFigure | None:
        """What a step takes, as every screen shows it: unprofiled if that was measured, else recorded."""
        return self.analysis.losses.part("the step's time", self._step_time, lambda: None)

    def _step_time(self) -> StepFigure | None:
        if (step := self._step) is not None:
            return StepFigure(
                ns=step.ns,
                basis=StepBasis.UNPROFILED,
                steps=step.steps,
                low_ns=step.low_ns,
                high_ns=step.high_ns,
                sentence=step.sentence,
            )
        if self.step_time_ns is not None:
            return StepFigure(ns=self.step_time_ns, basis=StepBasis.UNPROFILED, steps=None)
        devices, steps = self.timed.devices, self.step_count
        window = busiest(devices).window if devices else self.analysis.window
        if not steps or not window.duration_ns:
            return None
        estimates = (one.of_step_ns for one in self.findings if one.of_step is StepBasis.ESTIMATED)
        ns = window.duration_ns / steps
        estimate = next(estimates, None)
        # A step is not longer without the profiler: there the replay has added time that no record explains.
        if estimate is not None and estimate > ns:
            estimate = None
        sentence = in_short(self.analysis.odd_steps, steps)
        return StepFigure(ns=ns, basis=StepBasis.RECORDED, steps=steps, estimate_ns=estimate, sentence=sentence)

    @cached_property
    def bound(self) -> Bound:
        """What bounds a step: by the unprofiled step time where there is one."""
        return self.analysis.losses.part("the verdict", lambda: bound_of(self.step_evidence), lambda: _NO_VERDICT)

    @cached_property
    def memory(self) -> Answered | None:
        """What fills the GPUs: by the capture's snapshot, else by the trace; None where neither recorded it."""
        return self.analysis.losses.part("what fills the memory", self._memory, lambda: None)

    def _memory(self) -> Answered | None:
        recording = None if self.record is None else self.record.memory_recording
        analysis, notes = self.analysis, [] if recording is None else [recording.sentence]
        recorded = Recorded(analysis.trace, analysis.links, analysis.origins, analysis.backward_pass)
        if self.kept is None:
            # Of a part of a trace, what lies around it is missing.
            cases = cases_of_trace(recorded) if analysis.trace.around is None else ()
            return answered(analysis.source.path, cases, notes) if cases or notes else None
        try:
            if self.kept.snapshot is None:
                raise BadInputError(str(self.kept.error))
            snapshot = read_snapshot(self.kept.snapshot)
        except BadInputError as error:
            return answered(str(self.kept.snapshot), (), (f"The memory that was recorded cannot be read: {error}",))
        try:
            recorded = recorded if self.kept.trace is None else recorded_in(read(self.kept.trace))
            cases, apart = joined_cases(snapshot, recorded)
        except BadInputError as error:
            cases, apart = (
                cases_of(snapshot),
                f"The trace of its steps cannot be read, so operators are unknown: {error}",
            )
        notes += [note for note in (apart, self._peak_elsewhere(cases)) if note is not None]
        return answered(snapshot.path, cases, notes)

    def _peak_elsewhere(self, cases: Sequence[Case]) -> str | None:
        """Say that the run had a higher peak than the recorded steps, on the device that its record is of."""
        record = self.record
        if record is None or record.framework is None or record.memory.allocated_bytes is None:
            return None
        device = int(record.framework.device.partition(":")[2] or 0)
        recorded = max((case.history.peak_bytes for case in cases if case.memory.device == device), default=0)
        if record.memory.allocated_bytes <= recorded * _SAME_PEAK:
            return None
        return f"Outside of these steps the run had a higher peak: {format_bytes(record.memory.allocated_bytes)}."

    @cached_property
    def compiled(self) -> CompileDocument | None:
        """What ``torch.compile`` did, in the steps; None without its log."""
        if (log := self.compile_log) is None:
            return None
        analysis = self.analysis
        explain = lambda: explained(log, analysis.trace, analysis.links, analysis.ranges)  # noqa: E731
        return analysis.losses.part("what torch.compile did", explain, lambda: None)

    @cached_property
    def advice(self) -> Advice:
        """What could make a step faster: by the unprofiled step time where there is one."""
        return self.analysis.losses.part("the findings", self._advice, Advice)

    def _advice(self) -> Advice:
        record = self.record
        recorded = record.configuration if record else None
        if not self.analysis.devices and self.bound.kind == BoundKind.HOST_ONLY:
            framework = record.framework if record else None
            # Ranks of one job share a machine's cores.
            alone = record is not None and framework is not None and record.rank is None
            threads = (framework.torch_threads, record.machine.cpu_count) if alone and framework and record else None
            return self.analysis.advice_on_cpu(self.step_evidence, recorded, threads)
        return self.analysis.advice_with(self.step_evidence, recorded)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What could make a step faster, the largest likely saving first."""
        return self.advice.findings

    @property
    def findings_reason(self) -> str | None:
        """Why there are no findings; None where there are."""
        if self.findings:
            return None
        return self.analysis.losses.part("why there are no findings", self._no_findings, lambda: _FAILED)

    def _no_findings(self) -> str | None:
        if any(loss.part.startswith(("the findings", "the rule")) for loss in self.analysis.losses.found):
            return _FAILED
        if not self.analysis.has_device_times:
            on_host = self.bound.kind == BoundKind.HOST_ONLY
            return self._nothing_on_cpu if on_host else self.device_times_reason
        if (incomplete := self.trust.failed(CheckName.FILE_IS_VALID)) is not None:
            return incomplete.sentence
        if self.step_evidence.is_capture:
            return "What a capture takes says nothing of a step."
        if self.analysis.knows_limits:
            return "No rule found anything that is worth more than 2 % of a step."
        return f"No rule found anything, but most rules could not look: {self._limits_unknown}."

    @property
    def _nothing_on_cpu(self) -> str:
        if self.analysis.trace.frames.height:
            return f"{_NOTHING_ON_CPU}."
        return f"{_NOTHING_ON_CPU}; lines of Python were not recorded (--with-stack)."

    @property
    def _limits_unknown(self) -> str:
        """Why the limit of most work is not known."""
        operators = self.analysis.trace.operators
        if not operators.height or operators["input_dims"].null_count() == operators.height:
            missing = "shapes" if operators.height else "operators and shapes"
            return f"record {missing} (record_shapes=True; opscope profile does)"
        # Of all reasons the one that concerns most device time is told.
        lacking: dict[str, int] = {}
        for row in self.analysis.limits_of_steps:
            if row.ideal_ns is None and row.reason:
                lacking[row.reason] = lacking.get(row.reason, 0) + row.device_ns
        reason = max(lacking, key=lambda text: lacking[text], default="no work has a model")
        return f"the limit of most work is not known ({reason.rstrip('.')})"

    @property
    def unprofiled_step_ns(self) -> float | None:
        """How long a step takes without a profiler; None where that was not measured."""
        return self.step_time_ns if self._step is None else self._step.ns

    @cached_property
    @staged(Stage.VERDICT)
    def step_evidence(self) -> StepEvidence:
        """What the verdict on a step rests on."""
        self.analysis.compute_for_verdicts()
        evidence = self.analysis.evidence_with(
            steps=self.step_count, wall_ns=self.unprofiled_step_ns, ran_on_gpu=self.ran_on_gpu
        )
        if (step := self._step) is not None:
            evidence = replace(
                evidence,
                typical_ns=step.typical_ns,
                data_ns=step.data_ns or 0.0,
                typical_data_ns=step.median_data_ns or 0.0,
                collecting_ns=step.collecting_ns or 0.0,
                between_ns=step.between_ns,
                between=step.between,
                long=step.long,
            )
        if self.timed is self.analysis:
            return evidence
        light, waits = busiest(self.timed.devices), self.timed.waits
        # Of devices that work for equally long, the passes may not agree which is the busiest.
        is_same = bool(evidence.devices) and light.device == busiest(evidence.devices).device
        if waits is None or not light.busy_in_window_ns or not is_same:
            return evidence
        return replace(evidence, light=LightEvidence(light, waits))

    @property
    def trust(self) -> Trust:
        """All checks: of the trace, of the machine while steps were timed, of the profiler's own cost.

        Read it last: it also says which parts of the analysis failed until then.
        """
        checks = self._trust
        parts = check_parts(self.analysis.losses)
        return checks if parts is None else Trust.of((*checks.checks, parts))

    @cached_property
    def _trust(self) -> Trust:
        further = (
            ("limits", self._check_limits),
            ("waits for a core", self._check_contention),
            ("whether timed and recorded steps are alike", self._check_same_steps),
            ("whether steps are steady", self._check_steady),
            ("the profiler's cost", self._check_overhead),
        )
        return Trust.of((*self.analysis.trust.checks, *made(further, self.analysis.losses)))

    def _check_limits(self) -> Check | None:
        rows = self.analysis.limits_of_steps
        return check_limits(rows) if any(row.ideal_ns is not None for row in rows) else None

    def _check_contention(self) -> Check | None:
        benchmark = self._benchmark
        if benchmark is None or benchmark.waited_for_cpu_ns is None:
            return None
        elapsed = benchmark.elapsed_ns or sum(benchmark.wall_ns) * benchmark.steps_each
        return check_cpu_contention(benchmark.waited_for_cpu_ns, elapsed)

    def _check_same_steps(self) -> Check | None:
        return check_same_steps(self.step_evidence.like_recorded_ns, self.step_evidence.not_theirs)

    def _check_steady(self) -> Check | None:
        if self.record is None or self.record.steady_state is None or self._benchmark is None:
            return None
        steps = steadiness_of(self._benchmark.wall_ns)
        return None if steps is None else check_steady(steps, self._busy_of_a_step)

    def _check_overhead(self) -> Check | None:
        overhead = self.measurement.profiler_overhead_percent
        return None if overhead is None else check_overhead(overhead, has_device=self.analysis.has_device_times)

    @property
    def device_times_reason(self) -> str | None:
        """Why there are no device times; None where there are."""
        record = self.record
        if self.analysis.has_device_times:
            return None
        if record is None:
            return "the trace holds no device activity"
        if not record.ran_on_gpu:
            return "nothing ran on a GPU"
        if "cuda" not in record.options.activities:
            return "CUDA activities were not collected"
        return "no device activity was recorded"

    @property
    def _benchmark(self) -> Benchmark | None:
        return self.record.benchmark if self.record else None

    @cached_property
    def _step(self) -> StepTime | None:
        if self._benchmark is None:
            return None
        # The interval of a script's own steps is widened, so that another run agrees with it (docs/metrics.md).
        return step_time(self._benchmark, self.run_to_run if self.interval_is_of_any_run else None)

    @property
    def interval_is_of_any_run(self) -> bool:
        """Whether the interval of the unprofiled step holds what runs differ by: that of a script's own steps does."""
        return self.record is not None and self.record.steady_state is not None

    @property
    def run_to_run(self) -> float:
        """The share by which the unprofiled steps of two runs of one program differ."""
        return RUN_TO_RUN if self.analysis.has_device_times else RUN_TO_RUN_ON_CPU

    @property
    def _busy_of_a_step(self) -> float | None:
        """How long the busiest device works per step, in nanoseconds; None where that is not known."""
        devices, steps = self.timed.devices, self.step_count
        return busiest(devices).busy_in_window_ns / steps if devices and steps else None

    def _step_spans(self) -> list[int]:
        # A step has an entry per device, but counts once.
        return list({step.index: step.span_ns for step in self.analysis.steps}.values())

    def _benchmark_reason(self) -> str | None:
        if self.record is None:
            return "a trace holds no unprofiled steps"
        if self._benchmark:
            return None
        if self.record.benchmark_reason is not None:
            return self.record.benchmark_reason
        if self.record.steady_state is not None:
            return "the script ended too soon, or --skip-benchmark was given"
        return "they were not run (--skip-benchmark, or a with block)"

    def _throughput(self) -> tuple[float | None, float | None]:
        """Return sequences and tokens per second; None where not known."""
        if self.record is None or self._step is None:
            return None, None
        per_second = NS_PER_S / self._step.ns
        counts = (self.record.workload.sequences_per_step, self.record.workload.tokens_per_step)
        sequences, tokens = (None if count is None else count * per_second for count in counts)
        return sequences, tokens


def _overhead(profiled: SampleSummary, step: StepTime) -> float:
    return 100 * (profiled.median_ns / step.median_ns - 1)
