"""The trace formats, recognised by how a file begins. Needs neither numpy nor polars.

A format has an entry here, a reader that takes the file's content piece by piece, and a module that makes a trace of
what the reader holds.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from opscope.base.errors import NotATraceError
from opscope.base.text import lazy_pattern
from opscope.readers.native import library as native
from opscope.readers.unpacked import OpenedReader, Takes, WholeReader

# ---------------------------------------------------------------- looking for the format


_EVENTS = lazy_pattern(r'"traceEvents"\s*:\s*\[')
# After text that cannot be decoded, reading goes on where an event seems to begin, or where the list seems to end.
_NEXT = lazy_pattern(r'\}\s*,\s*(?=\{\s*")')
_LAST = lazy_pattern(r"\}\s*(?=\])")
_BOM = "\xef\xbb\xbf"  # UTF-8's byte order mark, as Latin-1
_SPACE = lazy_pattern(r"[\s,]*")
_COLON = lazy_pattern(r"\s*:\s*")


class PythonReader:
    """Collects a file's pieces; `finish` returns the text of every event and of what lies between them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._decoder = json.JSONDecoder(strict=False)
        self.plain_count = 0  # it hands every event back
        self.truncated = False
        self.found_events = False
        self.header = b""
        self.footer = b""

    @property
    def footer_size(self) -> int:
        """The number of bytes after the list of events."""
        return len(self.footer)

    def feed(self, piece: bytes) -> list[bytes]:
        """Keep a piece; `finish` reads them all at once."""
        self._pieces.append(piece)
        return []

    def read(self, file: int, piece: int) -> tuple[int, list[bytes]]:
        """Keep a piece of a file; return its size (0 at the end of the file), and no events yet."""
        content = os.read(file, piece)
        return len(content), self.feed(content)

    def finish(self) -> list[bytes]:
        """Return the text of every event, and of stretches that are not events."""
        # Latin-1 keeps every byte as one character, so that nothing is replaced before the events are looked at.
        text = b"".join(self._pieces).decode("latin-1")
        self._pieces.clear()
        begin = self._begin(text)
        if begin is None:
            self.header = text[:4096].encode("latin-1")
            return []
        self.found_events = True
        spans, end = self._spans(text, begin)
        self.footer = text[end:].encode("latin-1")
        return [text[first:last].encode("latin-1") for first, last in spans]

    def _begin(self, text: str) -> int | None:
        """Return where the list of events begins, or None if there is none.

        It is an entry of the outermost object, or the whole file. Entries before it are decoded one by one, so that
        the same key deeper within one of them is not taken for it.
        """
        at = _SPACE.match(text, 3 if text.startswith(_BOM) else 0).end()  # type: ignore[union-attr]
        if text[at : at + 1] == "[":
            return at + 1
        if text[at : at + 1] != "{":
            return None
        at += 1
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if match := _EVENTS.match(text, at):
                self.header = text[:at].encode("latin-1")
                return match.end()
            try:
                key, at = self._decoder.raw_decode(text, at)
                colon = _COLON.match(text, at)
                if not isinstance(key, str) or colon is None:
                    return None
                _, at = self._decoder.raw_decode(text, colon.end())
            except (ValueError, RecursionError):
                return None

    def _spans(self, text: str, at: int) -> tuple[list[tuple[int, int]], int]:
        spans: list[tuple[int, int]] = []
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at >= len(text):
                self.truncated = True
                return spans, at
            if text[at] == "]":
                return spans, at + 1
            try:
                if text[at] != "{":
                    raise ValueError
                _, end = self._decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                result = _NEXT.search(text, at + 1) or _LAST.search(text, at + 1)
                end = result.end() if result else len(text)
            spans.append((at, end))
            at = end


# ---------------------------------------------------------------- the formats


