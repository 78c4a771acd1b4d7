"""Raw trace files -> `Trace`. One module per format; this one picks the reader."""

from pathlib import Path
from typing import Protocol

from opscope.errors import BadInputError
from opscope.model import Trace
from opscope.readers import kineto


class _Reader(Protocol):
    def sniff(self, raw: bytes) -> bool: ...
    def parse(self, raw: bytes, path: Path) -> Trace: ...


_READERS: tuple[_Reader, ...] = (kineto,)


def read(path: str | Path) -> Trace:
    """Read a trace of any known format.

    Args:
        path: a file; ``.gz`` is unpacked whatever the name says.

    Raises:
        BadInputError: the file is missing, damaged, or of no known format.
    """
    path = Path(path)
    raw = kineto.read_bytes(path)
    for reader in _READERS:
        if reader.sniff(raw):
            return reader.parse(raw, path)
    raise BadInputError(
        f"{path} is not a trace that opscope knows: it has no 'traceEvents'. "
        "Expected a Chrome trace from torch.profiler (.json or .json.gz)."
    )
