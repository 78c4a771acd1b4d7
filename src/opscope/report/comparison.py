"""Builds the comparison of a sweep, and how its work grows, from the documents of its configurations.

`comparison_report` renders it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from opscope.analysis.advice.small_batch import small_batches
from opscope.analysis.costs.growth_law import PREDICTS, Law, growth, growth_law, usable
from opscope.base.units import format_ns
from opscope.documents.comparison import ComparisonRow, FailedRow, LawRow, ScalingRow, SweepComparison, Term
from opscope.documents.trace import TraceDocument
from opscope.documents.verdict import BoundKind, CheckName, Verdict
from opscope.record.configuration import SETTINGS, Value, is_count, order_of
from opscope.record.sweep import Manifest

# ---------------------------------------------------------------- growth laws


_OPERATORS = 8

_POWERS = {1: "", 2: "²", 3: "³"}

_Time = Callable[[TraceDocument], float | None]


def growth_laws(documents: Sequence[TraceDocument]) -> Iterator[LawRow]:
    """Yield the law of each time along each axis with whole numbers, all other axes fixed.

    Args:
        documents: of configurations that were measured on a machine that was not busy.
    """
    axes = {name: None for one in documents for name, value in _axes(one).items() if is_count(value)}
    for quantity, is_operator, time in _times(documents):
        for along in sorted(axes, key=order_of):
            yield from _along(along, documents, quantity, time, is_operator=is_operator)


def _axes(document: TraceDocument) -> Mapping[str, Value]:
    return document.capture.configuration.axes if document.capture else {}


def _times(documents: Sequence[TraceDocument]) -> Iterator[tuple[str, bool, _Time]]:
    yield "wall", False, lambda one: step.ns if (step := one.measurement.step) else None
    if any(one.has_device_times for one in documents):
        yield "device sum", False, lambda one: _per_step(one, one.device_sum_ns) if one.has_device_times else None
    for name in _costliest(documents):
        # Bound as a default: all closures would otherwise see the last name.
        yield name, True, lambda one, name=name: _operators(one).get(name)  # type: ignore[misc]


def _per_step(document: TraceDocument, nanoseconds: float) -> float | None:
    return nanoseconds / document.step_count if document.step_count else None


def _operators(document: TraceDocument) -> dict[str, float]:
    """Return the self time of each operator and step in nanoseconds; operators of one name are added up."""
    times: dict[str, float] = {}
    for row in document.operators:
        time = _per_step(document, row.self_device_ns if document.has_device_times else row.self_cpu_ns)
        if time:
            times[row.name] = times.get(row.name, 0.0) + time
    return times


def _costliest(documents: Sequence[TraceDocument]) -> list[str]:
    """Return the operators that take the largest share of a configuration, each configuration counting alike."""
    shares: dict[str, float] = {}
    for times in map(_operators, documents):
        total = sum(times.values())
        for name, time in times.items():
            shares[name] = shares.get(name, 0.0) + time / total
    return sorted(shares, key=lambda name: -shares[name])[:_OPERATORS]


def _along(
    along: str, documents: Sequence[TraceDocument], quantity: str, time: _Time, *, is_operator: bool
) -> Iterator[LawRow]:
    groups: dict[tuple[tuple[str, Value], ...], dict[int, float]] = {}
    for document in documents:
        axes, result = _axes(document), time(document)
        size = axes.get(along)
        if result is not None and is_count(size):
            others = tuple((name, other) for name, other in axes.items() if name != along)
            groups.setdefault(others, {})[size] = result
    for others, found_times in groups.items():
        row = law_row(quantity, along, dict(others), found_times, is_operator=is_operator)
        if row is not None:
            yield row


def law_row(
    quantity: str, along: str, others: dict[str, Value], times: Mapping[int, float], *, is_operator: bool
) -> LawRow | None:
    """Return the law of one time; None for fewer than three sizes.

    Args:
        quantity: what takes the time.
        along: the axis of the sizes.
        others: the values of all other axes.
        times: nanoseconds by size.
        is_operator: whether it is an operator's.
    """
    times = usable(times)
    law = growth_law(times)
    if law is None:
        return None
    predicts = law.off <= PREDICTS
    return LawRow(
        quantity=quantity,
        is_operator=is_operator,
        along=along,
        others=others,
        sizes=tuple(sorted(times)),
        times_ns=tuple(times[size] for size in sorted(times)),
        formula=_formula(law) if predicts else "",
        terms=law.terms,
        begins=law.begins,
        stair=law.stair,
        slope_ns=law.slope_ns,
        turns=law.turns(min(times), max(times)) if predicts else (),
        off=law.off,
        off_at=law.off_at,
        predicts=predicts,
    )


def _formula(law: Law) -> str:
    slope = [f"{_nanoseconds(law.slope_ns)} per n"] if law.slope_ns else []
    return " + ".join([*(_in_words(term, law) for term in law.terms), *slope])


def _in_words(term: Term, law: Law) -> str:
    if not term.power:
        return _nanoseconds(term.ns)
    size = "n"
    if law.begins is not None:
        size = f"n beyond {size_in_words(law.begins)}"
    elif law.stair is not None:
        size = f"stair of {law.stair}"
    return f"{_nanoseconds(term.ns)} per {size}{_POWERS[term.power]}"


def _nanoseconds(ns: float) -> str:
    """Say a factor: of large sizes' squares it may be far below a nanosecond."""
    return format_ns(max(ns, 1_000)) if ns >= 999.5 else f"{ns:.3g} ns"