EXPECTED: Final = (
    "Expected a Chrome or Perfetto trace from torch.profiler (.json or .pftrace, also packed with gzip, xz or "
    "Zstandard), a recording of opscope exec, an SQLite export of Nsight Systems, a database of rocmProfileData "
    "(.rpd), or an archive of these (.zip, .tar, .tar.gz)."
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


# The first byte of Perfetto's binary traces, and of text that begins with an empty line.
_LIKE_PERFETTO: Final = b"\x0a"
_IN_NO_TEXT: Final = bytes(range(9))


def _is_perfetto(beginning: bytes) -> bool:
    return beginning.startswith(_LIKE_PERFETTO) and beginning.translate(None, _IN_NO_TEXT) != beginning


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
# A database too: Nsight Systems' module opens it, and sees by its tables whose it is.
ROCPD: Final = TraceFormat("rocmProfileData", lambda _: False, OpenedReader, NSYS.module, endings=(".rpd",))
PERFETTO: Final = TraceFormat(
    "Perfetto",
    _is_perfetto,
    WholeReader,
    "opscope.readers.perfetto",
    endings=(".pftrace", ".perfetto-trace"),
    is_pytorch=True,
    has_operators=True,
)
FORMATS: Final = (CUDA, NSYS, ROCPD, PERFETTO, KINETO)
# What anyone can write is listed first.
TRACE_ENDINGS: Final = tuple(ending for known in reversed(FORMATS) for ending in known.endings)
PICKLES: Final = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))  # how those of each protocol begin
# Files that users may mistake for traces, by how they begin.
_OTHER_KINDS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"PK\x03\x04", "a ZIP archive (named .zip, opscope reads the traces in it)"),
    (
        b"NVIDIA Tegra Profiler Report",
        "a report of Nsight Systems (nsys export --type sqlite FILE makes what opscope reads)",
    ),
    (b"NVR\x00", "a report of Nsight Compute (ncu --import FILE --csv --page raw makes what opscope reads)"),
    *(
        (bytes([0x80, protocol]), "a pickle, as PyTorch's memory snapshots are (opscope memory reads those)")
        for protocol in range(2, 6)
    ),
    (b'"ID","Process ID"', "a table of Nsight Compute, which opscope analyze reads"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program or library"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)


# The same of JSON, by what stands at its beginning.
_SEARCHED: Final = 512
_OTHER_JSON: Final = (
    (
        lazy_pattern(rb'^\s*\[?\s*\{"(?:children|frame)"\s*:'),
        "a profile of Proton (hatchet), which has no times of single calls",
    ),
    (
        lazy_pattern(rb'"schema"?\w*"?\s*:\s*"[^"]*chakra|^\s*\{\s*"schema"\s*:\s*"[\d.]+"\s*,\s*"pid"'),
        "an execution trace (Chakra), which has no times (opscope reads what export_chrome_trace of torch.profiler "
        "wrote in the same run)",
    ),
    (lazy_pattern(rb"speedscope\.app/file-format-schema"), "a profile for speedscope"),
    (lazy_pattern(rb'^\s*\{\s*"rocprofiler-sdk-tool"'), "a result of rocprofv3"),
    (
        lazy_pattern(rb'(?s)^\s*\{\s*"version"\s*:\s*"[^"]*".*"(?:pg_config|profiling_name|pg_status|record_id)"'),
        "a record of PyTorch's flight recorder for collectives",
    ),
)


# And by their names, where the beginning tells nothing.
_OTHER_NAMES: Final = (
    (".xplane.pb", "a profile of JAX or TensorFlow (XSpace)"),
    (".et", "an execution trace (Chakra), which has no times"),
)


def format_of(beginning: bytes, path: Path) -> TraceFormat:
    """Return the format of a file.

    Args:
        beginning: its first bytes, unpacked.
        path: its name, for messages.

    Raises:
        NotATraceError: it is a file of a known other kind.
    """
    kinds = [kind for magic, kind in _OTHER_KINDS if beginning.startswith(magic)]
    kinds += [kind for pattern, kind in _OTHER_JSON if pattern.search(beginning[:_SEARCHED])]
    if not beginning.lstrip().startswith((b"{", b"[")):
        kinds += [kind for ending, kind in _OTHER_NAMES if path.name.endswith(ending)]
    if kinds:
        raise NotATraceError(f"{path} is {kinds[0]}, and no trace that opscope knows. {EXPECTED}")
    return next(known for known in FORMATS if known.recognises(beginning))


def is_snapshot_file(path: Path) -> bool:
    """Tell whether a file is a memory snapshot: a pickle, or packed and named like one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(2) in PICKLES:
            return True
    return any(ending in path.name for ending in (".pickle.", ".pkl."))


def format_named(name: str) -> TraceFormat:
    """Return the format with a name (`TraceSource.format`); Kineto's if the name is unknown."""
    return next((known for known in FORMATS if known.name == name), KINETO)
