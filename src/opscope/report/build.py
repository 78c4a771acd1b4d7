"""Analysis (and the capture's record) -> `ProfileDocument`. Units change here, figures do not."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.analysis.bounds import Bound, bound_of
from opscope.analysis.checks import check_cpu_contention, check_overhead
from opscope.analysis.launches import Spread
from opscope.analysis.statistics import SampleSummary, summarise
from opscope.analysis.timeline import DeviceTimeline
from opscope.analysis.trust import Trust
from opscope.knowledge.kernels.decode import decode
from opscope.knowledge.kernels.source import How, KernelSource, SourceResolver
from opscope.knowledge.native_functions import NativeFunctions
from opscope.record import Benchmark, CaptureRecord, WorkloadInfo
from opscope.report import document as doc
from opscope.report.dossier import findings_of
from opscope.report.explain import Lookup
from opscope.report.native_function import native_function_of
from opscope.report.source import source_entry
from opscope.units import NS_PER_MS, NS_PER_S, NS_PER_US

_TOP_OPERATORS = 10
_NO_KERNEL = "no kernel of this operator was recorded"
_RESEARCHED = 3  # operators that get findings
_LISTED = 10  # shapes, kernels and callers listed per operator


def build_document(
    analysis: Analysis,
    functions: NativeFunctions,
    record: CaptureRecord | None,
    trace_name: str,
    resolver: SourceResolver,
) -> doc.ProfileDocument:
    """Build the statistics document of one trace.

    Args:
        analysis: the trace's analysis.
        functions: the operators of the PyTorch that ran.
        record: what the capture left beside the trace; None for a foreign trace.
        trace_name: the trace's file name, as the document shall name it.
        resolver: finds the kernels' source.
    """
    bound = step_bound(analysis, record)
    measurement = _measurement(analysis, record)
    device_key = _device_key(analysis, record)
    lookup = Lookup(resolver, functions, analysis=analysis, device_key=device_key, bound=bound)
    operators = tuple(_operators(analysis, lookup))
    return doc.ProfileDocument(
        configuration=record.configuration if record else None,
        options=record.options if record else None,
        workload=record.workload if record else None,
        environment=record.environment if record else None,
        created=record.created if record else None,
        trace=trace_name,
        measurement=measurement,
        summary=_summary(analysis, record, bound),
        devices=tuple(_device(timeline) for timeline in analysis.devices),
        accounting=_accounting(analysis),
        category_statistics=tuple(_categories(analysis)),
        phases_ms=None if analysis.phases is None else {k: _ms(v) for k, v in analysis.phases.items()},
        top_aten_operators=tuple(op for op in operators if op.name.startswith("aten::"))[:_TOP_OPERATORS],
        operators=operators,
        cuda_kernels=tuple(_kernels(analysis.kernels, resolver)),
        launches=_launches(analysis),
        steps=tuple(_steps(analysis)),
        memory=tuple(_memory(analysis)),
        trust=_trust(analysis, measurement, record),
    )


def step_bound(analysis: Analysis, record: CaptureRecord | None) -> Bound:
    """Return what bounds a step: by the unprofiled step time where the capture has one."""
    benchmark = record.benchmark if record else None
    return bound_of(
        analysis,
        steps=_step_count(analysis, record),
        wall_ns=_median(summarise(benchmark.wall_ns)) if benchmark else None,
        ran_on_gpu=None if record is None else _ran_on_gpu(record),
    )


def _ms(value: Any) -> float:
    return float(value / NS_PER_MS)


def _us(value: Any) -> float:
    return float(value / NS_PER_US)


def _percent(part: Any, whole: Any) -> float | None:
    return float(100 * part / whole) if whole else None


def _ran_on_gpu(record: CaptureRecord) -> bool:
    return record.environment.device.startswith("cuda")


def _device_key(analysis: Analysis, record: CaptureRecord | None) -> str:
    on_gpu = analysis.has_device_times if record is None else _ran_on_gpu(record)
    return "CUDA" if on_gpu else "CPU"


def _step_count(analysis: Analysis, record: CaptureRecord | None) -> int:
    """Return how many steps the trace holds: without CPU activities the profiler marks none, the schedule knows."""
    schedule = record.options.schedule if record else None
    return analysis.step_count or (schedule.active if schedule else 0)


def _median(summary: SampleSummary | None) -> float | None:
    return None if summary is None else summary.median_ns


def _step_spans(analysis: Analysis) -> list[int]:
    return list({step.index: step.span_ns for step in analysis.steps}.values())


def _measurement(analysis: Analysis, record: CaptureRecord | None) -> doc.Measurement:
    profiled = summarise(_step_spans(analysis))
    benchmark = record.benchmark if record else None
    wall = summarise(benchmark.wall_ns) if benchmark else None
    overhead = None
    if wall is not None and profiled is not None:
        overhead = 100 * (profiled.median_ns / wall.median_ns - 1)
    workload = record.workload if record else None
    sequences, tokens = _throughput(workload, wall)
    return doc.Measurement(
        cold_step_ms=_ms(record.cold_step_ns) if record and record.cold_step_ns is not None else None,
        wall=wall,
        event=summarise(benchmark.event_ns or ()) if benchmark else None,
        profiled_step=profiled,
        profiler_overhead_percent=overhead,
        benchmark_reason=_benchmark_reason(record, benchmark),
        memory=record.memory if record else None,
        clocks=benchmark.clocks if benchmark else None,
        clocks_reason=benchmark.clocks_reason if benchmark else "no unprofiled steps were run",
        sequences_per_second=sequences,
        tokens_per_second=tokens,
    )


def _benchmark_reason(record: CaptureRecord | None, benchmark: Benchmark | None) -> str | None:
    if record is None:
        return "a trace holds no unprofiled steps"
    return None if benchmark else "they were not run (--skip-benchmark, or a with block)"


def _throughput(workload: WorkloadInfo | None, wall: SampleSummary | None) -> tuple[float | None, float | None]:
    if workload is None or wall is None:
        return None, None
    per_second = NS_PER_S / wall.median_ns
    sequences, tokens = workload.sequences_per_step, workload.tokens_per_step
    return (
        None if sequences is None else sequences * per_second,
        None if tokens is None else tokens * per_second,
    )


def _summary(analysis: Analysis, record: CaptureRecord | None, bound: Bound) -> doc.Summary:
    steps = _step_count(analysis, record)
    measured = analysis.has_device_times
    total = analysis.accounting.activities_ns
    window = analysis.devices[0].window if analysis.devices else analysis.window
    return doc.Summary(
        steps=steps,
        total_cuda_time_ms=_ms(total) if measured else None,
        cuda_time_per_step_ms=_ms(total / steps) if measured and steps else None,
        device_busy_ms=_ms(sum(d.busy_in_window_ns for d in analysis.devices)) if measured else None,
        device_idle_ms=_ms(sum(d.idle_ns for d in analysis.devices)) if measured else None,
        window=str(window.kind),
        window_ms=_ms(window.duration_ns),
        total_cpu_self_time_ms=_ms(analysis.operators["self_cpu_ns"].sum()),
        device_times_reason=None if measured else _no_device_times(record),
        bound=doc.BoundEntry(
            str(bound.kind),
            bound.device_share,
            None if bound.idle_cause is None else str(bound.idle_cause),
            bound.sentence,
        ),
    )


def _no_device_times(record: CaptureRecord | None) -> str:
    if record is None:
        return "the trace holds no device activity"
    if not _ran_on_gpu(record):
        return "nothing ran on a GPU"
    if "cuda" not in record.options.activities:
        return "CUDA activities were not collected"
    return "no device activity was recorded"


def _device(timeline: DeviceTimeline) -> doc.DeviceEntry:
    return doc.DeviceEntry(
        device=timeline.device,
        name=timeline.name,
        activities=timeline.activities,
        sum_ms=_ms(timeline.sum_ns),
        busy_ms=_ms(timeline.busy_ns),
        outside_window_ms=_ms(timeline.outside_window_ns),
        window=str(timeline.window.kind),
        window_ms=_ms(timeline.window.duration_ns),
        idle_ms=_ms(timeline.idle_ns),
        compute_ms=_ms(timeline.compute_ns),
        exposed_communication_ms=_ms(timeline.exposed_communication_ns),
        exposed_memcpy_ms=_ms(timeline.exposed_memcpy_ns),
        idle_by_cause_ms={str(cause): _ms(length) for cause, length in timeline.idle.by_cause().items() if length},
    )


def _accounting(analysis: Analysis) -> doc.AccountingEntry:
    return doc.AccountingEntry(
        operators_self_ms=_ms(analysis.accounting.operators_ns),
        unlinked_ms=_ms(analysis.accounting.unlinked_ns),
        unlinked_activities=analysis.accounting.unlinked_activities,
        device_sum_ms=_ms(analysis.accounting.activities_ns),
        holds=analysis.accounting.holds,
    )


def _categories(analysis: Analysis) -> Iterator[doc.CategoryEntry]:
    measured, device_sum = analysis.has_device_times, analysis.accounting.activities_ns
    cpu_sum = analysis.categories["self_cpu_ns"].sum()
    for row in analysis.categories.iter_rows(named=True):
        yield doc.CategoryEntry(
            category=row["category"],
            calls=row["calls"],
            kernels_launched=row["activities"],
            self_cuda_time_ms=_ms(row["self_device_ns"]) if measured else None,
            percent_of_device_sum=_percent(row["self_device_ns"], device_sum),
            self_cpu_time_ms=_ms(row["self_cpu_ns"]),
            percent_of_cpu_self_sum=_percent(row["self_cpu_ns"], cpu_sum),
        )


def _operators(analysis: Analysis, lookup: Lookup) -> Iterator[doc.OperatorEntry]:
    measured, device_sum = analysis.has_device_times, analysis.accounting.activities_ns
    cpu_sum = analysis.operators["self_cpu_ns"].sum()
    shapes = _grouped(analysis.shapes, "name")
    kernels = _grouped(analysis.kernels_of, "operator")
    callers = None if analysis.callers is None else _grouped(analysis.callers, "name")
    weight = "self_device_ns" if measured else "self_cpu_ns"
    researched = set(analysis.operators.filter(pl.col("activities") > 0)["name"].head(_RESEARCHED))
    for row in analysis.operators.iter_rows(named=True):
        name = row["name"]
        mine = shapes[name]
        detail, native_function = native_function_of(name, mine, lookup.functions, lookup.device_key, weight)
        source = lookup.source_of_launched(name) or source_entry(KernelSource(How.UNKNOWN, _NO_KERNEL))
        launched = kernels.get(name)
        yield doc.OperatorEntry(
            name=name,
            category=row["category"],
            category_rule=lookup.classifier.classify(name).rule,
            calls=row["calls"],
            self_cuda_time_ms=_ms(row["self_device_ns"]) if measured else None,
            cuda_time_total_ms=_ms(row["total_device_ns"]) if measured else None,
            self_cpu_time_ms=_ms(row["self_cpu_ns"]),
            cpu_time_total_ms=_ms(row["total_cpu_ns"]),
            percent_of_device_sum=_percent(row["self_device_ns"], device_sum),
            percent_of_cpu_self_sum=_percent(row["self_cpu_ns"], cpu_sum),
            kernels_launched=row["activities"],
            native_function=native_function,
            native_function_detail=detail,
            potential_cuda_file=source.file if source.how is How.VERIFIED else None,
            source=source,
            shape_count=mine.height,
            shapes=tuple(_shapes(mine.head(_LISTED), measured=measured)),
            kernel_count=0 if launched is None else launched.height,
            kernels=() if launched is None else tuple(_kernels(launched.head(_LISTED), lookup.resolver)),
            called_from=None if callers is None else tuple(_callers(callers.get(name), measured=measured)),
            findings=findings_of(lookup, name) if name in researched else None,
        )


def _grouped(table: pl.DataFrame, key: str) -> Mapping[str, pl.DataFrame]:
    return {str(name): group for (name,), group in table.group_by(key, maintain_order=True)}


def _shapes(table: pl.DataFrame, *, measured: bool) -> Iterator[doc.ShapeEntry]:
    for row in table.iter_rows(named=True):
        yield doc.ShapeEntry(
            input_dims=row["input_dims"],
            input_types=row["input_types"],
            calls=row["calls"],
            self_cuda_time_ms=_ms(row["self_device_ns"]) if measured else None,
            cuda_time_total_ms=_ms(row["total_device_ns"]) if measured else None,
            self_cpu_time_ms=_ms(row["self_cpu_ns"]),
        )


def _kernels(table: pl.DataFrame, resolver: SourceResolver) -> Iterator[doc.KernelEntry]:
    for row in table.iter_rows(named=True):
        source = resolver.resolve(row["name"]) if row["kind"] == "kernel" else None
        yield doc.KernelEntry(
            name=row["name"],
            kind=row["kind"],
            calls=row["calls"],
            total_ms=_ms(row["total_ns"]),
            mean_us=_us(row["mean_ns"]),
            min_us=_us(row["min_ns"]),
            max_us=_us(row["max_ns"]),
            std_us=_us(row["std_ns"]),
            device=row.get("device"),
            grid=row.get("grid"),
            block=row.get("block"),
            registers_per_thread=row.get("registers_per_thread"),
            shared_memory_bytes=row.get("shared_memory_bytes"),
            theoretical_occupancy_percent=row.get("theoretical_occupancy_percent"),
            summary=decode(row["name"]).summary if source else None,
            library=source.library if source else None,
            source_file=source.file if source else None,
            source_how=str(source.how) if source else None,
        )


def _callers(table: pl.DataFrame | None, *, measured: bool) -> Iterator[doc.CallerEntry]:
    for row in () if table is None else table.head(_LISTED).iter_rows(named=True):
        yield doc.CallerEntry(
            place=row["called_from"],
            calls=row["calls"],
            self_cuda_time_ms=_ms(row["self_device_ns"]) if measured else None,
            self_cpu_time_ms=_ms(row["self_cpu_ns"]),
        )


def _launches(analysis: Analysis) -> doc.LaunchEntry:
    launches = analysis.launches
    return doc.LaunchEntry(
        api_calls=tuple(
            doc.LaunchCall(row["name"], row["calls"], _ms(row["total_ns"]), _us(row["mean_ns"]))
            for row in launches.calls.iter_rows(named=True)
        ),
        launch_call=_delay(launches.api),
        launch_latency=_delay(launches.latency),
        backlog=_delay(launches.backlog),
    )


def _delay(spread: Spread | None) -> doc.DelayEntry | None:
    if spread is None:
        return None
    return doc.DelayEntry(spread.count, _ms(spread.total_ns), _us(spread.median_ns), _us(spread.p95_ns))


def _steps(analysis: Analysis) -> Iterator[doc.StepEntry]:
    def optional(value: int | None) -> float | None:
        return None if value is None else _ms(value)

    for step in analysis.steps:
        yield doc.StepEntry(
            step=step.number,
            device=step.device,
            span_ms=_ms(step.span_ns),
            activities=step.activities,
            device_sum_ms=optional(step.device_sum_ns),
            busy_ms=optional(step.busy_ns),
            idle_ms=optional(step.idle_ns),
            launch_bound_ms=optional(step.launch_bound_ns),
            cold=step.cold,
        )


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


def _trust(analysis: Analysis, measurement: doc.Measurement, record: CaptureRecord | None) -> doc.TrustEntry:
    checks = list(analysis.trust.checks)
    if record and record.benchmark and record.benchmark.waited_for_cpu_ns is not None:
        checks.append(check_cpu_contention(record.benchmark.waited_for_cpu_ns, sum(record.benchmark.wall_ns)))
    if measurement.profiler_overhead_percent is not None:
        checks.append(check_overhead(measurement.profiler_overhead_percent, has_device=analysis.has_device_times))
    return doc.TrustEntry(
        verdict=Trust(tuple(checks)).verdict,
        checks=tuple(
            doc.CheckEntry(
                name=check.name,
                verdict=check.verdict,
                count=check.count,
                time_ms=None if check.time_ns is None else _ms(check.time_ns),
                time_of=check.time_of,
                share=check.share,
                share_of=check.share_of,
                sentence=check.sentence,
            )
            for check in checks
        ),
    )
