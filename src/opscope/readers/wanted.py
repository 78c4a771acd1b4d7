"""Which slices of a trace file a reader keeps, where not all of them are wanted. Needs neither numpy nor polars."""

from typing import Final

from msgspec import Struct

# A device runs work after it was launched, so a launch may lie before what is wanted, and its work after that. No
# source bounds by how long; a host that is further ahead than this loses work at the border, which the trust check of
# launches without activities then counts.
QUEUED_NS: Final = 10_000_000_000
# What the host did shortly before and after a step explains why a device waited in it: pauses of a millisecond and more
# tell work from dispatch, so of longer ones it does not matter by how much.
NEAR_NS: Final = 200_000_000
_LATEST: Final = 1 << 62


class Wanted(Struct, frozen=True):
    """What is kept: the outline of a trace, or what runs in a range of the trace's clock.

    Attributes:
        outline: keep nothing but the profiler's steps, calls, and the work of devices: these decide what idle time of
            each step refers to.
        begin_ns, end_ns: keep what runs on the host from the one up to the other, and for `NEAR_NS` before and after
            that. Calls, and the work of devices, are kept for `QUEUED_NS` before and after, so that work can be told by
            its launch.
    """

    outline: bool = False
    begin_ns: int = -_LATEST
    end_ns: int = _LATEST

    @property
    def near_ns(self) -> tuple[int, int]:
        """From when on and up to when what runs on the host is kept."""
        return self._with(NEAR_NS)

    @property
    def queued_ns(self) -> tuple[int, int]:
        """From when on and up to when calls and the work of devices are kept."""
        return self._with(QUEUED_NS)

    def _with(self, more: int) -> tuple[int, int]:
        return max(self.begin_ns - more, -_LATEST), min(self.end_ns + more, _LATEST)


OUTLINE: Final = Wanted(outline=True)
