"""Confines a process that does what a file asked for: little memory and time, no file to write, no new process.

What the kernel offers is used, and what it does not offer is left out: resource limits everywhere, Landlock on Linux
5.13 and newer (https://docs.kernel.org/userspace-api/landlock.html). Nothing here can be undone by the process.
"""

import contextlib
import ctypes
import os
import resource
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
# The numbers of Landlock's calls are the same on every architecture.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
# LANDLOCK_ACCESS_FS_*: executing, writing, removing and making files of any kind; reading (bits 2 and 3) is left out,
# so that what PyTorch imports late can still be imported.
_ACCESS: Final = 0b1_1111_1111_0011


def confine(*, memory_bytes: int, cpu_seconds: int) -> None:
    """Take from this process what it does not need, for good.

    Args:
        memory_bytes: how much more address space it may take than it has.
        cpu_seconds: how much more processor time it may take than it has used.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + cpu_seconds
    limits = {
        resource.RLIMIT_AS: _address_space() + memory_bytes,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for which, wanted in limits.items():
        _, most = resource.getrlimit(which)
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(which, (limit, limit))
    _without_files()


def _address_space() -> int:
    """Return how many bytes of address space this process has."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 32 << 30  # no /proc: more than PyTorch with CUDA maps


def _without_files() -> None:
    """Forbid to make, write, remove or execute files, where the kernel can."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None, use_errno=True)
        handled = ctypes.c_uint64(_ACCESS)
        ruleset = library.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
        if ruleset < 0:
            return
        if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            library.syscall(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
