"""Raw trace files -> `Trace`. One module per format; there is one so far."""

from pathlib import Path

from opscope.model import Trace
from opscope.readers import kineto
from opscope.readers.source import MAX_UNPACKED_BYTES, Source


def read(path: str | Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Trace:
    """Read a trace from torch.profiler.

    What is whole in a damaged file is read; ``Trace.source`` and the trust checks say what is not.

    Args:
        path: a file; gzip is unpacked whatever the name says.
        max_bytes: refuse a file that unpacks to more.

    Raises:
        BadInputError: the file is missing, unreadable, too large, or of no known format.
    """
    return kineto.parse(Source(Path(path), max_bytes))
