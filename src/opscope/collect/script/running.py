"""Runs a script as Python would, beside threads that watch it, and reports when it imports PyTorch."""

import _thread
import importlib.abc
import importlib.machinery
import importlib.util
import io
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from opscope.base.files import is_users
from opscope.base.text import printable
from opscope.collect.script.phases import Phase
from opscope.collect.script.watcher import Watcher

# ---------------------------------------------------------------- the watchdog


_SIGNAL: Final = int(signal.SIGRTMAX) - 3
_ASKS_S: Final = 1.0  # between two questions
_SET_UP_S: Final = 5.0
_SOON_S: Final = 0.001
_LOOKS_S: Final = 2.0  # between looks at where the script is
# A choice: less is not worth a word, as imports and compilations often take ten seconds.
_WITHOUT_STEPS_S: Final = 20.0


def listen_to_watchdog(watcher: Watcher) -> None:
    """Have the main thread listen to the watchdog; call this in the main thread, before the script runs."""
    signal.signal(_SIGNAL, lambda _number, _frame: watcher.asked_by_watchdog())


def start_watchdog(watcher: Watcher, *, at_first_use: bool = False) -> None:
    """Start a thread that has `Watcher.asked_by_watchdog` called in the main thread.

    Args:
        watcher: the watcher.
        at_first_use: whether it is called as soon as CUDA was set up, too: a script may end right after that.

    Python calls it between two bytecodes, never inside an operator. No real signal is sent, so system calls of the
    script are not interrupted.
    """
    used = _first_use() if at_first_use else threading.Event()

    def watch() -> None:
        while watcher.active:
            if used.wait(_ASKS_S):
                used.clear()
                _wait_until_set_up()
            if watcher.phase in (Phase.WATCH, Phase.DONE) and watcher.active:
                _thread.interrupt_main(_SIGNAL)  # type: ignore[arg-type]  # real-time signals have no enum members

    threading.Thread(target=watch, daemon=True, name="opscope-watchdog").start()


def tell_without_steps(watcher: Watcher, tell: Callable[[str], None]) -> None:
    """Start a thread that tells where the script is while no step comes. Call it in the thread that the script runs in.

    Args:
        watcher: the watcher.
        tell: gets a phrase such as ``no step in the main thread for 20 s, at train.py:12, in main``, again and again
            while that lasts, and an empty one after it.
    """
    script_thread, folder = threading.get_ident(), Path.cwd()

    def watch() -> None:
        events, since, told = watcher.events, time.monotonic(), False
        while watcher.active and watcher.phase is not Phase.DONE:
            place = None if watcher.is_at_work else _users_place(sys._current_frames().get(script_thread), folder)
            seconds = time.monotonic() - since
            if watcher.events != events:
                events, since = watcher.events, time.monotonic()
                if told:
                    tell("")
                told = False
            elif place is not None and seconds >= _WITHOUT_STEPS_S:
                tell(f"no step in the main thread for {seconds:.0f} s, at {place}")
                told = True
            time.sleep(_LOOKS_S)

    threading.Thread(target=watch, daemon=True, name="opscope-without-steps").start()


def _users_place(frame: FrameType | None, folder: Path) -> str | None:
    """Return the innermost line of the user's own source; None where there is none.

    No frame is kept: what it holds is the script's to free.

    Args:
        frame: the innermost frame of the script.
        folder: the current one when the script began: its paths are shown from there.
    """
    while frame is not None and not is_users(_path(frame, folder)):
        frame = frame.f_back
    if frame is None:
        return None
    path, name = Path(_path(frame, folder)), frame.f_code.co_name
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return f"{printable(str(shown))}:{frame.f_lineno}" + ("" if name == "<module>" else f", in {name}")


def _path(frame: FrameType, folder: Path) -> str:
    """Return the file of a frame; of one without a file what stands in its place, such as ``<string>``."""
    name = frame.f_code.co_filename
    return name if name.startswith("<") else str(folder / name)


def _wait_until_set_up() -> None:
    """Wait until PyTorch says that CUDA is set up: before that, only the CPU would be recorded."""
    import torch

    until = time.monotonic() + _SET_UP_S
    while not torch.cuda.is_initialized() and time.monotonic() < until:
        time.sleep(_SOON_S)


def _first_use() -> threading.Event:
    """Return an event that is set once PyTorch has set up CUDA in this process.

    A profiler that starts within that first use has crashed programs: whoever waits for the event is another thread,
    and what it asks for runs between two of the main thread's bytecodes.
    """
    import torch

    used = threading.Event()
    original = torch._C._cuda_init if hasattr(torch._C, "_cuda_init") else None
    if original is None:
        return used

    def cuda_init() -> None:
        original()
        used.set()

    torch._C._cuda_init = cuda_init
    return used


# ---------------------------------------------------------------- running a script


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
                self.tell()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def tell(self) -> None:
        """Call the function; what it raises is printed."""
        try:
            self.function()
        except Exception:  # otherwise it would look as if the script's import had failed
            traceback.print_exc()


def after_import(package: str, function: Callable[[], None]) -> None:
    """Call a function right after the first import of a package or module; at once where that has been imported."""
    finder = _AfterImport(package, function)
    if package in sys.modules:
        finder.tell()
    else:
        sys.meta_path.insert(0, finder)


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
