"""The content of a report, independent of any renderer: sections of paragraphs, lists and tables.

Text is plain. Text from a trace (operator and kernel names, paths) is wrapped in `Name`, so that every renderer knows
what it must not trust and can set it as code.
"""

from enum import StrEnum

from msgspec import Struct


class Name(str):
    """Text from a trace or a user: shown literally, never interpreted."""

    __slots__ = ()


class Whole(Name):
    """A name that readers copy, such as a command: it is never shortened."""

    __slots__ = ()


class Tone(StrEnum):
    """What a text means to its reader; a terminal shows it as a colour."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"
    STRONG = "strong"  # what to read first
    BAR = "bar"  # drawn with characters that fill it


class Toned(str):
    """Text of this program's own with a meaning. Where nothing shows meanings, it is plain text."""

    __slots__ = ("tone",)
    tone: Tone

    def __new__(cls, text: str, tone: Tone) -> "Toned":
        """Make a text with a tone."""
        made = super().__new__(cls, text)
        made.tone = tone
        return made


def joined(parts: "Inline") -> str:
    """Return a line made of parts; it has the tone of its first part that has one."""
    text = "".join(parts)
    return next((Toned(text, part.tone) for part in parts if isinstance(part, Toned)), text)


Cell = str
Inline = tuple[str, ...]


class Paragraph(Struct, frozen=True):
    """Running text; `Name` parts are set as code."""

    parts: Inline

    @classmethod
    def of(cls, *parts: str) -> "Paragraph":
        """Build a paragraph from its parts."""
        return cls(parts)


class Bullets(Struct, frozen=True):
    """A list of items, each made of parts."""

    items: tuple[Inline, ...]


class Table(Struct, frozen=True):
    """A table of text.

    Attributes:
        columns: the headings.
        rows: one tuple per row, as long as ``columns``.
        numeric: positions of numeric columns, which are set flush right.
        optional: positions of columns that may be left out if there is no room.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()
    optional: frozenset[int] = frozenset()


class Code(Struct, frozen=True):
    """Lines of source, shown literally.

    Attributes:
        lines: the lines, without their ends.
        language: what Markdown names them, such as ``diff``; empty for none.
    """

    lines: tuple[str, ...]
    language: str = ""


Block = Paragraph | Bullets | Table | Code


class Section(Struct, frozen=True):
    """A heading with its content."""

    title: Inline
    blocks: tuple[Block, ...] = ()
    sections: tuple["Section", ...] = ()
