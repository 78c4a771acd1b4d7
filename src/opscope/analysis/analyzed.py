"""Everything that is computed from one trace."""

import functools
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.analysis.advice.advised import Advice, advice_on
from opscope.analysis.advice.context import Recording
from opscope.analysis.costs.graph_nodes import NOT_ATTRIBUTED, REPLAYED, graph_table, replayed_operators
from opscope.analysis.costs.limits import Rebuild, limit_rows, mostly_modelled, old_convolutions, peaks_of
from opscope.analysis.costs.sums import (
    NO_OPERATOR,
    MemoryUse,
    called_operators,
    counter_sums,
    inputs_of_activities,
    kernel_table,
    launch_shapes,
    memory_use,
    operator_tables,
    with_unlinked,
)
from opscope.analysis.idle.causes import compiles
from opscope.analysis.idle.gaps import Places, longest_gaps
from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.steps import Waits, idle_steps, operator_time_on_host, phase_times, waits_of
from opscope.analysis.idle.timeline import DeviceTimeline, device_timelines
from opscope.analysis.idle.unlike import WORK, odd_steps
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.build import replayed_steps as replayable_steps
from opscope.analysis.replay.path import critical_operators
from opscope.analysis.structure.annotations import annotation_table
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.autograd import BackwardPass, backward_table
from opscope.analysis.structure.launches import MOSTLY, LaunchSummary, captured_table, captures_of, summarise_launches
from opscope.analysis.structure.links import Links, link, operator_self_cpu
from opscope.analysis.structure.modules import Origins, callers, module_table, recomputed
from opscope.analysis.structure.nesting import Floats, Ints
from opscope.analysis.structure.origin import with_named_devices
from opscope.analysis.structure.step_work import Window, activities_of_steps, step_table, window_of
from opscope.analysis.structure.streams import stream_table
from opscope.analysis.structure.unmarked import with_unmarked_steps
from opscope.analysis.trust.checks import CheckInput, check_trace
from opscope.analysis.trust.plausible import Implausible, plausible
from opscope.analysis.verdict.bounds import bound_of
from opscope.analysis.verdict.iterations import iteration_table
from opscope.analysis.verdict.step_evidence import (
    DEVICE_ONLY,
    OPERATORS,
    SHAPES,
    STACKS,
    ProfilerCost,
    StepEvidence,
    busiest,
)
from opscope.base.errors import UsageError
from opscope.base.parts import Losses, Stage, staged
from opscope.base.processes import together
from opscope.base.summary import Bar, Summarised, Summary
from opscope.base.text import lazy_pattern
from opscope.base.units import format_ns, format_share
from opscope.documents.findings import Finding
from opscope.documents.limits import LimitRow
from opscope.documents.trace import CounterEntry, GapRow, IterationRow, OddStep, Step
from opscope.documents.verdict import Bound, IdleCause, Trust
from opscope.knowledge.categories import classifier_of
from opscope.knowledge.costs import ConvolutionSizes
from opscope.knowledge.devices import Device
from opscope.knowledge.kernels.kinds import short_name
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.formats import NSYS, format_named
from opscope.readers.reading import read
from opscope.record.configuration import Configuration
from opscope.trace.model import Trace, TraceSource

_SHOWN = 5  # operators in a summary


# Names such as lr_warmup and warmup_steps are about a schedule, not about warming up the device.
WARM_UP: Final = lazy_pattern(
    r"(?<![a-z])(?<!lr[-_ ])warm[-_ ]?up(?![-_ ]?(?:steps|ratio|lr|iters|schedul))", re.IGNORECASE
)
_OPERATOR: Final = lazy_pattern(r"[a-z_0-9]+::\w+$")
# Operators and ranges that only a program with a GPU has.
_OF_GPUS: Final = lazy_pattern(r"^nccl:|^nccl\w*::|pin_memory$|^aten::cudnn_|^aten::miopen_|^aten::_mps_")


