"""All configurations of a sweep side by side: the schema ``opscope.comparison/1``. `comparison_report` shows it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from opscope.analysis.bounds import BoundKind
from opscope.analysis.scaling import growth
from opscope.analysis.trust import Verdict
from opscope.record import Clocks, Environment, Manifest
from opscope.report.document import ProfileDocument
from opscope.units import NS_PER_MS

_LAUNCH_BOUND = (BoundKind.LAUNCH, BoundKind.PARTLY_LAUNCH)
_SCALED_CATEGORIES = 5
_WALL = "wall"
ON_DEVICE, IN_PROCESS = "device, allocated", "process, resident"


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One configuration. Times are milliseconds per step.

    Attributes:
        id: the configuration's name in file names.
        batch_size, seq_len: its sizes; null where they are not swept.
        wall_ms, wall_low_ms, wall_high_ms: median unprofiled wall time and its 95 % interval.
        event_ms: median CUDA event time.
        profiled_step_ms: median length of the profiled steps.
        device_sum_ms: durations of all device activities, per profiled step.
        device_busy_ms: time in which a device worked, per profiled step.
        device_share: busy time over the unprofiled wall time (over the profiled step where that was not measured).
        cpu_self_ms: self CPU time of all operators, per profiled step.
        sequences_per_second, tokens_per_second: from ``wall_ms``.
        peak_memory_bytes, peak_memory_kind: most memory allocated on the device; on a CPU, most memory resident in the
            process, libraries included.
        bound: what bounds the step.
        launch_bound: whether that is the host's launching, wholly or in part; null if unknown.
        trust: verdict of the trust checks.
        contended: whether other processes took the CPU from it while it was timed; null if unknown.
        categories_ms: self time per category and step: device time, or CPU time where no device worked.
        top_operators: the three operators with the most self time.
    """

    id: str
    batch_size: int | None
    seq_len: int | None
    wall_ms: float | None
    wall_low_ms: float | None
    wall_high_ms: float | None
    event_ms: float | None
    profiled_step_ms: float | None
    device_sum_ms: float | None
    device_busy_ms: float | None
    device_share: float | None
    cpu_self_ms: float
    sequences_per_second: float | None
    tokens_per_second: float | None
    peak_memory_bytes: int | None
    peak_memory_kind: str
    bound: str
    launch_bound: bool | None
    trust: Verdict
    contended: bool | None
    categories_ms: dict[str, float]
    top_operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """How one quantity grows from one size to the next, everything else fixed.

    Configurations that were measured on a busy machine are left out.

    Attributes:
        quantity: ``wall``, ``device sum``, a category (times per step), ``sequences/s``, ``tokens/s``, ``peak memory``
        along: ``batch_size`` or ``seq_len``.
        fixed: the other size, if there is one.
        smaller, larger: the two sizes.
        ratio: its value at the larger over that at the smaller size.
        ratio_low, ratio_high: of ``wall``, what the 95 % intervals of the two medians leave possible; else null.
        exponent: 0 means no growth, 1 in proportion, 2 with the square.
    """

    quantity: str
    along: str
    fixed: int | None
    smaller: int
    larger: int
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    exponent: float


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A configuration without a result."""

    id: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A sweep's results side by side.

    ``measured_on`` says whose self times the categories are; ``unit`` what ``sequences_per_second`` counts; ``notes``
    name configurations that were measured in another environment.
    """

    schema: Literal["opscope.comparison/1"] = "opscope.comparison/1"
    target: str
    mode: str
    dtype: str | None
    description: str
    command: tuple[str, ...]
    created: str
    environment: Environment | None
    clocks: Clocks | None
    measured_on: Literal["device", "cpu"]
    unit: str
    notes: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    scaling: tuple[ScalingRow, ...]
    failed: tuple[FailedRow, ...]
    pending: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """The comparisons of several sweeps that one command ran: the schema ``opscope.comparisons/1``."""

    schema: Literal["opscope.comparisons/1"] = "opscope.comparisons/1"
    sweeps: tuple[Comparison, ...]


def compare(documents: Sequence[ProfileDocument], manifest: Manifest) -> Comparison:
    """Build the comparison of the configurations that have results, and name those that have none."""
    rows = tuple(_row(document) for document in documents)
    first = manifest.entries[0].configuration
    workload = documents[0].workload if documents else None
    on_device = any(row.device_sum_ms is not None for row in rows)
    return Comparison(
        target=first.target,
        mode=first.mode,
        dtype=(workload.dtype if workload else None) or first.dtype,
        description=workload.description if workload else first.target,
        command=manifest.command,
        created=manifest.created,
        environment=manifest.environment,
        clocks=manifest.clocks,
        measured_on="device" if on_device else "cpu",
        unit=workload.unit if workload else "sequences",
        notes=manifest.notes,
        rows=rows,
        scaling=tuple(_scaling(rows)),
        failed=tuple(
            FailedRow(entry.configuration.id, entry.failure.kind, entry.failure.message)
            for entry in manifest.entries
            if entry.failure is not None
        ),
        pending=tuple(entry.configuration.id for entry in manifest.entries if entry.status == "pending"),
    )


