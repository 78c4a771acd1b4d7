"""Lets the ranks of a job choose the same steps: each says when it is ready, and all begin at the same boundary.

The ranks speak through the store of the job's own process group, which reaches every host that the job runs on. No
rank waits in the midst of its steps: it says that it is ready and goes on, and once all are, one of them names a
boundary that none has reached yet. Only there does a rank wait, until all have seen which one it is.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

_ROUNDS: Final = 3  # how often a boundary is named before each rank begins on its own
_EVERY_S: Final = 0.05  # between looks at the store, which all ranks ask
_AHEAD_S: Final = 0.5  # how far ahead the boundary is: ten looks
_SOON_S: Final = 0.005  # the same where the script is known to end soon, and each boundary is a look
_AHEAD_STEPS: Final = 2  # ... and at least these; a rank may have ended one more than it last said
_NOT_SEEN_S: Final = 5.0  # how long a rank waits at the boundary for one that has not seen which it is
_PATIENCE_S: Final = 60.0  # after being ready, for the others to be
_GO: Final = b"go"
_MISSED: Final = b"missed"


class Store(Protocol):
    """What is used of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value that is there."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, which begins as 0; return what it is then."""

    def check(self, keys: Sequence[str], /) -> bool:
        """Tell whether there are values of all the keys."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a value that is not there yet, if the expected one is empty; return the value that is there then."""


class Group(Struct, frozen=True):
    """The ranks of a job.

    Attributes:
        store: that all of them reach.
        rank: of this process.
        size: how many there are.
        issued: tells how many collectives this rank has issued; None where PyTorch does not say.
    """

    store: Store
    rank: int
    size: int
    issued: Callable[[], int | None] = lambda: None


