"""Which PyTorch wrote a trace, and which process it records, as far as the file says."""

import json
import re

from msgspec import Struct

from opscope.base.patterns import lazy_pattern
from opscope.trace.model import TraceSource

_VERSION_KEY = lazy_pattern(r"(py)?torch[ _.-]?version", re.IGNORECASE)


class Producer(Struct, frozen=True):
    """The PyTorch that ran, and its commit; None where the trace does not tell (Kineto itself records neither)."""

    torch: str | None
    git: str | None


def producer_of(source: TraceSource) -> Producer:
    """Return the producer by the metadata of opscope's own captures, or by what a user added (``torch_version``)."""
    try:
        own = json.loads(source.metadata.get("opscope", "null"))
    except ValueError:
        own = None
    if isinstance(own, dict) and isinstance(own.get("torch"), str):
        git = own.get("torch_git")
        return Producer(own["torch"], git if isinstance(git, str) else None)
    for key, text in source.metadata.items():
        if _VERSION_KEY.fullmatch(key):
            return Producer(text.strip().strip('"'), None)
    return Producer(None, None)


def process_name(source: TraceSource) -> str:
    """Return a name for a process: its rank, program and number, as far as the file says; else the file's path."""
    metadata = source.metadata
    rank = _rank(metadata.get("distributedInfo"))
    program = [metadata.get("program", ""), f"(process {metadata['process']})" if "process" in metadata else ""]
    return ": ".join(filter(None, [rank or "", " ".join(filter(None, program))])) or source.path


def _rank(text: str | None) -> str | None:
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("rank"), int):
        return None
    size = found.get("world_size")
    return f"rank {found['rank']}{f' of {size}' if isinstance(size, int) else ''}"
