"""Trace files -> `Trace`: one module per format."""

from pathlib import Path

from opscope.errors import BadInputError, EnvironmentLacksError
from opscope.model import Trace
from opscope.readers import kineto, parquet
from opscope.readers.source import MAX_UNPACKED_BYTES, Source


def read(path: str | Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Trace:
    """Read a trace from torch.profiler.

    What is whole in a damaged file is read; ``Trace.source`` and the trust checks say what is not.

    Args:
        path: a file (gzip is unpacked whatever the name says), or a directory that ``opscope convert`` made.
        max_bytes: refuse a file that unpacks to more.

    Raises:
        BadInputError: the file is missing, unreadable, too large, or of no known format.
    """
    path = Path(path)
    if parquet.is_store(path):
        return parquet.read(path)
    if path.is_dir():
        raise BadInputError(f"{path} is a directory without {parquet.MANIFEST}: expected a trace, or a converted one")
    try:
        return kineto.parse(Source(path, max_bytes))
    except MemoryError as error:
        raise EnvironmentLacksError(f"{path} does not fit in memory: read it on a larger machine") from error
