"""What several commands share: types of options, among them lists, and options such as ``--format`` and ``--top``.

Options also give values of settings, and of a function's own parameters (``--set``).
"""

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from opscope.base.errors import InconclusiveError, UsageError
from opscope.base.text import lazy_pattern
from opscope.base.units import parse_ns
from opscope.record.capture import StepKind
from opscope.record.configuration import SETTINGS, SHORT_DTYPES, Value, option_of
from opscope.record.redaction import Redactor
from opscope.render.table_formats import Format
from opscope.report.by import SHOWN_ROWS

F = TypeVar("F", bound=Callable[..., Any])

# ---------------------------------------------------------------- words of benchmarks


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


# ---------------------------------------------------------------- options of several commands


INCONCLUSIVE: Final = InconclusiveError.exit_code
_STEPS: Final = lazy_pattern(r"(\d{1,18})(?:\.\.(\d{1,18}))?")
# What a number of milliseconds, seconds, percent or times as fast may be: sums and quotients of such stay numbers, and
# a wait of 30 years can still be asked of a system.
SMALLEST: Final = 1e-6
LARGEST_NUMBER: Final = 1e9
DTYPES: Final = {short: name for name, short in SHORT_DTYPES.items()}


def values_of(options: Mapping[str, Any], own: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Return the values of each setting that was asked for.

    Args:
        options: by the name of a setting what its option has; None, False or absent where it was not given.
        own: what ``--set`` has, as text.

    Raises:
        UsageError: a ``--set`` is not NAME=VALUE, or names what has an option of its own.
    """
    values: dict[str, tuple[Value, ...]] = {}
    for name, setting in SETTINGS.items():
        result = options.get(name)
        if result is None or result is False:
            continue
        values[name] = result if isinstance(result, tuple) else (result,)
        if setting.name == "dtype":
            values[name] = tuple(DTYPES.get(str(value), value) for value in values[name])
    for assignment in own:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier() or not text:
            raise UsageError(f"--set takes NAME=VALUE, not {assignment!r}")
        if name in SETTINGS:
            raise UsageError(f"{name} has an option of its own: {option_of(name)}")
        if name in values:
            raise UsageError(f"--set {name} is given twice: write all its values as {name}=1,2")
        values[name] = tuple(_value(part) for part in text.split(","))
    return values


def _value(text: str) -> Value:
    """Read a value: a whole number, a number, true or false; anything else is text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


class ListOf(click.ParamType[tuple[Any, ...]]):
    """A list of values, separated by commas: ``1,8,16``."""

    def __init__(self, element: click.ParamType[Any]) -> None:
        self.element = element
        self.name = f"{element.name} list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Convert one word to the values it lists."""
        if isinstance(value, tuple):
            return value
        parts = [part for part in re.split(r"[,\s]+", str(value)) if part]
        if not parts:
            self.fail("the list is empty", param, ctx)
        return tuple(self.element.convert(part, param, ctx) for part in parts)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show in the help that several values may follow."""
        inner = self.element.get_metavar(param, ctx) or self.element.name.upper()
        return f"{inner} [{inner} ...]"

    def accepts(self, token: str) -> bool:
        """Tell whether a word of the command line reads as values of the list."""
        # A number out of range is a value too: the option then refuses it, with a message on the range.
        try:
            (ListOf(click.INT) if isinstance(self.element, click.IntRange) else self).convert(token, None, None)
        except click.UsageError:
            return False
        return True


class Positive(click.FloatRange):
    """A number above 0 that can be computed with: ``nan``, which compares as false, and infinities are none."""

    def __init__(self, least: float = SMALLEST) -> None:
        super().__init__(min=least, max=LARGEST_NUMBER)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number within the limits."""
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if not (self.min or 0) <= number <= LARGEST_NUMBER:
            self.fail(f"{value!r} is not a number between {self.min:g} and {LARGEST_NUMBER:g}", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Say nothing in the help: no one meets these limits by meaning to."""
        return f"x>={self.min:g}" if self.min != SMALLEST else "x>0"


class Percent(click.ParamType[float]):
    """A percentage, ``5%`` or ``5``, as a share: 0.05."""

    name = "percent"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read ``5%`` or ``5``."""
        try:
            share = float(str(value).removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share <= LARGEST_NUMBER:  # so that nan, which compares as false, is refused too
            self.fail(f"{value!r} is not a percentage from 0 on", param, ctx)
        return share


class StepRange(click.ParamType[tuple[int, int]]):
    """Steps by the profiler's numbers: ``3``, ``2..5``."""

    name = "steps"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the first and the last step."""
        match = _STEPS.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"takes a number or a range such as 2..3, not {value!r}", param, ctx)
        return int(match[1]), int(match[2] or match[1])


class TimeRange(click.ParamType[tuple[int, int]]):
    """A range of a trace's time: ``1.5s..2s``."""

    name = "time range"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return when the range begins and ends, in nanoseconds."""
        times = [parse_ns(part) for part in str(value).split("..")]
        if len(times) != 2 or times[0] is None or times[1] is None or times[0] >= times[1]:
            self.fail(f"takes two times with units, such as 1.5s..2s or 0ms..300ms, not {value!r}", param, ctx)
        return times[0], times[1]


class WantedStepsType(click.ParamType[str]):
    """Which steps of a script: a kind, or ``annotation:NAME``."""

    name = "steps"

    def __init__(self, *, operators: bool = True) -> None:
        """Take the kinds of steps, those that are found among operators too unless told otherwise."""
        kinds = [StepKind.TRAINING, StepKind.CALLS, StepKind.REPLAYS, StepKind.EVALUATION]
        self._kinds = [*kinds, StepKind.OPERATORS] if operators else kinds

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the kind."""
        kind, _, name = str(value).partition(":")
        if not (kind in self._kinds and not name) and not (kind == StepKind.ANNOTATION and name):
            self.fail(f"takes {', '.join(self._kinds)} or annotation:NAME, not {value!r}", param, ctx)
        return str(value)


class ListCommand(click.Command):
    """A command whose list options take ``--sizes 1 8 16`` as well as ``--sizes 1,8,16``.

    click has no options with a variable number of values. Words that follow a list option and read as its values are
    joined to one before click parses the line, so the two spellings cannot differ in anything else.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the values of list options, then parse as click does."""
        return super().parse_args(ctx, self.joined(args))

    def joined(self, args: Sequence[str]) -> list[str]:
        """Return the words of a command line with the values of each list option joined to one word.

        An option that is given twice has the values of both.
        """
        results: list[str] = []
        places: dict[str, int] = {}  # where the values of an option stand
        for word, _, of in self.with_origins(args):
            if of is not None and of in places:
                results.pop()  # the option's name
                results[places[of]] += f",{word}"
                continue
            if of is not None:
                places[of] = len(results)
            results.append(word)
        return results

    def with_origins(self, args: Sequence[str]) -> list[tuple[str, int, str | None]]:
        """Return the words with values joined, where each stood in the line, and of which list option it has values."""
        lists = {
            name: (option.opts[0], option.type)
            for option in self.params
            if isinstance(option, click.Option) and isinstance(option.type, ListOf)
            for name in option.opts
        }
        return _joined(args, lists)


def _joined(args: Sequence[str], lists: dict[str, tuple[str, ListOf]]) -> list[tuple[str, int, str | None]]:
    joined: list[tuple[str, int, str | None]] = []
    position = 0
    while position < len(args):
        word, began = args[position], position
        position += 1
        if word == "--":  # no options follow
            return [*joined, *((word, place, None) for place, word in enumerate(args[began:], began))]
        name, equals, value = word.partition("=")
        if name not in lists:
            joined.append((word, began, None))
            continue
        option, kind = lists[name]
        joined.append((name, began, None))
        values = [value] if equals else []
        while position < len(args) and kind.accepts(args[position]):
            values.append(args[position])
            position += 1
        if values:
            joined.append((",".join(values), began + 1, option))
    return joined


def format_option(function: F) -> F:
    """Add ``--format table|json|csv|md|brief``, and ``--brief`` for the last of these."""
    brief = click.option(
        "--brief",
        is_flag=True,
        is_eager=True,  # so that the callback of --format knows of it
        expose_value=False,
        callback=_remember_brief,
        help="The same as --format brief: the essence in at most 2,000 tokens, for a first look and for agents.",
    )
    return _formats(_format)(brief(function))


def brief_or_format_option(function: F) -> F:
    """Add ``--format``, and ``--brief`` as a value of its own: the brief has a document, which has formats too."""
    brief = click.option(
        "--brief",
        is_flag=True,
        help="The essence in at most 2,000 tokens, for a first look and for agents; of several traces a line each. "
        "With --by, --top or --sort, that table instead. --format json prints that of one trace by the schema "
        "opscope.brief/1.",
    )
    return _formats(None)(brief(function))


def _formats(callback: Callable[[click.Context, click.Parameter, str], str] | None) -> Callable[[F], F]:
    return click.option(
        "--format",
        "output_format",
        type=click.Choice([choice.value for choice in Format]),
        default=Format.TABLE.value,
        show_default=True,
        callback=callback,
        help="The format of the result on standard output.",
    )


_BRIEF: Final = "opscope.brief"


def _remember_brief(context: click.Context, _option: click.Parameter, value: bool) -> None:
    context.meta[_BRIEF] = value


def _format(context: click.Context, option: click.Parameter, value: str) -> str:
    if not context.meta.get(_BRIEF):
        return value
    asked = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    if asked and value != Format.BRIEF.value:
        raise click.UsageError(f"--brief and --format {value} are two formats: give one", context)
    return Format.BRIEF.value


def top_option(what: str = "rows", default: int = SHOWN_ROWS) -> Callable[[F], F]:
    """Add ``--top``: how much of a ranking people are shown. It means the same in every command.

    Args:
        what: what is ranked, in the plural.
        default: how many, unless the user says.
    """
    return click.option(
        "--top",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"Show this many {what}, 0 for all.  [default: {default}; CSV has all]",
    )


def shown_rows(top: int | None, default: int = SHOWN_ROWS) -> int | None:
    """Return how many rows people are shown; None for all.

    Args:
        top: what follows ``--top``: 0 means all; None if it was not given.
        default: how many, unless the user says.
    """
    return default if top is None else top or None


def overwrite_option(what: str) -> Callable[[F], F]:
    """Add ``--overwrite``, without which no existing file is replaced.

    Args:
        what: what may be replaced, in words.
    """
    return click.option("--overwrite", is_flag=True, help=f"Allow replacing {what}.")


def output_option(
    help_text: str, *names: str, required: bool = False, standard_output: bool = True
) -> Callable[[F], F]:
    """Add ``-o/--output`` for the file that a command writes.

    Args:
        help_text: what is written.
        names: further names of the option.
        required: whether it has to be given.
        standard_output: whether the command writes it to standard output for ``-``.
    """
    return click.option(
        "-o",
        "--output",
        *names,
        "output",
        type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        required=required,
        help=f"{help_text} - is standard output." if standard_output else help_text,
    )


def folder_option(help_text: str, *, required: bool = False) -> Callable[[F], F]:
    """Add ``-o/--output/--output-dir`` for the folder that a command writes to."""
    return click.option(
        "-o",
        "--output",
        "--output-dir",
        "output_dir",
        type=click.Path(file_okay=False, path_type=Path),
        required=required,
        help=help_text,
    )


def redaction_options(function: F) -> F:
    """Add ``--redact`` and ``--keep-arguments``: what of a command line is written down."""
    for option in (
        click.option("--keep-arguments", is_flag=True, help="Record all arguments as they are, secrets included."),
        click.option(
            "--redact",
            metavar="NAME",
            multiple=True,
            help="Record the values of this argument as ***, like those of tokens, keys and passwords. May be "
            "repeated.",
        ),
    ):
        function = option(function)
    return function


def redactor_of(redact: Sequence[str], *, keep_arguments: bool) -> Redactor:
    """Return the redactor that `redaction_options` ask for: it takes secrets out of what is written down."""
    return Redactor(frozenset(name.lstrip("-") for name in redact), keep_arguments)


WORDS: Final = ListOf(click.STRING)