def size_in_words(size: float) -> str:
    """Say a size at which something turns, which may lie between whole ones."""
    return f"{size:,.0f}" if size >= 100 else f"{size:.3g}"


# ---------------------------------------------------------------- comparisons


_SCALED_CATEGORIES = 5
_WALL = "wall"
ON_DEVICE, IN_PROCESS = "device, allocated", "process, resident"


def comparison_of(documents: Sequence[TraceDocument], manifest: Manifest) -> SweepComparison:
    """Build the comparison of a sweep's configurations.

    Args:
        documents: of the configurations that have results.
        manifest: the sweep's; it names the configurations that failed or did not run.
    """
    rows = tuple(_row(document) for document in documents)
    first = manifest.entries[0].configuration
    capture = documents[0].capture if documents else None
    workload = capture.workload if capture else None
    on_device = any(row.device_sum_ns is not None for row in rows)
    return SweepComparison(
        target=first.target,
        mode=first.mode,
        # The type that the workload used, rather than the one that was requested.
        dtype=(workload.dtype if workload else None) or first.dtype,
        description=workload.description if workload else first.target,
        command=manifest.command,
        created=manifest.created,
        machine=manifest.machine,
        framework=manifest.framework,
        clocks=manifest.clocks,
        measured_on="device" if on_device else "cpu",
        unit=workload.unit if workload else "sequences",
        notes=manifest.notes,
        rows=rows,
        scaling=tuple(_scaling(rows)),
        # Times taken while other processes used the CPU would pass for growth.
        laws=tuple(growth_laws([one for one in documents if not _contended(one)])),
        findings=tuple(small_batches([row for row in rows if not row.contended], first.target)) if on_device else (),
        failed=tuple(
            FailedRow(entry.configuration.id, entry.failure.kind, entry.failure.message)
            for entry in manifest.entries
            if entry.failure is not None
        ),
        pending=tuple(entry.configuration.id for entry in manifest.entries if entry.status == "pending"),
    )


def _row(document: TraceDocument) -> ComparisonRow:
    measurement, steps = document.measurement, document.step_count
    axes: Mapping[str, Value] = document.capture.configuration.axes if document.capture else {}
    step, memory = measurement.step, measurement.memory
    allocated = memory.allocated_bytes if memory else None
    resident = memory.resident_bytes if memory else None
    # Within the window only, as idle time and shares are.
    busy = sum(d.busy_ns - d.outside_window_ns for d in document.devices)
    return ComparisonRow(
        id=document.name,
        **{name: _number(axes.get(name)) for name, setting in SETTINGS.items() if setting.is_size},
        wall_ns=step.ns if step else None,
        wall_low_ns=step.low_ns if step else None,
        wall_high_ns=step.high_ns if step else None,
        event_ns=measurement.event.median_ns if measurement.event else None,
        profiled_step_ns=measurement.profiled_step.median_ns if measurement.profiled_step else None,
        device_sum_ns=_device_ns(document, document.device_sum_ns / steps if steps else None),
        device_busy_ns=_device_ns(document, busy / steps if steps else None),
        device_share=document.bound.device_share,
        cpu_self_ns=document.cpu_self_ns / steps if steps else None,
        sequences_per_second=measurement.sequences_per_second,
        tokens_per_second=measurement.tokens_per_second,
        peak_memory_bytes=resident if allocated is None else allocated,
        peak_memory_kind=ON_DEVICE if allocated is not None else IN_PROCESS,
        bound=document.bound.kind,
        launch_bound=None if document.bound.kind == BoundKind.UNKNOWN else document.bound.kind == BoundKind.DISPATCH,
        trust=document.trust.verdict,
        contended=_contended(document),
        categories_ns=_categories(document, steps),
        top_operators=tuple(operator.name for operator in document.operators[:3]),
        axes=dict(axes),
        step_ns=document.step_time.ns if document.step_time else None,
        step_basis=document.step_time.basis if document.step_time else None,
    )