def _row(document: ProfileDocument) -> ComparisonRow:
    measurement, summary, configuration = document.measurement, document.summary, document.configuration
    wall, steps = measurement.wall, summary.steps or 1
    measured = summary.total_cuda_time_ms is not None
    memory = measurement.memory
    allocated = memory.allocated_bytes if memory else None
    return ComparisonRow(
        id=configuration.id if configuration else document.trace,
        batch_size=configuration.batch_size if configuration else None,
        seq_len=configuration.seq_len if configuration else None,
        wall_ms=_ms(wall.median_ns if wall else None),
        wall_low_ms=_ms(wall.median_low_ns if wall else None),
        wall_high_ms=_ms(wall.median_high_ns if wall else None),
        event_ms=_ms(measurement.event.median_ns if measurement.event else None),
        profiled_step_ms=_ms(measurement.profiled_step.median_ns if measurement.profiled_step else None),
        device_sum_ms=summary.cuda_time_per_step_ms,
        device_busy_ms=None if summary.device_busy_ms is None else summary.device_busy_ms / steps,
        device_share=summary.bound.device_share,
        cpu_self_ms=summary.total_cpu_self_time_ms / steps,
        sequences_per_second=measurement.sequences_per_second,
        tokens_per_second=measurement.tokens_per_second,
        peak_memory_bytes=allocated if allocated is not None else (memory.resident_bytes if memory else None),
        peak_memory_kind=ON_DEVICE if allocated is not None else IN_PROCESS,
        bound=summary.bound.kind,
        launch_bound=None if summary.bound.kind == BoundKind.UNKNOWN else summary.bound.kind in _LAUNCH_BOUND,
        trust=document.trust.verdict,
        contended=next((c.verdict is Verdict.FAIL for c in document.trust.checks if c.name == "cpu_contention"), None),
        categories_ms={
            entry.category: value / steps
            for entry in document.category_statistics
            if (value := entry.self_cuda_time_ms if measured else entry.self_cpu_time_ms)
        },
        top_operators=tuple(operator.name for operator in document.operators[:3]),
    )


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS


_Quantity = Callable[[ComparisonRow], float | None]


def _quantities(rows: Sequence[ComparisonRow]) -> Iterator[tuple[str, _Quantity]]:
    yield _WALL, lambda row: row.wall_ms
    yield "device sum", lambda row: row.device_sum_ms
    yield "sequences/s", lambda row: row.sequences_per_second
    yield "tokens/s", lambda row: row.tokens_per_second
    yield "peak memory", lambda row: row.peak_memory_bytes if row.peak_memory_kind == ON_DEVICE else None
    for category in _largest_categories(rows):
        yield category, lambda row, category=category: row.categories_ms.get(category)  # type: ignore[misc]


def _largest_categories(rows: Sequence[ComparisonRow]) -> list[str]:
    totals: dict[str, float] = {}
    for row in rows:
        for category, value in row.categories_ms.items():
            totals[category] = totals.get(category, 0.0) + value
    return sorted(totals, key=lambda category: -totals[category])[:_SCALED_CATEGORIES]


def _scaling(rows: Sequence[ComparisonRow]) -> Iterator[ScalingRow]:
    rows = [row for row in rows if not row.contended]
    for quantity, value in _quantities(rows):
        yield from _growth_along("batch_size", rows, quantity, value, lambda r: r.batch_size, lambda r: r.seq_len)
        yield from _growth_along("seq_len", rows, quantity, value, lambda r: r.seq_len, lambda r: r.batch_size)


def _growth_along(
    along: str,
    rows: Sequence[ComparisonRow],
    quantity: str,
    value: _Quantity,
    size: Callable[[ComparisonRow], int | None],
    other: Callable[[ComparisonRow], int | None],
) -> Iterator[ScalingRow]:
    for fixed in dict.fromkeys(other(row) for row in rows):
        mine = {n: row for row in rows if other(row) == fixed and (n := size(row)) is not None}
        values = {n: found for n, row in mine.items() if (found := value(row)) is not None}
        for step in growth(values):
            low, high = _possible_ratio(quantity, mine[step.smaller], mine[step.larger])
            yield ScalingRow(quantity, along, fixed, step.smaller, step.larger, step.ratio, low, high, step.exponent)


def _possible_ratio(quantity: str, smaller: ComparisonRow, larger: ComparisonRow) -> tuple[float | None, float | None]:
    """Return the least and the largest ratio of wall times that the intervals of the two medians allow."""
    if quantity != _WALL or smaller.wall_low_ms is None or smaller.wall_high_ms is None:
        return None, None
    if larger.wall_low_ms is None or larger.wall_high_ms is None:
        return None, None
    return larger.wall_low_ms / smaller.wall_high_ms, larger.wall_high_ms / smaller.wall_low_ms
