"""Measures the house: ``python tools/house.py`` counts modules, lines of code and names with several meanings.

Lines of code are those that are neither blank, nor comments, nor docstrings. A public name counts as one with several
meanings where two modules or more define it at their top level, as a class, function or value; names
that every command or example must define (``main``, ``command``, the gallery's ``case``), and type variables, are not
counted. A module has one reader where one other module of opscope imports it: it could be merged into that one.
"""

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

CODE = Path(__file__).resolve().parents[1] / "src" / "opscope"
_SAME_BY_DESIGN = {"main", "command"}
_GALLERY = "opscope.workbench.gallery."
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def sources() -> dict[str, str]:
    """Return the source of every module by its dotted name."""
    found = {}
    for path in sorted(CODE.rglob("*.py")):
        parts = path.relative_to(CODE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return found


def code_lines(source: str) -> int:
    """Count the lines of code of a module."""
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            used.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            used.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(used)


def defined(source: str) -> Iterator[str]:
    """Yield the public names that a module defines at its top level."""
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                names = [name]
            case ast.Assign(targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(ast.Name(name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def readers(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Return, by module, which others import it."""
    result = defaultdict(set)
    for reader, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if name in modules and name != reader:
                        result[name].add(reader)
    return result


def main() -> int:
    """Print the figures, and which names have several meanings."""
    modules = sources()
    homes = defaultdict(list)
    for module, source in modules.items():
        if not module.startswith(_GALLERY):
            for name in {one for one in defined(source) if len(one) > 1} - _SAME_BY_DESIGN:
                homes[name].append(module.removeprefix("opscope."))
    several = {name: places for name, places in homes.items() if len(places) > 1}
    files = Counter(name.rpartition(".")[2] for name in modules)
    lines = {module: code_lines(source) for module, source in modules.items()}
    read_by = readers(modules)
    packages = {".".join(path.parent.relative_to(CODE.parent).parts) for path in CODE.rglob("__init__.py")}
    alone = [one for one, who in read_by.items() if len(who) == 1]
    rooms = {name: name if name in packages else name.rpartition(".")[0] for name in modules}
    near = [one for one in alone if one.rpartition(".")[0] == rooms[next(iter(read_by[one]))]]
    out = sys.stdout.write
    out(f"modules {len(modules):,}, lines of code {sum(lines.values()):,}, ")
    out(f"of at most 40 lines {sum(count <= 40 for count in lines.values()):,}\n")
    out(f"read by one other module {len(alone):,}, of its own room {len(near):,}\n")
    out(f"file names used twice or more {sum(count > 1 for count in files.values()):,}\n")
    out(f"public names that several modules define {len(several):,}\n")
    for name, places in sorted(several.items(), key=lambda item: (-len(item[1]), item[0])):
        out(f"  {name}: {', '.join(places)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
