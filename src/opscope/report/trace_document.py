"""Builds a `TraceDocument` from an analysed trace and its record. All figures and verdicts come from `Measured`."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import LightPass, Measured
from opscope.analysis.structure.arrays import kept
from opscope.base.parts import Stage, staged
from opscope.documents import trace as doc
from opscope.documents.explain import NativeFunctionDetail
from opscope.documents.findings import Finding
from opscope.documents.limits import LimitsEntry
from opscope.documents.trace import CURRENT
from opscope.knowledge.kernels.kernel_source import How, SourceResolver
from opscope.knowledge.kernels.kinds import short_name, short_names
from opscope.knowledge.native_functions import NativeFunctions
from opscope.lookup.dossier import statements_on
from opscope.lookup.explain import Lookup
from opscope.lookup.operator_source import native_function_of, source_entry
from opscope.record.capture import CaptureRecord
from opscope.report.brief import first_screen
from opscope.report.limits_document import limits_entry
from opscope.report.step_parts import device_entry, window_entry

_RESEARCHED = 3  # operators that get findings
_MOST_LIMITS = 50  # rows of limits, those that lose most first
_LONGEST_UNLINKED = 3  # activities without a recorded operator, by name
_LISTED = 10  # shapes, kernels and callers listed per operator
_OCCUPANCY = "theoretical_occupancy_percent"

R = TypeVar("R", bound=Struct)


class _Builder(Struct, frozen=True):
    """The inputs of a document. Only with a lookup does it get the details of operators and kernels."""

    measured: Measured
    functions: NativeFunctions
    lookup: Lookup | None
    most_rows: int

    @property
    def analysis(self) -> Analysis:
        return self.measured.analysis

    @property
    def resolver(self) -> SourceResolver | None:
        return self.lookup.resolver if self.lookup else None


@staged(Stage.DOCUMENT)
def build_trace_document(
    measured: Measured,
    functions: NativeFunctions,
    *,
    lookup: Lookup | None = None,
    trace: str | None = None,
    most_rows: int = sys.maxsize,
) -> doc.TraceDocument:
    """Build the document of one trace.

    Args:
        measured: the trace's analysis, with the record of its capture.
        functions: the operator table of the PyTorch that ran, or of a release.
        lookup: finds sources; with None, the document has no details of operators and kernels.
        trace: the trace's file name relative to its run directory; None for a trace that stands alone.
        most_rows: the most operators, and the most kernels; the most expensive ones are kept.
    """
    builder, analysis = _Builder(measured, functions, lookup, most_rows), measured.analysis
    analysis.compute_for_documents()
    part = analysis.losses.part
    return doc.TraceDocument(
        version=CURRENT,
        source=analysis.source,
        window=window_entry(analysis.window),
        bound=measured.bound,
        devices=part("devices", lambda: tuple(device_entry(timeline) for timeline in analysis.devices), tuple),
        operators=part("operators", lambda: tuple(_operators(builder)), tuple),
        kernels=part(
            "kernels",
            lambda: tuple(_kernels_of_trace(builder)),
            tuple,
        ),
        categories=_rows(analysis, "categories", doc.CategoryRow),
        captured=_rows(analysis, "captured", doc.CapturedRow),
        graph_nodes=_rows(analysis, "graph_nodes", doc.GraphNodeRow),
        backward=_rows(analysis, "backward", doc.BackwardRow),
        launches=part("launches", lambda: _launches(analysis), lambda: doc.LaunchesEntry(None, None, None, None, ())),
        steps=analysis.steps,
        odd_steps=analysis.odd_steps,
        steps_from=analysis.steps_from,
        phases_ns=analysis.phases,
        unlinked=doc.UnlinkedEntry(
            analysis.accounting.unlinked_activities,
            analysis.accounting.unlinked_ns,
            part("work without an operator", lambda: _longest_unlinked(analysis), tuple),
        ),
        annotations=_rows(analysis, "annotations", doc.AnnotationRow),
        device_times_reason=measured.device_times_reason,
        memory=part("memory", lambda: tuple(_memory(analysis)), tuple),
        device_memory=None if measured.memory is None else measured.memory.document,
        compile=measured.compiled,
        counters=part("counters", lambda: analysis.counters, tuple),
        trace=trace,
        step_count=measured.step_count,
        measurement=measured.measurement,
        step_time=measured.step_time,
        capture=None if measured.record is None else _capture(measured.record),
        gaps=part("gaps", lambda: analysis.gaps, tuple),
        iterations=part("iterations", lambda: analysis.iterations, tuple),
        light=part("the light pass", lambda: _light(measured.light), lambda: None),
        findings=part("sources of findings", lambda: _findings(measured, builder.resolver), lambda: measured.findings),
        findings_reason=measured.findings_reason,
        together=measured.advice.together,
        limits=part("limits", lambda: _limits(measured), lambda: None),
        trust=measured.trust,  # last, with what is made of it: it says what failed before
        first_screen=first_screen(measured),
    )


def _rows(analysis: Analysis, name: str, kind: type[R]) -> tuple[R, ...]:
    """Return the rows of one of the analysis' tables, as entries of a document."""
    rows = lambda: tuple(kind(**row) for row in getattr(analysis, name).iter_rows(named=True))  # noqa: E731
    return analysis.losses.part(name.replace("_", " "), rows, tuple)


