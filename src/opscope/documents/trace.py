"""One trace, and what was measured beside it: the schema ``opscope.analysis/1``.

Every command that reports on a trace takes its figures from here: ``opscope analyze``, the statistics file and the
report of ``opscope profile``, the comparison of a sweep.

`HISTORY` has the versions and what each added. No field ever changes its meaning.

A reader of version N can read all earlier versions of releases: fields that they lack have defaults.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from opscope.documents.compiled import CompileDocument
from opscope.documents.explain import NativeFunctionDetail, SourceEntry
from opscope.documents.findings import Finding, FirstScreen, StepFigure, Together
from opscope.documents.limits import LimitsEntry
from opscope.documents.memory import MemoryDocument
from opscope.documents.statements import OperatorStatements
from opscope.documents.verdict import Bound, Trust
from opscope.record.capture import Clocks, OwnClock, PeakMemory, StepsFound, WorkloadInfo
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.machine import Framework, Machine, Rank
from opscope.trace.model import TraceSource

MEDIAN_DIFFERS: Final = 0.05  # by more than this share of the step's time, the median stands beside it
HISTORY: Final[Mapping[int, str]] = {
    1: "release 0.2.0",
}
CURRENT: Final = max(HISTORY)


class WindowEntry(Struct, frozen=True):
    """The time span that idle time and shares refer to. ``duration_ns`` is its length without gaps between steps.

    Attributes:
        kind: which span it is, in words.
        start_ns: when it begins, on the trace's clock.
        end_ns: when it ends.
        duration_ns: its length without gaps between steps.
    """

    kind: str
    start_ns: int
    end_ns: int
    duration_ns: int


class DeviceEntry(Struct, frozen=True):
    """One device. ``compute + exposed_communication + exposed_memcpy + idle = window``, all within the window.

    ``busy_ns`` is the union of all its activities, ``outside_window_ns`` the part of that union outside the window.

    Attributes:
        device: its number.
        name: its name.
        activities: kernels, copies and fills that it ran.
        sum_ns: their durations added up.
        busy_ns: the time in which at least one of them ran: the union of their intervals.
        window: the span that idle time and shares refer to.
        window_ns: the length of that span.
        outside_window_ns: the part of ``busy_ns`` outside the window.
        idle_ns: the time in the window in which nothing ran.
        compute_ns: the time in the window in which anything but copies and communication ran.
        exposed_communication_ns: the time in which only communication, or communication and copies, ran.
        exposed_memcpy_ns: the time in which only copies and fills ran.
        idle_by_cause_ns: ``idle_ns`` by its causes.
    """

    device: int
    name: str
    activities: int
    sum_ns: int
    busy_ns: int
    window: WindowEntry
    window_ns: int
    outside_window_ns: int
    idle_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_memcpy_ns: int
    idle_by_cause_ns: dict[str, int]


class ShapeRow(Struct, frozen=True):
    """The calls of an operator with the same input shapes and types (as JSON text; null if not recorded).

    Attributes:
        input_dims: the shapes of the inputs.
        input_types: their types.
        calls: number of calls.
        self_device_ns: device time of what the operator launched itself.
        total_device_ns: the same with the operators inside it.
        self_cpu_ns: time on the host without operators inside it.
    """

    input_dims: str | None
    input_types: str | None
    calls: int
    self_device_ns: int
    total_device_ns: int
    self_cpu_ns: int


class KernelRow(Struct, frozen=True):
    """All activities of one name on one device; within an operator, also of one launch geometry.

    Attributes:
        kind: kernel, memcpy or memset.
        grid, block: thread blocks and threads of a block, ``x,y,z``.
        theoretical_occupancy_percent: Kineto's "est. achieved occupancy %", which follows from the launch and the
            device's limits and was not measured.
        summary: a short name; null if it was not requested.
        library: the library of the kernel; null if none is known.
        source_file: the file that instantiates the kernel; null if unknown or not requested.
        source_how: how that is known (see `SourceEntry`); null if it was not requested.
        name: the kernel's function, or which copy.
        device: the number of the device; null if it was not recorded.
        calls: how often it ran.
        total_ns: the durations of all runs added up.
        mean_ns, min_ns, max_ns, std_ns: mean, least, most and standard deviation of the durations.
        registers_per_thread: registers of a thread; null where it was not recorded, or launches differ.
        shared_memory_bytes: shared memory of a thread block; null as above.
    """

    name: str
    kind: str
    device: int | None
    calls: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    grid: str | None = None
    block: str | None = None
    registers_per_thread: int | None = None
    shared_memory_bytes: int | None = None
    theoretical_occupancy_percent: float | None = None
    summary: str | None = None
    library: str | None = None
    source_file: str | None = None
    source_how: str | None = None


class CallerRow(Struct, frozen=True):
    """A place in Python code that called an operator.

    Attributes:
        place: file, line and function.
        calls: number of calls from there.
        self_device_ns: device time of what these launched themselves.
        self_cpu_ns: time on the host without operators inside.
    """

    place: str
    calls: int
    self_device_ns: int
    self_cpu_ns: int


class OperatorDetail(Struct, frozen=True):
    """Details of one operator.

    ``shapes``, ``kernels`` and ``called_from`` list the most expensive ones; the counts are of all.

    Attributes:
        category_rule: the rule that decided the category.
        native_function: the native function behind it, and how that is known.
        source: the source of the kernel that took most of its time.
        called_from: null if no Python stacks were recorded.
        findings: how it runs and what could be gained; null except for the three operators with the most device time.
        shape_count: how many different inputs it was called with.
        shapes: the most expensive of these.
        kernel_count: how many kernels, copies and fills it launched, by name and geometry.
        kernels: the most expensive of these.
    """

    category_rule: str
    native_function: NativeFunctionDetail
    source: SourceEntry
    shape_count: int
    shapes: tuple[ShapeRow, ...]
    kernel_count: int
    kernels: tuple[KernelRow, ...]
    called_from: tuple[CallerRow, ...] | None
    findings: OperatorStatements | None


class OperatorRow(Struct, frozen=True):
    """One operator over all its calls. Self times may be added up, totals may not.

    ``native_function`` is its entry in ``native_functions.yaml`` (search for ``- func: NAME``), ``cpp_function`` the
    C++ function that serves the device.

    Attributes:
        name: as recorded.
        calls: number of calls.
        self_device_ns: durations of the device activities that it launched itself, added up.
        total_device_ns: the same with those of operators inside it.
        self_cpu_ns: time on the host without operators, named ranges and API calls inside it.
        total_cpu_ns: time on the host.
        category: what kind of work it does.
        native_function: its native function; null if it has none.
        cpp_function: the C++ function that serves the device; null if it is not known.
        activities: device activities that it launched itself.
        detail: shapes, kernels, source and callers; null if they were not asked for.
    """

    name: str
    calls: int
    self_device_ns: int
    total_device_ns: int
    self_cpu_ns: int
    total_cpu_ns: int
    category: str
    native_function: str | None
    cpp_function: str | None
    activities: int
    detail: OperatorDetail | None = None


class CategoryRow(Struct, frozen=True):
    """One category of operators.

    Unlinked kernels are classified by their names, or form a category of their own if the names say nothing; unlinked
    copies and fills count as Memory. So the rows add up to the device sum.

    Attributes:
        category: its name.
        calls: calls of its operators.
        activities: device activities that these launched themselves.
        self_device_ns: the durations of these added up.
        self_cpu_ns: its operators' own time on the host.
    """

    category: str
    calls: int
    activities: int
    self_device_ns: int
    self_cpu_ns: int


class Spread(Struct, frozen=True):
    """Statistics of a set of durations.

    Attributes:
        count: how many durations.
        total_ns: all of them added up.
        median_ns: their median.
        p95_ns: 95 % of them are no longer.
    """

    count: int
    total_ns: int
    median_ns: float
    p95_ns: float


class LaunchCallRow(Struct, frozen=True):
    """One runtime or driver API function.

    Attributes:
        name: of the function.
        calls: how often it was called.
        total_ns: time on the host, added up.
        mean_ns: the mean.
    """

    name: str
    calls: int
    total_ns: int
    mean_ns: float


class LaunchesEntry(Struct, frozen=True):
    """How the host fed the devices. Spreads are null if nothing was launched; backlog is not overhead.

    ``without_activity`` counts launches without an activity; null if activities do not carry the ids of launches.

    Attributes:
        api: the time of the calls that launch work.
        latency: from the end of such a call to the start of its work, where the stream had nothing left to do.
        backlog: the same where earlier work still ran in the stream: the host is ahead by that.
        without_activity: launches without an activity; null if activities do not carry the ids of launches.
        calls: by function, the longest in all first.
    """

    api: Spread | None
    latency: Spread | None
    backlog: Spread | None
    without_activity: int | None
    calls: tuple[LaunchCallRow, ...]


class Step(Struct, frozen=True):
    """One ``ProfilerStep`` on one device. An activity belongs to the step that launched it.

    Attributes:
        index: its position in the trace, from 0; profilers restart their numbers in every cycle.
        number: the profiler's step number.
        device: the device, or None for the host's figures of a step without device work.
        span_ns: its length: that of its range on the host, or if steps do not wait for their work, from its first
            activity to the next step's first.
        activities: device activities launched in it.
        device_sum_ns: sum of their durations.
        busy_ns: time within the span in which the device worked.
        idle_ns: the rest of the span.
        launch_bound_ns: the part of ``idle_ns`` in which the device waited for launches.
        launch_bound_share: ``launch_bound_ns`` as a share of the span.
        cold: whether code was loaded to the device during the step.
    """

    index: int
    number: int
    device: int | None
    span_ns: int
    activities: int
    device_sum_ns: int | None
    busy_ns: int | None
    idle_ns: int | None
    launch_bound_ns: int | None
    launch_bound_share: float | None
    cold: bool


class OddStep(Struct, frozen=True, kw_only=True):
    """A recorded step that is unlike the others; all other figures are of those.

    Attributes:
        index: its position among all recorded steps, from 0.
        number: the profiler's step number.
        span_ns: its length, as in `Step`.
        typical_ns: the mean length of the others.
        cause: what it has most of beyond them: ``device work``, or a cause of idle time; null where no device worked.
        beyond_ns: how much more of that than in them; how much longer it is where the cause is not known.
        where: the range, line, module or operator where most of that is; null where none was recorded.
        sentence: the same in words.
    """

    index: int
    number: int
    span_ns: int
    typical_ns: float
    cause: str | None
    beyond_ns: float
    where: str | None
    sentence: str


class GapRow(Struct, frozen=True, kw_only=True):
    """A stretch in which a device did nothing.

    Attributes:
        device: the device.
        start_ns: when it began, on the trace's clock.
        duration_ns: its length within the window.
        step: the profiler's number of the step that contains most of it; null outside of steps.
        position: before the first activity, between activities, or after the last.
        cause: the cause of most of it; see docs/metrics.md.
        causes: nanoseconds by cause.
        call: the call that the host sat in, or that launched the next activity, or the record of code being loaded.
        operator: the innermost operator that the thread was in then.
        annotation: the innermost named range.
        module: the innermost ``nn.Module``; null if stacks were not recorded.
        python: the innermost Python frame of the user's code; null if stacks were not recorded.
        before: the activity before the gap.
        after: the activity after the gap.
        stream: the stream of the activity after the gap, on which queued work waited if the cause is a dependency.
        waited_for: the activity of another device whose end ended that wait, if one ended within 50 us before; else
            null.
    """

    device: int | None
    start_ns: int
    duration_ns: int
    step: int | None
    position: str
    cause: str
    causes: dict[str, int]
    call: str | None
    operator: str | None
    annotation: str | None
    module: str | None
    python: str | None
    before: str | None
    after: str | None
    stream: int | None = None
    waited_for: str | None = None


class GraphNodeRow(Struct, frozen=True):
    """One node of a replayed CUDA graph; ``captured_operator`` launched it when the graph was captured.

    Attributes:
        device: the number of the device.
        graph: the number of the graph.
        node: the number of the node in it.
        known_by: how nodes of different replays are known to be the same.
        name: of its kernel, copy or fill.
        replays: how often it ran.
        total_ns, mean_ns, min_ns, max_ns: its durations: sum, mean, least and most.
        captured_operator: the operator that launched it in the capture; null if that is not known.
        captured_how: how that is known, or why it is not.
    """

    device: int | None
    graph: int
    node: int
    known_by: str
    name: str
    replays: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    captured_operator: str | None
    captured_how: str


class CapturedRow(Struct, frozen=True):
    """Launches captured into graphs by one operator (null if none made them) with the same inputs.

    Attributes:
        name: the operator.
        input_dims: the shapes of its inputs, JSON text.
        input_types: their types, JSON text.
        launches: how many launches were captured.
    """

    name: str | None
    input_dims: str | None
    input_types: str | None
    launches: int


class BackwardRow(Struct, frozen=True):
    """A backward node and the forward operator with the same sequence number; null if there is none.

    Attributes:
        forward: the forward operator.
        backward: the node of the backward pass.
        calls: how often the node was evaluated.
        forward_device_ns: device time of what the forward operators launched.
        backward_device_ns: device time of what the nodes launched.
    """

    forward: str | None
    backward: str
    calls: int
    forward_device_ns: int
    backward_device_ns: int


class AnnotationRow(Struct, frozen=True):
    """The ranges of one name: ``record_function``, NVTX. Nested ones are named by their path.

    Attributes:
        path: names from the outermost range inwards, joined by `` / ``.
        name: the innermost of them.
        depth: how many ranges enclose it.
        calls: how often it was entered.
        span_ns: time on the host, summed over the calls.
        self_device_ns: device time of work launched in it, but not in ranges inside it.
        total_device_ns: device time of work launched in it, including ranges inside it.
        self_cpu_ns: ``span_ns`` without the ranges inside it.
    """

    path: str
    name: str
    depth: int
    calls: int
    span_ns: int
    self_device_ns: int
    total_device_ns: int
    self_cpu_ns: int


class IterationRow(Struct, frozen=True, kw_only=True):
    """The iterations of a server of one kind and size.

    Attributes:
        kind: ``prefill``, ``decode``, ``mixed``, ``diffusion`` or ``capture``.
        requests, tokens: per iteration; null if the range's name does not say.
        detail: what else the range's name says.
        iterations: number of iterations.
        total_ns: sum of their times on the device, each from its first activity to the next iteration's first.
        median_ns: median of these times.
        host_ns: median length of the range on the host.
        device_sum_ns: durations of all activities launched in them.
        idle_ns: the part of ``total_ns`` in which the device did nothing; null without a device.
        bound: what bounds them in the profile, which slows the host down; null without a device.
    """

    kind: str
    requests: int | None
    tokens: int | None
    detail: str
    iterations: int
    total_ns: int
    median_ns: float
    host_ns: float
    device_sum_ns: int
    idle_ns: int | None
    bound: str | None


class UnlinkedRow(Struct, frozen=True):
    """Device work of one name without a recorded operator.

    Attributes:
        name: the activity's short name; of a replayed graph, the captured operator where it is known.
        activities: how many.
        device_ns: their durations added up.
        replayed: whether a CUDA graph ran them.
    """

    name: str
    activities: int
    device_ns: int
    replayed: bool


class UnlinkedEntry(Struct, frozen=True):
    """Activities without a recorded operator.

    Attributes:
        activities: how many.
        device_ns: their durations added up.
        longest: those that took most time, by name.
    """

    activities: int
    device_ns: int
    longest: tuple[UnlinkedRow, ...] = ()


class MemoryEntry(Struct, frozen=True):
    """Recorded allocations on one device; ``device`` is null for the host.

    Attributes:
        device: its number; null for the host.
        peak_allocated_bytes: the most that was allocated at a time; null where totals were not recorded.
        allocated_bytes: all allocations added up.
        allocations: how many.
        top_operators: bytes by the operators that allocated most.
    """

    device: int | None
    peak_allocated_bytes: int | None
    allocated_bytes: int
    allocations: int
    top_operators: dict[str, int]


class CounterEntry(Struct, frozen=True):
    """Samples of one counter of a device: power, a clock, a utilisation.

    Attributes:
        device: its number; null where the record does not name one.
        name: the quantity with its unit, as recorded.
        samples: how many.
        least: the smallest of them.
        mean: their mean, each counted once.
        most: the largest.
    """

    device: int | None
    name: str
    samples: int
    least: float
    mean: float
    most: float

    @property
    def sentence(self) -> str:
        """The counter in words."""
        samples = "1 sample" if self.samples == 1 else f"{self.samples:,} samples"
        if self.least == self.most:
            return f"{self.name} {self.least:,.6g} ({samples})"
        values = f"{self.least:,.6g} to {self.most:,.6g}"
        return f"{self.name} {values} (mean {self.mean:,.6g}, {samples})"


class SampleSummary(Struct, frozen=True):
    """Repeated measurements of one quantity, in nanoseconds.

    Attributes:
        count: number of samples.
        median_ns, min_ns, max_ns: as named.
        p25_ns, p75_ns: the quartiles; half of the samples lie between them.
        median_low_ns, median_high_ns: the narrowest pair of order statistics that holds the median with 95 %
            confidence, assuming independent samples; None for fewer than 6 samples, which cannot.
    """

    count: int
    median_ns: float
    min_ns: int
    max_ns: int
    p25_ns: float
    p75_ns: float
    median_low_ns: int | None
    median_high_ns: int | None


class LongSteps(Struct, frozen=True, kw_only=True):
    """A few steps that take much longer than the others, for a reason that is not known.

    Attributes:
        sentence: which, and how long, without its full stop.
        share: of the time of all steps.
        beyond_ns: how much longer they take than the median step, spread over all steps.
    """

    sentence: str
    share: float
    beyond_ns: float


class StepTime(Struct, frozen=True, kw_only=True):
    """How long a step takes without a profiler: the time of many consecutive ones over their number.

    Attributes:
        ns: that time, with what recurs between the steps.
        low_ns, high_ns: its 95 % interval, by blocks of consecutive steps; of a script's own steps it is widened by
            what runs differ by, so that another run agrees with it. Null where fewer than six were timed.
        median_ns: of single steps (or of means of a few, where steps are short).
        steps: how many were timed.
        data_ns: for how much of ``ns`` the main thread waited for a DataLoader; null where that was not measured.
        median_data_ns: the median of these waits; likewise.
        collecting_ns: for how much of it Python collected garbage; likewise.
        between_ns: how much of it comes between the steps, such as evaluations.
        between: what comes there, in a few words; empty where nothing does.
        long: the few steps that take much longer, where no wait explains them; null where there are none.
        sentence: what recurs, and why the median is another; null where neither is worth a word.
    """

    ns: float
    low_ns: float | None
    high_ns: float | None
    median_ns: float
    steps: int
    data_ns: float | None = None
    median_data_ns: float | None = None
    collecting_ns: float | None = None
    between_ns: float = 0.0
    between: str = ""
    long: LongSteps | None = None
    sentence: str | None = None

    @property
    def typical_ns(self) -> float:
        """The median where it is another than the step's time by more than 5 %: of such steps a few are recorded."""
        return self.median_ns if abs(self.median_ns / self.ns - 1) > MEDIAN_DIFFERS else self.ns


