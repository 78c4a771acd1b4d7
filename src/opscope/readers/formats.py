"""The kinds of files, told by how they begin. Needs neither numpy nor polars.

A format that is added has an entry here, a reader that takes the file's content piece by piece, and a module that makes
a trace of what that holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from opscope.base.errors import NotATraceError
from opscope.readers import native
from opscope.readers.scan import PythonReader
from opscope.readers.unpacked import Takes
from opscope.readers.whole import OpenedReader, WholeReader

EXPECTED: Final = (
    "Expected a Chrome trace from torch.profiler (.json, also packed with gzip, xz or Zstandard), a recording of "
    "opscope exec, or an SQLite export of Nsight Systems."
)


class ContentReader(Takes, Protocol):
    """What takes a file's content, of any format."""

    def finish(self) -> list[bytes]:
        """Say that there is no more; return what was left that is no plain event."""

    @property
    def plain_count(self) -> int:
        """How many events it understood by itself and did not hand back."""


class EventReader(ContentReader, Protocol):
    """What the compiled reader of Kineto's events and the one in Python have in common."""

    @property
    def truncated(self) -> bool:
        """Whether the list of events was not closed."""

    @property
    def found_events(self) -> bool:
        """Whether there was a list of events at all."""

    @property
    def header(self) -> bytes:
        """What stands before ``"traceEvents"``; the beginning of a file that has none."""

    @property
    def footer(self) -> bytes:
        """What stands after the list of events, or its beginning."""

    @property
    def footer_size(self) -> int:
        """How many bytes stand after the list of events."""


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file that traces are read from.

    Attributes:
        name: as `TraceSource.format` has it.
        recognises: tells by the first bytes, unpacked, whether a file is of this kind.
        reader: makes what takes its content.
        module: the module whose ``parse`` makes a trace of that; imported when all is read, as it needs polars.
        endings: of the names of such files, those of packed ones too.
        is_pytorch: whether PyTorch writes such files, so that a process in one runs PyTorch.
        has_operators: whether operators are recorded in such files, so that their absence says something.
    """

    name: str
    recognises: Callable[[bytes], bool]
    reader: Callable[[], ContentReader]
    module: str
    endings: tuple[str, ...]
    is_pytorch: bool = False
    has_operators: bool = False


def _kineto_reader() -> EventReader:
    library = native.load()
    return PythonReader() if library is None else native.NativeReader(library)


# Kineto's is JSON text, which may be damaged at its beginning: it says itself what is wrong with a file that is none.
KINETO: Final = Format(
    "kineto",
    lambda _: True,
    _kineto_reader,
    "opscope.readers.kineto",
    endings=(".json", ".json.gz", ".json.zst", ".json.xz"),
    is_pytorch=True,
    has_operators=True,
)
CUDA: Final = Format(
    "opscope exec",
    lambda text: text.startswith(b"opscope.cuda/"),
    WholeReader,
    "opscope.readers.cuda",
    endings=(".cudarec",),
)
NSYS: Final = Format(
    "Nsight Systems",
    lambda text: text.startswith(b"SQLite format 3\0"),
    OpenedReader,
    "opscope.readers.nsys",
    endings=(".sqlite",),
)
FORMATS: Final = (CUDA, NSYS, KINETO)
TRACE_ENDINGS: Final = tuple(ending for known in (KINETO, CUDA, NSYS) for ending in known.endings)
_OTHER_KINDS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b'"ID","Process ID"', "a table of Nsight Compute, which opscope analyze reads"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program or library"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)


def format_of(beginning: bytes, path: Path) -> Format:
    """Return the format of a file that begins so.

    Raises:
        BadInputError: it is of another kind.
    """
    for magic, kind in _OTHER_KINDS:
        if beginning.startswith(magic):
            raise NotATraceError(f"{path} is {kind}, and no trace that opscope knows. {EXPECTED}")
    return next(known for known in FORMATS if known.recognises(beginning))


def format_named(name: str) -> Format:
    """Return the format that a trace's source names (`TraceSource.format`); Kineto's for a name that is not known."""
    return next((known for known in FORMATS if known.name == name), KINETO)
