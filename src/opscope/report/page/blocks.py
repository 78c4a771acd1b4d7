"""Sections of reports as data of the page, of which `assets/blocks.js` makes elements."""

from collections.abc import Iterable

from opscope.documents.page import BlockEntry, NamePart, PartEntry, SectionEntry
from opscope.render.blocks import Block, Bullets, Code, Inline, Name, Paragraph, Section, Table, Tone, Toned


def section_entry(section: Section) -> SectionEntry:
    """Return a section with those inside it."""
    return SectionEntry(
        title=_parts(section.title),
        blocks=block_entries(section.blocks),
        sections=tuple(map(section_entry, section.sections)),
    )


def block_entries(blocks: Iterable[Block]) -> tuple[BlockEntry, ...]:
    """Return blocks; bars of characters are left out, as the page draws them."""
    return tuple(_entry(block) for block in blocks if not _is_drawn(block))


def _is_drawn(block: Block) -> bool:
    return isinstance(block, Paragraph) and any(
        isinstance(part, Toned) and part.tone is Tone.BAR for part in block.parts
    )


def _entry(block: Block) -> BlockEntry:
    match block:
        case Paragraph(parts):
            tone = next((str(part.tone) for part in parts if isinstance(part, Toned)), None)
            return BlockEntry(kind="paragraph", items=(_parts(parts),), tone=tone)
        case Bullets(items):
            return BlockEntry(kind="bullets", items=tuple(map(_parts, items)))
        case Table():
            return BlockEntry(
                kind="table",
                columns=tuple(map(str, block.columns)),
                rows=tuple(_parts(row) for row in block.rows),
                numeric=tuple(sorted(block.numeric)),
            )
        case Code(lines, language):
            return BlockEntry(kind="code", lines=tuple(map(str, lines)), language=language)


def _parts(parts: Inline) -> tuple[PartEntry, ...]:
    return tuple(NamePart(str(part)) if isinstance(part, Name) else str(part) for part in parts)