class Measurement(Struct, frozen=True, kw_only=True):
    """Times of whole steps, by how they were measured. Times of different kinds must not be mixed.

    Attributes:
        cold_step_ns: wall time of the very first step; null if it was not timed.
        step: how long a step takes: this is what is called the step everywhere; null if none was timed unprofiled.
        wall: single unprofiled steps, host clock around step and synchronise.
        event: the same steps, CUDA events around them.
        profiled_step: host ranges of the profiled steps.
        profiler_overhead_percent: how much longer the median profiled step took than the median unprofiled one.
        benchmark_reason: why ``wall`` is null; null if it is not.
        synchronised: whether each of the ``wall`` times ends with a wait for the device.
        between_marks: whether the ``wall`` times were measured between CUDA events on the device's stream.
        own_clock: times of the same steps in another run of the script with only a clock.
        memory: peak memory of the unprofiled steps.
        clocks, clocks_reason: GPU clocks meanwhile, or why they are unknown.
        sequences_per_second, tokens_per_second: from ``step``.
    """

    cold_step_ns: int | None = None
    step: StepTime | None = None
    wall: SampleSummary | None = None
    event: SampleSummary | None = None
    profiled_step: SampleSummary | None = None
    profiler_overhead_percent: float | None = None
    benchmark_reason: str | None = None
    synchronised: bool = True
    between_marks: bool = False
    own_clock: OwnClock | None = None
    memory: PeakMemory | None = None
    clocks: Clocks | None = None
    clocks_reason: str | None = None
    sequences_per_second: float | None = None
    tokens_per_second: float | None = None