def _number(value: Value | None) -> int | None:
    return value if is_count(value) else None


def _contended(document: TraceDocument) -> bool | None:
    checks = (check for check in document.trust.checks if check.name is CheckName.CPU_CONTENTION)
    return next((check.verdict is Verdict.FAIL for check in checks), None)


def _categories(document: TraceDocument, steps: int) -> dict[str, float]:
    """Return the self time per category and step in nanoseconds: device time, or CPU time if no device worked."""
    times = {
        row.category: row.self_device_ns if document.has_device_times else row.self_cpu_ns
        for row in document.categories
    }
    if not steps:
        return {}
    return {category: time / steps for category, time in times.items() if time}


def _device_ns(document: TraceDocument, nanoseconds: float | None) -> float | None:
    return nanoseconds if document.has_device_times else None


_Quantity = Callable[[ComparisonRow], float | None]


def _quantities(rows: Sequence[ComparisonRow]) -> Iterator[tuple[str, _Quantity]]:
    yield _WALL, lambda row: row.wall_ns
    yield "device sum", lambda row: row.device_sum_ns
    yield "sequences/s", lambda row: row.sequences_per_second
    yield "tokens/s", lambda row: row.tokens_per_second
    # Memory resident in the process is not such a quantity: it includes libraries.
    yield "peak memory", lambda row: row.peak_memory_bytes if row.peak_memory_kind == ON_DEVICE else None
    for category in _largest_categories(rows):
        # Bound as a default: all closures would otherwise see the last category.
        yield category, lambda row, category=category: row.categories_ns.get(category)  # type: ignore[misc]


def _largest_categories(rows: Sequence[ComparisonRow]) -> list[str]:
    totals: dict[str, float] = {}
    for row in rows:
        for category, value in row.categories_ns.items():
            totals[category] = totals.get(category, 0.0) + value
    return sorted(totals, key=lambda category: -totals[category])[:_SCALED_CATEGORIES]


def _scaling(rows: Sequence[ComparisonRow]) -> Iterator[ScalingRow]:
    # Times taken while other processes used the CPU would pass for growth.
    rows = [row for row in rows if not row.contended]
    numeric = dict.fromkeys(name for row in rows for name, value in row.axes.items() if _number(value) is not None)
    for quantity, value in _quantities(rows):
        for along in sorted(numeric, key=order_of):
            yield from _growth_along(along, rows, quantity, value)


def _growth_along(along: str, rows: Sequence[ComparisonRow], quantity: str, value: _Quantity) -> Iterator[ScalingRow]:
    """Yield how a quantity grows along one axis, for each combination of values of all other axes."""
    groups: dict[tuple[tuple[str, Value], ...], dict[int, ComparisonRow]] = {}
    for row in rows:
        if (size := _number(row.axes.get(along))) is not None:
            others = tuple((name, other) for name, other in row.axes.items() if name != along)
            groups.setdefault(others, {})[size] = row
    for others, own in groups.items():
        values = {n: result for n, row in own.items() if (result := value(row)) is not None}
        for step in growth(values):
            low, high = _possible_ratio(quantity, own[step.smaller], own[step.larger])
            yield ScalingRow(
                *(quantity, along, _other_size(along, dict(others)), step.smaller, step.larger, step.ratio, low, high),
                exponent=step.exponent,
                others=dict(others),
            )


def _other_size(along: str, others: Mapping[str, Value]) -> int | None:
    """Return the value of the other size (batch size or sequence length) if ``along`` is one of them, else None."""
    sizes = [name for name, setting in SETTINGS.items() if setting.is_size]
    if along not in sizes:
        return None
    return next((_number(others.get(name)) for name in sizes if name != along), None)


def _possible_ratio(quantity: str, smaller: ComparisonRow, larger: ComparisonRow) -> tuple[float | None, float | None]:
    """Return the range of the ratio of wall times by both medians' intervals; None for other quantities."""
    if quantity != _WALL or smaller.wall_low_ns is None or smaller.wall_high_ns is None:
        return None, None
    if larger.wall_low_ns is None or larger.wall_high_ns is None:
        return None, None
    return larger.wall_low_ns / smaller.wall_high_ns, larger.wall_high_ns / smaller.wall_low_ns
