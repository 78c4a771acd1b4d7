"""The data of the one-file page: the schema ``opscope.page/1``. Figures are numbers; the page formats them.

Long columns are lists of integers. Names and places in them are indices into the lists ``names`` of the trace and
``places`` of its timeline.
"""

from typing import Literal

from msgspec import Struct, field

from opscope.documents.advise import AdviseDocument
from opscope.documents.bench import BenchDocument
from opscope.documents.comparison import SweepComparison
from opscope.documents.difference import DiffDocument
from opscope.documents.memory import MemoryPicture
from opscope.documents.ranks import RanksDocument
from opscope.documents.stats import CountersDocument
from opscope.documents.trace import TraceDocument


class StepPart(Struct, frozen=True):
    """A part of a step, in nanoseconds per step."""

    name: str
    ns: float


class NamePart(Struct, frozen=True):
    """Text from a trace or a user: shown literally."""

    name: str


PartEntry = str | NamePart


class BlockEntry(Struct, frozen=True, kw_only=True):
    """A paragraph, a list, a plain table or code of a report.

    Attributes:
        kind: which of these.
        items: of a paragraph its one line, of a list its items, each made of parts.
        tone: what a paragraph means to its reader: ``good``, ``doubt``, ``bad`` or ``strong``; null for plain text.
        columns: the headings of a table.
        rows: its cells.
        numeric: positions of columns that are set flush right.
        lines: of code.
        language: of code, such as ``diff``; empty for none.
    """

    kind: Literal["paragraph", "bullets", "table", "code"]
    items: tuple[tuple[PartEntry, ...], ...] = ()
    tone: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[PartEntry, ...], ...] = ()
    numeric: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    language: str = ""


class FigureEntry(Struct, frozen=True, kw_only=True):
    """A figure that the page shows large.

    Attributes:
        label: what it is of.
        value: the figure; null where it is not known.
        unit: nanoseconds, bytes, a count, or a share of 1.
        about: what to know of it, in words.
    """

    label: str
    value: float | None
    unit: Literal["ns", "bytes", "count", "share"]
    about: str | None = None


class SectionEntry(Struct, frozen=True):
    """A heading with what stands below it, as reports have it."""

    title: tuple[PartEntry, ...]
    blocks: tuple[BlockEntry, ...]
    sections: tuple["SectionEntry", ...]


class StepBar(Struct, frozen=True, kw_only=True):
    """What a device does in a step: the parts add up to ``step_ns``.

    Attributes:
        device: its number.
        parts: compute, exposed communication and copies, then idle time by cause; parts of 0 are left out.
        step_ns: the recorded window over its number of steps; the whole window if no steps are marked.
        per_step: whether figures are for one step.
        window: what the window is, in words.
        light: whether it is from the light pass.
        unprofiled_ns: the median step without a profiler; null if that was not measured.
    """

    device: int
    parts: tuple[StepPart, ...]
    step_ns: float
    per_step: bool
    window: str
    light: bool
    unprofiled_ns: float | None


