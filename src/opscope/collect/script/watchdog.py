"""Threads beside a script: one asks its main thread to look at what was recorded, one tells where it stands still."""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from opscope.base.files import is_users
from opscope.collect.script.watcher import Phase, Watcher

_SIGNAL: Final = int(signal.SIGRTMAX) - 3
_FIRST_WINDOW_S: Final = 1.0
_LONGEST_WINDOW_S: Final = 60.0
_SET_UP_S: Final = 5.0
_SOON_S: Final = 0.001
_LOOKS_S: Final = 2.0  # between looks at where the script is
# A choice: what stands still for less is not worth a word; imports and compilations often take ten seconds.
_STANDS_S: Final = 20.0


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
        window = _FIRST_WINDOW_S
        while watcher.active and watcher.phase is not Phase.DONE:
            if used.wait(window):
                used.clear()
                _wait_until_set_up()
            if watcher.phase is Phase.WATCH and watcher.active:
                _thread.interrupt_main(_SIGNAL)  # type: ignore[arg-type]  # real-time signals have no enum members
            window = min(2 * window, _LONGEST_WINDOW_S)

    threading.Thread(target=watch, daemon=True, name="opscope-watchdog").start()


def tell_standstill(watcher: Watcher, tell: Callable[[str], None]) -> None:
    """Start a thread that tells where the script stands still: in one call, in which no event of a step comes.

    Call it in the thread that the script runs in.

    Args:
        watcher: the watcher.
        tell: gets a phrase such as ``at train.py:12, in main, for 20 s``, again and again while that lasts, and an
            empty one after it.
    """
    script_thread = threading.get_ident()

    def watch() -> None:
        seen: tuple[object, ...] = ()
        since, told = time.monotonic(), False
        while watcher.active and watcher.phase is not Phase.DONE:
            frame = _innermost(sys._current_frames().get(script_thread))
            now = (watcher.events, id(frame), frame and frame.f_lasti)
            if now != seen or frame is None:
                if told:
                    tell("")
                seen, since, told = now, time.monotonic(), False
            elif (seconds := time.monotonic() - since) >= _STANDS_S:
                tell(f"at {_place(frame)}, for {seconds:.0f} s")
                told = True
            del frame  # whatever it holds is the script's to free
            time.sleep(_LOOKS_S)

    threading.Thread(target=watch, daemon=True, name="opscope-standstill").start()


def _innermost(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's own source."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _place(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename).absolute()
    here = Path(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else path
    name = frame.f_code.co_name
    return f"{here}:{frame.f_lineno}" + ("" if name == "<module>" else f", in {name}")


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
