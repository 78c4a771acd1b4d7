"""``opscope mcp ROOT...``: opscope's tools for agents, over the Model Context Protocol. Needs the extra ``mcp``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click
from msgspec import Struct, field

from opscope.agents.tools import Kind, Parameter, Tool
from opscope.base.errors import EnvironmentLacksError
from opscope.cli import cli
from opscope.cli.options import Positive

_MOST_ROWS: Final = 50  # of a table: an answer has 2,000 tokens
_A_TRACE: Final = "a trace of torch.profiler, or a run directory of opscope"


class _Offer(Struct, frozen=True):
    """Which command a tool is, and what of it is offered.

    Attributes:
        name: the tool's name.
        about: what it does, for the model.
        command: the command.
        arguments: what the model gives of the command's arguments, which have no help text of their own.
        options: names for the model of the command's options.
        required: which of these options are needed.
        words: what options mean, where a person's help text does not fit.
        runs: whether it runs a program of the user's.
    """

    name: str
    about: str
    command: str
    arguments: tuple[Parameter, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    runs: bool = False


def _path(name: str, about: str) -> Parameter:
    return Parameter(name, Kind.PATH, about, required=True)


_OFFERS: Final = (
    _Offer(
        "overview",
        "What a trace or run shows: what bounds a step, where it goes, up to three findings with what each could save, "
        "what was not measured, and what to do next. Begin here. Square brackets hold addresses for `findings`.",
        "analyze",
        (_path("trace", _A_TRACE),),
        {"step_time_ms": "--step-time"},
    ),
    _Offer(
        "findings",
        "All findings of a trace; or, with an address, everything about one of them, or any other value of the "
        "analysis with its unit and meaning.",
        "show",
        (
            _path("trace", _A_TRACE),
            Parameter(
                "address", Kind.TEXT,
                "what to show: findings/ID, findings/ID/evidence, devices/0/busy_ns, operators/aten::mm, ...",
                default="findings",
            ),
        ),
        {"step_time_ms": "--step-time"},
    ),
    _Offer(
        "table",
        f"A table of a trace: its operators, kernels, modules, gaps, ..., at most {_MOST_ROWS} rows.",
        "analyze",
        (_path("trace", _A_TRACE),),
        {"by": "--by", "top": "--top", "sort": "--sort"},
        required=("by",),
        words={
            "by": "what a row stands for",
            "top": f"how many rows, {_MOST_ROWS} at most",
            "sort": "a column to sort by, by its heading",
        },
    ),
    _Offer(
        "explain",
        "What an operator or kernel is, where its source is, and what it costs in a trace.",
        "explain",
        (Parameter("name", Kind.TEXT, "aten::addmm, or a kernel's name as a trace has it", required=True),),
        {"trace": "--in"},
    ),
    _Offer(
        "diff",
        "What changed between two traces or runs: whether the step takes longer, and what that is made of.",
        "diff",
        (
            _path("before", "the trace or run before the change"),
            _path("after", "the one after it"),
        ),
        {"by": "--by"},
    ),
    _Offer(
        "whatif",
        "How long a step would take with changes, by replay of its recording: a prediction with its range, no "
        "measurement. Several changes are made one after the other.",
        "whatif",
        (_path("trace", "a trace of torch.profiler"),),
        {
            "findings": "--finding",
            "remove": "--remove",
            "scale": "--scale",
            "to_limit": "--to-limit",
            "no_wait": "--no-wait",
            "step_time_ms": "--step-time",
        },
    ),
    _Offer(
        "profile",
        "Run a Python script and profile its steps: times them without the profiler, records a few, and says what "
        "bounds them. It runs the script.",
        "profile",
        (
            _path("script", "the script, as python would run it"),
            Parameter("arguments", Kind.TEXTS, "its arguments"),
        ),
        runs=True,
    ),
)  # fmt: skip


def tools(*, allow_run: bool) -> tuple[Tool, ...]:
    """Return the commands that are offered as tools, with what their options say of themselves.

    Args:
        allow_run: whether tools that run programs are among them.
    """
    return tuple(
        Tool(offer.name, offer.about, offer.command, (*offer.arguments, *_options(offer)), runs=offer.runs)
        for offer in _OFFERS
        if allow_run or not offer.runs
    )


def _options(offer: _Offer) -> Iterator[Parameter]:
    command = cli.get_command(click.Context(cli), offer.command)
    assert command is not None
    known = {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}
    for name, option in offer.options.items():
        about = offer.words.get(name) or known[option].help or ""
        yield _parameter(name, option, known[option], about, required=name in offer.required)


def _parameter(name: str, text: str, option: click.Option, about: str, *, required: bool) -> Parameter:
    kind, most = _kind(option), None
    if kind is Kind.COUNT:
        most = _MOST_ROWS
    choices = tuple(map(str, option.type.choices)) if isinstance(option.type, click.Choice) else ()
    return Parameter(name, kind, about, text, required, choices, most)


def _kind(option: click.Option) -> Kind:
    if option.multiple:
        return Kind.TEXTS
    kinds = {click.types.IntParamType: Kind.COUNT, click.types.FloatParamType: Kind.NUMBER, click.Path: Kind.PATH}
    return next((kind for of, kind in kinds.items() if isinstance(option.type, of)), Kind.TEXT)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "roots", metavar="ROOT...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--allow-run", is_flag=True, help="Offer a tool that runs Python scripts below the ROOTs, to profile them."
)
@click.option(
    "--timeout",
    type=Positive(1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="End a command that takes longer.",
)
def command(roots: tuple[Path, ...], allow_run: bool, timeout: float) -> None:
    """Answer an agent's requests on standard input: overview, findings, table, explain, diff, whatif.

    Only files below the ROOTs are read (explain also looks into the installed PyTorch); relative paths are of the
    first. Answers have at most 2,000 tokens. No program of yours is run unless --allow-run says so. Each tool is a
    command of opscope with --brief, and answers what that prints.

    To add it to an agent: {"command": "opscope", "args": ["mcp", "/path/to/traces"]}.
    """
    from opscope.agents.calls import Caller

    caller = Caller.of(roots, tools(allow_run=allow_run), seconds=timeout)
    try:
        from opscope.agents.server import serve
    except ImportError as error:
        raise EnvironmentLacksError(
            f"opscope mcp needs the package mcp ({error.name} is missing): pip install 'opscope[mcp]'"
        ) from error
    serve(caller)
