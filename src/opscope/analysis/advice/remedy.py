"""What a finding advises, as an edit of the replayed steps."""

from collections.abc import Callable

from msgspec import Struct

from opscope.analysis.replay.edit import Edit
from opscope.knowledge.reach import Assumed

# Makes a change with low, likely or high assumptions; returns how many activities, calls or stretches it is about.
Apply = Callable[[Edit, Assumed], int]


class Remedy(Struct, frozen=True):
    """What becomes of a step with the change that a finding advises.

    Attributes:
        assumes: what the replays assume, in words that follow "by replay: ".
        apply: makes the change in an edit.
    """

    assumes: str
    apply: Apply
