"""The one way of any text to a terminal: what may steer it, or hide, never gets there."""

import click

from opscope.base.text import printable


def say(text: str, *, err: bool = True) -> None:
    """Print a line, made safe to show.

    Args:
        text: whatever may stand in it: names from traces, words of a user, reasons of an error.
        err: to standard error, where everything goes that is no result.
    """
    click.echo(printable(text), err=err)


def show(document: str | bytes) -> None:
    """Print a document to standard output as it is: JSON, CSV and Markdown, whose writers have made it safe."""
    text = document.decode() if isinstance(document, bytes) else document
    click.echo(text, nl=not text.endswith("\n"))
