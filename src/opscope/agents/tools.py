"""The tools that opscope offers to language models, each of which is a command of the command line.

There is one table of them: the server makes its list and its schemas of it, and every call becomes the words of a
command, which runs in a process of its own with ``--brief``. So a tool can say nothing that the command does not.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from opscope.base.errors import UsageError
from opscope.report.by import By

MOST_TOOL_ROWS: Final = 50
_BRIEF: Final = "--brief"
_LONGEST: Final = 4_096  # characters of a value
_MOST_TEXTS: Final = 100  # of a list
_LARGEST: Final = 1e12  # of a number without a limit of its own


class Kind(StrEnum):
    """What a parameter of a tool is."""

    PATH = "path"
    TEXT = "text"
    NUMBER = "number"
    COUNT = "count"
    TEXTS = "texts"


class Parameter(Struct, frozen=True):
    """A parameter of a tool.

    Attributes:
        name: its name.
        kind: what it is.
        about: what it means, for the model.
        option: the option of the command that takes it; empty for an argument.
        required: whether it must be given.
        choices: the only values; empty for any.
        most: the largest number.
        default: the value where none is given; None for none.
    """

    name: str
    kind: Kind
    about: str
    option: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    most: int | None = None
    default: str | None = None


class Tool(Struct, frozen=True):
    """A command as a tool.

    Attributes:
        name: the tool's name.
        about: what it does, for the model.
        command: the command.
        parameters: what it takes.
        runs: whether it runs a program of the user's.
    """

    name: str
    about: str
    command: str
    parameters: tuple[Parameter, ...]
    runs: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its parameters."""
        return {
            "type": "object",
            "properties": {one.name: _schema(one) for one in self.parameters},
            "required": [one.name for one in self.parameters if one.required],
            "additionalProperties": False,
        }

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the words of the command for some values. Options hold their values, so that none is another option.

        Args:
            values: the parameters, as the model named them.

        Raises:
            UsageError: a value is missing, unknown, or of the wrong kind.
        """
        unknown = set(values) - {one.name for one in self.parameters}
        if unknown:
            raise UsageError(f"{self.name} takes no {', '.join(sorted(unknown))}")
        options, arguments = [_BRIEF], list[str]()
        for one in self.parameters:
            for text in _texts(self.name, one, values.get(one.name, one.default)):
                if one.option:
                    options.append(f"{one.option}={text}")
                else:
                    arguments.append(text)
        return [self.command, *options, "--", *arguments]

    def paths(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the parameters that are paths and have a value."""
        return tuple(one.name for one in self.parameters if one.kind is Kind.PATH and values.get(one.name) is not None)


def _schema(one: Parameter) -> dict[str, Any]:
    if one.kind in (Kind.NUMBER, Kind.COUNT):
        most = {"maximum": one.most} if one.most else {}
        return {"type": "integer" if one.kind is Kind.COUNT else "number", "description": one.about, **most}
    if one.kind is Kind.TEXTS:
        return {"type": "array", "items": {"type": "string"}, "maxItems": _MOST_TEXTS, "description": one.about}
    return {"type": "string", "description": one.about, **({"enum": list(one.choices)} if one.choices else {})}


def _texts(tool: str, one: Parameter, value: object) -> Sequence[str]:
    """Return a value as the words of a command line.

    Raises:
        UsageError: it is missing, or of the wrong kind.
    """
    if value is None:
        if one.required:
            raise UsageError(f"{tool} needs {one.name}: {one.about}")
        return ()
    if one.kind in (Kind.NUMBER, Kind.COUNT):
        wanted = int if one.kind is Kind.COUNT else int | float
        if isinstance(value, bool) or not isinstance(value, wanted) or not 0 < value <= (one.most or _LARGEST):
            limit = f" up to {one.most}" if one.most else ""
            raise UsageError(f"{one.name} takes a {'whole ' if one.kind is Kind.COUNT else ''}number above 0{limit}")
        return (repr(value),)
    several = value if one.kind is Kind.TEXTS and isinstance(value, list) else [value]
    if len(several) > _MOST_TEXTS:
        raise UsageError(f"{one.name} takes at most {_MOST_TEXTS} texts")
    for text in several:
        if not isinstance(text, str) or not 0 < len(text) <= _LONGEST or not _is_plain(text):
            raise UsageError(f"{one.name} takes {'a list of texts' if one.kind is Kind.TEXTS else 'a text'}")
        if one.choices and text not in one.choices:
            raise UsageError(f"{one.name} is one of {', '.join(one.choices)}")
    return [str(text) for text in several]