class CaptureEntry(Struct, frozen=True, kw_only=True):
    """What opscope recorded beside the trace; see `opscope.record.capture.CaptureRecord`."""

    configuration: Configuration
    options: CaptureOptions
    workload: WorkloadInfo
    machine: Machine
    framework: Framework | None
    rank: Rank | None
    opscope: str
    git_revision: str | None
    created: str
    steady_state: str | None = None
    steps: StepsFound | None = None


class LightEntry(Struct, frozen=True, kw_only=True):
    """A pass over the same steps that collected only device activities, and so hardly slowed the host down.

    Attributes:
        agrees: whether it ran the same work as the pass with names; if not, ``devices`` and ``steps`` are empty.
        sentence: how it was joined with the pass with names, or why it could not be.
        devices, steps: as in `TraceDocument`, for this pass.
    """

    agrees: bool
    sentence: str
    devices: tuple[DeviceEntry, ...] = ()
    steps: tuple[Step, ...] = ()


class TraceDocument(Struct, frozen=True, kw_only=True):
    """One trace. Operators' ``self_device_ns`` + ``unlinked.device_ns`` = kernels' ``total_ns`` = devices' ``sum_ns``.

    Attributes:
        version: determines which fields it may have; see `HISTORY`.
        operators: the most expensive first: by self device time, or by self CPU time if no device worked.
        phases_ns: device time by phase of a training step; null without one.
        device_times_reason: why device times are unknown (and 0); null if they are known.
        trace: the trace's file name, relative to its run directory; null for a trace that stands alone.
        step_count: number of profiled steps; 0 if neither the trace nor the capture's schedule tells.
        capture: null for a trace that opscope did not capture.
        gaps: the longest gaps of all devices.
        captured: what was captured into graphs, the most launches first.
        light: the light pass, whose busy time, idle time and steps are close to those without a profiler; null without
            one.
        iterations: of a model server; empty if no range is an iteration.
        findings: what could make a step faster, the largest likely saving first.
        findings_reason: why there are none; null if there are some.
        first_screen: what every screen shows first of this trace; null in files of versions that had none.
        together: what those save together that a replay tells; null for fewer than two.
        limits: how far the work that loses most time is from the devices' limits; null if no device worked.
        schema: the schema's name.
        source: the file, and what reading it found.
        window: what the host's figures refer to.
        bound: what bounds a step.
        devices: the devices that worked.
        kernels: by name and device, the longest in all first.
        categories: operators by what they do.
        graph_nodes: the nodes of replayed CUDA graphs.
        backward: what the backward pass of each forward operator cost.
        launches: how the host fed the devices.
        steps: the recorded steps, per device.
        odd_steps: further steps, which are unlike these: nothing else is of them but ``trust`` and ``source``.
        steps_from: how steps are known that the trace does not mark; null where it marks them, or has none.
        unlinked: device work of no recorded operator.
        trust: the checks that tell whether the figures can be believed.
        annotations: the named ranges.
        memory: recorded allocations per device; empty if they were not recorded.
        device_memory: what fills the GPUs at the peak, by a snapshot of the same steps or by the recorded allocations;
            null where neither was recorded.
        compile: what ``torch.compile`` did, by its log; null without one.
        counters: what was sampled of devices within the steps, or in a recording without steps; empty if nothing was.
        measurement: times of whole steps, profiled and not.
        step_time: what a step takes, by the best of them; null where no steps are known.
    """

    schema: Literal["opscope.analysis/1"] = "opscope.analysis/1"
    source: TraceSource
    window: WindowEntry
    bound: Bound
    devices: tuple[DeviceEntry, ...]
    operators: tuple[OperatorRow, ...]
    kernels: tuple[KernelRow, ...]
    categories: tuple[CategoryRow, ...]
    graph_nodes: tuple[GraphNodeRow, ...]
    backward: tuple[BackwardRow, ...]
    launches: LaunchesEntry
    steps: tuple[Step, ...]
    phases_ns: dict[str, int] | None
    unlinked: UnlinkedEntry
    trust: Trust
    version: int = 1
    annotations: tuple[AnnotationRow, ...] = ()
    device_times_reason: str | None = None
    memory: tuple[MemoryEntry, ...] = ()
    device_memory: MemoryDocument | None = None
    compile: CompileDocument | None = None
    trace: str | None = None
    step_count: int = 0
    measurement: Measurement = Measurement()
    step_time: StepFigure | None = None
    capture: CaptureEntry | None = None
    gaps: tuple[GapRow, ...] = ()
    captured: tuple[CapturedRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    iterations: tuple[IterationRow, ...] = ()
    light: LightEntry | None = None
    findings_reason: str | None = None
    together: Together | None = None
    first_screen: FirstScreen | None = None
    limits: LimitsEntry | None = None
    odd_steps: tuple[OddStep, ...] = ()
    steps_from: str | None = None
    counters: tuple[CounterEntry, ...] = ()

    @property
    def timed_devices(self) -> tuple[DeviceEntry, ...]:
        """The devices whose busy and idle times to use: those of the light pass if it agrees, else the trace's own."""
        return self.light.devices if self.light is not None and self.light.agrees else self.devices

    @property
    def timed_steps(self) -> tuple[Step, ...]:
        """The steps of the same pass as `timed_devices`."""
        return self.light.steps if self.light is not None and self.light.agrees else self.steps

    @property
    def device_sum_ns(self) -> int:
        """The sum of the durations of all activities."""
        return sum(kernel.total_ns for kernel in self.kernels)

    @property
    def has_device_times(self) -> bool:
        """Whether any device activity was recorded; if not, device times are unknown, not 0."""
        return bool(self.kernels)

    @property
    def cpu_self_ns(self) -> int:
        """The sum of the self CPU times of all operators."""
        return sum(row.self_cpu_ns for row in self.operators)

    @property
    def name(self) -> str:
        """The configuration's id; for a trace without a capture, its file name."""
        return self.capture.configuration.id if self.capture else self.trace or self.source.path


class TraceDocuments(Struct, frozen=True, kw_only=True):
    """Several traces that one command analysed, such as the ranks of a job: the schema ``opscope.analysis-list/1``."""

    schema: Literal["opscope.analysis-list/1"] = "opscope.analysis-list/1"
    traces: tuple[TraceDocument, ...]
