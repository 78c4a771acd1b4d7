"""What can go wrong, by exit code.

Every error carries one line that says what was wrong, what was found and what to do next. The command line prints
that line and exits with ``exit_code``; a traceback is shown only with ``--debug``.
"""

from typing import ClassVar


class OpscopeError(Exception):
    """A check or a measurement failed (exit code 1)."""

    exit_code: ClassVar[int] = 1


class UsageError(OpscopeError):
    """The request itself is wrong: an unknown target, an option that does not apply (exit code 2)."""

    exit_code: ClassVar[int] = 2


class EnvironmentLacksError(OpscopeError):
    """The machine lacks something the request needs: PyTorch, a GPU, weights, room on the disk (exit code 3)."""

    exit_code: ClassVar[int] = 3


class BadInputError(OpscopeError):
    """A file cannot be read as what it should be (exit code 4)."""

    exit_code: ClassVar[int] = 4


class InconclusiveError(OpscopeError):
    """What was asked cannot be told from what there is (exit code 5)."""

    exit_code: ClassVar[int] = 5


class NotATraceError(BadInputError):
    """A file is whole, and something else than a trace (exit code 4)."""


class DamagedInputError(BadInputError):
    """A file is damaged: what is whole was read and shown (exit code 4)."""
