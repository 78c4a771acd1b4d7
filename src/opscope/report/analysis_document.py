"""The analysis of one trace as data for other programs: the schema ``opscope.analysis/1``.

Times are integer nanoseconds (means and percentiles may have fractions). What is unknown is null.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.analysis.bounds import bound_of
from opscope.analysis.launches import Spread
from opscope.analysis.steps import Step
from opscope.analysis.timeline import DeviceTimeline
from opscope.analysis.trust import Check, Verdict
from opscope.analysis.window import Window
from opscope.knowledge.native_functions import NativeFunctions
from opscope.model import TraceSource
from opscope.report.document import BoundEntry
from opscope.report.native_function import native_function_of


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """What idle time and shares refer to. ``duration_ns`` is its length without gaps between steps."""

    kind: str
    start_ns: int
    end_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device. ``compute + exposed_communication + exposed_memcpy + idle = window``, all within the window.

    ``busy_ns`` is the union of all its activities, ``outside_window_ns`` the part of it that lies outside the window.
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


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator. Self times may be added up, totals may not."""

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


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One activity name on one device. ``kind`` is kernel, memcpy or memset."""

    name: str
    kind: str
    device: int | None
    calls: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    std_ns: float


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One category of operators; unlinked activities are a category of their own."""

    category: str
    calls: int
    activities: int
    self_device_ns: int
    self_cpu_ns: int


@dataclass(frozen=True, slots=True)
class SpreadEntry:
    """How a set of durations is spread."""

    count: int
    total_ns: int
    median_ns: float
    p95_ns: float


@dataclass(frozen=True, slots=True)
class LaunchCallRow:
    """One kind of API call."""

    name: str
    calls: int
    total_ns: int
    mean_ns: float


