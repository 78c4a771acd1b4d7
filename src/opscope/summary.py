"""How an object shows itself in a prompt and in a notebook: in a few lines, whatever it holds."""

import abc
import html
import textwrap
from dataclasses import dataclass
from typing import Final

from opscope.text import printable

_WIDTH: Final = 100
_LONGEST_NAME: Final = 40


def _shortened(name: str) -> str:
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}..{name[-half + 1 :]}"


def _plain(text: str) -> str:
    return " ".join(printable(text).split())


@dataclass(frozen=True, slots=True)
class Summary:
    """A title, and names with their values."""

    title: str
    rows: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """Return plain lines, long values wrapped and long names shortened in their middle."""
        names = [_shortened(_plain(name)) for name, _ in self.rows]
        width = max(map(len, names), default=0)
        lines = [_plain(self.title)]
        for name, (_, value) in zip(names, self.rows, strict=True):
            first, *further = textwrap.wrap(_plain(value), max(_WIDTH - width - 4, 20)) or [""]
            lines.append(f"  {name:<{width}}  {first}".rstrip())
            lines += [" " * (width + 4) + line for line in further]
        return "\n".join(lines)

    def html(self) -> str:
        """Return a table; what comes from a trace is text in it and never markup."""
        cell = '<td style="text-align:left">'
        texts = ((html.escape(_plain(name)), html.escape(_plain(value))) for name, value in self.rows)
        rows = (f"<tr>{cell}{name}</td>{cell}{value}</td></tr>" for name, value in texts)
        return f"<div><strong>{html.escape(_plain(self.title))}</strong><table>{''.join(rows)}</table></div>"


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
