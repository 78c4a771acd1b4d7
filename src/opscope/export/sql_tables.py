"""The tables that SQL sees: a trace's records, and what was computed of them, each column with what it means."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.analysis.structure.linked import linked_activities
from opscope.render.blocks import Table
from opscope.trace.columns import TABLES


@dataclass(frozen=True, slots=True)
class _Computed:
    """A table of an analysis; ``own`` columns mean something else than columns of that name do elsewhere."""

    meaning: str
    frame: Callable[[Analysis], pl.DataFrame]
    own: Mapping[str, str]


def _computed(meaning: str, frame: Callable[[Analysis], pl.DataFrame], **own: str) -> _Computed:
    return _Computed(meaning, frame, own)


COMPUTED: Final[Mapping[str, _Computed]] = {
    "linked_activities": _computed(
        "activities joined to operator, step and launch, one row each (a view)",
        lambda analysis: linked_activities(analysis.trace, analysis.links),
        operator="the operator that launched it",
    ),
    "operator_costs": _computed(
        "operators by name", lambda analysis: analysis.operators_and_unlinked, name="the operator, or (no operator)"
    ),
    "shape_costs": _computed(
        "operators by name and inputs",
        lambda analysis: analysis.shapes_and_unlinked,
        name="the operator, or (no operator)",
    ),
    "kernel_costs": _computed(
        "kernels, copies and fills by name and device",
        lambda analysis: analysis.kernels.with_columns(pl.col("name", "kind").cast(pl.String)),
        name="the kernel",
    ),
    "category_costs": _computed("operators by kind of work", lambda analysis: analysis.categories),
    "streams": _computed("streams of devices", lambda analysis: analysis.streams),
    "graph_nodes": _computed("nodes of replayed CUDA graphs", lambda analysis: analysis.graph_nodes, name="the kernel"),
    "captured": _computed(
        "what was captured into CUDA graphs", lambda analysis: analysis.captured, name="the operator"
    ),
    "backward_costs": _computed("nodes of the backward pass by forward operator", lambda analysis: analysis.backward),
    "annotation_costs": _computed(
        "named ranges of the program, nested", lambda analysis: analysis.annotations, name="the range's own name"
    ),
}
_MEANINGS: Final[Mapping[str, str]] = {
    "trace": "the trace's path",
    "calls": "how many calls",
    "self_device_ns": "durations of what it launched itself, added up; may be added up over rows",
    "total_device_ns": "the same with what runs inside it; must not be added up over rows",
    "self_cpu_ns": "its own time on the host; may be added up over rows",
    "total_cpu_ns": "time on the host with what runs inside it",
    "activities": "how many activities it launched",
    "category": "the kind of work",
    "input_dims": "shapes of the inputs, as JSON",
    "input_types": "types of the inputs, as JSON",
    "kind": "kernel, memcpy or memset",
    "device": "the device",
    "stream": "the stream",
    "total_ns": "durations added up",
    "mean_ns": "mean duration",
    "min_ns": "shortest duration",
    "max_ns": "longest duration",
    "std_ns": "standard deviation of the durations (population)",
    "sum_ns": "durations added up",
    "busy_ns": "time in which anything ran (union)",
    "first_ns": "when the first activity began",
    "last_ns": "when the last activity ended",
    "graph": "number of the graph",
    "node": "number of the node",
    "known_by": "how graph and node are told apart",
    "replays": "how many replays recorded the node",
    "captured_operator": "the operator that launched it when the graph was captured",
    "captured_how": "how that is known, or why it is not",
    "launches": "how many launches were captured",
    "forward": "the forward operator; null where no sequence number leads to one",
    "backward": "the backward node",
    "forward_device_ns": "device time of the forward operators' own ranges",
    "backward_device_ns": "device time of what the node launched",
    "path": "names from the outermost range inwards",
    "depth": "how many ranges enclose it",
    "span_ns": "time on the host, added up",
    "step": "the profiler's number of the step that launched it",
    "launch": "the function that launched it",
    "launch_thread": "the thread that launched it",
    "launch_start_ns": "when that call began",
    "launch_duration_ns": "how long that call took",
    "queue_delay_ns": "from the end of that call to the activity's start: latency, or backlog behind earlier work",
}


def table_names() -> tuple[str, ...]:
    """Return the names of all tables."""
    return (*TABLES, *COMPUTED)


def frames_of(analysis: Analysis, wanted: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Return the tables of a trace that are wanted. Records that cannot be true are in none of them."""
    as_strings = pl.col(pl.Categorical).cast(pl.String)
    return {
        name: COMPUTED[name].frame(analysis)
        if name in COMPUTED
        else getattr(analysis.trace, name).with_columns(as_strings)
        for name in wanted
    }


def schema_table(examples: Mapping[str, pl.DataFrame]) -> Table:
    """Build the list of all tables and columns, each with its type and meaning.

    Args:
        examples: every table, of any trace.
    """
    return Table(("table", "column", "type", "meaning"), tuple(_described(examples)))


def _described(examples: Mapping[str, pl.DataFrame]) -> Iterator[tuple[str, str, str, str]]:
    for name in table_names():
        meanings = _meanings_of(name)
        yield (name, "", "", TABLES[name].meaning if name in TABLES else COMPUTED[name].meaning)
        yield (name, "trace", "String", _MEANINGS["trace"])
        for column, dtype in examples[name].schema.items():
            yield (name, column, str(dtype), meanings[column])


def _meanings_of(name: str) -> Mapping[str, str]:
    if name in TABLES:
        return {column.name: column.meaning for column in TABLES[name].columns}
    records = _meanings_of("activities") if name == "linked_activities" else {}
    return {**_MEANINGS, **records, **COMPUTED[name].own}