def group_here() -> Group | None:
    """Return the ranks of this process's job; None where it has not joined a process group, or is alone in it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    if size < 2:
        return None
    store = distributed.distributed_c10d._get_default_store()
    if hasattr(store, "clone"):  # a connection of its own: one that waits for a key keeps all others out
        store = store.clone()
    return Group(distributed.PrefixStore("opscope", store), distributed.get_rank(), size, _issued)


def _issued() -> int | None:
    group = sys.modules["torch.distributed"].group.WORLD
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):  # not of every backend
        return None


class Together:
    """Agrees with the other ranks on boundaries, one stage after the other.

    Attributes:
        size: how many ranks agreed; None if none was asked to, or if they could not.
        apart: why this rank went on by itself; None if it did not.
        differs: why the boundaries that were agreed on turned out not to be the same; None if nothing shows that.
        met: whether the ranks have agreed on any boundary, and still speak to each other.
    """

    def __init__(
        self,
        group: Callable[[], Group | None] = group_here,
        clock: Callable[[], float] = time.monotonic,
        *,
        soon: bool = False,
    ) -> None:
        """Begin without a group, which the script joins later.

        Args:
            group: finds the ranks of this job.
            clock: tells seconds.
            soon: whether the script ends soon, so that the ranks look at each boundary, and begin at one that is near.
        """
        self._soon = soon
        self.size: int | None = None
        self.apart: str | None = None
        self.differs: str | None = None
        self.met = False
        self._find, self._clock = group, clock
        self._group: Group | None = None
        self._over: set[str] = set()  # stages that need no agreement any more
        self._round = 1
        self._since: float | None = None  # when this rank said that it is ready
        self._looked = 0.0
        self._begin: int | None = None  # the boundary that was named

    def agree(self, stage: str, kind: str, count: int, typical_ns: float) -> bool:
        """Tell whether a stage begins at this boundary; ask again at the next one if not.

        Args:
            stage: its name.
            kind: of the boundaries.
            count: the number of this boundary. Ranks whose steps are the same have passed as many.
            typical_ns: about how long it is from one boundary to the next.

        Returns:
            True at the same boundary on all ranks. Also true at once if there are no others, or no agreement with them.
        """
        if stage in self._over or self.apart is not None:
            return True
        try:
            self._group = self._group or self._find()
            if self._group is None:
                return True
            agreed = self._ask(self._group, stage, f"{kind}:{count}", count, typical_ns)
        except Exception as error:  # as where another rank has ended; the script must not fail by this
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self._go_apart(f"the store of its process group could not be asked ({reason})")
            return True
        if agreed:
            self._over.add(stage)
            self._next_round(1)
        return agreed

    def _next_round(self, number: int) -> None:
        self._round, self._since, self._begin = number, None, None

    def _go_apart(self, reason: str) -> None:
        self.apart, self.size, self.met = reason, None, False

    def _ask(self, group: Group, stage: str, place: str, count: int, typical_ns: float) -> bool:
        key = f"{stage}/{self._round}"
        if self._begin is None:
            now = self._clock()
            if self._since is not None and not self._soon and now - self._looked < _EVERY_S:
                return False
            self._looked = now
            group.store.set(f"{key}/at/{group.rank}", place)
            if self._since is None:
                self._since = now
                group.store.add(f"{key}/ready", 1)
            self._begin = self._named(group, stage, key, typical_ns)
            if self.apart is not None:
                return True
            if self._begin is None:
                return False
            if count < self._begin:
                group.store.add(f"{key}/seen", 1)
            else:
                group.store.compare_set(f"{key}/outcome", "", _MISSED.decode())
        if count < self._begin:
            return False
        return self._all_begin(group, stage, key)

    def check(self, stage: str) -> None:
        """Give up the claim that a stage began at the same step on all ranks, where they show that it did not.

        Ranks that take steps of their own have passed other numbers of boundaries when they have issued as many
        collectives. To be called when something of the stage has ended that takes all ranks.

        Args:
            stage: its name.
        """
        if self._group is None or self.size is None:
            return
        store, keys = self._group.store, [f"{stage}/issued/{rank}" for rank in range(self._group.size)]
        try:
            same = all(store.check([key]) for key in keys) and len({store.get(key) for key in keys}) == 1
        except Exception:  # the store is gone: nothing shows it
            return
        if not same:
            self.size = None
            self.differs = "they had passed different numbers of steps before, so these are not the same on all"

    def _named(self, group: Group, stage: str, key: str, typical_ns: float) -> int | None:
        """Return the boundary at which the stage begins, which this rank names if all are ready; None before that."""
        store = group.store
        if store.check([f"{stage}/apart"]):
            self._go_apart(store.get(f"{stage}/apart").decode())
            return None
        if store.check([f"{key}/begin"]):
            return int(store.get(f"{key}/begin"))
        ready = store.add(f"{key}/ready", 0)
        assert self._since is not None
        if ready < group.size:
            if self._clock() - self._since > _PATIENCE_S:
                self._all_apart(store, stage, f"{ready} of {group.size} had found theirs after {_PATIENCE_S:g} s")
            return None
        places = [store.get(f"{key}/at/{rank}").decode().rpartition(":") for rank in range(group.size)]
        if len({kind for kind, _, _ in places}) > 1:
            self._all_apart(store, stage, "their steps are of different kinds")
            return None
        ahead = _AHEAD_STEPS + math.ceil((_SOON_S if self._soon else _AHEAD_S) * 1e9 / max(typical_ns, 1.0))
        begin = max(int(count) for _, _, count in places) + ahead * self._round
        return int(store.compare_set(f"{key}/begin", "", str(begin)))

    def _all_apart(self, store: Store, stage: str, reason: str) -> None:
        self._go_apart(store.compare_set(f"{stage}/apart", "", reason).decode())

    def _all_begin(self, group: Group, stage: str, key: str) -> bool:
        """Wait until all ranks know the boundary, or one says that it has passed it; then another is named."""
        store, until = group.store, self._clock() + _NOT_SEEN_S
        while not store.check([f"{key}/outcome"]):
            if store.add(f"{key}/seen", 0) >= group.size:
                store.compare_set(f"{key}/outcome", "", _GO.decode())
            elif self._clock() > until:
                store.compare_set(f"{key}/outcome", "", _MISSED.decode())
            else:
                time.sleep(0.001)
        if store.get(f"{key}/outcome") == _GO:
            self.size, self.met = group.size, True
            store.set(f"{stage}/issued/{group.rank}", str(group.issued()))
            return True
        if self._round == _ROUNDS:
            self._go_apart(f"one of them had passed the step on which all were to begin, {_ROUNDS} times")
            return True
        self._next_round(self._round + 1)
        return False
