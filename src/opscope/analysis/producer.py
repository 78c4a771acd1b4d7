"""Which PyTorch wrote a trace, as far as the file says."""

import json
import re
from dataclasses import dataclass

from opscope.model import TraceSource

_VERSION_KEY = re.compile(r"(py)?torch[ _.-]?version", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Producer:
    """The PyTorch that ran, and its commit; None where the trace does not tell (Kineto itself records neither)."""

    torch: str | None
    git: str | None


def producer_of(source: TraceSource) -> Producer:
    """Read it from the metadata that opscope's own captures have, or that a user added (``torch_version``)."""
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
