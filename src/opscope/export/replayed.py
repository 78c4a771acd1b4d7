"""Writes replayed steps as Chrome trace events: calls and work of devices, when they would be."""

from typing import Final

import msgspec
import numpy as np

from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeKind
from opscope.analysis.structure.nesting import Ints
from opscope.base.units import NS_PER_US

_HOST: Final = 0
_FIRST_DEVICE: Final = 1  # processes above 0 are devices


def replayed_events(edit: Edit, title: str) -> bytes:
    """Return the replayed steps as a Chrome trace that Perfetto opens; time 0 is the beginning of the first step.

    Calls and work that a change removed are left out. The host's own time is what lies between calls.

    Args:
        edit: the steps with their changes.
        title: what the trace calls itself.
    """
    times, trace = edit.times, edit.steps.trace
    begin = int(times[[span.start for span in edit.graph.spans]].min())
    events: list[dict[str, object]] = []
    for kind, table in ((EdgeKind.CALL, trace.launches), (EdgeKind.ACTIVITY, trace.activities)):
        edges = np.flatnonzero((edit.graph.kind == kind) & (edit.lag > 0))
        rows = edit.graph.row[edges]
        names = table["name"].gather(rows).cast(str).to_list()
        start, end = times[edit.graph.source[edges]], times[edit.target[edges]]
        if kind == EdgeKind.CALL:
            process, track = np.full(len(rows), _HOST), table["thread"].gather(rows).to_numpy()
        else:
            process = table["device"].gather(rows).fill_null(0).to_numpy() + _FIRST_DEVICE
            track = table["stream"].gather(rows).fill_null(0).to_numpy()
        events += _slices(names, start - begin, end - start, process, track)
    for number, name in [(_HOST, "host"), *((int(one), f"device {int(one) - 1}") for one in _devices(events))]:
        events.append({"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}})
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}})


def _slices(names: list[str], start: Ints, took: Ints, process: Ints, track: Ints) -> list[dict[str, object]]:
    return [
        {"ph": "X", "name": name, "ts": at / NS_PER_US, "dur": ns / NS_PER_US, "pid": pid, "tid": tid}
        for name, at, ns, pid, tid in zip(
            names, start.tolist(), took.tolist(), process.tolist(), track.tolist(), strict=True
        )
    ]


def _devices(events: list[dict[str, object]]) -> list[int]:
    return sorted({int(str(event["pid"])) for event in events} - {_HOST})