class Accounting(Struct, frozen=True):
    """Where the device time went. Operators + unlinked = all activities, to the nanosecond."""

    operators_ns: int
    unlinked_ns: int
    unlinked_activities: int
    activities_ns: int

    @property
    def holds(self) -> bool:
        """Whether the identity holds."""
        return self.operators_ns + self.unlinked_ns == self.activities_ns

    @property
    def sentence(self) -> str:
        """The identity to the nanosecond; where it does not hold, it says so: an error must not go unseen."""
        return (
            f"Accounting: operators {self.operators_ns:,} ns + unlinked {self.unlinked_ns:,} ns "
            f"({self.unlinked_activities:,} {'activity' if self.unlinked_activities == 1 else 'activities'}) "
            f"{'=' if self.holds else 'IS NOT'} device sum {self.activities_ns:,} ns"
        )


class Analysis(Summarised, Struct, frozen=True, dict=True):
    """Everything opscope computes from one trace. Times are nanoseconds.

    Attributes:
        source: the trace's file.
        trace: the records that the analysis rests on; those that cannot be true are left out.
        functions: the operators of the PyTorch that ran, or of a release.
        links: from activity to launch to operator, as row numbers into the trace's tables.
        window: the window that the host's figures refer to.
        operator_time_ns: time in that window in which any operator ran on the host (union over threads).
        host: what the threads of the host did.
        devices: one timeline per device that worked, by device number.
        operators: ``name``, ``category``, ``calls``, ``self_device_ns``, ``total_device_ns``, ``self_cpu_ns``,
            ``total_cpu_ns``, ``activities``; the most expensive first.
        shapes: the same per ``input_dims`` and ``input_types`` (JSON text).
        kernels: one row per activity name and device.
        kernels_of: one row per ``operator``, activity name and launch geometry.
        categories: ``category``, ``calls``, ``activities``, ``self_device_ns``, ``self_cpu_ns``.
        launches: how the host fed the devices.
        steps: the recorded steps, per device.
        odd_steps: further steps, which are unlike these: nothing else but ``ranges`` is of them.
        ranges: the annotations of the whole recording, where steps were left out; None where none were.
        steps_from: how steps are known that the trace does not mark, as a sentence; None where it marks them.
        phases: device sum per training phase; None where the trace shows no training step.
        accounting: the identity of the device times.
        trust: all checks.
        graph_capture: another trace, in which the graphs were captured; None where that is this trace, or unknown.
        rebuild: gives the costs of calls that no rule knows, by asking PyTorch; None to leave them unknown.
        losses: the parts that failed; see `opscope.base.parts`.
    """

    source: TraceSource
    trace: Trace
    functions: NativeFunctions
    links: Links
    window: Window
    operator_time_ns: int
    host: HostTime
    devices: tuple[DeviceTimeline, ...]
    operators: pl.DataFrame
    shapes: pl.DataFrame
    kernels: pl.DataFrame
    kernels_of: pl.DataFrame
    categories: pl.DataFrame
    launches: LaunchSummary
    steps: tuple[Step, ...]
    phases: dict[str, int] | None
    accounting: Accounting
    trust: Trust
    graph_capture: Trace | None = None
    rebuild: Rebuild | None = None
    losses: Losses = field(default_factory=Losses)
    odd_steps: tuple[OddStep, ...] = ()
    ranges: pl.DataFrame | None = None
    steps_from: str | None = None

    @property
    def step_count(self) -> int:
        """How many steps the trace marks, without those that are unlike the others; 0 where it marks none."""
        return len({step.index for step in self.steps})

    @functools.cached_property
    def bound(self) -> Bound:
        """What bounds the steps, as far as the trace alone tells."""
        return self.bound_with(steps=self.step_count, wall_ns=None, ran_on_gpu=None)

    def bound_with(self, *, steps: int, wall_ns: float | None, ran_on_gpu: bool | None) -> Bound:
        """Return what bounds the steps, with what is known beside the trace; see `StepEvidence`."""
        return bound_of(self.evidence_with(steps=steps, wall_ns=wall_ns, ran_on_gpu=ran_on_gpu))

    def evidence_with(self, *, steps: int, wall_ns: float | None, ran_on_gpu: bool | None) -> StepEvidence:
        """Return what the verdict rests on, with what is known beside the trace.

        Args:
            steps: how many steps the trace holds; 0 if unknown.
            wall_ns: median time of an unprofiled step in nanoseconds; None if not measured.
            ran_on_gpu: whether the workload's device is a GPU; None if only the trace can tell.
        """
        return StepEvidence(
            trust=self.trust,
            devices=self.devices,
            waits=self.waits,
            cost=self.profiler_cost,
            window=self.window,
            operator_time_ns=self.operator_time_ns,
            steps=steps,
            wall_ns=wall_ns,
            ran_on_gpu=ran_on_gpu,
            captures=captures_of(self.trace),
            host_covered=self._host_covered,
            gpu_sign=self._gpu_sign,
            warm_up=self._warm_up,
            host_elsewhere_ns=self._host_elsewhere_ns,
            cold_elsewhere_ns=self._cold_elsewhere_ns,
            cold_first=self._cold_first,
            of_pytorch=format_named(self.source.format).is_pytorch,
            lacks_cuda=format_named(self.source.format) is NSYS and not self.trace.activities.height,
        )

    @functools.cached_property
    def _host_elsewhere_ns(self) -> int:
        """How long the host runs operators, or calls that do not wait, outside the busiest device's window."""
        if not self.devices:
            return 0
        works = np.flatnonzero(~self.host.waits)
        operators = self.trace.operators
        spans = Intervals.union_of(
            np.concatenate([column(operators, "start_ns"), self.host.start[works]]),
            np.concatenate([end_of(operators), self.host.end[works]]),
        )
        waits = Intervals.union_of(self.host.start[self.host.waits], self.host.end[self.host.waits])
        if len(spans):
            # An operator in which the host waits for the device is not work of the host's.
            spans = spans.within(waits.gaps(int(spans.start[0]), int(spans.end[-1])))
        return spans.length - spans.within(busiest(self.devices).window.spans).length

    @functools.cached_property
    def _cold_elsewhere_ns(self) -> int:
        """How much of that is calls before the window that create a context or load code, such as a first launch."""
        if not self.devices:
            return 0
        cold = np.flatnonzero(self.host.cold & (self.host.start < busiest(self.devices).window.start_ns))
        if not len(cold):
            return 0
        spans = Intervals.union_of(self.host.start[cold], self.host.end[cold])
        return spans.length - spans.within(busiest(self.devices).window.spans).length

    @property
    def _cold_first(self) -> OddStep | None:
        """The first step of a recording that marks none, where it is unlike the others and takes most of it."""
        first = self.odd_steps[0] if self.steps_from is not None and self.odd_steps else None
        if first is None or first.index:
            return None
        # Within an operator, the host chooses or compiles its kernel; in a range or a line it may do anything.
        in_operator = _OPERATOR.match(first.where or "")
        if first.cause not in (WORK, IdleCause.COLD_START, IdleCause.COMPILING) and not in_operator:
            return None
        others = self.step_count * first.typical_ns + sum(one.span_ns for one in self.odd_steps[1:])
        return first if first.span_ns > MOSTLY * (first.span_ns + others) else None

    @functools.cached_property
    def _warm_up(self) -> float:
        """The share of the busiest device's window in ranges that call themselves a warm-up."""
        ranges = self.trace.annotations
        rows = np.flatnonzero(names_that(ranges, lambda name: WARM_UP.search(name) and not compiles(name)))
        if not self.devices or not len(rows):
            return 0.0
        window = busiest(self.devices).window
        spans = Intervals.union_of(column(ranges, "start_ns")[rows], end_of(ranges)[rows])
        return spans.within(window.spans).length / max(window.duration_ns, 1)

    @functools.cached_property
    def _gpu_sign(self) -> str | None:
        """An operator that only a program with a GPU runs; None where none was recorded."""
        operators = self.trace.operators
        rows = np.flatnonzero(names_that(operators, _OF_GPUS.search))
        return str(operators["name"][int(rows[0])]) if len(rows) else None

    @functools.cached_property
    def _host_covered(self) -> float | None:
        """The share of the busiest device's window in which any operator, call or frame is recorded on the host.

        None where nothing of the host was recorded, and where the share says nothing: if several steps are marked and
        each issues operators on its thread, the host was recorded, however little time the operators take.
        """
        tables = [t for t in (self.trace.operators, self.trace.launches, self.trace.frames) if t.height]
        if not self.devices or not tables or self._issues_in_each_step:
            return None
        window = busiest(self.devices).window
        spans = Intervals.union_of(
            np.concatenate([column(table, "start_ns") for table in tables]),
            np.concatenate([end_of(table) for table in tables]),
        )
        return spans.within(window.spans).length / max(window.duration_ns, 1)

    @property
    def _issues_in_each_step(self) -> bool:
        steps = step_table(self.trace)
        issued = self.trace.operators.select("start_ns", "thread").sort("start_ns")
        # Joins each operator to the last step begun before it on its thread; it lies in the step if that still runs.
        within = issued.join_asof(steps.sort("start_ns"), on="start_ns", by="thread", check_sortedness=False)
        busy = within.filter(pl.col("start_ns") < pl.col("end_ns"))["step"].n_unique()
        return steps.height > 1 and busy == steps["step"].n_unique()

    @functools.cached_property
    def waits(self) -> Waits | None:
        """What the busiest device waited for; None where none worked."""
        return waits_of(self.trace, self.host, busiest(self.devices)) if self.devices else None

    @property
    def profiler_cost(self) -> ProfilerCost:
        """By how much recording this trace may have slowed the host down."""
        if self.trace.frames.height:
            return STACKS
        if not self.trace.operators.height:
            return DEVICE_ONLY
        recorded = self.trace.operators["input_dims"]
        return OPERATORS if recorded.null_count() == len(recorded) else SHAPES

    def compute_for_verdicts(self) -> None:
        """Compute the properties that verdicts and trust need, on two threads for a large trace."""
        works = [lambda: self._ahead("waits", "_host_covered", "_host_elsewhere_ns")]
        if self.rebuild is None:  # to ask PyTorch takes long, and only what runs on this thread can be interrupted
            works.append(lambda: self._ahead("limits_of_steps"))
        together(works, events=self.source.event_count)

    def _ahead(self, *names: str) -> None:
        """Compute properties; one that fails does so again where it is needed."""
        for name in names:
            with suppress(Exception):
                getattr(self, name)

    def compute_for_documents(self) -> None:
        """Compute the properties that every document needs, on two threads for a large trace."""
        # Nothing that both threads need is computed here: it would be computed twice.
        together(
            (lambda: self._ahead("backward", "annotations"), lambda: self._ahead("memory", "graph_nodes", "gaps")),
            events=self.source.event_count,
        )

    @functools.cached_property
    def backward_pass(self) -> BackwardPass:
        """What autograd's engine ran."""
        return BackwardPass.of(self.trace, self.links)

    @functools.cached_property
    def callers(self) -> pl.DataFrame | None:
        """The Python lines that operators were called from; None where no stacks were recorded."""
        return callers(self.trace, self.links, self.origins.frame)

    @functools.cached_property
    def origins(self) -> Origins:
        """Where each operator call comes from, as far as stacks were recorded."""
        return Origins.of(self.trace, self.backward_pass)

    @functools.cached_property
    def counters(self) -> tuple[CounterEntry, ...]:
        """What was sampled of devices within the steps; without steps, in the recording."""
        return counter_sums(self.trace, self.window.spans if self.steps else None)

    @functools.cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        """Allocations on the host and per device; empty where they were not recorded."""
        return memory_use(self.trace, self.links)

    @functools.cached_property
    def modules(self) -> pl.DataFrame | None:
        """Device time per ``nn.Module`` instance; None where no modules were recorded."""
        return module_table(self.trace, self.links, self.backward_pass)

    @functools.cached_property
    def annotations(self) -> pl.DataFrame:
        """Device time per named range of the program, nested; empty where none was recorded."""
        return annotation_table(self.trace, self.links, self.backward_pass)

    @functools.cached_property
    def backward(self) -> pl.DataFrame:
        """Device time per forward operator and the backward node that belongs to it; empty without a backward pass."""
        return backward_table(self.trace, self.links, self.backward_pass)

    @functools.cached_property
    def streams(self) -> pl.DataFrame:
        """One row per device and stream."""
        return stream_table(self.trace)

    @functools.cached_property
    def graph_nodes(self) -> pl.DataFrame:
        """One row per node of a replayed CUDA graph, with the operators that were captured where that was recorded."""
        return graph_table(self.trace, self.links, self.graph_capture)

    @functools.cached_property
    def captured(self) -> pl.DataFrame:
        """What was captured into CUDA graphs, by operator and inputs; empty where nothing was."""
        return captured_table(self.trace, self.links)

    @functools.cached_property
    def gaps(self) -> tuple[GapRow, ...]:
        """The longest gaps of all devices, with their causes and what the host was doing."""
        return longest_gaps(self.trace, self.places, self.devices)

    @functools.cached_property
    def places(self) -> Places:
        """Where the threads of the host were at any time."""
        return Places(self.trace, self.links)

    @functools.cached_property
    def limits(self) -> tuple[LimitRow, ...]:
        """All device work with how long it would take at the device's limits; the most time lost first."""
        return self._limits_over(self.launch_shapes)

    @functools.cached_property
    def limits_of_steps(self) -> tuple[LimitRow, ...]:
        """`limits` of what the steps launched; of everything where no steps are marked."""
        return self._limits_of(self._work_of_steps)

    @functools.cached_property
    def limits_needed(self) -> tuple[LimitRow, ...]:
        """`limits_of_steps` without what the backward pass computes again of the forward pass."""
        work = self._work_of_steps
        return self._limits_of(work[recomputed(self.trace, self.links, self.backward_pass)[work] < 0])

    @functools.cached_property
    def _convolutions(self) -> frozenset[ConvolutionSizes]:
        return old_convolutions(self.trace.operators)

    @property
    def knows_limits(self) -> bool:
        """Whether most of the steps' device time has a model, so that rules on kernels can look at it."""
        return mostly_modelled(self.limits_of_steps)

    def _limits_of(self, work: Ints) -> tuple[LimitRow, ...]:
        """Return the limits of some activities, by their rows."""
        if len(work) == self.trace.activities.height:
            return self.limits
        return self._limits_over(self._shapes_of(work))

    def _limits_over(self, shapes: pl.DataFrame) -> tuple[LimitRow, ...]:
        peaks = peaks_of(self.trace.devices)
        return limit_rows(shapes, self.functions, peaks, self.rebuild, self._convolutions)

    def _shapes_of(self, work: Ints) -> pl.DataFrame:
        if len(work) == self.trace.activities.height:
            return self.launch_shapes
        return launch_shapes(self.trace, self.links, self._inputs, work)

    @functools.cached_property
    def launch_shapes_of_steps(self) -> pl.DataFrame:
        """`launch_shapes` of what the steps launched; of everything where no steps are marked."""
        return self._shapes_of(self._work_of_steps)

    @functools.cached_property
    def _work_of_steps(self) -> Ints:
        """Return the rows of the activities that the steps launched; all rows where no steps are marked."""
        steps = step_table(self.trace)
        if not steps.height:
            return np.arange(self.trace.activities.height)
        return activities_of_steps(self.trace, self.links, steps)

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What could make a step faster, as far as the trace alone tells; the largest likely saving first."""
        return self.findings_with(self.evidence_with(steps=self.step_count, wall_ns=None, ran_on_gpu=None), None)

    def findings_with(self, evidence: StepEvidence, recorded: Configuration | None) -> tuple[Finding, ...]:
        """Return the findings of `advice_with`."""
        return self.advice_with(evidence, recorded).findings

    def advice_with(self, evidence: StepEvidence, recorded: Configuration | None) -> Advice:
        """Return what could make a step faster, with what is known beside the trace.

        Args:
            evidence: what the verdict rests on.
            recorded: what opscope ran; None for a trace that it did not record.
        """
        recording = Recording(
            trace=self.trace,
            links=self.links,
            host=self.host,
            work=self._work_of_steps,
            rows=self.limits_of_steps,
            evidence=evidence,
            inputs=lambda: self._inputs,
            places=lambda: self.places,
            backward=lambda: self.backward_pass,
            replayable=lambda: self.replayable,
            recorded=recorded,
            losses=self.losses,
        )
        return advice_on(recording)

    def advice_on_cpu(
        self, evidence: StepEvidence, recorded: Configuration | None, threads: tuple[int, int] | None
    ) -> Advice:
        """Return what could make steps faster of which no device works.

        Args:
            evidence: as for `advice_with`.
            recorded: likewise.
            threads: how many PyTorch uses within an operator, and how many cores there are; None if that is unknown.
        """
        from opscope.analysis.advice.on_cpu import CpuSteps, advice_on_cpu  # traces of a device need none of this

        steps = CpuSteps(
            trace=self.trace,
            self_ns=operator_self_cpu(self.links),
            evidence=evidence,
            threads=threads,
            recorded=recorded,
            losses=self.losses,
        )
        return advice_on_cpu(steps)

    @functools.cached_property
    def replayable(self) -> Steps | None:
        """A few steps as a graph that can be replayed; None where nothing can be, or a step is too long for it."""
        try:
            return replayable_steps(self.trace, self.links)
        except UsageError:
            return None

    @functools.cached_property
    def critical_operators(self) -> pl.DataFrame:
        """Per operator how much of a step's critical path is about it, and what a microsecond less of it saves.

        Raises:
            UsageError: a step is too long to be replayed, or nothing was recorded that could be.
        """
        steps = replayable_steps(self.trace, self.links)
        if steps is None:
            raise UsageError("nothing could be replayed: no operator, call or work of a device was recorded")
        return critical_operators(steps)

    @functools.cached_property
    def iterations(self) -> tuple[IterationRow, ...]:
        """The iterations of a server, by kind and size; empty where no range is one."""
        return iteration_table(self.trace, self.links, self.devices, self.waits)

    @functools.cached_property
    def operators_and_unlinked(self) -> pl.DataFrame:
        """`operators` and rows for what no operator launched, so that ``self_device_ns`` adds up to the device sum.

        Replays of CUDA graphs have rows of their own: of the captured operators, where those are known.
        """
        return with_unlinked(self.operators, self._unlinked)

    @functools.cached_property
    def _unlinked(self) -> pl.DataFrame:
        """The activities that no operator launched; ``charged_to`` says which operator a replay is charged to."""
        charged = self.losses.part(
            "operators behind replays",
            lambda: replayed_operators(self.trace, self.links, self.graph_nodes),
            lambda: pl.Series([None] * self.trace.activities.height, dtype=pl.String),
        )
        unlinked = pl.Series(self.links.activity_operator, dtype=pl.Int64) < 0
        return self.trace.activities.with_columns(charged_to=charged).filter(unlinked)

    def longest_unlinked(self, count: int) -> pl.DataFrame:
        """Return device work without a recorded operator by name, and what graphs replayed by captured operator.

        Args:
            count: how many rows, those that took most time first.
        """
        known = pl.col("charged_to").is_not_null() & (pl.col("charged_to") != NOT_ATTRIBUTED)
        named = self._unlinked.with_columns(
            replayed=pl.col("charged_to").is_not_null(),
            operator=pl.when(known).then(pl.col("charged_to").str.strip_suffix(f" {REPLAYED}")),
            kernel=pl.when(~known).then("name"),
        )
        sums = (pl.len().alias("activities"), pl.col("duration_ns").sum().alias("device_ns"))
        rows = named.group_by("operator", "kernel", "replayed").agg(sums)
        name = pl.coalesce("operator", pl.col("kernel").cast(pl.String)).alias("name")
        rows = rows.select(name, "activities", "device_ns", "replayed")
        return rows.sort(["device_ns", "name"], descending=[True, False]).head(count)

    @property
    def mostly_unlinked(self) -> bool:
        """Whether no operator is known to have launched most of the device's work."""
        return 2 * self.accounting.unlinked_ns > self.accounting.activities_ns

    @property
    def shapes_and_unlinked(self) -> pl.DataFrame:
        """`shapes` and rows for what no operator launched."""
        return with_unlinked(self.shapes, self._unlinked)

    @functools.cached_property
    def launch_shapes(self) -> pl.DataFrame:
        """Which inputs of which operators launched which kernels."""
        return launch_shapes(self.trace, self.links, self._inputs)

    @functools.cached_property
    def _inputs(self) -> pl.DataFrame:
        return inputs_of_activities(self.trace, self.links)

    @functools.cached_property
    def called_operators(self) -> pl.DataFrame:
        """Which operators call which directly, as recorded."""
        return called_operators(self.trace, self.links)

    @functools.cached_property
    def sequences(self) -> pl.DataFrame:
        """What streams run in the same order again and again; see `sequence_table`."""
        from opscope.analysis.costs.sequences import sequence_table  # one table needs it

        classifier, of_calls = classifier_of(self.functions), self._call_bytes()
        return sequence_table(self.trace, self.links, classifier, of_calls, self.step_count)

    def _call_bytes(self) -> Floats:
        """Return per activity the least bytes that its call moves, once for each call; nan where that is not known."""
        keys = ("operator", "device", "input_dims", "input_types", "input_strides")
        inputs = self._inputs.with_columns(device=self.trace.activities["device"].cast(pl.Int64))
        rows = inputs.select(pl.col(name).cast(pl.Int64 if name == "device" else pl.String) for name in keys)
        known = pl.DataFrame(
            [(*(getattr(row, name) for name in keys), row.least_bytes) for row in self.limits],
            schema={**{name: rows.schema[name] for name in keys}, "least_bytes": pl.Float64},
            orient="row",
        )
        # Calls that differ in what is not a key here, such as plain numbers, may move different amounts.
        known = known.group_by(keys).agg(
            pl.when(pl.col("least_bytes").n_unique() == 1).then(pl.col("least_bytes").first()).first()
        )
        result = rows.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")["least_bytes"]
        call = np.where(self.links.activity_operator >= 0, self.links.activity_operator, -1)
        order = np.lexsort((column(self.trace.activities, "start_ns"), call))
        again = np.zeros(len(call), np.bool_)
        again[order[1:]] = (np.diff(call[order]) == 0) & (call[order[1:]] >= 0)
        return np.where(again, 0.0, result.fill_null(np.nan).to_numpy())

    @property
    def has_device_times(self) -> bool:
        """Whether any device activity was recorded; without any, device times are unknown, not 0."""
        return self.kernels.height > 0

    def summary(self) -> Summary:
        """Return the verdict, the trust in it, and the operators and device work that cost most."""
        column, whole = ("self_device_ns", self.accounting.activities_ns)
        if not self.has_device_times:
            column, whole = "self_cpu_ns", int(self.operators["self_cpu_ns"].sum())
        costs = [self.operators.select("name", pl.col(column).alias("time"))]
        if self.has_device_times:
            unlinked = [
                (f"{short_name(name)} {REPLAYED if replayed else NO_OPERATOR}", time)
                for name, _, time, replayed in self.longest_unlinked(_SHOWN).iter_rows()
            ]
            costs.append(pl.DataFrame(unlinked, schema=costs[0].schema, orient="row"))
        top = (
            pl.concat(costs).filter(pl.col("time") > 0).sort("time", descending=True, maintain_order=True).head(_SHOWN)
        )
        rows = [
            ("bound", self.bound.sentence),
            ("trust", str(self.trust.verdict)),
            *((f"{check.verdict} {check.name}", check.sentence) for check in self.trust.doubts()),
            ("steps", str(self.step_count or "none marked")),
            *((f"device {line.device}", f"busy {_in(line.busy_in_window_ns, line.window)}") for line in self.devices),
            *(
                (name, f"{format_ns(time)}, {format_share(time, whole)} of the {_WHOLE[column]}")
                for name, time in top.iter_rows()
            ),
        ]
        bars = tuple(Bar(name, time, format_ns(time)) for name, time in top.iter_rows())
        return Summary(f"Analysis of {self.source.path}", tuple(rows), bars, f"Work, by {_WHOLE[column]}")


