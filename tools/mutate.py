"""Changes the code of one room in random places, and lists the changes that its tests miss.

``python tools/mutate.py analysis/advice --count 20`` makes twenty copies of this checkout's sources, each with one
change (a comparison turned round, a sum made a difference, a condition negated, a number off by one), and runs the
room's tests on each until one fails. A change that none notices is printed with its line: either a test is missing, or
the change makes no difference. The checkout itself is not touched.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ROOT / "src" / "opscope"
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SUMS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change of a file.

    Attributes:
        line: where, from 1.
        before, after: the expression and what stands in its place.
        source: the whole file with the change.
    """

    line: int
    before: str
    after: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every change of a file's source, in the order of its lines; docstrings and annotations stay as they are."""
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    left_out = set(map(id, _left_out(tree)))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and id(node) not in left_out]
    for node in sorted(nodes, key=lambda one: (one.lineno, one.col_offset)):
        for changed in _changes(node):
            before, after = ast.unparse(node), ast.unparse(changed)
            # In brackets: what stood between others keeps its place among them.
            yield Mutant(node.lineno, before, after, _replaced(lines, node, f"({after})"))


def _left_out(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is not changed: annotations, patterns, and parts of f-strings (without places before Python 3.12)."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = [part for name in ("annotation", "returns") if (part := getattr(node, name, None))]
        if isinstance(node, ast.JoinedStr):
            parts += node.values
        if isinstance(node, ast.match_case):
            parts.append(node.pattern)
        for part in parts:
            yield from ast.walk(part)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, [operator], comparators) if type(operator) in _COMPARISONS:
            yield ast.Compare(left, [_COMPARISONS[type(operator)]()], comparators)
        case ast.BinOp(left, operator, right) if type(operator) in _SUMS and not _is_text(left, right):
            yield ast.BinOp(left, _SUMS[type(operator)](), right)
        case ast.BoolOp(ast.And(), values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            yield ast.Constant(number + 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in _EXTREMES:
            yield ast.Call(ast.Name(_EXTREMES[name]), arguments, keywords)
        case ast.IfExp(test, body, other):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, other)


def _is_text(*sides: ast.expr) -> bool:
    """Tell whether a side is plainly a text or a sequence, of which no difference can be taken."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(one, kinds) or (isinstance(one, ast.Constant) and isinstance(one.value, str)) for one in sides
    )


def _replaced(lines: Sequence[str], node: ast.expr, text: str) -> str:
    """Return the source with an expression replaced; columns are in bytes."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = lines[first].encode()[: node.col_offset].decode()
    after = lines[last].encode()[node.end_col_offset :].decode()
    return "".join([*lines[:first], before, text, after, *lines[last + 1 :]])


# ---------------------------------------------------------------- runs


def passes(tests: Sequence[str], seconds: float, file: Path | None = None, source: str = "") -> bool:
    """Run tests on a copy of the sources, in which one file may have other content; tell whether all of them pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tests", "pyproject.toml", "docs", "examples", "tools"):
            (copy / name).symlink_to(ROOT / name)
        if file is not None:
            (copy / file.relative_to(ROOT)).write_text(source)
        path = os.pathsep.join(filter(None, [str(copy / "src"), str(copy), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=copy,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:  # an endless loop counts as noticed
            return False
    return done.returncode == 0


def main() -> int:
    """Try changes of the room that the command line names; print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", help="a folder or a module of src/opscope, such as report or analysis/advice")
    parser.add_argument("--count", type=int, default=20, help="how many changes are tried")
    parser.add_argument("--seed", type=int, default=0, help="of the random choice")
    parser.add_argument("--tests", nargs="+", help="the tests that are run  [default: the room's folder in tests]")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="how many run in parallel")
    parser.add_argument("--seconds", type=float, default=900, help="time limit for the tests of one change")
    parser.add_argument("--least", type=float, default=0.9, help="exit with 1 if a smaller share is noticed")
    given = parser.parse_args()
    place = CODE / given.room
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    every = [(file, mutant) for file in files for mutant in mutants(file.read_text())]
    if not every:
        parser.error(f"there is nothing to change in {place}")
    chosen = random.Random(given.seed).sample(every, min(given.count, len(every)))
    tests = given.tests or [f"tests/{given.room.partition('/')[0]}"]

    if missing := [name for name in tests if not (ROOT / name.partition("::")[0]).exists()]:
        parser.error(f"there are no {', '.join(missing)}: name the room's tests with --tests")
    if not passes(tests, given.seconds):
        sys.stderr.write(f"without any change, {' '.join(tests)} fails already, or takes longer than --seconds\n")
        return 2

    def tried(one: tuple[Path, Mutant]) -> bool:
        file, mutant = one
        lives = passes(tests, given.seconds, file, mutant.source)
        if lives:
            sys.stdout.write(f"{file.relative_to(ROOT)}:{mutant.line}: {mutant.before}  ->  {mutant.after}\n")
            sys.stdout.flush()
        return lives

    with ThreadPoolExecutor(given.at_once) as pool:
        survivors = sum(pool.map(tried, chosen))
    noticed = len(chosen) - survivors
    sys.stdout.write(f"{noticed} of {len(chosen)} changes of {given.room} were noticed\n")
    return 0 if not chosen or noticed >= given.least * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
