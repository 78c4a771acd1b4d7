"""What can go wrong, by exit code.

Every error carries one line that says what was wrong, what was found and what to do next. The command line prints
that line and exits with ``exit_code``; a traceback is shown only with ``--debug``.
"""

from typing import ClassVar, Final

DEBUG: Final = "OPSCOPE_DEBUG"  # in the environment: errors are raised, and shown with their traceback


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
    """A file is missing, unreadable or not in the expected format (exit code 4)."""

    exit_code: ClassVar[int] = 4


class InconclusiveError(OpscopeError):
    """The available data cannot answer the question (exit code 5)."""

    exit_code: ClassVar[int] = 5


class NotATraceError(BadInputError):
    """A file is intact but is not a trace (exit code 4)."""


class DamagedInputError(BadInputError):
    """A file is damaged; its intact part was read and shown (exit code 4)."""