def _is_plain(text: str) -> bool:
    """Tell whether a text can be a word of a command line: without zero bytes and halves of characters."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _trace(about: str = "a trace of torch.profiler, or a run directory of opscope") -> Parameter:
    return Parameter("trace", Kind.PATH, about, required=True)


_STEP_TIME: Final = Parameter(
    "step_time_ms", Kind.NUMBER, "how long a step takes without the profiler, if that is known", "--step-time"
)
TOOLS: Final = (
    Tool(
        "overview",
        "What a trace or run shows: what bounds a step, where it goes, up to three findings with what each could save, "
        "what was not measured, and what to do next. Begin here. Square brackets hold addresses for `findings`.",
        "analyze",
        (_trace(), _STEP_TIME),
    ),
    Tool(
        "findings",
        "All findings of a trace; or, with an address, everything about one of them, or any other value of the "
        "analysis with its unit and meaning.",
        "show",
        (
            _trace(),
            Parameter(
                "address", Kind.TEXT,
                "what to show: findings/ID, findings/ID/evidence, devices/0/busy_ns, operators/aten::mm, ...",
                default="findings",
            ),
            _STEP_TIME,
        ),
    ),
    Tool(
        "table",
        f"A table of a trace: its operators, kernels, modules, gaps, ..., at most {MOST_TOOL_ROWS} rows.",
        "analyze",
        (
            _trace(),
            Parameter("by", Kind.TEXT, "what a row stands for", "--by", required=True, choices=tuple(map(str, By))),
            Parameter("top", Kind.COUNT, "how many rows", "--top", most=MOST_TOOL_ROWS),
            Parameter("sort", Kind.TEXT, "a column to sort by, by its heading", "--sort"),
        ),
    ),
    Tool(
        "explain",
        "What an operator or kernel is, where its source is, and what it costs in a trace.",
        "explain",
        (
            Parameter("name", Kind.TEXT, "aten::addmm, or a kernel's name as a trace has it", required=True),
            Parameter("trace", Kind.PATH, "a trace in which it runs", "--in"),
        ),
    ),
    Tool(
        "diff",
        "What changed between two traces or runs: whether the step takes longer, and what that is made of.",
        "diff",
        (
            Parameter("before", Kind.PATH, "the trace or run before the change", required=True),
            Parameter("after", Kind.PATH, "the one after it", required=True),
            Parameter("by", Kind.TEXT, "groups of work to list", "--by", choices=("kernel", "module", "category")),
        ),
    ),
    Tool(
        "whatif",
        "How long a step would take with changes, by replay of its recording: a prediction with its range, no "
        "measurement. Several changes are made one after the other.",
        "whatif",
        (
            _trace("a trace of torch.profiler"),
            Parameter("findings", Kind.TEXTS, "ids of findings whose advice is followed", "--finding"),
            Parameter("remove", Kind.TEXTS, "operators to leave out, with what they launch", "--remove"),
            Parameter("scale", Kind.TEXTS, "NAME=FACTOR: this work takes FACTOR times as long", "--scale"),
            Parameter("to_limit", Kind.TEXTS, "operators that take the least time the device allows", "--to-limit"),
            Parameter("no_wait", Kind.TEXTS, "calls that return without waiting for the device", "--no-wait"),
            Parameter(
                "step_time_ms", Kind.NUMBER, "how long a step takes without the profiler, if known", "--step-time"
            ),
        ),
    ),
)  # fmt: skip
RUNNING: Final = (
    Tool(
        "profile",
        "Run a Python script and profile its steps: times them without the profiler, records a few, and says what "
        "bounds them. It runs the script.",
        "profile",
        (
            Parameter("script", Kind.PATH, "the script, as python would run it", required=True),
            Parameter("arguments", Kind.TEXTS, "its arguments"),
        ),
        runs=True,
    ),
)


def tools(*, allow_run: bool) -> tuple[Tool, ...]:
    """Return the tools that are offered.

    Args:
        allow_run: whether tools that run programs are among them.
    """
    return (*TOOLS, *RUNNING) if allow_run else TOOLS
