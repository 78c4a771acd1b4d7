"""What every command says of the trust in a trace, and how it ends where a file is damaged."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from opscope.documents.trust import Check, CheckName, Trust
from opscope.errors import DamagedInputError
from opscope.report.text import printable

F = TypeVar("F", bound=Callable[..., Any])


def damage_option(function: F) -> F:
    """Add ``--allow-damaged``."""
    return click.option(
        "--allow-damaged",
        is_flag=True,
        help="End with exit code 0 although a file is damaged; without, it is 4 after what is whole was shown.",
    )(function)


@dataclass(frozen=True, slots=True)
class Doubted:
    """A trace and the checks that it fails."""

    trace: str
    failed: tuple[Check, ...]

    @classmethod
    def of(cls, trace: str, trust: Trust) -> "Doubted":
        """Take the failed ones of all checks."""
        return cls(trace, trust.failures())


def tell(doubted: Iterable[Doubted]) -> None:
    """Print the failed checks to standard error."""
    for one in doubted:
        for check in one.failed:
            click.echo(printable(f"opscope: {one.trace}: FAIL {check.name}: {check.sentence}"), err=True)


def refuse_damaged(doubted: Iterable[Doubted], unreadable: Sequence[str] = (), *, allowed: bool) -> None:
    """End the command, whose result is printed, where a file is damaged.

    Args:
        doubted: the traces that were read.
        unreadable: files that could not be, and which were told already.
        allowed: whether that is no failure.

    Raises:
        DamagedInputError: one is, and that is not allowed.
    """
    damaged = [one.trace for one in doubted if any(check.name is CheckName.FILE_IS_VALID for check in one.failed)]
    damaged += unreadable
    if damaged and not allowed:
        names = ", ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")
        raise DamagedInputError(
            f"{names}: damaged, or no trace; the figures are of what could be read. --allow-damaged takes that for a "
            "success"
        )
