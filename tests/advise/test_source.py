"""Edits of odd source: what cannot be written by itself is refused, and what is written stays what it was."""

import ast
from pathlib import Path

import pytest

from opscope.advise.proving import written
from opscope.advise.source import Call, CallSite, EditedFile, NotWritableError, ScriptPlaces


def source(tmp_path: Path, text: str | bytes) -> EditedFile:
    path = tmp_path / "train.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return EditedFile(path)


def call_named(of: EditedFile, name: str) -> ast.Call:
    calls = (node for node in ast.walk(of.tree) if isinstance(node, ast.Call))
    return next(call for call in calls if ast.unparse(call.func) == name)


def place_of(
    of: EditedFile, name: str, *, names: tuple[str, ...] = (), frame: int = 1, function: str = "<module>"
) -> CallSite:
    call = call_named(of, name)
    assert call.end_lineno is not None
    assert call.end_col_offset is not None
    span = call.lineno, call.end_lineno, call.col_offset, call.end_col_offset
    return CallSite(str(of.path), *span, 1, function, names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Adam(p)", "Adam(p, fused=True)"),
        ("Adam()", "Adam(fused=True)"),
        ("Adam(p, lr=1e-3,)", "Adam(p, lr=1e-3, fused=True,)"),
        ("Adam(\n    p,  # all\n    lr=1,  # high\n)", "Adam(\n    p,  # all\n    lr=1, fused=True,  # high\n)"),
        ("Adam((p))", "Adam((p), fused=True)"),
        ("Adam(p, **rest)", "Adam(p, **rest, fused=True)"),
        ("Adam(p, fused=False)", "Adam(p, fused=True)"),
        ("Adam(p, foreach=False, lr=1)", "Adam(p, lr=1, fused=True)"),
        ("Adam(f(x for x in p))", "Adam(f(x for x in p), fused=True)"),
    ],
)
def test_keywords_are_given_to_calls(tmp_path: Path, text: str, expected: str) -> None:
    found = source(tmp_path, f"o = {text}\n")
    found.set_keywords(call_named(found, "Adam"), {"fused": "True"}, without=["foreach"])
    assert found.edited() == f"o = {expected}\n"


def test_lines_go_behind_the_first_imports_and_never_behind_the_work(tmp_path: Path) -> None:
    found = source(tmp_path, '"""About."""\nimport os\nimport torch\nwork()\nimport json\n')
    found.insert_after_imports("line")
    assert found.edited() == '"""About."""\nimport os\nimport torch\nline\nwork()\nimport json\n'
    found = source(tmp_path, "import os\nos.environ['A'] = '1'\nimport torch\nwork()\n")
    found.insert_after_imports("line")
    assert found.edited().splitlines()[3] == "line"
    with pytest.raises(NotWritableError, match="does not begin with imports"):
        source(tmp_path, "work()\nimport json\n").insert_after_imports("line")


def test_a_name_of_torch_inside_a_function_is_none_of_the_module(tmp_path: Path) -> None:
    found = source(tmp_path, "import os\ndef f():\n    import torch as t\n")
    assert found.name_of_torch() == "torch"
    assert found.edited().splitlines()[1] == "import torch"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
def test_line_ends_stay_as_they_are(tmp_path: Path, end: str, last: str) -> None:
    text = f"import torch{end}x = 'é\u2028'  # form\x0cfeed{end}y = 1{last and end}"
    found = source(tmp_path, text)
    found.insert_after_imports("line")
    assert found.edited() == text.replace(f"import torch{end}", f"import torch{end}line{end}")
    diff = written(["half_threads"], found.path, ScriptPlaces(), {"threads": "1"}).diff
    assert diff.count("\\ No newline at end of file") == (not last)
    assert sum(line.startswith("+") for line in diff.split("\n")) == 2


@pytest.mark.parametrize("text", ["# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"), "\ufeffx = 1\n".encode()])
def test_other_encodings_are_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(NotWritableError, match="not in UTF-8"):
        source(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "if a:\n    model = A()\nelse:\n    model = B()\nmodel(x)\n",
        "try:\n    model = A()\nexcept E:\n    model = B()\nmodel(x)\n",
    ],
)
def test_a_model_made_in_a_branch_gets_no_line(tmp_path: Path, text: str) -> None:
    found = source(tmp_path, f"import torch\n{text}")
    places = ScriptPlaces(calls=[Call((place_of(found, "model", names=("model",)),), own_class=True)])
    with pytest.raises(NotWritableError, match="gets its value in a branch"):
        written(["compile"], found.path, places, {})


def test_a_line_of_several_statements_is_not_wrapped(tmp_path: Path) -> None:
    found = source(tmp_path, "import torch\nfor x in d:\n    y = model(x)\n    l = y.sum(); l.backward()\n    s()\n")
    places = ScriptPlaces(
        calls=[Call((place_of(found, "model", names=("model",)),), own_class=True)],
        backward=[(place_of(found, "l.backward"),)],
    )
    with pytest.raises(NotWritableError, match="holds several statements"):
        written(["autocast_bf16"], found.path, places, {"device": "cpu"})


def test_several_backward_passes_are_left_to_the_user(tmp_path: Path) -> None:
    text = "import torch\nfor x in d:\n    a = f(x)\n    a.backward()\n    b = g(x)\n    b.backward()\n"
    found = source(tmp_path, text)
    places = ScriptPlaces(
        calls=[Call((place_of(found, name, names=(name,)),), own_class=True) for name in ("f", "g")],
        backward=[(place_of(found, f"{name}.backward"),) for name in ("a", "b")],
    )
    with pytest.raises(NotWritableError, match="several backward passes"):
        written(["autocast_bf16"], found.path, places, {"device": "cpu"})


def test_runs_of_other_functions_are_not_taken_for_one(tmp_path: Path) -> None:
    """A frame that has ended may leave its number to another one."""
    text = "import torch\ndef fore(x):\n    return model(x)\ndef back(l):\n    l.backward()\n"
    found = source(tmp_path, text)
    places = ScriptPlaces(
        calls=[Call((place_of(found, "model", names=("model",), function="fore"),), own_class=True)],
        backward=[(place_of(found, "l.backward", function="back"),)],
    )
    with pytest.raises(NotWritableError, match="from no function of yours together"):
        written(["autocast_bf16"], found.path, places, {"device": "cpu"})