def _in(time_ns: int, window: Window) -> str:
    return f"{format_share(time_ns, window.duration_ns)} of the {window.kind}"


_WHOLE = {"self_device_ns": "device sum", "self_cpu_ns": "operators' CPU self time"}


def analyze(
    trace: Trace | str | Path,
    functions: NativeFunctions | None = None,
    *,
    expect_device_work: bool | None = None,
    graph_capture: Trace | str | Path | None = None,
    gpu: Device | None = None,
    as_marked: bool = False,
    every_step: bool = False,
) -> Analysis:
    """Analyse one trace. Records with impossible durations are left out of every figure, and counted by a check.

    Args:
        trace: what `opscope.read` returned, or a file that it reads.
        functions: the operators of the PyTorch that ran; None for those of the release that opscope ships.
        expect_device_work: whether the workload ran on a GPU and its activities were collected; None if unknown.
        graph_capture: another trace, or its file, in which CUDA graphs were captured that this one replays.
        gpu: what the devices are, whatever the trace says; None to believe the trace.
        as_marked: whether steps are those that the trace marks, all of them and no others.
        every_step: whether steps that are unlike the others stay.

    Raises:
        BadInputError: a file cannot be read, or durations add up to more than 64 bits of nanoseconds hold.
        EnvironmentLacksError: as `opscope.read`, where a file was named.
    """
    trace = trace if isinstance(trace, Trace) else read(trace)
    if graph_capture is not None and not isinstance(graph_capture, Trace):
        graph_capture = read(graph_capture)
    # Before anything is computed, so that no figure includes a record that cannot be true.
    whole, implausible = plausible(with_named_devices(trace, gpu))
    links, losses, how = link(whole), Losses(), None
    as_marked = as_marked or whole.source.is_part
    if not as_marked:
        find = partial(with_unmarked_steps, whole, links)
        whole, how = losses.part("steps that are not marked", find, lambda: (whole, None))
    make = partial(_analyzed, implausible, functions, expect_device_work, graph_capture, losses)
    result = replace(make(whole, links), steps_from=how)
    if as_marked or every_step or not result.steps:
        return result
    unlike = partial(odd_steps, whole, links, result.devices, result.steps)
    odd = losses.part("steps that are unlike the others", unlike, tuple[OddStep, ...])
    if not odd:
        return result
    from opscope.analysis.part import without_steps  # most traces do not need it

    rows, trust = [one.index for one in odd], result.trust
    others = without_steps(whole, result.devices, rows, misplaced=implausible.misplaced)
    del result, unlike, links  # so that memory holds one analysis
    made = make(others, link(others))
    works = tuple(line for line in made.devices if line.activities)
    # What can be trusted is judged by the whole recording.
    return replace(made, devices=works, trust=trust, steps_from=how, odd_steps=odd, ranges=whole.annotations)


