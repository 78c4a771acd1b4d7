"""Renders sections within a number of tokens, for people in a hurry and for language models.

A model may take for an instruction what a name says, so every `Name` stands between backticks here, and nothing in it
can end them.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from opscope.base.text import LONGEST_NAME, count_tokens, lazy_pattern, printable, quoted
from opscope.render.blocks import Block, Bullets, Code, Inline, Name, Paragraph, Section, Table, Whole

MOST_TOKENS: Final = 2_000
# From generous to scarce: rows of a table, items of a list, lines of code, characters of a name, whether optional
# columns are shown.
_TIGHTER: Final = (
    (50, 30, 30, 120, True),
    (20, 20, 20, 120, True),
    (10, 12, 12, 100, True),
    (8, 12, 8, 80, False),
    (5, 8, 4, 60, False),
    (3, 6, 2, 48, False),
    (1, 4, 0, 40, False),
)
_LINE: Final = 5  # times as many characters as a name, for a whole line of text
# What C++ and PyTorch call so is a name wherever it stands: aten::mm.
_QUOTED_OR_NAME: Final = lazy_pattern(r"`[^`]*`|(?<![\w/#:`])[A-Za-z_]\w*(?:::~?\w+)+")
_CUT: Final = "(cut here: without --brief all of it is printed)"


class _Room(Struct, frozen=True):
    """How much of each part of a section is shown."""

    rows: int
    items: int
    lines: int
    name: int
    optional: bool


def render_brief(sections: Sequence[Section], most: int = MOST_TOKENS) -> str:
    """Return sections as plain lines of at most so many tokens: fewer rows and shorter names where there is no room.

    Args:
        sections: what to write.
        most: the number of tokens, by `count_tokens`.
    """
    text = ""
    for room in _TIGHTER:
        text = "\n".join(line for section in sections for line in _section(section, _Room(*room), 1))
        if count_tokens(text) <= most:
            return text
    return fitted(text, most)


def fitted(text: str, most: int) -> str:
    """Return a text; of a longer one than so many tokens the first lines that fit, and a line that says so."""
    if count_tokens(text) <= most:
        return text
    kept: list[str] = []
    left = most - count_tokens(_CUT) - 2
    for line in text.splitlines():
        left -= count_tokens(line) + 2  # its end, and rounding
        if left < 0:
            break
        kept.append(line)
    return "\n".join((*kept, _CUT))


def _section(section: Section, room: _Room, level: int) -> Iterator[str]:
    yield f"{'#' * level} {_inline(section.title, room)}"
    for block in section.blocks:
        yield from _block(block, room)
    for inner in section.sections:
        yield from _section(inner, room, level + 1)


def _block(block: Block, room: _Room) -> Iterator[str]:
    match block:
        case Paragraph(parts):
            yield _inline(parts, room)
        case Bullets(items):
            yield from (f"- {_inline(item, room)}" for item in items[: room.items])
            if len(items) > room.items:
                yield f"- ({len(items) - room.items} more)"
        case Table():
            yield from _table(block, room)
        case Code(lines, _):
            yield from (f"    {printable(line)[: 2 * room.name]}" for line in lines[: room.lines])
            if len(lines) > room.lines:
                yield f"    ({len(lines) - room.lines} more lines)"


def _table(table: Table, room: _Room) -> Iterator[str]:
    shown = [i for i in range(len(table.columns)) if room.optional or i not in table.optional]
    yield " | ".join(table.columns[i] for i in shown)
    for row in table.rows[: room.rows]:
        yield " | ".join(_cell(row[i], room) for i in shown)
    if len(table.rows) > room.rows:
        yield f"({len(table.rows) - room.rows:,} more rows)"


def _inline(parts: Inline, room: _Room) -> str:
    return "".join(_part(part, 2 * room.name, _LINE * room.name) for part in parts)


def _cell(cell: str, room: _Room) -> str:
    return _part(cell, room.name, room.name)


def _part(part: str, name: int, line: int) -> str:
    """Return a part of a line: a name quoted, at most ``name`` characters of it; other text up to ``line``."""
    if isinstance(part, Whole):
        return quoted(part, None)
    if isinstance(part, Name):
        return quoted(part, min(name, LONGEST_NAME))
    text = printable(part)
    return _QUOTED_OR_NAME.sub(_as_quotation, text if len(text) <= line else _cut(text, line))


def _as_quotation(result: re.Match[str]) -> str:
    return result[0] if result[0].startswith("`") else quoted(result[0])


def _cut(text: str, most: int) -> str:
    """Return the beginning of a text, of which no quotation stays open."""
    kept = f"{text[: most - 1]}…"
    return f"{kept}`" if kept.count("`") % 2 else kept
