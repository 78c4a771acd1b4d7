"""What every command says about the trust in a trace, and how it ends if a file is damaged."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from opscope.base.errors import DamagedInputError
from opscope.cli.say import say
from opscope.documents.verdict import Check, CheckName, Trust

if TYPE_CHECKING:
    from opscope.trace.model import TraceSource

TOLD: Final = ("table", "md", "brief")  # the formats in which a result shows the checks that fail
_NAMED: Final = 3
F = TypeVar("F", bound=Callable[..., Any])


def damage_option(function: F) -> F:
    """Add ``--allow-damaged``."""
    return click.option(
        "--allow-damaged",
        is_flag=True,
        help="Exit with code 0 even if a file is damaged. Without this option the code is 4 then.",
    )(function)


class Doubted(Struct, frozen=True):
    """A trace and the checks that it fails."""

    trace: str
    failed: tuple[Check, ...]

    @classmethod
    def of(cls, trace: str, trust: Trust) -> "Doubted":
        """Keep the checks that fail."""
        return cls(trace, trust.failures())

    @classmethod
    def of_file(cls, trace: str, source: "TraceSource") -> "Doubted":
        """Check a file that was read but not analysed: whether it is whole."""
        from opscope.analysis.trust.checks import check_file  # needs polars, which commands import while they read

        return cls.of(trace, Trust.of((check_file(source),)))


def end_with(
    doubted: Iterable[Doubted], unreadable: Sequence[str] = (), *, told: bool = False, allow_damaged: bool
) -> None:
    """Print the failed checks to standard error, and end the command if a file is damaged.

    The command's result is printed before.

    Args:
        doubted: the traces that were read, with the checks that they fail.
        unreadable: files that could not be read, which was said already.
        told: whether the result shows the failed checks, so that they are not printed again.
        allow_damaged: whether damage is not a failure.

    Raises:
        DamagedInputError: a file is damaged, and that is not allowed.
    """
    damaged = list(unreadable)
    for one in doubted:
        for check in () if told else one.failed:
            say(f"opscope: {one.trace}: FAIL {check.name}: {check.sentence}")
        if any(check.name is CheckName.FILE_IS_VALID for check in one.failed):
            damaged.append(one.trace)
    if damaged and not allow_damaged:
        names = ", ".join(damaged[:_NAMED]) + (f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else "")
        raise DamagedInputError(
            f"{names}: damaged, or no trace; the figures are of what could be read. --allow-damaged takes that for a "
            "success"
        )