def _launches(analysis: Analysis) -> doc.LaunchesEntry:
    launches = analysis.launches
    return doc.LaunchesEntry(
        api=launches.api,
        latency=launches.latency,
        backlog=launches.backlog,
        without_activity=launches.without_activity,
        calls=tuple(doc.LaunchCallRow(**row) for row in launches.calls.iter_rows(named=True)),
    )


def _longest_unlinked(analysis: Analysis) -> tuple[doc.UnlinkedRow, ...]:
    short = _short(analysis)
    rows = analysis.longest_unlinked(_LONGEST_UNLINKED).iter_rows(named=True)
    return tuple(doc.UnlinkedRow(**{**row, "name": short.get(row["name"], row["name"])}) for row in rows)


def _findings(measured: Measured, resolver: SourceResolver | None) -> tuple[Finding, ...]:
    return tuple(_with_source(finding, resolver) for finding in measured.findings)


def _limits(measured: Measured) -> LimitsEntry | None:
    """Return the limits with only the rows that lose most; None if no device times were recorded."""
    if not measured.analysis.has_device_times:
        return None
    whole = limits_entry(measured)
    return replace(whole, rows=whole.rows[:_MOST_LIMITS])


def _with_source(finding: Finding, resolver: SourceResolver | None) -> Finding:
    """Return a finding with the file that instantiates its kernel, if that is verified."""
    if resolver is None or finding.where.kernel is None:
        return finding
    source = source_entry(resolver.resolve(finding.where.kernel))
    return replace(
        finding, where=replace(finding.where, source_file=source.file if source.how == How.VERIFIED else None)
    )


def _light(light: LightPass | None) -> doc.LightEntry | None:
    if light is None:
        return None
    if light.analysis is None:
        return doc.LightEntry(agrees=False, sentence=light.sentence)
    devices = tuple(device_entry(timeline) for timeline in light.analysis.devices)
    return doc.LightEntry(agrees=True, sentence=light.sentence, devices=devices, steps=light.analysis.steps)


def _capture(record: CaptureRecord) -> doc.CaptureEntry:
    # An entry holds some of the record's fields, under the same names.
    names = doc.CaptureEntry.__struct_fields__
    return doc.CaptureEntry(**{name: getattr(record, name) for name in names})


def _operators(builder: _Builder) -> Iterator[doc.OperatorRow]:
    analysis = builder.analysis
    operators = analysis.operators.head(builder.most_rows)
    chosen = operators["name"].implode()
    shapes = grouped(analysis.shapes.filter(pl.col("name").is_in(chosen)), "name")
    weight = "self_device_ns" if analysis.has_device_times else "self_cpu_ns"
    details = None if builder.lookup is None else _Details(builder.lookup, analysis, chosen)
    for row in operators.iter_rows(named=True):
        name = row["name"]
        detail, native_function = native_function_of(
            name, shapes[name], builder.functions, builder.measured.device_key, weight
        )
        yield doc.OperatorRow(
            **row,
            native_function=native_function,
            cpp_function=detail.cpp_function,
            detail=None if details is None else _detail(details, name, detail, shapes[name]),
        )


def _detail(
    details: "_Details", name: str, native: NativeFunctionDetail, shapes: pl.DataFrame
) -> doc.OperatorDetail | None:
    return details.losses.part(f"details of {name}", lambda: details.of(name, native, shapes), lambda: None)


