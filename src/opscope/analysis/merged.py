"""Makes several processes of one run one trace, on the clock that they share.

Numbers that are unique only within a process are made unique: those of calls and activities, streams, and graphs.
Devices are told apart by their UUIDs, as processes may see different ones under the same number (CUDA_VISIBLE_DEVICES).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl
from msgspec.structs import replace

from opscope.analysis.structure.producer import process_name
from opscope.readers.table_rows import sorted_by_start
from opscope.trace.columns import TABLES
from opscope.trace.model import DeviceProperties, Trace, TraceSource

_STREAMS: Final = 1_000_000  # a process's streams are numbered below this; the second process's begin here
_CORRELATION: Final = ("correlation", "external_id")
_BITS: Final = 48  # for numbers within a process: those of a graph's nodes have the graph's above 32 bits
_MOST: Final = 1 << (62 - _BITS)  # traces: so many shifted numbers still fit into 62 bits


def merged(traces: Sequence[Trace]) -> Trace:
    """Return one trace of all processes; a single trace is returned as it is.

    Raises:
        ValueError: there is no trace, or there are more than can be numbered.
    """
    if not 0 < len(traces) < _MOST:
        raise ValueError(f"{len(traces)} traces cannot be made one")
    if len(traces) == 1:
        return traces[0]
    threads = sorted({pair for trace in traces for pair in trace.threads})
    places = {pair: number for number, pair in enumerate(threads)}
    devices = _Devices(traces)
    tables = {
        name: sorted_by_start(
            name, pl.concat([_own(name, trace, at, places, devices.numbers[at]) for at, trace in enumerate(traces)])
        )
        for name in TABLES
    }
    return Trace(source=_source(traces), devices=devices.all(), threads=tuple(threads), around=None, **tables)


def _own(
    name: str, trace: Trace, number: int, places: Mapping[tuple[str, str], int], devices: Mapping[int, int]
) -> pl.DataFrame:
    table: pl.DataFrame = getattr(trace, name)
    if "thread" in table.columns and table.height:
        numbers = pl.Series([places[pair] for pair in trace.threads], dtype=pl.Int32)
        table = table.with_columns(thread=numbers.gather(table["thread"]))
    of_process = [column for column in (*_CORRELATION, "graph_id", "graph_node_id") if column in table.columns]
    # The number of the process goes above the bits that its own numbers use.
    shifted = [(pl.col(column) + (number << _BITS)).alias(column) for column in of_process]
    if "stream" in table.columns:
        shifted.append(pl.col("stream") + number * _STREAMS)
    if "device" in table.columns:
        shifted.append(pl.col("device").replace(devices))
    return table.with_columns(shifted)


class _Devices:
    """The devices of all processes under common numbers: a device's own, or the next free one where that is taken.

    Attributes:
        numbers: per process a mapping of its numbers of devices to the common ones.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._known: dict[int, DeviceProperties] = {}
        self.numbers = [{device.index: self._number(device) for device in trace.devices} for trace in traces]

    def _number(self, device: DeviceProperties) -> int:
        for number, known in self._known.items():
            # Without a UUID, devices that look the same are one only if their numbers agree as well.
            if replace(known, index=device.index) == device and (device.uuid or number == device.index):
                return number
        taken = self._known.keys()
        number = device.index if device.index not in taken else max(taken) + 1
        self._known[number] = replace(device, index=number)
        return number

    def all(self) -> tuple[DeviceProperties, ...]:
        """Return the devices in the order of their common numbers."""
        return tuple(self._known[number] for number in sorted(self._known))


def _names(traces: Sequence[Trace]) -> dict[str, str]:
    """Return the names of threads, and of streams by their common numbers: with their process and own name."""
    names: dict[str, str] = {}
    for at, trace in enumerate(traces):
        values = trace.source.metadata
        names |= {key: name for key, name in values.items() if key.startswith("thread ")}
        for stream in trace.activities["stream"].unique().drop_nulls().to_list():
            own = f"stream {stream} of {process_name(trace.source)}"
            called = values.get(f"stream {stream}")
            names[f"stream {stream + at * _STREAMS}"] = f"{own}, {called}" if called else own
    return names


def _source(traces: Sequence[Trace]) -> TraceSource:
    sources = [trace.source for trace in traces]
    first = sources[0]
    return replace(
        first,
        path=", ".join(source.path for source in sources),
        size_bytes=sum(source.size_bytes for source in sources),
        event_count=sum(source.event_count for source in sources),
        replaced_bytes=sum(source.replaced_bytes for source in sources),
        odd_events=sum(source.odd_events for source in sources),
        unreadable_bytes=sum(source.unreadable_bytes for source in sources),
        damage=next((source.damage for source in sources if source.damage), None),
        metadata={**dict(set.intersection(*(set(source.metadata.items()) for source in sources))), **_names(traces)},
        not_recorded=tuple(sentence for source in sources for sentence in source.not_recorded),
        dropped_records=sum(source.dropped_records for source in sources),
    )
