"""A command of the command line as a tool for language models.

Every call becomes the words of a command, which runs in a process of its own with ``--brief``: a tool can say nothing
that the command does not. Which commands are tools, and with which of their options, says `opscope.cli.mcp`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from opscope.base.errors import UsageError

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