class TrackEntry(Struct, frozen=True, kw_only=True):
    """A track of slices in rows below each other. A column without any value but -1 is empty.

    Attributes:
        kind: ``idle`` and ``stream`` of a device; ``range``, ``module``, ``operator``, ``call`` or ``python`` of a
            thread; ``threads`` for the outermost slices of further threads.
        label: its title.
        device: of a stream, or of idle time; null on the host, and if it was not recorded.
        rows: number of rows.
        row: per slice, its row. Slices of a row do not overlap, except in the last of very many rows.
        start: per slice, nanoseconds since the start of the previous slice, or for the first, of the timeline.
        duration: per slice, its length in nanoseconds.
        name: per slice, the index of its name; of merged slices, of what takes most of their time.
        operator: per slice, the index of its operator's name; -1 if unknown.
        place: per slice, the index of the place that called its operator; -1 if unknown.
        count: per slice, how many slices it merges; empty if none are merged.
        covered: per slice, how many nanoseconds these last together; empty if none are merged.
        link: per slice, the number of another slice, counted through all tracks: the call that launched work of a
            device, or the forward operator of a node of the backward pass; -1 without.
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
    covered: list[int]
    link: list[int]


class CurveEntry(Struct, frozen=True, kw_only=True):
    """A number over time, which stays until its next change.

    Attributes:
        kind: ``queue`` (activities that were launched and had not begun) or ``memory`` (bytes that were allocated).
        label: its title.
        device: the number of the device; null for the host's memory, and if it was not recorded.
        time: per change, nanoseconds since the previous change, or for the first, since the start of the timeline.
        value: per change, the number from then on.
        change_count: number of changes in this part of the trace; of very many, ``time`` has only the lowest and the
            highest of each stretch.
    """

    kind: str
    label: str
    device: int | None
    time: list[int]
    value: list[int]
    change_count: int


class PathEntry(Struct, frozen=True, kw_only=True):
    """The critical path of some steps, in order of time: what each moment waited for.

    Attributes:
        steps: the numbers of the steps; empty where none are marked.
        start: per piece, nanoseconds since the start of the timeline; negative before it.
        duration: per piece, its length in nanoseconds.
        kind: per piece, what kept the step: ``host``, ``call``, ``launch``, ``stream``, ``activity``, ``wait``, ...
        slice: per piece, the number of the slice that it is about, counted through all tracks; -1 without.
    """

    steps: tuple[int, ...]
    start: list[int]
    duration: list[int]
    kind: list[str]
    slice: list[int]


class MarkEntry(Struct, frozen=True, kw_only=True):
    """The idle time that a finding is about.

    Attributes:
        finding: its id.
        device: the number of the device; null if it was not recorded.
        start: per piece, nanoseconds since the start of the timeline, the longest pieces first.
        duration: per piece, its length in nanoseconds.
        piece_count: number of pieces in this part of the trace, of which these are the longest.
    """

    finding: str
    device: int | None
    start: list[int]
    duration: list[int]
    piece_count: int


class PagePlace(Struct, frozen=True):
    """A place in the program: the module and the line of Python, as indices of names; -1 if not recorded."""

    module: int
    python: int


class TimelineEntry(Struct, frozen=True, kw_only=True):
    """The timeline of a part of a trace.

    Attributes:
        start_ns: when the part begins, on the trace's clock.
        duration_ns: its length.
        steps: the numbers of the shown steps; empty if none are marked.
        all_steps: the numbers of all steps of the trace.
        slice_count: number of slices of this part in the trace.
        merged_below_ns: neighbouring slices shorter than this were merged; 0 if none were.
        python_merged_below_ns: the same for Python's frames.
        tracks: from top to bottom.
        places: where operators were called.
        curves: numbers over time.
        path: the critical path; null where no steps could be replayed, or none of it lies in this part.
        marks: the idle time that findings are about.
    """

    start_ns: int
    duration_ns: int
    steps: tuple[int, ...]
    all_steps: tuple[int, ...]
    slice_count: int
    merged_below_ns: int
    python_merged_below_ns: int
    tracks: tuple[TrackEntry, ...]
    places: tuple[PagePlace, ...]
    curves: tuple[CurveEntry, ...]
    path: PathEntry | None = None
    marks: tuple[MarkEntry, ...] = ()


class FlameEntry(Struct, frozen=True, kw_only=True):
    """A flame graph as a tree. Nodes come after their parents; times exclude children.

    Attributes:
        by: what inner nodes stand for: ``operator``, ``module`` or ``python``.
        parent: per node, the index of its parent; -1 for roots.
        name: per node, the index of its name.
        device_ns, cpu_ns, calls: per node.
        merged: per node, how many small nodes it merges; 0 for other nodes.
        note: what is left out, of threads that only wait; null where nothing is.
    """

    by: str
    parent: list[int]
    name: list[int]
    device_ns: list[int]
    cpu_ns: list[int]
    calls: list[int]
    merged: list[int]
    note: str | None = None


class AliveRow(Struct, frozen=True, kw_only=True):
    """Memory that was alive at the peak, allocated by one operator, shape, module and line; null if unknown."""

    operator: str | None
    input_dims: str | None
    module: str | None
    python: str | None
    allocations: int
    bytes: int


class MemoryCurve(Struct, frozen=True, kw_only=True):
    """Memory of one device over time. ``before_bytes``, ``alive`` and ``smaller_bytes`` add up to ``peak_bytes``.

    Attributes:
        device: its number; null for the host.
        time: nanoseconds since the first record; of very many records, only the lowest and highest of each stretch.
        allocated_bytes: allocated at these times.
        peak_at: when most memory was allocated, on the clock of ``time``.
        peak_bytes: allocated then, according to the allocator.
        before_bytes: the part allocated before the recording; null if addresses were not recorded.
        alive: the part allocated in the recording, the largest rows first.
        smaller_bytes, smaller_count: bytes and number of the rows that are not listed.
        drawn: which records are drawn, where not all are.
        adds_up: what the rows add up to, or why there are none.
    """

    device: int | None
    time: list[int]
    allocated_bytes: list[int]
    peak_at: int
    peak_bytes: int
    before_bytes: int | None
    alive: tuple[AliveRow, ...]
    smaller_bytes: int
    smaller_count: int
    drawn: str | None
    adds_up: str


class LeftOut(Struct, frozen=True):
    """Rows of a table that the page leaves out.

    Attributes:
        table: its name in the document.
        rows: how many are left out.
        ns: sum of their times; for operators, of their self device times.
        cpu_ns: for operators, sum of their self CPU times; 0 for other tables.
    """

    table: str
    rows: int
    ns: int
    cpu_ns: int = 0


class RoofPoint(Struct, frozen=True, kw_only=True):
    """A point of a roofline: an operator with its inputs, or a kernel. Figures of a call are means over the calls.

    Attributes:
        name: what it stands for.
        operator: the operator, in whose row the page shows more; null for a kernel.
        category: the kind of work; null for a kernel.
        precision: whose roof it is below; null for work without products.
        calls: their number.
        flop, bytes: operations and bytes of a call.
        call_ns: how long a call takes.
        area_ns: what its area stands for.
        lost_ns: time of all calls less the least time; null if it is not known.
        share: the least time over the time; null likewise.
        limited_by: what determines the least time; null likewise.
    """

    name: str
    operator: str | None = None
    category: str | None = None
    precision: str | None = None
    calls: int
    flop: float
    bytes: float
    call_ns: float
    area_ns: float
    lost_ns: float | None = None
    share: float | None = None
    limited_by: str | None = None


class Roof(Struct, frozen=True, kw_only=True):
    """A device's roofs, and what is below them.

    Attributes:
        title: null where the page has one roof.
        memory_bytes_per_s: the peak of its memory; null if it is not known.
        flop_per_s: the peaks of its units, by precision.
        points: by what they stand for; the first are shown at first.
        notes: where the peaks are from, and how to read it.
    """

    title: str | None = None
    memory_bytes_per_s: float | None = None
    flop_per_s: dict[str, float] = {}
    points: dict[str, tuple[RoofPoint, ...]] = {}
    notes: tuple[str, ...] = ()


class RoofLabels(Struct, frozen=True, kw_only=True):
    """What the charts of a roofline call what they show.

    Attributes:
        roofline, bandwidth: the charts.
        intensity, bytes: their horizontal axes.
        moved: the bytes of a point.
    """

    roofline: str = ""
    intensity: str = ""
    bandwidth: str = ""
    bytes: str = ""
    moved: str = ""


class Roofline(Struct, frozen=True, kw_only=True):
    """Work below the roofs of the devices that did it.

    Attributes:
        labels: what the charts call what they show.
        roofs: one for each device; empty where nothing can be shown, which the notes explain.
        notes: what else is to be known.
        work_note: of the table of work by time lost; null where nothing is known of limits.
    """

    labels: RoofLabels = RoofLabels()
    roofs: tuple[Roof, ...] = ()
    notes: tuple[str, ...] = ()
    work_note: str | None = None


class StepChoices(Struct, frozen=True, kw_only=True):
    """What a step takes with each combination of some findings' changes, by replay.

    Attributes:
        findings: their ids; they are done one after the other.
        positions: how each may be done: ``none``, ``low``, ``likely``, ``high`` (the assumptions of its range).
        step_ns: per combination the step, in nanoseconds; the position of the last finding varies fastest.
        basis: what was replayed, and whether the step without a change was measured without a profiler.
    """

    findings: tuple[str, ...]
    positions: tuple[str, ...]
    step_ns: tuple[float, ...]
    basis: str


class PageTrace(Struct, frozen=True, kw_only=True):
    """One trace of the page.

    Attributes:
        name: its title on the page.
        sweep: the name of the run it belongs to; null for a trace that stands alone.
        document: its document, as ``opscope analyze --format json`` prints it; long names are cut.
        screen: what is read first.
        figures: the step and what it takes, below that.
        device_sum_ns: sum of the durations of all activities.
        cpu_self_ns: self time of all operators on the host.
        trust: how far that can be trusted: checks in doubt, what adds up, and in a section of its own all checks.
        environment: configuration and environment.
        dossiers: how the most expensive operators run and what could be gained, by their names.
        left_out: rows left out of that document's tables.
        bars: per device, what it does in a step; the device that the verdict is about comes first.
        bars_note: how the bars are read.
        samples_ns: durations of the unprofiled steps, in the order in which they ran.
        names: the names that slices, nodes and places refer to by index.
        timeline: null if nothing was recorded.
        flames: the flame graphs.
        memory: per device; empty if memory was not recorded.
        phases: device time by phase of a training step; empty without phases.
        steps_note: what to know of steps whose work runs in others; null where none is seen to.
        roofline: how far operators and kernels are from what their devices allow.
        choices: what a step takes with the first findings done; null where no replay tells.
    """

    name: str
    sweep: str | None
    document: TraceDocument
    screen: tuple[BlockEntry, ...]
    figures: tuple[FigureEntry, ...]
    device_sum_ns: int
    cpu_self_ns: int
    trust: SectionEntry
    environment: SectionEntry
    dossiers: dict[str, tuple[BlockEntry, ...]]
    left_out: tuple[LeftOut, ...]
    bars: tuple[StepBar, ...]
    bars_note: str
    samples_ns: tuple[int, ...]
    names: tuple[str, ...]
    timeline: TimelineEntry | None
    flames: tuple[FlameEntry, ...]
    memory: tuple[MemoryCurve, ...]
    phases: tuple[BlockEntry, ...]
    steps_note: str | None
    roofline: Roofline
    choices: StepChoices | None


class SweepEntry(Struct, frozen=True, kw_only=True):
    """A sweep.

    Attributes:
        name: of the run.
        comparison: of its configurations.
        axes: what its axes are called.
        most_samples: of how many steps of a configuration a picture has points, at most.
        samples_note: how that picture is read.
        sections: what its report says in words: what bounds each configuration, laws of growth, what has no result.
    """

    name: str
    comparison: SweepComparison
    axes: dict[str, str]
    most_samples: int
    samples_note: str
    sections: tuple[SectionEntry, ...]


class PageDocument(Struct, frozen=True, kw_only=True):
    """Everything on a page.

    Attributes:
        title: its title.
        opscope: the version that made it.
        created: UTC, ISO 8601.
        traces: its traces.
        sweeps: the runs that traces belong to, with their comparisons.
        benchmarks: saved by ``opscope bench``; only the first results of long ones.
        benchmark_sections: what each benchmark says, in words and tables.
        advice: what ``opscope advise`` tried.
        advice_sections: the same in words.
        jobs: what ``opscope ranks`` says of distributed jobs.
        job_sections: the same in words.
        counters: what Nsight Compute counted, without its launches; null without.
        counted: the same below the roofs of the device; null without.
        snapshots: per memory snapshot, a picture of each device.
        snapshot_sections: what each of them says, in words; then the difference of two, if there are two.
        difference: of two runs; null without.
        pair_sections: what each pair of the difference is, in words; and what was not compared.
        cause_colors: of the causes of idle time, by their words.
    """

    schema: Literal["opscope.page/1"] = "opscope.page/1"
    title: str
    opscope: str
    created: str
    traces: tuple[PageTrace, ...] = ()
    sweeps: tuple[SweepEntry, ...] = ()
    benchmarks: tuple[BenchDocument, ...] = ()
    benchmark_sections: tuple[SectionEntry, ...] = ()
    advice: tuple[AdviseDocument, ...] = ()
    advice_sections: tuple[SectionEntry, ...] = ()
    jobs: tuple[RanksDocument, ...] = ()
    job_sections: tuple[SectionEntry, ...] = ()
    counters: CountersDocument | None = None
    counted: Roofline | None = None
    snapshots: tuple[tuple[MemoryPicture, ...], ...] = ()
    snapshot_sections: tuple[SectionEntry, ...] = ()
    difference: DiffDocument | None = None
    pair_sections: tuple[SectionEntry, ...] = ()
    cause_colors: dict[str, str] = field(default_factory=dict)
