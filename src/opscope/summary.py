"""How an object shows itself in a prompt and in a notebook: in a few lines, whatever it holds."""

import abc
import html
import textwrap
from dataclasses import dataclass
from typing import Final

_WIDTH: Final = 100
_LONGEST_NAME: Final = 40


def _shortened(name: str) -> str:
    name = " ".join(name.split())
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}..{name[-half + 1 :]}"


@dataclass(frozen=True, slots=True)
class Summary:
    """A title, and names with their values."""

    title: str
    rows: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """Return plain lines, long values wrapped and long names shortened in their middle."""
        names = [_shortened(name) for name, _ in self.rows]
        width = max(map(len, names), default=0)
        lines = [self.title]
        for name, (_, value) in zip(names, self.rows, strict=True):
            first, *further = textwrap.wrap(value, max(_WIDTH - width - 4, 20)) or [""]
            lines.append(f"  {name:<{width}}  {first}".rstrip())
            lines += [" " * (width + 4) + line for line in further]
        return "\n".join(lines)

    def html(self) -> str:
        """Return a table; what comes from a trace is text in it and never markup."""
        cell = '<td style="text-align:left">'
        rows = (f"<tr>{cell}{html.escape(name)}</td>{cell}{html.escape(value)}</td></tr>" for name, value in self.rows)
        return f"<div><strong>{html.escape(self.title)}</strong><table>{''.join(rows)}</table></div>"


class Summarised(abc.ABC):
    """Shows its `summary` instead of everything in it."""

    __slots__ = ()

    @abc.abstractmethod
    def summary(self) -> Summary:
        """Return what is worth seeing at a glance."""

    def __repr__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()