def _analyzed(
    implausible: Implausible,
    functions: NativeFunctions | None,
    expect_device_work: bool | None,
    graph_capture: Trace | None,
    losses: Losses,
    trace: Trace,
    links: Links,
) -> Analysis:
    functions = functions or NativeFunctions.shipped()
    window, classifier = window_of(trace), classifier_of(functions)
    attributed = staged(Stage.ATTRIBUTE)
    tables, (host, timelines, steps), (launches, kernels, operator_time_ns, phases) = together(
        (
            attributed(lambda: operator_tables(trace, links, classifier)),
            attributed(lambda: _of_devices(trace, links)),
            attributed(
                lambda: (
                    summarise_launches(trace, links),
                    kernel_table(trace),
                    operator_time_on_host(links, window),
                    phase_times(trace, links),
                )
            ),
        ),
        events=trace.source.event_count,
    )
    unlinked = trace.activities.filter(pl.Series(links.activity_operator, dtype=pl.Int64) < 0)
    return Analysis(
        source=trace.source,
        trace=trace,
        functions=functions,
        links=links,
        window=window,
        operator_time_ns=operator_time_ns,
        host=host,
        devices=timelines,
        operators=tables.operators,
        shapes=tables.shapes,
        kernels=kernels,
        kernels_of=tables.kernels_of,
        categories=tables.categories,
        launches=launches,
        steps=steps,
        phases=phases,
        accounting=Accounting(
            operators_ns=int(tables.operators["self_device_ns"].sum()),
            unlinked_ns=int(unlinked["duration_ns"].sum()),
            unlinked_activities=unlinked.height,
            activities_ns=int(trace.activities["duration_ns"].sum()),
        ),
        trust=check_trace(CheckInput(trace, links, launches, timelines, implausible, expect_device_work), losses),
        graph_capture=graph_capture,
        losses=losses,
    )


def _of_devices(trace: Trace, links: Links) -> tuple[HostTime, tuple[DeviceTimeline, ...], tuple[Step, ...]]:
    host = HostTime(trace, links)
    if trace.around is not None:
        from opscope.analysis.part import devices_of_part  # whole traces do not need it

        return host, *devices_of_part(trace, trace.around)
    timelines = device_timelines(trace, links, host)
    return host, timelines, idle_steps(trace, links, timelines)
