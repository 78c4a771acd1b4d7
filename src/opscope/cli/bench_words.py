"""The options that say what a benchmark runs: those of ``bench``, and of ``diff`` where it measures again."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from opscope.base.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def words_options(function: F) -> F:
    """Add ``--size``, ``--dtype``, ``--set``, ``--inputs`` and ``--reference``."""
    # click lists options in the reverse order: what is added last stands first in the help.
    for option in (
        click.option(
            "--reference",
            metavar="FILE:FUNCTION",
            help="The function whose results are correct.  [default: reference in the file]",
        ),
        click.option(
            "--inputs",
            metavar="FILE:FUNCTION",
            help="The function that makes the arguments.  [default: inputs in the file]",
        ),
        click.option(
            "--set",
            "settings",
            metavar="NAME=LIST",
            multiple=True,
            help="Values for any parameter of the inputs function.",
        ),
        click.option(
            "--dtype",
            metavar="LIST",
            help="Values for the parameter dtype of the inputs function: fp32,bf16,fp16,fp64.",
        ),
        click.option(
            "--size",
            metavar="LIST",
            help="Values for the parameter size of the inputs function: 4096,1M or 1k..64M (times four).",
        ),
    ):
        function = option(function)
    return function


def axes_of(size: str | None, dtype: str | None, settings: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each parameter of the inputs function, as text; only those that were given.

    Args:
        size: what follows ``--size``: values with commas between them; None if it was not given.
        dtype: what follows ``--dtype``, in the same form.
        settings: what follows each ``--set``: ``NAME=VALUE,VALUE``.

    Raises:
        UsageError: a setting is not written NAME=VALUE,VALUE.
    """
    words = [("size", size), ("dtype", dtype)]
    for setting in settings:
        name, equals, values = setting.partition("=")
        if not equals or not name.isidentifier() or not values:
            raise UsageError(f"--set takes NAME=VALUE,VALUE,..., not {setting!r}")
        words.append((name, values))
    return {name: tuple(text.split(",")) for name, text in words if text}
