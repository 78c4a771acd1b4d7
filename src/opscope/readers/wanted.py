"""Which slices of a trace file a reader keeps, where not all of them are wanted. Needs neither numpy nor polars."""

from typing import Final

from msgspec import Struct

# A device runs work after it was launched, so a launch may lie before what is wanted, and its work after that. No
# source bounds by how long; a host that is further ahead than this loses work at the border, which the trust check of
# launches without activities then counts.
QUEUED_NS: Final = 10_000_000_000
_LATEST: Final = 1 << 62


class Wanted(Struct, frozen=True):
    """What is kept: the profiler's steps alone, or what begins in a range of the trace's clock.

    Attributes:
        steps_only: keep nothing but the slices of the profiler's steps.
        begin_ns, end_ns: keep what begins on the host from the one up to the other. Calls, and the work of devices, are
            kept for `QUEUED_NS` before and after that, so that work can be told by its launch.
    """

    steps_only: bool = False
    begin_ns: int = -_LATEST
    end_ns: int = _LATEST

    @property
    def queued_begin_ns(self) -> int:
        """From when on calls and the work of devices are kept."""
        return max(self.begin_ns - QUEUED_NS, -_LATEST)

    @property
    def queued_end_ns(self) -> int:
        """Up to when calls and the work of devices are kept."""
        return min(self.end_ns + QUEUED_NS, _LATEST)


STEPS_ONLY: Final = Wanted(steps_only=True)
