"""What contributors run on the code itself: what is changed by chance, and how the house is measured."""

import ast
import importlib.util
import sys
from types import ModuleType

import pytest

from tests.command import ROOT


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("folder", ["benchmarks", "fuzz", "tools", "examples"])
def test_what_is_imported_of_opscope_is_there(folder: str) -> None:
    """These run rarely: what was moved or renamed would be missed long afterwards."""
    pytest.importorskip("torch")
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "opscope":
                module = importlib.import_module(node.module or "")
                for name in node.names:
                    found = hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
                    assert found, f"{path}:{node.lineno}: {node.module} has no {name.name}"


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a < b\n", ["x = (a <= b)\n"]),
        ("x = a + 2 * b\n", ["x = (a - 2 * b)\n", "x = a + (2 / b)\n", "x = a + (3) * b\n"]),
        ("x = f'{a}' + b\n", []),
        ("if not a:\n    pass\n", ["if (a):\n    pass\n"]),
        ("x = a if b and c else d\n", ["x = (a if not (b and c) else d)\n", "x = a if (b or c) else d\n"]),
        ("x = 'é' if a in b else min(c, d)\n", None),
        ('def f(a: int = 1) -> "int | None":\n    """One, two."""\n    return max(a)\n', None),
        ("x = f'{a + 1}'\n", []),
        ("x = f'{a + 1}' if b else c\n", ["x = (f'{a + 1}' if not b else c)\n"]),
        ("match a:\n    case -1:\n        b = 2\n", ["match a:\n    case -1:\n        b = (3)\n"]),
    ],
)
def test_each_change_is_made_alone_and_in_its_place(source: str, changed: list[str] | None) -> None:
    found = [one.source for one in tool("mutate").mutants(source)]
    if changed is None:
        assert found
        changed = found
    assert found == changed
    for one in found:
        assert one != source
        compile(one, "changed", "exec")
        assert one.count("\n") == source.count("\n")


def test_a_change_says_its_line() -> None:
    (one,) = tool("mutate").mutants("a = b\n\nc = d == e\n")
    assert (one.line, one.before, one.after) == (3, "d == e", "d != e")


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings() -> None:
    documented = '"""Two\nlines."""\n\n# A comment.\nx = """a text\nof two lines"""\n\n\n'
    source = documented + 'def f():\n    """Doc."""\n    return x\n'
    assert tool("house").code_lines(source) == 4


def test_public_names_are_those_of_the_top_level() -> None:
    source = "A = B = 1\nC: int = 2\n_D = 3\nclass E:\n    f = 1\ndef g(): pass\nh.i = 4\n"
    assert list(tool("house").defined(source)) == ["A", "B", "C", "E", "g"]
