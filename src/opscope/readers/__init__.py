"""Trace files -> `Trace`: one module per format.

Imports nothing large by itself: `Reading` starts to read a file while its caller imports what it needs for the rest.
"""

from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from opscope.errors import BadInputError, EnvironmentLacksError
from opscope.readers.content import Content, read_content
from opscope.readers.source import MAX_UNPACKED_BYTES, Source

if TYPE_CHECKING:
    from opscope.model import Trace

STORE_MANIFEST = "store.json"  # a directory that has one holds Parquet files


class Reading:
    """A trace file that is being read on a thread of its own, from the beginning of this object on.

    The compiled reader and zlib do not hold Python's lock, so whatever else the caller does meanwhile goes on.

    Args:
        path: a file (gzip is unpacked whatever the name says), or a directory that ``opscope convert`` made.
        max_bytes: refuse a file that unpacks to more.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_UNPACKED_BYTES) -> None:
        self._path = path
        self._source = Source(path, max_bytes)
        self._content: Content | None = None
        self._error: Exception | None = None
        # Nobody waits for a file that is no longer wanted, such as after an interrupt.
        self._thread = Thread(target=self._read, name="opscope-reading", daemon=True)
        self._is_directory = path.is_dir()
        if not self._is_directory:
            self._thread.start()

    def _read(self) -> None:
        try:
            self._content = read_content(self._source)
        except Exception as error:
            self._error = error

    def trace(self) -> "Trace":
        """Wait until all is read and return the trace. To be called once.

        Raises:
            BadInputError: the file is missing, unreadable, too large, or of no known format.
            EnvironmentLacksError: it does not fit in memory.
        """
        from opscope.readers import kineto, parquet

        if self._is_directory and (self._path / STORE_MANIFEST).is_file():
            return parquet.read(self._path)
        if self._is_directory:
            raise BadInputError(
                f"{self._path} is a directory without {STORE_MANIFEST}: expected a trace, or a converted one"
            )
        try:
            return kineto.parse(self._whole())
        except MemoryError as error:
            raise EnvironmentLacksError(f"{self._path} does not fit in memory: read it on a larger machine") from error

    def _whole(self) -> Content:
        self._thread.join()
        content, self._content = self._content, None  # its columns are large and go one by one
        if self._error is not None:
            raise self._error
        assert content is not None
        return content


def read(path: str | Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> "Trace":
    """Read a trace from torch.profiler.

    What is whole in a damaged file is read; ``Trace.source`` and the trust checks say what is not.

    Args:
        path: a file (gzip is unpacked whatever the name says), or a directory that ``opscope convert`` made.
        max_bytes: refuse a file that unpacks to more.

    Raises:
        BadInputError: the file is missing, unreadable, too large, or of no known format.
        EnvironmentLacksError: it does not fit in memory.
    """
    return Reading(Path(path), max_bytes).trace()
