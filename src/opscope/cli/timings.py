"""``--timings``: how long the stages of a command took, on standard error when it ends."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from opscope.base.stages import Stage, record_stages, stop_recording
from opscope.base.units import format_ns
from opscope.cli.say import say

F = TypeVar("F", bound=Callable[..., Any])
_WIDTH = max(map(len, Stage))


def timings_option(function: F) -> F:
    """Add ``--timings``."""
    return click.option(
        "--timings",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_begin,
        help="Print how long each stage took, to standard error.",
    )(function)


def _begin(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        began = time.perf_counter_ns()
        record_stages()
        context.call_on_close(lambda: _print(began))


def _print(began: int) -> None:
    """Print a line per stage: when it ran, how long without the stages inside it, and how long on a core."""
    spans = stop_recording()
    if not spans:  # only the help was shown, or the command failed before
        return
    say(f"{'stage':<{_WIDTH}}  {'from':>10}  {'to':>10}  {'took':>10}  {'on a core':>10}")
    for stage in Stage:
        if own := [span for span in spans if span.stage is stage]:
            first, last = min(span.begin_ns for span in own) - began, max(span.end_ns for span in own) - began
            times = (first, last, sum(span.own_ns for span in own), sum(span.cpu_ns for span in own))
            say(f"{stage:<{_WIDTH}}  " + "  ".join(f"{format_ns(one):>10}" for one in times))
    say(
        f"{'all':<{_WIDTH}}  {'':>10}  {format_ns(time.perf_counter_ns() - began):>10}  "
        "since the options were read. Stages overlap where they run on several threads; the time on a core leaves out "
        "what the libraries' own threads use."
    )
