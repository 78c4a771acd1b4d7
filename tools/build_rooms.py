"""Write the table of rooms into ARCHITECTURE.md, and draw docs/images/rooms.svg, from the code itself.

    python tools/build_rooms.py [--check]

A room is a package right below ``opscope``, or one right below its analysis and its workbench. What lives there is the
first line of its docstring; what it imports is read from its modules; the rows of the picture are the layers that
import-linter holds. With --check nothing is written; the exit code is 1 if the table names other rooms or imports.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
DOCUMENT, PICTURE = ROOT / "ARCHITECTURE.md", ROOT / "docs" / "images" / "rooms.svg"
BEGIN, END = "<!-- rooms: written by tools/build_rooms.py -->\n", "<!-- end of rooms -->\n"
_DIVIDED = ("opscope.analysis", "opscope.workbench")  # their rooms are shown one by one
_WIDTH, _HEIGHT, _GAP = 960, 44, 8


def modules() -> dict[str, Path]:
    """Return every module by its name."""
    found = {}
    for path in sorted((SOURCE / "opscope").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """Return the room that a module belongs to."""
    parts = module.split(".")
    return ".".join(parts[: 3 if ".".join(parts[:2]) in _DIVIDED else 2])


def imports_of(path: Path, names: frozenset[str]) -> Iterator[str]:
    """Yield the modules of opscope that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opscope"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in names else str(node.module)


def rooms() -> dict[str, tuple[str, int, set[str]]]:
    """Return of each room the first line of its docstring, how many modules it has, and which rooms it imports."""
    found: dict[str, tuple[str, int, set[str]]] = {}
    every = modules()
    names = frozenset(every)
    for name, path in every.items():
        room = room_of(name)
        if not (SOURCE / Path(*room.split("."))).is_dir() or room == "opscope":
            continue
        says, count, imported = found.get(room, ("", 0, set()))
        if name == room:
            says = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        imported |= {room_of(other) for other in imports_of(path, names)} - {room, "opscope"}
        found[room] = says, count + (path.name != "__init__.py"), imported
    return {room: row for room, row in found.items() if row[0]}


def table() -> str:
    """Return the table as Markdown."""
    found = rooms()
    lines = ["| room | what lives there | modules | imports |", "|---|---|---|---|"]
    for room, (says, count, imported) in found.items():
        if not count:
            continue
        place = room.removeprefix("opscope.").replace(".", "/")
        theirs = sorted(other.removeprefix("opscope.").replace(".", "/") for other in imported if other in found)
        lines.append(f"| `{place}/` | {says.replace('``', '`')} | {count} | {', '.join(theirs) or 'nothing'} |")
    return "\n".join(lines) + "\n"


def layers() -> list[list[str]]:
    """Return the rooms of each layer, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    within = {one["containers"][0].removeprefix("opscope."): one["layers"] for one in contracts if "containers" in one}
    found = []
    for layer in next(one["layers"] for one in contracts if one["type"] == "layers"):
        names = [name.strip().removeprefix("opscope.") for name in layer.split("|")]
        if names[0] in within:
            found += [[f"{names[0]}.{name.strip()}" for name in inner.split("|")] for inner in within[names[0]]]
        elif not names[0].startswith("_"):
            found.append(names)
    return found


def picture() -> str:
    """Return the layers as SVG: a row imports only from rows below it."""
    rows, found = layers(), rooms()
    height = len(rows) * (_HEIGHT + _GAP) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="15" text-anchor="middle">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for place, row in enumerate(rows):
        width = (_WIDTH - _GAP * (len(row) + 1)) / len(row)
        top = _GAP + place * (_HEIGHT + _GAP)
        for number, name in enumerate(row):
            left = _GAP + number * (width + _GAP)
            colour = "#e3f1e5" if "." in name else "#e4ecf7"
            count = found.get(f"opscope.{name}", ("", 0, set()))[1]
            text = f"{name.replace('.', '/')}" + (f" ({count})" if count else "")
            parts.append(
                f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{_HEIGHT}" rx="6" fill="{colour}" '
                'stroke="#9aa7b8"/>'
                f'<text x="{left + width / 2:.0f}" y="{top + _HEIGHT / 2 + 5:.0f}" fill="#1d2733">{escape(text)}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def written(text: str) -> str:
    """Return the document with the table as it is today."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    document = DOCUMENT.read_text()
    if "--check" in sys.argv:
        sys.exit(document != written(document) or PICTURE.read_text() != picture())
    DOCUMENT.write_text(written(document))
    PICTURE.write_text(picture())
