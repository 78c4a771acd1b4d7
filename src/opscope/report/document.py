"""The statistics file of one profiled configuration: the schema ``opscope.profile/1``.

Keys that the project's first guide promised keep their names (``top_aten_operators``, ``cuda_time_total_ms``,
``potential_cuda_file``, ``summary.total_cuda_time_ms``). Durations are milliseconds over all profiled steps unless a
name says otherwise; what was not measured is null, never 0. Fields may be added within version 1, none change meaning.
"""

from dataclasses import dataclass
from typing import Literal

from opscope.analysis.statistics import SampleSummary
from opscope.analysis.trust import Verdict
from opscope.record import CaptureOptions, Clocks, Configuration, Environment, PeakMemory, WorkloadInfo
from opscope.report.findings import Findings
from opscope.report.source import SourceEntry


@dataclass(frozen=True, slots=True)
class NativeFunctionDetail:
    """The native function behind an operator on the device used.

    Attributes:
        schema: its signature.
        yaml_line: line of its entry in the ``native_functions.yaml`` of ``torch_version``.
        dispatch_key: the key whose kernel serves the device.
        cpp_function: the C++ function registered for it.
        torch_version: the PyTorch whose table answered.
        how: where the answer comes from, or why there is none.
        other_overloads: further overloads that calls of the operator used, for less time.
    """

    schema: str | None
    yaml_line: int | None
    dispatch_key: str | None
    cpp_function: str | None
    torch_version: str
    how: str
    other_overloads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShapeEntry:
    """The calls of an operator with the same input shapes and types (as JSON text; null if not recorded)."""

    input_dims: str | None
    input_types: str | None
    calls: int
    self_cuda_time_ms: float | None
    cuda_time_total_ms: float | None
    self_cpu_time_ms: float


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """One kernel (or memcpy, memset) and, within an operator, one launch geometry of it.

    ``theoretical_occupancy_percent`` is what Kineto calls "est. achieved occupancy %": it follows from the launch and
    the device's limits and was not measured. ``grid`` and ``block`` are "x,y,z". ``summary`` is what the name says,
    ``source_file`` instantiates the kernel, ``source_how`` is how that is known (see `SourceEntry`).
    """

    name: str
    kind: str
    calls: int
    total_ms: float
    mean_us: float
    min_us: float
    max_us: float
    std_us: float
    device: int | None = None
    grid: str | None = None
    block: str | None = None
    registers_per_thread: int | None = None
    shared_memory_bytes: int | None = None
    theoretical_occupancy_percent: float | None = None
    summary: str | None = None
    library: str | None = None
    source_file: str | None = None
    source_how: str | None = None


@dataclass(frozen=True, slots=True)
class CallerEntry:
    """A Python place that called an operator."""

    place: str
    calls: int
    self_cuda_time_ms: float | None
    self_cpu_time_ms: float


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One operator over all its calls.

    ``self`` times are what its own launches (or its own code) took and may be added up; ``total`` times include
    nested operators and may not. ``shapes``, ``kernels`` and ``called_from`` list the most expensive ones, their
    counts say how many there are.

    Attributes:
        name: as in the trace.
        category, category_rule: the kind of work and the rule that decided.
        calls: recorded calls; a redispatch of the same operator within itself is not another call.
        percent_of_device_sum: share of ``self_cuda_time_ms`` in the sum of all device activities.
        percent_of_cpu_self_sum: share of ``self_cpu_time_ms`` in the sum over all operators.
        kernels_launched: device activities launched by it.
        native_function: its entry in ``native_functions.yaml`` (search for ``- func: NAME``), or null.
        potential_cuda_file: the file that instantiates the kernel that took most of its time, if that is verified;
            ``source`` has it with how it is known, or why it is not.
        findings: how it runs and what could be gained; null beyond the three that took most device time.
    """

    name: str
    category: str
    category_rule: str
    calls: int
    self_cuda_time_ms: float | None
    cuda_time_total_ms: float | None
    self_cpu_time_ms: float
    cpu_time_total_ms: float
    percent_of_device_sum: float | None
    percent_of_cpu_self_sum: float | None
    kernels_launched: int
    native_function: str | None
    native_function_detail: NativeFunctionDetail
    potential_cuda_file: str | None
    source: SourceEntry
    shape_count: int
    shapes: tuple[ShapeEntry, ...]
    kernel_count: int
    kernels: tuple[KernelEntry, ...]
    called_from: tuple[CallerEntry, ...] | None
    findings: Findings | None


@dataclass(frozen=True, slots=True)
class CategoryEntry:
    """Time by kind of work.

    Unlinked kernels are a row of their own, unlinked copies and fills count as Memory, so that the rows add up to the
    device sum.
    """

    category: str
    calls: int
    kernels_launched: int
    self_cuda_time_ms: float | None
    percent_of_device_sum: float | None
    self_cpu_time_ms: float
    percent_of_cpu_self_sum: float | None


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device. compute + exposed communication + exposed memcpy + idle = window.

    ``busy_ms`` is the union of all activities, ``outside_window_ms`` the part of it outside the window.
    """

    device: int
    name: str
    activities: int
    sum_ms: float
    busy_ms: float
    outside_window_ms: float
    window: str
    window_ms: float
    idle_ms: float
    compute_ms: float
    exposed_communication_ms: float
    exposed_memcpy_ms: float
    idle_by_cause_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One profiled step. ``cold`` steps loaded code to the device and are not representative."""

    step: int
    device: int | None
    span_ms: float
    activities: int
    device_sum_ms: float | None
    busy_ms: float | None
    idle_ms: float | None
    launch_bound_ms: float | None
    cold: bool


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """One runtime or driver API function."""

    name: str
    calls: int
    total_ms: float
    mean_us: float


@dataclass(frozen=True, slots=True)
class DelayEntry:
    """How a set of delays is spread."""

    count: int
    total_ms: float
    median_us: float
    p95_us: float


@dataclass(frozen=True, slots=True)
class LaunchEntry:
    """How the host fed the devices. Backlog is waiting behind earlier work, not overhead."""

    api_calls: tuple[LaunchCall, ...]
    launch_call: DelayEntry | None
    launch_latency: DelayEntry | None
    backlog: DelayEntry | None


@dataclass(frozen=True, slots=True)
class AccountingEntry:
    """The identity that every trace is checked for: operators' self times + unlinked = all activities."""

    operators_self_ms: float
    unlinked_ms: float
    unlinked_activities: int
    device_sum_ms: float
    holds: bool


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """One trust check: how many records it concerns, how much time of whom, and what share of what."""

    name: str
    verdict: Verdict
    count: int
    time_ms: float | None
    time_of: Literal["device", "host"] | None
    share: float | None
    share_of: Literal["device sum", "device busy"] | None
    sentence: str


