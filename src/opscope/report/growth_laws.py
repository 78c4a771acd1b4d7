"""Finds by which law a sweep's times grow along each of its axes: the step's, and those of its costliest operators."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from opscope.analysis.costs.growth_law import PREDICTS, Law, growth_law, usable
from opscope.base.units import format_ns
from opscope.documents.comparison import LawRow, Term
from opscope.documents.trace import TraceDocument
from opscope.record.settings import Value, is_count, order_of

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
