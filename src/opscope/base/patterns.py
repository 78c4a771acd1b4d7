"""Regular expressions that are compiled when they are first used: opscope has some two hundred, a command needs few."""

import re
from typing import Any, AnyStr, cast


class _Lazy:
    """Stands for a pattern: has the pattern's attributes, and compiles it when one of them is asked for."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        # Python comes here only for what the object does not have yet, so each attribute is looked up once.
        if name.startswith("__"):  # what copying and pickling ask of any object
            raise AttributeError(name)
        if "_compiled" not in self.__dict__:
            self.__dict__["_compiled"] = re.compile(self._text, self._flags)
        result = getattr(self.__dict__["_compiled"], name)
        self.__dict__[name] = result
        return result

    def __reduce__(self) -> tuple[type["_Lazy"], tuple[str | bytes, int]]:
        return _Lazy, (self._text, self._flags)

    def __repr__(self) -> str:
        return f"lazy_pattern({self._text!r}, {self._flags})"


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what behaves as ``re.compile(text, flags)`` and costs nothing until it is used.

    It is not a pattern to the functions of `re`, such as ``re.search``: call its own methods.
    """
    return cast("re.Pattern[AnyStr]", _Lazy(text, flags))
