"""What can go wrong, by exit code.

Every error carries one line that says what was wrong, what was found and what to do next. The command line prints
that line and exits with ``exit_code``; a traceback is shown only with ``--debug``.
"""

import os
from typing import ClassVar, Final

_ASKED: Final = r"""(?:environ\.get|getenv)\(\s*["'](\w+)["']\s*(?:,\s*None\s*)?\)"""
NOT_SET: Final = "the environment variable {} is not set"  # in the message of what failed for it
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


def unset_variable(error: BaseException) -> str | None:
    """Return the environment variable that code failed for, as it is not set; None where it failed for another reason.

    Args:
        error: what the code raised: `os.environ` itself, or a conversion of what ``os.environ.get`` returned.
    """
    import re
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    if isinstance(error, KeyError):
        of_environment = os._Environ.__getitem__.__code__.co_filename
        return str(error.args[0]) if error.args and frames[-1].filename == of_environment else None
    is_of_none = isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)
    asked = re.findall(_ASKED, frames[-1].line or "") if is_of_none else []
    return next((name for name in asked if name not in os.environ), None)
