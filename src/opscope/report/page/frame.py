"""A page as an object: saved to a file, or shown in a notebook."""

import html
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from opscope.base.files import write_output
from opscope.documents.page import PageDocument
from opscope.report.page.html import page_html

_HEIGHT = 900  # pixels
# Its own script, and links to source in windows of their own.
_ALLOWED = "allow-scripts allow-popups allow-popups-to-escape-sandbox"


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
