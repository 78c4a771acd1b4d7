"""Trace files -> `Trace`: one module per format (``formats.py`` tells them apart).

Imports nothing large by itself: a `Reading` works on its thread while the caller imports numpy, polars and the rest.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from msgspec import Struct

from opscope.base.errors import BadInputError, EnvironmentLacksError
from opscope.base.parts import Stage, staged
from opscope.readers.content import Content, read_content
from opscope.readers.native.library import ALL, FRAMES, HOST, OPERATORS, NativeReader
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, OUTLINE, STORE_MANIFEST, InputFile, Wanted

if TYPE_CHECKING:
    from opscope.trace.model import Trace

_PATIENCE_S = 0.1  # between looks at whether the thread has ended, and for signals


def read(path: str | Path, *, max_bytes: int = MAX_UNPACKED_BYTES, wanted: Wanted | None = None) -> "Trace":
    """Read a trace of any known format.

    Of a damaged file, the intact part is read; ``Trace.source`` and the trust checks say what is missing.

    Args:
        path: a file (gzip, xz and Zstandard are unpacked whatever the name says), ``-`` for standard input, or a
            directory that ``opscope export --parquet`` made.
        max_bytes: refuse a file that unpacks to more than this.
        wanted: what is enough; a reader that can leaves the rest out of memory, others return everything.

    Raises:
        BadInputError: the file is missing, unreadable, too large, or of no known format.
        EnvironmentLacksError: it does not fit in memory.
    """
    if not os.path.isfile(path):  # a pipe may be silent, and only a `Reading` can be interrupted then
        return Reading(Path(path), max_bytes).trace()
    source = InputFile(Path(path), max_bytes, wanted)
    return _trace(source, lambda: _whole(source))


class Outline(Struct, frozen=True):
    """What a first look at a file keeps.

    Attributes:
        trace: the trace with nothing but the profiler's steps, calls, the work of devices, and what the reader could
            not leave out.
        extent: when the first slice begins and the last one ends, in nanoseconds, also of those that were left out;
            None where there is none.
        host: the same of operators, calls and ranges.
        operators: the same of operators alone.
        frames: the same of Python's frames.
    """

    trace: "Trace"
    extent: tuple[int, int] | None
    host: tuple[int, int] | None
    operators: tuple[int, int] | None
    frames: tuple[int, int] | None


def read_outline(path: Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Outline | None:
    """Read a trace's steps, calls and device work, and how long it is; None where that takes the whole trace.

    Args:
        path: as for `read`.
        max_bytes: as for `read`.

    Raises:
        BadInputError: as `read`.
        EnvironmentLacksError: as `read`.
    """
    if not os.path.isfile(path):  # standard input cannot be read twice, and of a store any part is read quickly
        return None
    source = InputFile(path, max_bytes, OUTLINE)
    content = read_content(source)
    reader = content.reader
    if not isinstance(reader, NativeReader):
        return None
    extents = [reader.extent(which) for which in (ALL, HOST, OPERATORS, FRAMES)]
    return Outline(_trace(source, lambda: _parsed(content)), *extents)


class Reading:
    """`read` on a thread of its own, which starts when this object is made.

    The compiled reader and zlib release Python's lock, so the caller can do other work meanwhile.
    """

    def __init__(
        self, path: Path, max_bytes: int = MAX_UNPACKED_BYTES, libraries_imported: Event | None = None
    ) -> None:
        """Begin to read.

        Args:
            path: as for `read`.
            max_bytes: as for `read`.
            libraries_imported: set by the caller once numpy and polars are imported; the thread then builds the tables
                too. None leaves that to `trace`.
        """
        self._source, self._libraries_imported = InputFile(path, max_bytes), libraries_imported
        self._content: Content | None = None
        self._made: Trace | None = None
        self._error: BaseException | None = None
        self._thread: Thread | None = None
        # A store is read with polars, so its thread has nothing to do before that is there. Where `Path.is_dir` raises,
        # opening the file says why.
        if not os.path.isdir(path) or libraries_imported is not None:
            self._begin()

    def trace(self) -> "Trace":
        """Wait for the thread and return the trace. May be called only once.

        Raises:
            BadInputError: the file is missing, unreadable, too large, or of no known format.
            EnvironmentLacksError: it does not fit in memory.
        """
        if self._libraries_imported is not None:
            self._libraries_imported.set()
        return _trace(self._source, self._whole)

    def _begin(self) -> None:
        # A daemon, so that a program that ends for another reason does not wait for it.
        thread = Thread(target=self._read, name="opscope-reading", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are allowed here: `trace` reads the file itself
            return
        self._thread = thread

    def _read(self) -> None:
        try:
            if os.path.isdir(self._source.path):
                self._read_store()
                return
            content = read_content(self._source)
            if self._libraries_imported is None:
                self._content = content
            else:
                self._libraries_imported.wait()
                self._made = _parsed(content)
        except BaseException as error:  # a panic of polars too: `trace` raises it in the caller's thread
            self._error = error

    def _read_store(self) -> None:
        assert self._libraries_imported is not None
        self._libraries_imported.wait()
        self._made = _of_directory(self._source)

    def _whole(self) -> "Trace":
        if self._thread is None:
            return _whole(self._source)
        # A wait without an end cannot be interrupted: polars has system calls restarted.
        while self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
        made, content, error = self._made, self._content, self._error
        self._made = self._content = self._error = None  # none outlives this call, the error's frames included
        if made is not None:
            return made
        if content is not None:
            return _parsed(content)
        try:
            raise error or RuntimeError("a reading has one trace")
        finally:
            del error


@staged(Stage.TABLES)
def _parsed(content: Content) -> "Trace":
    trace: Trace = importlib.import_module(content.format.module).parse(content)
    return trace


def _whole(source: InputFile) -> "Trace":
    return _of_directory(source) if os.path.isdir(source.path) else _parsed(read_content(source))


@staged(Stage.READ)
def _of_directory(source: InputFile) -> "Trace":
    if (source.path / STORE_MANIFEST).is_file():
        from opscope.readers import parquet

        return parquet.read_parquet(source.path, source.max_bytes)
    raise BadInputError(f"{source.path} is a directory without {STORE_MANIFEST}: expected a trace, or a converted one")


def _trace(source: InputFile, whole: Callable[[], "Trace"]) -> "Trace":
    try:
        return whole()
    except MemoryError as error:
        raise EnvironmentLacksError(f"{source.path} does not fit in memory: read it on a larger machine") from error
