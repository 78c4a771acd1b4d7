"""Runs a script as Python would, and reports when it imports PyTorch."""

import importlib.abc
import importlib.machinery
import importlib.util
import io
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function right after the first import of a package, before the importing code goes on.

    Looking for the package's spec without importing it (``importlib.util.find_spec``) has no effect.
    """

    def __init__(self, package: str, function: Callable[[], None]) -> None:
        self.package, self.function = package, function
        self._looking = False  # while the other finders are asked, which asks this one again

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:  # noqa: ARG002 (the protocol's arguments)
        if name != self.package or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._tell()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _tell(self) -> None:
        try:
            self.function()
        except Exception:  # otherwise it would look as if the script's import had failed
            traceback.print_exc()


def as_main(script: str) -> types.ModuleType:
    """Make the module that ``python script.py`` runs in; it stays in place, as spawn, pickle and atexit need it."""
    module = types.ModuleType("__main__")
    vars(module).update(
        __file__=script,
        __builtins__=__builtins__,
        __loader__=importlib.machinery.SourceFileLoader("__main__", script),
        __package__=None,
        __spec__=None,
        __cached__=None,
    )
    sys.modules["__main__"] = module
    return module


_sources: dict[str, str] = {}  # by absolute path: what stands for the files' own text, see `use_sources`


def use_sources(sources: Mapping[str, str]) -> None:
    """Have files run with other source, in this process: the script, and modules that it will import.

    Args:
        sources: the text by absolute path.
    """
    if not sources:
        return
    _sources.update(sources)
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, name: str) -> types.CodeType | None:
        path = loader.get_filename(name)
        text = _sources.get(str(Path(path).absolute()))
        # Neither read from bytecode, nor written to it.
        return original(loader, name) if text is None else loader.source_to_code(text, path)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


def run_script(script: Path, arguments: Sequence[str], torch_imported: Callable[[], None]) -> BaseException | None:
    """Run a script as ``python script.py ARGUMENTS`` would.

    Args:
        script: the script's path.
        arguments: what it finds in ``sys.argv``, after its own name.
        torch_imported: called once PyTorch has been imported, before the script goes on.

    Returns:
        The exception that ended the script, its ``SystemExit`` included; None if it ran to its end.
    """
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    source: str | bytes | None = _sources.get(str(script.absolute()))
    if source is None:
        with io.open_code(str(script.absolute())) as file:
            source = file.read()
    sys.meta_path.insert(0, _AfterImport("torch", torch_imported))
    try:
        code = compile(source, str(script), "exec", dont_inherit=True)
        exec(code, vars(as_main(str(script))))
    except BaseException as error:  # whatever the script raises is a result
        return error
    return None
