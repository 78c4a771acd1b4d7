"""The built-in workloads by name: which sizes and options each takes. Read before PyTorch is imported."""

import ast
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from msgspec import Struct

from opscope.base.errors import UsageError
from opscope.record.configuration import SETTINGS, Configuration, option_of


class CatalogEntry(Struct, frozen=True):
    """One built-in workload.

    Attributes:
        summary: one line for ``--help``.
        settings: the settings that it takes, beside mode, dtype and compile.
        sizes: the default sweep.
        modules: what building it imports, as far as that takes long.
    """

    summary: str
    settings: frozenset[str]
    sizes: Mapping[str, tuple[int, ...]]
    modules: tuple[str, ...] = ()


_TRANSFORMER = frozenset({"batch_size", "seq_len", "hidden_size", "layers", "attention"})

BUILT_IN: Mapping[str, CatalogEntry] = {
    "bert": CatalogEntry(
        "BERT (transformers' BertModel, or a simplified Transformer encoder from torch.nn)",
        _TRANSFORMER | {"simplified", "pretrained"},
        {"batch_size": (1, 8, 16), "seq_len": (128, 256)},
        ("transformers", "transformers.models.bert.modeling_bert"),
    ),
    "gpt2": CatalogEntry(
        "GPT-2 with its language-model head (transformers)",
        _TRANSFORMER,
        {"batch_size": (1, 4), "seq_len": (512,)},
        ("transformers", "transformers.models.gpt2.modeling_gpt2"),
    ),
    "resnet50": CatalogEntry(
        "ResNet-50 image classifier (transformers)",
        frozenset({"batch_size", "image_size"}),
        {"batch_size": (1, 32)},
        ("transformers", "transformers.models.resnet.modeling_resnet"),
    ),
}

_EVERYWHERE = frozenset({"mode", "dtype", "compile"})
_OF_SCRIPTS = frozenset({"arguments", "run_on"})


def is_built_in(target: str) -> bool:
    """Tell whether a target is a built-in workload; anything else names a function or a script."""
    return target in BUILT_IN


def target_file(target: str) -> Path | None:
    """Return the file that defines a target of the user's, without importing it.

    None for a built-in target, and where the module is not found.
    """
    if is_script(target):
        return Path(target)
    place, _, _ = target.rpartition(":")
    if not place:
        return None
    if place.endswith(".py"):
        return Path(place)
    path: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    # From package to package: importlib's own search imports the packages on the way.
    for end, _ in enumerate(place.split("."), 1):
        spec = PathFinder.find_spec(".".join(place.split(".")[:end]), path)
        path = None if spec is None else spec.submodule_search_locations
        if spec is None:
            return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def target_name(target: str) -> str:
    """Return a target's name for file names: the script's, the function's, or that of the built-in workload."""
    place, _, function = target.rpartition(":")
    name = Path(target).stem if is_script(target) else function or Path(place).stem
    return re.sub(r"\W+", "_", name).strip("_") or "workload"


def check(configuration: Configuration) -> None:
    """Refuse what can be known to be wrong before anything runs.

    Raises:
        UsageError: the target does not exist, or a setting does not apply to it.
    """
    target, named = configuration.target, {name for name, _ in configuration.items()}
    particular = named - _EVERYWHERE
    if not is_built_in(target):
        _check_own(target, named if is_script(target) else particular)
        return
    foreign = sorted(particular - BUILT_IN[target].settings)
    if foreign:
        raise UsageError(f"{option_of(foreign[0])} does not apply to the target {target}")
    fixed = sorted(particular & {"hidden_size", "layers", "simplified"})
    if configuration.get("pretrained") is not None and fixed:
        raise UsageError(f"{option_of(fixed[0])} cannot be combined with --use-real-bert: the weights fix the model")


def _check_own(target: str, values: set[str]) -> None:
    if ":" not in target and not is_script(target):
        known = ", ".join(BUILT_IN)
        raise UsageError(
            f"unknown target {target!r}: expected one of {known}, "
            "or package.module:function, or path/to/file.py:function, or a script, path/to/script.py"
        )
    for name in sorted(values):
        if name in SETTINGS and SETTINGS[name].built_in_only:
            raise UsageError(f"{option_of(name)} applies to the target bert only, not to {target}")
        if is_script(target) and name not in _OF_SCRIPTS:
            raise UsageError(
                f"{option_of(name)} cannot be applied to a script: it gets its own arguments, after its name"
            )
    place = target if is_script(target) else target.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise UsageError(f"there is no file {place}{_near(Path(place))}")


def _near(path: Path) -> str:
    """Say which file of the folder may be meant."""
    names = sorted(file.name for file in path.parent.glob("*.py")) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f": is {path.with_name(near[0])} meant?" if near else ""


def is_script(target: str) -> bool:
    """Tell whether a target is a script, to be run as it is."""
    return target.endswith(".py")


# What module-level values are made with; a call of anything else may be the script's work.
_MAKERS: Final = frozenset(("torch", "nn", "np", "numpy", "os", "re", "math", "logging", "Path", "int", "float", "str"))


def functions_alone(path: Path) -> tuple[str, ...]:
    """Return the functions of a file that only defines things, so that to run it as a script does nothing.

    Returns:
        Their names, without those that begin with an underscore; empty for a script, and for what is not Python.
    """
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ()
    names = tuple(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    if not all(map(_only_defines, body)):
        return ()
    return tuple(name for name in names if not name.startswith("_"))


def _only_defines(node: ast.stmt) -> bool:
    """Tell whether a statement of a module surely does no more than to define something."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return not node.decorator_list  # a decorator may run the function
    if isinstance(node, ast.ClassDef):
        return not node.decorator_list and all(_only_defines(one) for one in node.body)
    if isinstance(node, ast.Expr):  # a docstring, or a setting such as torch.manual_seed(0)
        return isinstance(node.value, ast.Constant) or _is_setting(node.value)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return all(_root(one.func) in _MAKERS for one in ast.walk(node) if isinstance(one, ast.Call))
    return isinstance(node, ast.Pass)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_setting(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if _root(node.func) not in _MAKERS | {"warnings", "random"}:
        return False
    return node.func.attr.startswith(("set_", "manual_seed", "seed", "filterwarnings", "simplefilter"))
