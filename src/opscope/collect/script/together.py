"""Lets the ranks of a job choose the same steps: each says when it is ready, and all begin at the same boundary.

The ranks speak through the store of the job's own process group, which reaches every host that the job runs on. No
rank waits in the midst of its steps: it says that it is ready and goes on, and once all are, the last one names a
boundary that none has reached yet. Only there does a rank wait, until all have seen which one it is.

A boundary's number is how many collectives the rank has issued by then, which is the same on all ranks at the same
step, whatever else some of them have done; if PyTorch does not count these, it is how many boundaries came before.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

_ROUNDS: Final = 3  # how often a boundary is named before each rank begins on its own
_EVERY_S: Final = 0.05  # between looks at the store, which all ranks ask
_MANY: Final = 64  # ranks: of more, each looks less often, so that one store serves them
_LOOKS_AHEAD: Final = 10  # how far ahead the boundary is, in looks
_SOON_S: Final = 0.005  # the same where the script is known to end soon, and each boundary is a look
_AHEAD_STEPS: Final = 2  # ... and at least these; a rank may have ended one more than it last said
_NOT_SEEN_S: Final = 5.0  # how long a rank waits at the boundary for one that has not seen which it is
_LATELY: Final = 6  # boundaries, over which collectives are counted
_PATIENCE_S: Final = 60.0  # after being ready, for the others to be
_NOT_HERE_S: Final = 10.0  # after being ready, for ranks that are not watched at all
_LONGEST_PAUSE_S: Final = 0.05
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


class AgreeingRanks(Struct, frozen=True):
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


def group_here() -> AgreeingRanks | None:
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
    return AgreeingRanks(distributed.PrefixStore("opscope", store), distributed.get_rank(), size, _issued)


def _issued() -> int | None:
    group = sys.modules["torch.distributed"].group.WORLD
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):  # not of every backend
        return None


class RankAgreement:
    """Agrees with the other ranks on boundaries, one stage after the other.

    Attributes:
        size: how many ranks agreed; None if none was asked to, if they could not, or if one of them did otherwise.
        apart: why this rank went on by itself; None if it did not.
        differs: why the steps are not the same on all ranks, although they agreed; None if nothing shows that.
        met: whether the ranks have agreed on any boundary, and still speak to each other.
    """

    def __init__(
        self,
        group: Callable[[], AgreeingRanks | None] = group_here,
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
        self.size: int | None = None
        self.apart: str | None = None
        self.differs: str | None = None
        self.met = False
        self._find, self._clock, self._soon = group, clock, soon
        self._group: AgreeingRanks | None = None
        self._done_since: float | None = None
        self._over: set[str] = set()  # stages that need no agreement any more
        self._seen: deque[tuple[int, int]] = deque(maxlen=_LATELY)  # boundaries, and collectives issued by then
        self._next_stage("")

    @property
    def is_one_of_several(self) -> bool:
        """Whether other ranks have been found that this one may leave waiting."""
        return self._group is not None

    def arrive(self, count: int) -> None:
        """Let the other ranks know that this one is watched. To be called at each boundary before the first stage.

        Args:
            count: the number of this boundary.
        """
        if self.apart is not None:
            return
        try:
            if self._group is None and (result := self._find()) is not None:
                self._group = result
                result.store.add("here", 1)
            if self._group is not None and (issued := self._group.issued()) is not None:
                self._seen.append((count, issued))
        except Exception as error:  # a script must not fail because it is watched
            self._lost_store(error)

    def agree(self, stage: str, kind: str, count: int, typical_ns: float, *, every: int = 1) -> bool:
        """Tell whether a stage begins at this boundary; ask again at the next one if not.

        Args:
            stage: its name.
            kind: of the boundaries.
            count: the number of this boundary.
            typical_ns: about how long it is from one boundary to the next.
            every: how many boundaries a step has: this is asked at the end of each step.

        Returns:
            True at the same boundary on all ranks. Also true at once if there are no others, or no agreement with them.
        """
        if stage in self._over or self.apart is not None:
            return True
        self.arrive(count)
        if self._group is None or self.apart is not None:
            return True
        if stage != self._stage:
            self._next_stage(stage)
        try:
            agreed = self._ask(self._group, kind, count, typical_ns, every)
        except Exception as error:  # as where another rank has ended; the script must not fail by this
            self._lost_store(error)
            return True
        if agreed:
            self._over.add(stage)
        return agreed

    def all_done(self) -> bool:
        """Tell whether the other ranks have their results too, each by itself, or are not waited for any longer.

        A rank that ends alone leaves the others waiting in a collective. So each goes on until all are done.
        """
        if self._group is None:
            return True
        try:
            if self._done_since is None:
                self._done_since = self._clock()
                self._group.store.add("done", 1)
            waited = self._clock() - self._done_since
            return waited > _PATIENCE_S or self._group.store.add("done", 0) >= self._group.store.add("here", 0)
        except Exception:  # the store is gone, and so is its rank
            return True

    def give_up(self, reason: str) -> None:
        """Note that this rank does otherwise than agreed.

        Args:
            reason: why, as the end of a sentence.
        """
        if self.size is not None:
            self.size, self.differs = None, reason

    def _lost_store(self, error: Exception) -> None:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        self._go_apart(f"the store of its process group could not be asked ({reason})")

    def _next_stage(self, stage: str) -> None:
        self._stage = stage
        self._next_round(1)

    def _next_round(self, number: int) -> None:
        self._round = number
        self._since: float | None = None  # when this rank said that it is ready
        self._looked = 0.0
        self._begin: int | None = None  # the boundary that was named
        self._last: int | None = None  # the boundary at which this rank asked before

    def _go_apart(self, reason: str) -> None:
        self.apart, self.size, self.met = reason, None, False

    def _ask(self, group: AgreeingRanks, kind: str, count: int, typical_ns: float, every: int) -> bool:
        key, (unit, place, apiece) = f"{self._stage}/{self._round}", self._place(count)
        before, self._last = self._last, count
        if self._begin is None:
            now = self._clock()
            if self._since is not None and not self._soon and now - self._looked < self._every_s(group):
                return False
            self._looked = now
            self._begin = self._named(group, key, f"{kind}:{unit}", place, apiece, typical_ns)
            if self.apart is not None:
                return True
            if self._begin is None:
                return False
            if place < self._begin:
                group.store.add(f"{key}/seen", 1)
            else:
                group.store.compare_set(f"{key}/outcome", "", _MISSED.decode())
        if place < self._begin:
            return False
        # At the end of a step before this one it did not ask, as while something was compiled.
        if before is not None and count - before > every and place - apiece * every >= self._begin:
            group.store.compare_set(f"{key}/outcome", "", _MISSED.decode())
            return self._all_begin(group, key, late=True)
        return self._all_begin(group, key)

    @staticmethod
    def _every_s(group: AgreeingRanks) -> float:
        return _EVERY_S * max(1.0, group.size / _MANY)

    def _place(self, count: int) -> tuple[str, int, float]:
        """Return what boundaries are numbered by, the number of this one, and by how much it grows with each."""
        if self._seen:
            (first, before), (last, issued) = self._seen[0], self._seen[-1]
            # Of boundaries without a collective between them, numbers would be the same.
            if last == count and issued - before >= count - first > 0:
                return "collectives", issued, (issued - before) / (count - first)
        return "boundaries", count, 1.0

    def _named(
        self, group: AgreeingRanks, key: str, kind: str, place: int, apiece: float, typical_ns: float
    ) -> int | None:
        """Return the boundary at which the stage begins, which the last rank that is ready names; None before that."""
        store, stage = group.store, self._stage
        store.set(f"{key}/at/{group.rank}", f"{kind}:{place}")
        if self._since is None:
            self._since = self._clock()
            if store.add(f"{key}/ready", 1) == group.size:
                self._name(group, key, apiece, typical_ns)
        if store.check([f"{stage}/apart"]):
            self._go_apart(store.get(f"{stage}/apart").decode())
            return None
        if store.check([f"{key}/begin"]):
            return int(store.get(f"{key}/begin"))
        waited = self._clock() - self._since
        if waited > _NOT_HERE_S and (here := store.add("here", 0)) < group.size:
            self._all_apart(store, f"only {here} of {group.size} are profiled")
        elif waited > _PATIENCE_S:
            ready = store.add(f"{key}/ready", 0)
            self._all_apart(store, f"{ready} of {group.size} had found theirs after {_PATIENCE_S:g} s")
        return None

    def _name(self, group: AgreeingRanks, key: str, apiece: float, typical_ns: float) -> None:
        places = [group.store.get(f"{key}/at/{rank}").decode().rpartition(":") for rank in range(group.size)]
        if len({of.partition(":")[0] for of, _, _ in places}) > 1:
            self._all_apart(group.store, "their steps are of different kinds")
            return
        if len({of for of, _, _ in places}) > 1:  # some had steps of their own lately: all look again
            group.store.compare_set(f"{key}/begin", "", "0")
            return
        ahead_s = _SOON_S if self._soon else _LOOKS_AHEAD * self._every_s(group)
        steps = (_AHEAD_STEPS + math.ceil(ahead_s * 1e9 / max(typical_ns, 1.0))) * self._round
        begin = max(int(place) for _, _, place in places) + math.ceil(steps * apiece)
        group.store.compare_set(f"{key}/begin", "", str(begin))

    def _all_apart(self, store: Store, reason: str) -> None:
        self._go_apart(store.compare_set(f"{self._stage}/apart", "", reason).decode())

    def _all_begin(self, group: AgreeingRanks, key: str, *, late: bool = False) -> bool:
        """Wait until all ranks know the boundary, or one says that it has passed it; then another is named."""
        store, until, pause = group.store, self._clock() + _NOT_SEEN_S, 0.001
        while not store.check([f"{key}/outcome"]):
            if store.add(f"{key}/seen", 0) >= group.size:
                store.compare_set(f"{key}/outcome", "", _GO.decode())
            elif self._clock() > until:
                store.compare_set(f"{key}/outcome", "", _MISSED.decode())
            else:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        if store.get(f"{key}/outcome") == _GO:
            self.size, self.met = group.size, True
            if late:
                self.give_up("this rank passed the step at which the others began")
            return True
        if self._round == _ROUNDS:
            self._go_apart(f"one of them had passed the step on which all were to begin, {_ROUNDS} times")
            return True
        self._next_round(self._round + 1)
        return False
