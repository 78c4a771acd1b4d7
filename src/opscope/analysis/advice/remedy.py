"""What a finding advises, as an edit of the replayed steps."""

from collections.abc import Callable

from msgspec import Struct

from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.nesting import Ints
from opscope.knowledge.reach import Assumed

# Makes a change with low, likely or high assumptions; returns how many activities, calls or stretches it is about.
Apply = Callable[[Edit, Assumed], int]


class Remedy(Struct, frozen=True):
    """What becomes of a step with the change that a finding advises.

    Attributes:
        assumes: what the replays assume, in words that follow "by replay: ".
        apply: makes the change in an edit.
        work: the activities that the change is about, where it is about nothing else: no more can be saved than without
            all of them.
    """

    assumes: str
    apply: Apply
    work: Ints | None = None
