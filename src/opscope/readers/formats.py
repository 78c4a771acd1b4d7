"""The trace formats, recognised by how a file begins. Needs neither numpy nor polars.

A format has an entry here, a reader that takes the file's content piece by piece, and a module that makes a trace of
what the reader holds.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from opscope.base.errors import NotATraceError
from opscope.readers.native import library as native
from opscope.readers.scan import PythonReader
from opscope.readers.unpacked import Takes
from opscope.readers.whole import OpenedReader, WholeReader

EXPECTED: Final = (
    "Expected a Chrome trace from torch.profiler (.json, also packed with gzip, xz or Zstandard), a recording of "
    "opscope exec, or an SQLite export of Nsight Systems."
)


class ContentReader(Takes, Protocol):
    """Takes the content of a file, of any format."""

    def finish(self) -> list[bytes]:
        """End the content; return the remaining text that is not plain events."""

    @property
    def plain_count(self) -> int:
        """The number of events that it understood itself and did not hand back."""


class EventReader(ContentReader, Protocol):
    """The common interface of the compiled reader of Kineto's events and the one in Python."""

    @property
    def truncated(self) -> bool:
        """Whether the list of events was not closed."""

    @property
    def found_events(self) -> bool:
        """Whether there was a list of events at all."""

    @property
    def header(self) -> bytes:
        """The text before ``"traceEvents"``; of a file without it, the beginning."""

    @property
    def footer(self) -> bytes:
        """The text after the list of events; of a very long one, only its beginning."""

    @property
    def footer_size(self) -> int:
        """The number of bytes after the list of events."""


class TraceFormat(Struct, frozen=True):
    """A kind of file that traces are read from.

    Attributes:
        name: as in `TraceSource.format`.
        recognises: tells from the first bytes, unpacked, whether a file has this format.
        reader: makes a reader for the file's content.
        module: the module whose ``parse`` makes the trace; imported after reading, because it needs polars.
        endings: of file names, including those of packed files.
        is_pytorch: whether PyTorch writes this format, so that a recorded process runs PyTorch.
        has_operators: whether this format records operators, so that their absence means something.
    """

    name: str
    recognises: Callable[[bytes], bool]
    reader: Callable[[], ContentReader]
    module: str
    endings: tuple[str, ...]
    is_pytorch: bool = False
    has_operators: bool = False


def _kineto_reader() -> EventReader:
    library = native.load_kineto()
    return PythonReader() if library is None else native.NativeReader(library)


# Kineto's recognises any file: its JSON text may be damaged at the beginning. It must be the last of FORMATS, and its
# parser says what is wrong with a file that is not a trace.
KINETO: Final = TraceFormat(
    "kineto",
    lambda _: True,
    _kineto_reader,
    "opscope.readers.kineto",
    endings=(".json", ".json.gz", ".json.zst", ".json.xz"),
    is_pytorch=True,
    has_operators=True,
)
CUDA: Final = TraceFormat(
    "opscope exec",
    lambda text: text.startswith(b"opscope.cuda/"),
    WholeReader,
    "opscope.readers.cuda",
    endings=(".cudarec",),
)
NSYS: Final = TraceFormat(
    "Nsight Systems",
    lambda text: text.startswith(b"SQLite format 3\0"),
    OpenedReader,
    "opscope.readers.nsys",
    endings=(".sqlite",),
)
FORMATS: Final = (CUDA, NSYS, KINETO)
TRACE_ENDINGS: Final = tuple(ending for known in (KINETO, CUDA, NSYS) for ending in known.endings)
# Files that users may mistake for traces, by how they begin.
_OTHER_KINDS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b'"ID","Process ID"', "a table of Nsight Compute, which opscope analyze reads"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program or library"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)


def format_of(beginning: bytes, path: Path) -> TraceFormat:
    """Return the format of a file.

    Args:
        beginning: its first bytes, unpacked.
        path: its name, for messages.

    Raises:
        NotATraceError: it is a file of a known other kind.
    """
    for magic, kind in _OTHER_KINDS:
        if beginning.startswith(magic):
            raise NotATraceError(f"{path} is {kind}, and no trace that opscope knows. {EXPECTED}")
    return next(known for known in FORMATS if known.recognises(beginning))


def format_named(name: str) -> TraceFormat:
    """Return the format with a name (`TraceSource.format`); Kineto's if the name is unknown."""
    return next((known for known in FORMATS if known.name == name), KINETO)
