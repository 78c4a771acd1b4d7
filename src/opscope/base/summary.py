"""Short summaries of large objects, for the Python prompt and for notebooks."""

from typing import Final

from msgspec import Struct

from opscope.base.text import printable

_WIDTH: Final = 100
_LONGEST_NAME: Final = 40
_NAMES, _BARS, _TEXTS, _LINE = 280, 320, 180, 19  # pixels of a chart


def _shortened(name: str) -> str:
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}..{name[-half + 1 :]}"


def _escaped(text: str) -> str:
    import html

    return html.escape(text)


def _plain(text: str) -> str:
    return " ".join(printable(text).split())


class Bar(Struct, frozen=True):
    """A bar of a chart: its name, its length (a negative one points left), and the text beside it."""

    name: str
    value: float
    text: str


class Summary(Struct, frozen=True):
    """A title, rows of (name, value), and for notebooks a bar chart with its own title."""

    title: str
    rows: tuple[tuple[str, str], ...]
    bars: tuple[Bar, ...] = ()
    bars_title: str = ""

    def text(self) -> str:
        """Return plain text; long values are wrapped, and long names shortened in the middle."""
        import textwrap  # as html: only prompts and notebooks show summaries

        names = [_shortened(_plain(name)) for name, _ in self.rows]
        width = max(map(len, names), default=0)
        lines = [_plain(self.title)]
        for name, (_, value) in zip(names, self.rows, strict=True):
            first, *further = textwrap.wrap(_plain(value), max(_WIDTH - width - 4, 20)) or [""]
            lines.append(f"  {name:<{width}}  {first}".rstrip())
            lines += [" " * (width + 4) + line for line in further]
        return "\n".join(lines)

    def html(self) -> str:
        """Return HTML with a table and the chart; text from a trace is escaped."""
        cell = '<td style="text-align:left">'
        texts = ((_escaped(_plain(name)), _escaped(_plain(value))) for name, value in self.rows)
        rows = (f"<tr>{cell}{name}</td>{cell}{value}</td></tr>" for name, value in texts)
        title = f"<strong>{_escaped(_plain(self.title))}</strong>"
        return f"<div>{title}<table>{''.join(rows)}</table>{self._chart()}</div>"

    def _chart(self) -> str:
        """Draw the bars on one scale, as SVG without scripts."""
        if not self.bars:
            return ""
        largest = max(abs(bar.value) for bar in self.bars) or 1.0
        # With negative bars, zero is in the middle and each direction has half of the width.
        below = any(bar.value < 0 for bar in self.bars)
        zero, room = (_NAMES + _BARS / 2, _BARS / 2) if below else (_NAMES, _BARS)
        drawn = "".join(_drawn(bar, place, zero, room / largest) for place, bar in enumerate(self.bars))
        size = f'width="{_NAMES + _BARS + _TEXTS}" height="{_LINE * len(self.bars) + 4}"'
        title = _escaped(_plain(self.bars_title))
        return (
            f'<div style="margin-top:6px">{title}</div>'
            f'<svg role="img" aria-label="{title}" {size} font-family="sans-serif" font-size="12">{drawn}</svg>'
        )


def _drawn(bar: Bar, place: int, zero: float, scale: float) -> str:
    y, width = _LINE * place + 3, abs(bar.value) * scale
    x = zero - width if bar.value < 0 else zero
    color = "#4e79a7"
    name, text = (_escaped(_shortened(_plain(one))) for one in (bar.name, bar.text))
    return (
        f'<text x="{_NAMES - 6}" y="{y + 11}" text-anchor="end" fill="currentColor">{name}</text>'
        f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{_LINE - 5}" fill="{color}"/>'
        f'<text x="{_NAMES + _BARS + 6}" y="{y + 11}" fill="currentColor">{text}</text>'
    )


class Summarised:
    """An object whose ``repr`` is its `summary`."""

    __slots__ = ()

    def summary(self) -> Summary:
        """Return the most important figures of the object."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()
