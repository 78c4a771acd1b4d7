"""What the one-file page is drawn from: the schema ``opscope.page/1``. Figures are numbers; the page formats them.

Columns of many values are lists of whole numbers: names and places are numbers of entries of the lists of their trace.
"""

from dataclasses import dataclass
from typing import Literal

from opscope.documents.bench import BenchDocument
from opscope.documents.comparison import Comparison
from opscope.documents.difference import DiffDocument
from opscope.documents.trace import TraceDocument


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step, in nanoseconds a step."""

    name: str
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBar:
    """What a device does in a step: the parts add up to ``step_ns``.

    Attributes:
        device: its number.
        parts: compute, exposed communication and copies, then idle time by its causes; those that are not 0.
        step_ns: the recorded window over its steps; all of it where no steps are marked.
        per_step: whether it is of one step.
        window: what the window is, in words.
        light: whether it is of the light pass.
        unprofiled_ns: the median step without a profiler; null where that was not measured.
    """

    device: int
    parts: tuple[Part, ...]
    step_ns: float
    per_step: bool
    window: str
    light: bool
    unprofiled_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackEntry:
    """Slices below each other: of a stream, of a thread, or of a device's idle time.

    Attributes:
        kind: ``stream``, ``thread`` or ``idle``.
        label: what it is called.
        device: of a stream, or of idle time; null for threads and where it was not recorded.
        rows: how many rows it has.
        row, start, duration: per slice its row, its start since that of the slice before it (of the first one since the
            timeline's), and its length, in nanoseconds.
        name: per slice its name; -1 where several were put together.
        operator: per slice the name of its operator; -1 where none is known.
        place: per slice where in the program its operator was called; -1 where that is not known.
        count: per slice how many it stands for; empty where each stands for itself.
    """

    kind: str
    label: str
    device: int | None
    rows: int
    row: list[int]
    start: list[int]
    duration: list[int]
    name: list[int]
    operator: list[int]
    place: list[int]
    count: list[int]


@dataclass(frozen=True, slots=True)
class PlaceEntry:
    """Where in the program: the module and the line, as names; -1 where not recorded."""

    module: int
    python: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """A part of a trace.

    Attributes:
        start_ns: when it begins, on the trace's clock.
        duration_ns: how long it is.
        steps: the steps that were chosen; empty where none are marked.
        all_steps: of all steps.
        slice_count: how many slices the part has in the trace.
        merged_below_ns: neighbours shorter than this were put together; 0 where all slices are there.
        tracks: what is drawn, from top to bottom.
        places: where operators were called.
    """

    start_ns: int
    duration_ns: int
    steps: tuple[int, ...]
    all_steps: tuple[int, ...]
    slice_count: int
    merged_below_ns: int
    tracks: tuple[TrackEntry, ...]
    places: tuple[PlaceEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlameEntry:
    """A tree; nodes come after their parents, and times are a node's own.

    Attributes:
        by: what inner nodes stand for: ``operator``, ``module`` or ``python``.
        parent: per node the one above it, or -1.
        name: per node its name.
        device_ns, cpu_ns, calls: per node.
        merged: per node of how many small ones it was made; 0 for the others.
    """

    by: str
    parent: list[int]
    name: list[int]
    device_ns: list[int]
    cpu_ns: list[int]
    calls: list[int]
    merged: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AliveRow:
    """What was alive at the peak: of one operator, shape, module and line."""

    operator: str | None
    input_dims: str | None
    module: str | None
    python: str | None
    allocations: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Memory of one device over time. ``before_bytes``, ``alive`` and ``smaller_bytes`` add up to ``peak_bytes``.

    Attributes:
        device: null for the host.
        time: since the first record, in nanoseconds; of very many records the lowest and the highest of each stretch.
        allocated_bytes: how much was allocated then.
        record_count: how many there are in the trace.
        peak_at: when most was allocated, on the same clock as ``time``.
        peak_bytes: how much that was, by the allocator.
        before_bytes: of it, what was allocated before the recording; null where addresses were not recorded.
        alive: of it, what was allocated in the recording, the largest first.
        smaller_bytes, smaller_count: rows that are not listed.
    """

    device: int | None
    time: list[int]
    allocated_bytes: list[int]
    record_count: int
    peak_at: int
    peak_bytes: int
    before_bytes: int | None
    alive: tuple[AliveRow, ...]
    smaller_bytes: int
    smaller_count: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of a table that the page does not have: how many, and their time (self time of operators).

    ``cpu_ns`` is the self CPU time of operators; 0 for other tables.
    """

    table: str
    rows: int
    ns: int
    cpu_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLimit:
    """All calls with a model in which one kernel takes most of the time. Sums over them.

    Attributes:
        kernel, device: which.
        precision: in which its products run; null for other work.
        calls: of operators.
        device_ns, ideal_ns, lost_ns: their time, the least it could be, and the difference.
        flop, least_bytes: operations, and bytes that must be moved.
    """

    kernel: str
    device: int | None
    precision: str | None
    calls: int
    device_ns: int
    ideal_ns: float
    lost_ns: float
    flop: int
    least_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTrace:
    """One trace of the page.

    Attributes:
        name: what it is called on the page.
        sweep: the name of the run that it is of; null for a trace that stands alone.
        document: its document, as ``opscope analyze --format json`` has it; long names are cut.
        left_out: what was left out of that document's tables.
        bars: per device what it does in a step.
        samples_ns: unprofiled steps, in the order in which they ran.
        names: of slices, nodes and places.
        timeline: null where nothing was recorded.
        flames: the trees.
        memory: empty where it was not recorded.
        kernel_limits: how far calls are from the limit, by the kernel that takes most of each.
    """

    name: str
    sweep: str | None
    document: TraceDocument
    left_out: tuple[LeftOut, ...]
    bars: tuple[StepBar, ...]
    samples_ns: tuple[int, ...]
    names: tuple[str, ...]
    timeline: TimelineEntry | None
    flames: tuple[FlameEntry, ...]
    memory: tuple[MemoryCurve, ...]
    kernel_limits: tuple[KernelLimit, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """Between two neighbouring sizes of a sweep what bounds the step changes.

    Attributes:
        along: the axis.
        others: the values of all other axes, as text.
        smaller, larger: the sizes.
        before, after: what bounds the step at them.
    """

    along: str
    others: str
    smaller: int
    larger: int
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEntry:
    """A sweep, and between which sizes what bounds the step changes."""

    name: str
    comparison: Comparison
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDocument:
    """Everything on a page.

    Attributes:
        title: in its head.
        opscope: the version that made it.
        created: when.
        traces: its traces.
        sweeps: runs of several configurations.
        benchmarks: saved by ``opscope bench``; of long ones the first results.
        benchmark_results_left_out: of each benchmark how many further results it has.
        difference: of two runs.
    """

    schema: Literal["opscope.page/1"] = "opscope.page/1"
    title: str
    opscope: str
    created: str
    traces: tuple[PageTrace, ...] = ()
    sweeps: tuple[SweepEntry, ...] = ()
    benchmarks: tuple[BenchDocument, ...] = ()
    benchmark_results_left_out: tuple[int, ...] = ()
    difference: DiffDocument | None = None
