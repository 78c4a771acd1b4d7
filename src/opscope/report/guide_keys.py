"""Keys in milliseconds that statistics files have had since the first version, in addition to their schema.

``top_aten_operators`` (with ``cuda_time_total_ms``, ``potential_cuda_file`` and ``native_function``),
``category_statistics`` and ``summary`` (with ``total_cuda_time_ms``) keep their names and meanings. Times are over all
profiled steps; what was not measured is null. opscope itself does not read them.
"""

from collections.abc import Callable
from typing import TypedDict

import msgspec

from opscope.base.units import NS_PER_MS
from opscope.documents.explain import SourceEntry
from opscope.documents.trace import OperatorRow, TraceDocument
from opscope.documents.verdict import Bound
from opscope.lookup.operator_source import file_text

_TOP_OPERATORS = 10


class GuideOperator(TypedDict):
    """One of the ten most expensive ``aten::`` operators."""

    name: str
    category: str
    calls: int
    self_cuda_time_ms: float | None
    cuda_time_total_ms: float | None
    self_cpu_time_ms: float
    cpu_time_total_ms: float
    percent_of_device_sum: float | None
    kernels_launched: int
    native_function: str | None
    potential_cuda_file: str | None  # of a run on a CPU, that of the operator's C++ function for CUDA
    source: SourceEntry | None  # how the file is known, or why it is not


class GuideCategory(TypedDict):
    """Time by kind of work."""

    category: str
    calls: int
    kernels_launched: int
    self_cuda_time_ms: float | None
    percent_of_device_sum: float | None
    self_cpu_time_ms: float
    percent_of_cpu_self_sum: float | None


class GuideSummary(TypedDict):
    """The figures a reader looks at first."""

    steps: int
    total_cuda_time_ms: float | None
    cuda_time_per_step_ms: float | None
    device_busy_ms: float | None
    device_idle_ms: float | None
    window: str
    window_ms: float
    bound: Bound
    total_cpu_self_time_ms: float
    device_times_reason: str | None


class GuideKeys(TypedDict):
    """All additional keys of a statistics file."""

    summary: GuideSummary
    top_aten_operators: list[GuideOperator]
    category_statistics: list[GuideCategory]


def guide_keys(document: TraceDocument, cuda_file: Callable[[str], str | None] = lambda _: None) -> GuideKeys:
    """Return the additional keys for one trace.

    Args:
        document: the trace.
        cuda_file: returns the file that an operator has on a CUDA device, by its name alone, where none was used.
    """
    top = [row for row in document.operators if row.name.startswith("aten::")][:_TOP_OPERATORS]
    return GuideKeys(
        summary=_summary(document),
        top_aten_operators=[_operator(row, document, cuda_file) for row in top],
        category_statistics=[
            GuideCategory(
                category=row.category,
                calls=row.calls,
                kernels_launched=row.activities,
                self_cuda_time_ms=_device_ms(row.self_device_ns, document),
                percent_of_device_sum=_percent(row.self_device_ns, document),
                self_cpu_time_ms=row.self_cpu_ns / NS_PER_MS,
                percent_of_cpu_self_sum=100 * row.self_cpu_ns / document.cpu_self_ns if document.cpu_self_ns else None,
            )
            for row in document.categories
        ],
    )


def statistics_json(document: TraceDocument, cuda_file: Callable[[str], str | None] = lambda _: None) -> bytes:
    """Return the content of a statistics file: the document's keys and the additional ones, see `guide_keys`."""
    content = {**msgspec.to_builtins(document), **guide_keys(document, cuda_file)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _summary(document: TraceDocument) -> GuideSummary:
    steps, devices = document.step_count, document.devices
    window = devices[0].window if devices else document.window
    return GuideSummary(
        steps=steps,
        total_cuda_time_ms=_device_ms(document.device_sum_ns, document),
        cuda_time_per_step_ms=_device_ms(document.device_sum_ns / steps, document) if steps else None,
        device_busy_ms=_device_ms(sum(d.busy_ns - d.outside_window_ns for d in devices), document),
        device_idle_ms=_device_ms(sum(d.idle_ns for d in devices), document),
        window=window.kind,
        window_ms=window.duration_ns / NS_PER_MS,
        bound=document.bound,
        total_cpu_self_time_ms=document.cpu_self_ns / NS_PER_MS,
        device_times_reason=document.device_times_reason,
    )


def _operator(row: OperatorRow, document: TraceDocument, cuda_file: Callable[[str], str | None]) -> GuideOperator:
    source = row.detail.source if row.detail else None
    return GuideOperator(
        name=row.name,
        category=row.category,
        calls=row.calls,
        self_cuda_time_ms=_device_ms(row.self_device_ns, document),
        cuda_time_total_ms=_device_ms(row.total_device_ns, document),
        self_cpu_time_ms=row.self_cpu_ns / NS_PER_MS,
        cpu_time_total_ms=row.total_cpu_ns / NS_PER_MS,
        percent_of_device_sum=_percent(row.self_device_ns, document),
        kernels_launched=row.activities,
        native_function=row.native_function or _function_text(row),
        potential_cuda_file=_file(row) if document.has_device_times else cuda_file(row.name),
        source=source,
    )


def _function_text(row: OperatorRow) -> str | None:
    """Return a substitute for a missing native function: the C++ function, or why there is none."""
    if row.detail is None:
        return row.cpp_function
    return row.detail.native_function.cpp_function or f"none: {row.detail.native_function.how}"


def _file(row: OperatorRow) -> str | None:
    detail = row.detail
    return None if detail is None or detail.source is None else file_text(detail.source, detail.native_function)


def _device_ms(nanoseconds: float, document: TraceDocument) -> float | None:
    return nanoseconds / NS_PER_MS if document.has_device_times else None


def _percent(nanoseconds: int, document: TraceDocument) -> float | None:
    return 100 * nanoseconds / document.device_sum_ns if document.device_sum_ns else None
