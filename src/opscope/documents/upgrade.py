"""Documents of every earlier version -> today's types.

Version 1 of ``opscope.analysis/1`` lacks fields, which have defaults, and has another name for a cause of idle time; up
to version 3 what bounds a step had other names.
Before that document took its place, statistics files had a schema of their own, ``opscope.profile/1``, in milliseconds:
its figures are read back to the nanosecond.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from opscope.documents.bound import BoundKind
from opscope.documents.trace import TraceDocument
from opscope.record.codec import Versioned, environment_1, named_settings_1

_Json = dict[str, Any]
_NS_PER_MS: Final = 1_000_000
_NS_PER_US: Final = 1_000


_CAUSES_1: Final = {"host late": "host wait"}
_KINDS_3: Final[Mapping[str, BoundKind]] = {
    "device-bound": BoundKind.DEVICE,
    "communication-bound": BoundKind.COMMUNICATION,
    "memcpy-bound": BoundKind.MEMCPY,
    "launch-bound": BoundKind.DISPATCH,
    "partly launch-bound": BoundKind.DISPATCH,
    "synchronisation-bound": BoundKind.BLOCKING,
    "bound by blocking calls": BoundKind.BLOCKING,
    "bound by host work": BoundKind.HOST_WORK,
    "host-bound after the last kernel": BoundKind.HOST_WORK,
    "dependency-bound": BoundKind.DEPENDENCY,
    "host only": BoundKind.HOST_ONLY,
}


def read_trace_document(content: bytes) -> TraceDocument:
    """Read the document of a trace, of any version.

    Raises:
        One of `opscope.record.codec.UNREADABLE`: it is none.
    """
    known = msgspec.json.decode(content, type=Versioned)
    if known.schema == "opscope.profile/1":
        return _from_version_3(msgspec.convert(_from_profile_1(msgspec.json.decode(content)), type=TraceDocument))
    document = msgspec.json.decode(content, type=TraceDocument)
    if known.version == 1:
        document = _from_version_1(document)
    return _from_version_3(document) if known.version <= 3 else document


def _from_version_3(document: TraceDocument) -> TraceDocument:
    kind = _KINDS_3.get(document.bound.kind, document.bound.kind)
    return replace(document, bound=replace(document.bound, kind=str(kind)))


def _from_version_1(document: TraceDocument) -> TraceDocument:
    bound = replace(document.bound, idle_cause=_cause(document.bound.idle_cause))
    devices = tuple(
        replace(device, idle_by_cause_ns={_CAUSES_1.get(c, c): ns for c, ns in device.idle_by_cause_ns.items()})
        for device in document.devices
    )
    return replace(document, bound=bound, devices=devices)


def _cause(old: str | None) -> str | None:
    return None if old is None else _CAUSES_1.get(old, old)


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * _NS_PER_MS)


def _from_profile_1(old: Mapping[str, Any]) -> _Json:
    summary, accounting = old["summary"], old["accounting"]
    window = {
        "kind": summary["window"], "start_ns": 0, "end_ns": 0, "duration_ns": _ns(summary["window_ms"]),
    }  # fmt: skip
    return {
        "schema": "opscope.analysis/1",
        "version": 1,
        "source": {
            "path": old["trace"], "format": "kineto", "size_bytes": 0, "event_count": 0, "replaced_bytes": 0,
            "odd_events": 0, "unreadable_bytes": 0, "damage": None, "metadata": {},
        },
        "window": window,
        "bound": {**summary["bound"], "idle_cause": _cause(summary["bound"]["idle_cause"])},
        "devices": [_device(device) for device in old["devices"]],
        "operators": [_operator(operator) for operator in old["operators"]],
        "kernels": [_kernel(kernel) for kernel in old["cuda_kernels"]],
        "categories": [
            {
                "category": row["category"],
                "calls": row["calls"],
                "activities": row["kernels_launched"],
                "self_device_ns": _ns(row["self_cuda_time_ms"]) or 0,
                "self_cpu_ns": _ns(row["self_cpu_time_ms"]),
            }
            for row in old["category_statistics"]
        ],
        "graph_nodes": [],
        "backward": [],
        "launches": _launches(old["launches"]),
        "steps": _steps(old["steps"]),
        "phases_ns": None if old["phases_ms"] is None else {k: _ns(v) for k, v in old["phases_ms"].items()},
        "unlinked": {"activities": accounting["unlinked_activities"], "device_ns": _ns(accounting["unlinked_ms"])},
        "trust": {
            "verdict": old["trust"]["verdict"],
            "checks": [{**check, "time_ns": _ns(check["time_ms"])} for check in old["trust"]["checks"]],
        },
        "device_times_reason": summary["device_times_reason"],
        "memory": old["memory"],
        "trace": old["trace"],
        "step_count": summary["steps"],
        "measurement": {**old["measurement"], "cold_step_ns": _ns(old["measurement"]["cold_step_ms"])},
        "capture": _capture(old),
    }  # fmt: skip


def _device(old: Mapping[str, Any]) -> _Json:
    times = ("sum", "busy", "outside_window", "idle", "compute", "exposed_communication", "exposed_memcpy", "window")
    return {
        **{f"{name}_ns": _ns(old[f"{name}_ms"]) for name in times},
        "device": old["device"],
        "name": old["name"],
        "activities": old["activities"],
        "window": {"kind": old["window"], "start_ns": 0, "end_ns": 0, "duration_ns": _ns(old["window_ms"])},
        "idle_by_cause_ns": {_cause(cause): _ns(value) for cause, value in old["idle_by_cause_ms"].items()},
    }


def _operator(old: Mapping[str, Any]) -> _Json:
    return {
        "name": old["name"],
        "calls": old["calls"],
        "self_device_ns": _ns(old["self_cuda_time_ms"]) or 0,
        "total_device_ns": _ns(old["cuda_time_total_ms"]) or 0,
        "self_cpu_ns": _ns(old["self_cpu_time_ms"]),
        "total_cpu_ns": _ns(old["cpu_time_total_ms"]),
        "category": old["category"],
        "native_function": old["native_function"],
        "cpp_function": old["native_function_detail"]["cpp_function"],
        "activities": old["kernels_launched"],
    }


def _kernel(old: Mapping[str, Any]) -> _Json:
    return {
        **{name: old.get(name) for name in ("name", "kind", "device", "calls")},
        "total_ns": _ns(old["total_ms"]),
        "mean_ns": old["mean_us"] * _NS_PER_US,
        "min_ns": round(old["min_us"] * _NS_PER_US),
        "max_ns": round(old["max_us"] * _NS_PER_US),
        "std_ns": old["std_us"] * _NS_PER_US,
    }


def _launches(old: Mapping[str, Any]) -> _Json:
    def spread(found: Mapping[str, Any] | None) -> _Json | None:
        return (
            None
            if found is None
            else {
                "count": found["count"],
                "total_ns": _ns(found["total_ms"]),
                "median_ns": found["median_us"] * _NS_PER_US,
                "p95_ns": found["p95_us"] * _NS_PER_US,
            }
        )

    calls = [
        {
            "name": call["name"],
            "calls": call["calls"],
            "total_ns": _ns(call["total_ms"]),
            "mean_ns": call["mean_us"] * _NS_PER_US,
        }
        for call in old["api_calls"]
    ]
    spreads = {"api": "launch_call", "latency": "launch_latency", "backlog": "backlog"}
    return {**{new: spread(old[name]) for new, name in spreads.items()}, "without_activity": None, "calls": calls}


def _steps(old: list[_Json]) -> list[_Json]:
    """Number the steps in the order in which they first appear; devices share them."""
    order = list(dict.fromkeys(step["step"] for step in old))
    return [_step(order.index(step["step"]), step) for step in old]


def _step(index: int, old: Mapping[str, Any]) -> _Json:
    span, waited = _ns(old["span_ms"]), _ns(old["launch_bound_ms"])
    return {
        "index": index,
        "number": old["step"],
        "device": old["device"],
        "span_ns": span,
        "activities": old["activities"],
        **{f"{name}_ns": _ns(old[f"{name}_ms"]) for name in ("device_sum", "busy", "idle", "launch_bound")},
        "launch_bound_share": waited / span if waited is not None and span else None,
        "cold": old["cold"],
    }


def _capture(old: Mapping[str, Any]) -> _Json | None:
    environment = old["environment"]
    if environment is None:
        return None
    return {
        "configuration": named_settings_1(old["configuration"]),
        "options": old["options"],
        "workload": old["workload"],
        **environment_1(environment),
        "rank": None,
        "opscope": environment["opscope"],
        "git_revision": environment["git_revision"],
        "created": old["created"],
    }
