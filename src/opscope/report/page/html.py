"""Writes a page as one HTML file with its scripts and data; its policy forbids loading anything else.

A page is an object that can be saved to a file or shown in a notebook. Sections of reports
are data there, of which `assets/blocks.js` makes elements.
"""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from string import Template
from typing import Final

import msgspec
from msgspec import Struct

from opscope.base.files import write_output
from opscope.base.text import printable
from opscope.documents.page import BlockEntry, NamePart, PageDocument, PartEntry, SectionEntry
from opscope.render.blocks import Block, Bullets, Code, Inline, Name, Paragraph, Section, Table, Tone, Toned

# Joined into one script in this order: each uses the ones before it.
_SCRIPTS: Final = (
    "units.js", "dom.js", "data.js", "table.js", "canvas.js", "ticks.js", "charts.js", "blocks.js", "details.js",
    "overview.js", "operators.js", "lanes.js", "measure.js", "timeline_drawing.js", "timeline.js", "steps.js",
    "flame.js", "roofline.js", "counters.js", "memory.js", "sweep.js", "bench.js", "advise.js", "ranks.js", "diff.js",
    "snapshots.js", "app.js",
)  # fmt: skip
_MODULE_WORDS: Final = re.compile(r"^import [^;]*;\n|^export (?=async |function|const |let |class )", re.MULTILINE)
_LIBRARY: Final = "echarts.min.js"
_LICENSES: Final = "LICENSES.txt"
_LEVEL: Final = 4  # of gzip: 6 takes twice as long, and makes pages 2 % smaller
_SHELL: Final = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="opscope $version">
<title>$title</title>
<style>$style</style>
</head>
<body>
<noscript>This page draws itself with the script that it contains. Allow scripts for it, or read the Markdown
report beside it.</noscript>
<div id="app" aria-busy="true"></div>
<script id="data" type="application/gzip">$data</script>
<script id="licenses" type="text/plain">$licenses</script>
<script>$library</script>
<script>$script</script>
</body>
</html>
"""
)
_HEIGHT = 900  # pixels
# Its own script, and links to source in windows of their own.
_ALLOWED = "allow-scripts allow-popups allow-popups-to-escape-sandbox"


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


class Page(Struct, frozen=True, dict=True):
    """A page that opens offline.

    Attributes:
        document: its data, by the schema ``opscope.page/1``.
    """

    document: PageDocument

    @cached_property
    def html(self) -> bytes:
        """The content of the HTML file."""
        return page_html(self.document)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, replacing an existing one, and return its path.

        Raises:
            EnvironmentLacksError: the file cannot be written.
        """
        target = Path(path)
        write_output(target, self.html)
        return target

    def __repr__(self) -> str:
        return f"Page of {len(self.document.traces)} traces, {len(self.html):,} bytes; save(path) writes it"

    def _repr_html_(self) -> str:
        """Return a sandboxed frame, in which the page's script cannot reach the notebook."""
        content = html.escape(self.html.decode(), quote=True)
        style = f"width:100%;height:{_HEIGHT}px;border:1px solid #999"
        return f'<iframe sandbox="{_ALLOWED}" style="{style}" srcdoc="{content}"></iframe>'


def page_html(document: PageDocument) -> bytes:
    """Return the HTML file of a page."""
    style, library, script = _style(), _script((_LIBRARY,)), _script(_SCRIPTS)
    packed = gzip.compress(msgspec.json.encode(document), _LEVEL, mtime=0)
    return _SHELL.substitute(
        policy=_policy([library, script], style),
        version=html.escape(document.opscope),
        title=html.escape(printable(document.title)),
        style=style,
        data=base64.b64encode(packed).decode(),
        licenses=_asset(_LICENSES).replace("</", "<\\/"),
        library=library,
        script=script,
    ).encode()


def _policy(scripts: Sequence[str], style: str) -> str:
    """Return a policy that allows exactly these scripts and this style: no event handlers, requests or forms."""
    allowed = " ".join(map(_hash, scripts))
    rules = (
        "default-src 'none'",
        f"script-src {allowed}",
        f"style-src {_hash(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> str:
    return _asset("page.css")


@cache
def _script(names: Sequence[str]) -> str:
    """Join modules into one script; no two of them may declare the same name at their top level.

    A page that opens from a file cannot import, so imports and exports are removed. End tags are escaped: in HTML, a
    script ends at the first one.
    """
    parts = "\n".join(_MODULE_WORDS.sub("", _asset(name)) for name in names).replace("</script", "<\\/script")
    return parts if names == (_LIBRARY,) else f'"use strict";(() => {{\n{parts}\n}})();'


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")
