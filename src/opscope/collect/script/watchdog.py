"""Asks the main thread of a script, now and then, to look at what was recorded."""

import _thread
import signal
import threading
import time
from typing import Final

from opscope.collect.script.watcher import Phase, Watcher

_SIGNAL: Final = int(signal.SIGRTMAX) - 3
_FIRST_WINDOW_S: Final = 1.0
_LONGEST_WINDOW_S: Final = 60.0


def listen_to_watchdog(watcher: Watcher) -> None:
    """Have the main thread listen to the watchdog; call this in the main thread, before the script runs."""
    signal.signal(_SIGNAL, lambda _number, _frame: watcher.asked_by_watchdog())


def start_watchdog(watcher: Watcher) -> None:
    """Start a thread that has `Watcher.asked_by_watchdog` called in the main thread.

    Python calls it between two bytecodes, never inside an operator. No real signal is sent, so system calls of the
    script are not interrupted.
    """

    def watch() -> None:
        window = _FIRST_WINDOW_S
        while watcher.active and watcher.phase is not Phase.DONE:
            time.sleep(window)
            if watcher.phase is Phase.WATCH and watcher.active:
                _thread.interrupt_main(_SIGNAL)  # type: ignore[arg-type]  # real-time signals have no enum members
            window = min(2 * window, _LONGEST_WINDOW_S)

    threading.Thread(target=watch, daemon=True, name="opscope-watchdog").start()
