"""The allow-list of header entries that leave the reader: headers may hold secrets, and traces are passed on.

Programs add their own metadata to traces (`add_metadata_json`), such as whole environments with access tokens. No
analysis needs those, so they are dropped here.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from opscope.base.text import lazy_pattern

HOST_NAME: Final = "host_name"  # tells the ranks of a job apart; what is passed on to others leaves it out
_LONGEST: Final = 200  # characters; what is longer is not a version or name
# Written by Kineto and torch.profiler.
_SCALARS: Final = frozenset(
    {
        *("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "baseTimeNanosecond", "trace_id"),
        *("cupti_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "hip_driver_version"),
        *("roctracer_version", "rocprofiler_version", "profiler_version", "CUPTI_VERSION"),
        *("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops", HOST_NAME),
    }
)
_TORCH_VERSION: Final = lazy_pattern(r"(py)?torch[ _.-]?version", re.IGNORECASE)
_VERSION: Final = lazy_pattern(r"[\w.+-]{1,60}")
# Entries that are objects, with the keys that are kept: of opscope's own captures, and of torch.distributed.
_OBJECTS: Final[Mapping[str, frozenset[str]]] = {
    "opscope": frozenset({"opscope", "torch", "torch_git", "device"}),
    "distributedInfo": frozenset({"backend", "rank", "world_size", "nccl_version"}),
}


def known_metadata(header: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of a file's header that are known to be harmless, as text; objects as JSON."""
    results: dict[str, str] = {}
    for key, value in header.items():
        if key in _SCALARS:
            text = _scalar(value)
        elif _TORCH_VERSION.fullmatch(key):
            text = _version(value)
        else:
            text = _kept(value, _OBJECTS[key]) if key in _OBJECTS else None
        if text is not None:
            results[key] = text
    return results


def _version(value: Any) -> str | None:
    text = str(value).strip().strip('"')
    return text if _VERSION.fullmatch(text) else None


def _kept(value: Any, names: frozenset[str]) -> str | None:
    """Return the listed keys of an object as JSON; None if the value is not an object."""
    parts = _object(value)
    if parts is None:
        return None
    return json.dumps({name: part for name, part in parts.items() if name in names and _scalar(part) is not None})


def _object(value: Any) -> Mapping[str, Any] | None:
    """Return an object, decoded if `add_metadata_json` wrote it as text; None if it is not an object."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _scalar(value: Any) -> str | None:
    if not isinstance(value, str | int | float | bool) or len(str(value)) > _LONGEST:
        return None
    return str(value).encode("utf-8", "replace").decode()
