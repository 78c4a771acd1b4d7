"""Shows what text means as colours. Which text means what is decided where it is written (`opscope.report.tones`)."""

import os
import sys
from itertools import groupby
from typing import Final

import click

from opscope.render.blocks import Tone

# Names of the sixteen colours that every terminal has, so that its user's own scheme holds.
COLOURS: Final = {Tone.GOOD: "green", Tone.DOUBT: "yellow", Tone.BAD: "red"}
# What fills a bar: work, exposed communication, exposed copies, idle time (`opscope.report.step_parts`).
_FILLS: Final = {"█": "blue", "▓": "magenta", "▒": "cyan", "░": "yellow"}


def in_colours() -> bool:
    """Tell whether standard output shows colours: a terminal does, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, tone: Tone) -> str:
    """Return text with the terminal's marks around each of its lines; it must be free of marks before."""
    return "\n".join(_line(line, tone) for line in text.split("\n"))


def _line(line: str, tone: Tone) -> str:
    if tone is Tone.STRONG:
        return click.style(line, bold=True)
    if tone is Tone.BAR:
        runs = (("".join(run), _FILLS.get(fill)) for fill, run in groupby(line))
        return "".join(run if colour is None else click.style(run, fg=colour) for run, colour in runs)
    return click.style(line, fg=COLOURS[tone])