@dataclass(frozen=True, slots=True)
class TrustEntry:
    """All trust checks; the verdict is the worst of them."""

    verdict: Verdict
    checks: tuple[CheckEntry, ...]


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """Allocations recorded with ``--profile-memory`` (device null is the host)."""

    device: int | None
    peak_allocated_bytes: int | None
    allocated_bytes: int
    allocations: int
    top_operators: dict[str, int]


@dataclass(frozen=True, slots=True)
class BoundEntry:
    """What bounds the step, with the evidence."""

    kind: str
    device_share: float | None
    idle_cause: str | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of whole steps, by how they were measured. Never mix the columns.

    Attributes:
        cold_step_ms: wall time of the very first step.
        wall: unprofiled steps, host clock around step and synchronise.
        event: the same steps, CUDA events around them.
        profiled_step: host ranges of the profiled steps.
        profiler_overhead_percent: how much longer the median profiled step took than the median unprofiled one.
        benchmark_reason: why ``wall`` is null, if it is.
        memory: peak memory of the unprofiled steps.
        clocks, clocks_reason: GPU clocks meanwhile, or why they are unknown.
        sequences_per_second, tokens_per_second: from the median unprofiled wall time.
    """

    cold_step_ms: float | None
    wall: SampleSummary | None
    event: SampleSummary | None
    profiled_step: SampleSummary | None
    profiler_overhead_percent: float | None
    benchmark_reason: str | None
    memory: PeakMemory | None
    clocks: Clocks | None
    clocks_reason: str | None
    sequences_per_second: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures a reader looks at first.

    Attributes:
        steps: profiled steps; 0 where neither the trace nor the capture's schedule tells.
        total_cuda_time_ms: device sum over the whole profile: durations of all activities added up.
        cuda_time_per_step_ms: the same divided by ``steps``.
        device_busy_ms: union of the activities' intervals within each device's window, devices added up.
        device_idle_ms: window minus busy, devices added up.
        window, window_ms: what idle refers to, and its length (of one device).
        total_cpu_self_time_ms: self CPU time of all operators added up.
        device_times_reason: why the device times are null, if they are.
        bound: what bounds the step.
    """

    steps: int
    total_cuda_time_ms: float | None
    cuda_time_per_step_ms: float | None
    device_busy_ms: float | None
    device_idle_ms: float | None
    window: str
    window_ms: float
    total_cpu_self_time_ms: float
    device_times_reason: str | None
    bound: BoundEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDocument:
    """One profiled configuration: everything the report shows.

    ``configuration``, ``options``, ``workload`` and ``environment`` are null for a trace that opscope did not capture.
    ``top_aten_operators`` are the ten most expensive ``aten::`` operators, ``operators`` are all of them: by self
    device time, or by self CPU time where no device worked.
    """

    schema: Literal["opscope.profile/1"] = "opscope.profile/1"
    configuration: Configuration | None
    options: CaptureOptions | None
    workload: WorkloadInfo | None
    environment: Environment | None
    created: str | None
    trace: str
    measurement: Measurement
    summary: Summary
    devices: tuple[DeviceEntry, ...]
    accounting: AccountingEntry
    category_statistics: tuple[CategoryEntry, ...]
    phases_ms: dict[str, float] | None
    top_aten_operators: tuple[OperatorEntry, ...]
    operators: tuple[OperatorEntry, ...]
    cuda_kernels: tuple[KernelEntry, ...]
    launches: LaunchEntry
    steps: tuple[StepEntry, ...]
    memory: tuple[MemoryEntry, ...]
    trust: TrustEntry