class _Details:
    """Builds the details of single operators."""

    def __init__(self, lookup: Lookup, analysis: Analysis, chosen: pl.Series) -> None:
        self._lookup, self.losses, self._short = lookup, analysis.losses, _short(analysis)
        self._kernels = grouped(analysis.kernels_of.filter(pl.col("operator").is_in(chosen)), "operator")
        self._callers = None if analysis.callers is None else grouped(analysis.callers, "name")
        self._researched = set(analysis.operators.filter(pl.col("activities") > 0)["name"].head(_RESEARCHED))

    def of(self, name: str, native: NativeFunctionDetail, shapes: pl.DataFrame) -> doc.OperatorDetail:
        lookup, launched = self._lookup, self._kernels.get(name)
        return doc.OperatorDetail(
            category_rule=lookup.classifier.classify(name).rule,
            native_function=native,
            source=lookup.sources.of_operator(name),
            shape_count=shapes.height,
            shapes=tuple(_shapes(shapes.head(_LISTED))),
            kernel_count=0 if launched is None else launched.height,
            kernels=() if launched is None else tuple(_kernels(launched.head(_LISTED), lookup.resolver, self._short)),
            called_from=None if self._callers is None else tuple(_called_from(self._callers.get(name))),
            findings=statements_on(lookup, name) if name in self._researched else None,
        )


def grouped(table: pl.DataFrame, key: str) -> Mapping[str, pl.DataFrame]:
    """Group the rows of a table by the values of a column, keeping their order."""
    return {str(name): group for (name,), group in table.group_by(key, maintain_order=True)}


def _shapes(table: pl.DataFrame) -> Iterator[doc.ShapeRow]:
    columns = ("input_dims", "input_types", "calls", "self_device_ns", "total_device_ns", "self_cpu_ns")
    for row in table.iter_rows(named=True):  # selecting columns first takes longer for so few rows
        yield doc.ShapeRow(**{name: row[name] for name in columns})


def _kernels_of_trace(builder: "_Builder") -> Iterator[doc.KernelRow]:
    rows = builder.analysis.kernels.head(builder.most_rows)
    return _kernels(rows, builder.resolver, _short(builder.analysis))


def _short(analysis: Analysis) -> Mapping[str, str]:
    """Return the short names of a trace's kernels; of those beyond the first thousands none."""
    return kept(analysis.kernels, "short names", lambda: short_names(analysis.kernels["name"].cast(pl.String)))


def _kernels(table: pl.DataFrame, resolver: SourceResolver | None, short: Mapping[str, str]) -> Iterator[doc.KernelRow]:
    """Yield rows of `Analysis.kernels`, or of `Analysis.kernels_of` for one operator."""
    columns = [name for name in table.columns if name in doc.KernelRow.__struct_fields__]
    for row in table.iter_rows(named=True):
        if not row.get(_OCCUPANCY):  # no kernel has none: Kineto writes 0 where it does not know the device
            row[_OCCUPANCY] = None
        yield doc.KernelRow(**{"device": None, **{name: row[name] for name in columns}, **_named(row, resolver, short)})


def _named(row: Mapping[str, Any], resolver: SourceResolver | None, short: Mapping[str, str]) -> dict[str, str | None]:
    """Return the fields of a kernel's short name and source; none without a resolver."""
    if resolver is None or row["kind"] != "kernel":
        return {}
    source = resolver.resolve(row["name"])
    return {
        "summary": short.get(row["name"]) or short_name(row["name"]),
        "library": source.library,
        "source_file": source.file,
        "source_how": str(source.how),
    }


def _called_from(table: pl.DataFrame | None) -> Iterator[doc.CallerRow]:
    for row in () if table is None else table.head(_LISTED).iter_rows(named=True):
        yield doc.CallerRow(row["called_from"], row["calls"], row["self_device_ns"], row["self_cpu_ns"])


def _memory(analysis: Analysis) -> Iterator[doc.MemoryEntry]:
    for use in analysis.memory:
        top = use.by_operator.head(_LISTED)
        yield doc.MemoryEntry(
            device=use.device,
            peak_allocated_bytes=use.peak_allocated_bytes,
            allocated_bytes=use.allocated_bytes,
            allocations=use.allocations,
            top_operators={name or "outside any operator": size for name, _, size in top.iter_rows()},
        )
