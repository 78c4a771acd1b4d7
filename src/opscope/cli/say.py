"""The one way by which text reaches a terminal: characters that steer it, or hide text, never get there."""

import click

from opscope.base.text import printable


def say(text: str, *, err: bool = True) -> None:
    """Print a line, made safe to show.

    Args:
        text: any text: names from traces, words of a user, reasons of an error.
        err: whether it goes to standard error, as everything does that is not a result.
    """
    click.echo(printable(text), err=err)


def show(document: str | bytes) -> None:
    """Print a document to standard output as it is: JSON, CSV and Markdown, whose writers have made it safe."""
    text = document.decode() if isinstance(document, bytes) else document
    click.echo(text, nl=not text.endswith("\n"))
