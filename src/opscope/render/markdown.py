"""Renders sections as GitHub-flavoured Markdown. Names are set as code or escaped, so that none becomes markup."""

import re
from collections.abc import Iterator, Sequence

from opscope.base.text import lazy_pattern, printable
from opscope.render.blocks import Block, Bullets, Code, Inline, Name, Paragraph, Section, Table

_MARKUP = lazy_pattern(r"([\\`*<>\[\]|~&#])")
_LOOSE_UNDERSCORE = lazy_pattern(r"(?<!\w)_|_(?!\w)")
_AUTOLINK = lazy_pattern(r"(?<=http)(?=://)|(?<=https)(?=://)|(?<=ftp)(?=://)|(?<=www)(?=\.)|(?=@)", re.IGNORECASE)
_FENCE = lazy_pattern(r"`+")
# Words that sites turn into links and mentions even if they are escaped: addresses, @names, #12, GH-12, commits. They
# are set as code, which sites leave alone.
_LIVE = lazy_pattern(
    r"\S*(?:@|://|www\.|mailto:|xmpp:|#\d|GH-\d|(?<![0-9A-Za-z])(?=[0-9a-f]*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40}(?![0-9A-Za-z]))\S*",
    re.IGNORECASE,
)


def render(section: Section, level: int = 1) -> str:
    """Render a section and its inner sections; the outermost heading has ``level`` number signs."""
    return "\n".join(_lines(section, level)).rstrip() + "\n"


def _lines(section: Section, level: int) -> Iterator[str]:
    yield f"{'#' * level} {' '.join(''.join(_escaped(part) for part in section.title).split())}"
    yield ""
    for block in section.blocks:
        yield from _block(block)
        yield ""
    for inner in section.sections:
        yield from _lines(inner, level + 1)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(parts):
            yield _inline(parts)
        case Bullets(items):
            for item in items:
                yield f"- {_inline(item)}"
        case Table():
            yield from _table(block)
        case Code(lines, language):
            yield from _listing(lines, language)


def _listing(lines: Sequence[str], language: str) -> Iterator[str]:
    shown = [printable(line.expandtabs(4)) for line in lines]
    longest = max((len(run) for line in shown for run in _FENCE.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}"
    yield from shown
    yield fence


def _table(table: Table) -> Iterator[str]:
    yield _row(table.columns)
    yield "|" + "|".join("---:" if i in table.numeric else "---" for i in range(len(table.columns))) + "|"
    for row in table.rows:
        yield _row(row)


def _row(cells: tuple[str, ...]) -> str:
    # Within a table even a code span must not contain a bare pipe.
    return "| " + " | ".join(_part(cell).replace("|", "\\|").replace("\\\\|", "\\|") for cell in cells) + " |"


def _inline(parts: Inline) -> str:
    joined = ""
    for part in map(_part, parts):
        # Two code spans side by side would share their backticks and become one.
        joined += " " + part if joined.endswith("`") and part.startswith("`") else part
    return joined


def _part(text: str) -> str:
    return _code(text) if isinstance(text, Name) else _escaped(text)


def _code(text: str) -> str:
    plain = printable(text)
    if not plain:
        return ""
    # A code span ends at as many backticks as it begins with, so it needs more than any run of them within it.
    longest = max((len(run) for run in _FENCE.findall(plain)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _escaped(text: str) -> str:
    shown, at = "", 0
    for word in _LIVE.finditer(printable(text)):
        live = word[0].rstrip(".,;:!?")
        while live.endswith(")") and live.count(")") > live.count("("):  # it closes what began before
            live = live[:-1].rstrip(".,;:!?")
        shown += _without_markup(text[at : word.start()]) + _code(live)
        at = word.start() + len(live)
    return shown + _without_markup(text[at:])


def _without_markup(text: str) -> str:
    plain = _AUTOLINK.sub(r"\\", _MARKUP.sub(r"\\\1", printable(text)))
    # One underscore alone cannot begin and end emphasis; within words none does.
    loose = _LOOSE_UNDERSCORE.findall(plain)
    return _LOOSE_UNDERSCORE.sub(r"\\_", plain) if len(loose) > 1 else plain