@dataclass(frozen=True, slots=True)
class LaunchesEntry:
    """How the host fed the devices. Spreads are null where nothing was launched; backlog is no overhead.

    ``without_activity`` is null where activities do not carry the ids of their launches.
    """

    api: SpreadEntry | None
    latency: SpreadEntry | None
    backlog: SpreadEntry | None
    without_activity: int | None
    calls: tuple[LaunchCallRow, ...]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One recorded step on one device. ``launch_bound_share`` is the share of its span in which the device waited."""

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


@dataclass(frozen=True, slots=True)
class GraphNodeRow:
    """One node of a replayed CUDA graph; ``captured_operator`` launched it when the graph was captured."""

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


@dataclass(frozen=True, slots=True)
class BackwardRow:
    """A backward node and the forward operator with its sequence number; null where none has it."""

    forward: str | None
    backward: str
    calls: int
    forward_device_ns: int
    backward_device_ns: int


@dataclass(frozen=True, slots=True)
class UnlinkedEntry:
    """Activities without a recorded operator."""

    activities: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class TrustDocument:
    """All checks; the verdict is the worst of them."""

    verdict: Verdict
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisDocument:
    """One trace. Operators' ``self_device_ns`` + ``unlinked.device_ns`` = kernels' ``total_ns`` = devices' ``sum_ns``.

    ``phases_ns`` splits a training step; null without one.
    """

    schema: Literal["opscope.analysis/1"] = "opscope.analysis/1"
    source: TraceSource
    window: WindowEntry
    bound: BoundEntry
    devices: tuple[DeviceEntry, ...]
    operators: tuple[OperatorRow, ...]
    kernels: tuple[KernelRow, ...]
    categories: tuple[CategoryRow, ...]
    graph_nodes: tuple[GraphNodeRow, ...]
    backward: tuple[BackwardRow, ...]
    launches: LaunchesEntry
    steps: tuple[StepRow, ...]
    phases_ns: dict[str, int] | None
    unlinked: UnlinkedEntry
    trust: TrustDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisDocuments:
    """Several traces that one command analysed, such as the ranks of a job: the schema ``opscope.analyses/1``."""

    schema: Literal["opscope.analyses/1"] = "opscope.analyses/1"
    traces: tuple[AnalysisDocument, ...]


def build_analysis_document(analysis: Analysis, functions: NativeFunctions) -> AnalysisDocument:
    """Build the document of one analysis; ``functions`` are the operators of the PyTorch that ran, or of a release."""
    bound = bound_of(analysis, steps=analysis.step_count, wall_ns=None, ran_on_gpu=None)
    launches = analysis.launches
    return AnalysisDocument(
        source=analysis.source,
        window=_window(analysis.window),
        bound=BoundEntry(
            str(bound.kind),
            bound.device_share,
            None if bound.idle_cause is None else str(bound.idle_cause),
            bound.sentence,
        ),
        devices=tuple(_device(timeline) for timeline in analysis.devices),
        operators=tuple(_operators(analysis, functions)),
        kernels=tuple(KernelRow(**row) for row in _text(analysis.kernels, "name", "kind").iter_rows(named=True)),
        categories=tuple(CategoryRow(**row) for row in analysis.categories.iter_rows(named=True)),
        graph_nodes=tuple(GraphNodeRow(**row) for row in analysis.graph_nodes.iter_rows(named=True)),
        backward=tuple(BackwardRow(**row) for row in analysis.backward.iter_rows(named=True)),
        launches=LaunchesEntry(
            api=_spread(launches.api),
            latency=_spread(launches.latency),
            backlog=_spread(launches.backlog),
            without_activity=launches.without_activity,
            calls=tuple(LaunchCallRow(**row) for row in launches.calls.iter_rows(named=True)),
        ),
        steps=tuple(_step(step) for step in analysis.steps),
        phases_ns=analysis.phases,
        unlinked=UnlinkedEntry(analysis.accounting.unlinked_activities, analysis.accounting.unlinked_ns),
        trust=TrustDocument(analysis.trust.verdict, analysis.trust.checks),
    )


def _text(table: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return table.with_columns(pl.col(columns).cast(pl.String))


def _window(window: Window) -> WindowEntry:
    return WindowEntry(str(window.kind), window.start_ns, window.end_ns, window.duration_ns)


def _device(timeline: DeviceTimeline) -> DeviceEntry:
    return DeviceEntry(
        device=timeline.device,
        name=timeline.name,
        activities=timeline.activities,
        sum_ns=timeline.sum_ns,
        busy_ns=timeline.busy_ns,
        window=_window(timeline.window),
        window_ns=timeline.window.duration_ns,
        outside_window_ns=timeline.outside_window_ns,
        idle_ns=timeline.idle_ns,
        compute_ns=timeline.compute_ns,
        exposed_communication_ns=timeline.exposed_communication_ns,
        exposed_memcpy_ns=timeline.exposed_memcpy_ns,
        idle_by_cause_ns={str(cause): length for cause, length in timeline.idle.by_cause().items() if length},
    )


def _operators(analysis: Analysis, functions: NativeFunctions) -> Iterator[OperatorRow]:
    on_device = analysis.has_device_times
    weight = "self_device_ns" if on_device else "self_cpu_ns"
    shapes = {str(name): rows for (name,), rows in analysis.shapes.group_by("name", maintain_order=True)}
    for row in analysis.operators.iter_rows(named=True):
        detail, native_function = native_function_of(
            row["name"], shapes[row["name"]], functions, "CUDA" if on_device else "CPU", weight
        )
        yield OperatorRow(**row, native_function=native_function, cpp_function=detail.cpp_function)


def _step(step: Step) -> StepRow:
    values: dict[str, Any] = {name: getattr(step, name) for name in Step.__slots__}
    waited = step.launch_bound_ns
    return StepRow(**values, launch_bound_share=waited / step.span_ns if waited is not None and step.span_ns else None)


def _spread(spread: Spread | None) -> SpreadEntry | None:
    return None if spread is None else SpreadEntry(spread.count, spread.total_ns, spread.median_ns, spread.p95_ns)
