"""Keeps what was measured in a file as it is measured, so that a run that was ended goes on from there."""

import contextlib
import importlib.metadata
import os
from pathlib import Path

import msgspec
from msgspec import Struct, field

from opscope._version import __version__
from opscope.advise.measured import ChangeResult
from opscope.advise.messages import Built, VariantJob
from opscope.advise.search import ChangeNames
from opscope.base.errors import EnvironmentLacksError, UsageError


class Heading(Struct, frozen=True):
    """What a file's measurements are of: they are taken over only where all of it is the same.

    Attributes:
        target: what was run, with its settings and arguments.
        source: a digest of the user's files that it imports.
        device: its name.
        torch: the version of PyTorch.
        opscope: that of opscope.
    """

    target: str = ""
    source: str = ""
    device: str = ""
    torch: str = ""
    opscope: str = ""


class _Line(Struct, frozen=True):
    changes: ChangeNames
    measured: ChangeResult = field(default_factory=ChangeResult)


def heading(job: VariantJob, built: Built) -> Heading:
    """Return what a job's measurements are of."""
    settings = " ".join(f"{name}={value}" for name, value in job.configuration.settings.items())
    return Heading(
        target=" ".join(filter(None, (job.configuration.target, settings, job.arguments, job.steps))),
        source=built.source,
        device=built.device,
        torch=importlib.metadata.version("torch"),
        opscope=__version__,
    )


class Journal:
    """The file.

    Args:
        path: where it is, or will be; None keeps nothing.
        of: what is measured.

    Attributes:
        known: what the file holds.

    Raises:
        UsageError: it holds measurements of something else, or something else altogether.
        EnvironmentLacksError: it cannot be read or written.
    """

    def __init__(self, path: Path | None, of: Heading) -> None:
        self._path = path
        self.known: dict[ChangeNames, ChangeResult] = {}
        if path is None:
            return
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            raise EnvironmentLacksError(f"cannot read {path}: {error.strerror or error}") from error
        if not lines:
            self._write(msgspec.json.encode(of))
            return
        try:
            before = msgspec.json.decode(lines[0], type=Heading)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path} holds no measurements of opscope advise: name another file") from error
        if before != of:
            names = [name for name in Heading.__struct_fields__ if getattr(before, name) != getattr(of, name)]
            raise UsageError(f"{path} holds measurements of another {', '.join(names)}: name another file")
        if not lines[-1].endswith(b"\n"):
            self._write(b"")  # the run was ended while it wrote this line
        for line in lines[1:]:
            with contextlib.suppress(msgspec.MsgspecError):  # such a line is not whole
                one = msgspec.json.decode(line, type=_Line)
                self.known[one.changes] = one.measured

    def keep(self, changes: ChangeNames, measured: ChangeResult) -> None:
        """Add what was measured; what may go otherwise another time is not kept."""
        if self._path is not None and not measured.is_passing:
            self._write(msgspec.json.encode(_Line(changes, measured)))

    def _write(self, line: bytes) -> None:
        assert self._path is not None
        try:
            with self._path.open("ab") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EnvironmentLacksError(f"cannot write {self._path}: {error.strerror or error}") from error
