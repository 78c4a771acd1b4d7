"""Confines a process that does what a file asks for: little memory and time, no file to write, no program to start.

It uses what the system offers: resource limits everywhere, and Landlock on Linux 5.13 and newer
(https://docs.kernel.org/userspace-api/landlock.html). The process cannot undo any of it.
"""

import contextlib
import ctypes
import os
import resource
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
# The numbers of Landlock's calls are the same on every architecture.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
# LANDLOCK_ACCESS_FS_*: executing, writing, removing and making files of any kind. Reading (bits 2 and 3) stays allowed,
# so that PyTorch can still import what it imports late.
_ACCESS: Final = 0b1_1111_1111_0011


def confine(*, memory_bytes: int, cpu_seconds: int) -> None:
    """Limit what this process may do from now on, for good.

    Args:
        memory_bytes: how much address space it may add to what it has.
        cpu_seconds: how much processor time it may add to what it has used.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + cpu_seconds
    limits = {
        resource.RLIMIT_AS: _address_space() + memory_bytes,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,  # where there is no Landlock, files can still be made, but stay empty
        resource.RLIMIT_CORE: 0,
    }
    for which, wanted in limits.items():
        _, most = resource.getrlimit(which)
        # The hard limit is set as well, so that the process cannot raise its limit again.
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(which, (limit, limit))
    _without_files()


def _address_space() -> int:
    """Return the bytes of address space that this process has; 32 GiB if ``/proc`` is missing."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 32 << 30  # no /proc: more than PyTorch with CUDA maps


def _without_files() -> None:
    """Forbid making, writing, removing and executing files, where the kernel can."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None, use_errno=True)
        handled = ctypes.c_uint64(_ACCESS)
        ruleset = library.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
        if ruleset < 0:
            return
        # No rule is added to the ruleset, so every access that it handles is forbidden everywhere.
        if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            library.syscall(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
