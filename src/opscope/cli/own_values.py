"""Values of settings as options give them, and of a function's own parameters (``--set``)."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opscope.base.errors import UsageError
from opscope.record.settings import SETTINGS, SHORT_DTYPES, Value, option_of

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
