"""How the documentation is built: ``make docs``."""

import re
from typing import Any

import opscope

project = "opscope"
author = "The opscope authors"
release = opscope.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["schema", "images"]
smartquotes = False  # an option's two dashes would become one
html_theme = "furo"
html_title = f"opscope {release}"
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_use_ivar = True  # attributes are described where the class is, once
default_role = "code"  # single backticks in docstrings are code

_STARS = re.compile(r"(?<!\*)(?:\*{3}|\*)(?!\*)")


def _escaped(_app: Any, _context: Any, lines: list[str]) -> None:
    """Keep stars in help texts from becoming emphasis."""
    lines[:] = [_STARS.sub(lambda found: "\\*" * len(found[0]), line) for line in lines]


def setup(app: Any) -> None:
    """Register what runs while the documentation is built."""
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", _escaped)
