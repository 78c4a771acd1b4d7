"""What would make the steps of a job shorter: late ranks, several of them together, and slow links between ranks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.advice.rule import RuleDescription
from opscope.base.units import format_bytes, format_ns, format_rate, format_share
from opscope.distributed.causes import Named
from opscope.distributed.lateness import Own, slow_ranks
from opscope.distributed.replay import Replays
from opscope.documents.findings import Fact, Rule, SavingRange, Source, StepBasis, Where
from opscope.documents.ranks import JobFinding, JobWaiting, LateCause, LateRank, SlowLink, WaitedFor
from opscope.documents.statements import Basis

_LEAST_IN_TURN: Final = 0.15  # of a step: the largest of some ranks is late by less where they only differ a little
_HALF: Final = 0.5  # of the steps: a rank that is the last in more of them is not one of many
_LISTED: Final = 8  # ranks
_MOST_REPLAYED, _MOST_REPLAYS = 8, 16  # late ranks at once, and each by itself
_MUCH_APART: Final = 0.1  # of what is saved: replays that differ by more are both shown
_FIRST: Final = 3

# What to do about a late rank, by its cause.
_ADVICE: Final[Mapping[LateCause, str]] = {
    LateCause.HOST: "look at what its program does there that the others' does not",
    LateCause.INPUT: "give its loader more workers, or faster storage",
    LateCause.BLOCKING: "take the wait out, or let every rank wait less often",
    LateCause.KERNELS: "look at why these run longer, or at all, on this rank",
    LateCause.WORK: "divide the work evenly",
    LateCause.CLOCK: "check this device's clock, power limit and temperature, and whether something else uses it",
    LateCause.UNKNOWN: "record it with stacks to see more",
}
_BY_REPLAY: Final = "the recorded steps replayed with late ranks that do what another rank like each does"
_BOUND: Final = "at most: what the rank does of its own in a step, less what the rank does that has the second most"
_BOUND_WAITED: Final = "at most: how long the rank that waits least for it does, a mean over the steps"
_BOUND_HIDDEN: Final = "at most: what the rank is late by, once no other rank is later still"
_HIDDEN: Final = 0.5  # of its lateness: less than that is waited for
_TAKE_TURNS: Final = "check whether steps give ranks different amounts of work"
_PROVE: Final = "opscope diff BEFORE AFTER, with the folders of both jobs"
_BY_CHANCE: Final = "another recording of the same job names other ranks"

JOB_STATEMENTS: Final = (
    RuleDescription(
        Rule.LATE_RANK,
        "of a job (`opscope ranks`): in some steps others wait for a rank, or it does more of its own than they do, "
        "beyond what chance explains",
        "the replay in which the rank does what another like it does; without one 0 to what the rank that waits least "
        "for it does",
    ),
    RuleDescription(
        Rule.LATE_RANKS,
        "of a job: several ranks are late",
        "the replay with all of them; without one 0 to what the rest allow",
    ),
    RuleDescription(
        Rule.SLOW_RANKS,
        "of a job: two or more ranks have more of their own than the rest, and none of them alone is late",
        "0 to how much more they have (median)",
    ),
    RuleDescription(
        Rule.LATE_IN_TURN,
        "of a job: ranks are late, never two in one step; or none is by itself, but in each step some rank is, by 15 % "
        "of a step on average",
        "0 to that",
        "one rank is the last in half of the steps and more",
    ),
    RuleDescription(
        Rule.SLOW_LINK,
        "of a job: the same transfers take longer between some ranks than between others",
        "0 to how much longer they take",
    ),
)


class _Saving(Struct, frozen=True):
    """What a finding saves in a step.

    Attributes:
        likely_ns: what a replay gives; without one the most that it can be.
        replayed_ns: the least and the most that replays give; None without one.
        derivation: how that is known.
    """

    likely_ns: int
    replayed_ns: tuple[int, int] | None
    derivation: str

    def at_most(self, most: int) -> "_Saving":
        """Return the same with a bound."""
        replayed = self.replayed_ns and (min(self.replayed_ns[0], most), min(self.replayed_ns[1], most))
        derivation = f"{self.derivation}; once the work is divided evenly, the other ranks have more of it"
        return _Saving(min(self.likely_ns, most), replayed, derivation)

    def range(self) -> SavingRange:
        """Return the least and the most."""
        return SavingRange(*map(float, self.replayed_ns or (0, self.likely_ns)))

    def text(self) -> str:
        """Say what a step would save; empty where that is nothing."""
        if not self.likely_ns:
            return ""
        if self.replayed_ns is None:  # another late rank may hold the step up just as long
            return f"up to {format_ns(self.likely_ns)} less"
        least, most = self.replayed_ns
        between = f" ({format_ns(least)} to {format_ns(most)})" if most - least > _MUCH_APART * self.likely_ns else ""
        return f"{format_ns(self.likely_ns)} less{between}, by replay"


def job_findings(
    own: Own, late: Sequence[LateRank], slow: Iterable[SlowLink], replays: Replays | None
) -> list[JobFinding]:
    """Return what could make steps shorter, the most first.

    Args:
        own: what ranks do of their own.
        late: the late ranks, the most expensive first.
        slow: slow links.
        replays: replays of the recorded steps; None where these cannot be replayed.
    """
    step = float(np.median(own.duration_ns)) if own.steps else 0.0
    results = [*_of_late(own, late, replays, step), *_of_several(own, late, replays, step)]
    results += [_of_link(one, step) for one in slow]
    if own.steps and own.steps[0][0] is None:
        results = [replace(one, of_step=StepBasis.RECORDING) for one in results]
    return _numbered(sorted(results, key=lambda one: -one.likely_ns))


def _numbered(results: Sequence[JobFinding]) -> list[JobFinding]:
    """Return findings with their ids, those to begin with, and which save some of the same time."""
    seen: Counter[str] = Counter()
    named = []
    for place, one in enumerate(results):
        seen[one.rule] += 1
        number = "" if seen[one.rule] == 1 else f"_{seen[one.rule]}"
        named.append(replace(one, id=f"{one.rule}{number}", is_first=place < _FIRST and not one.is_small))
    of_ranks = (Rule.LATE_RANK, Rule.LATE_RANKS)
    late = {one.id for one in named if one.rule in of_ranks}
    return [replace(one, overlaps=tuple(sorted(late - {one.id}))) if one.id in late else one for one in named]


def _finding(
    rule: Rule,
    title: str,
    action: str,
    saving: _Saving,
    of_step_ns: float,
    *,
    evidence: Sequence[str],
    ranks: Sequence[int] = (),
    wrong_if: str = _BY_CHANCE,
) -> JobFinding:
    return JobFinding(
        id=rule,
        rule=rule,
        title=title,
        where=Where(),
        saving_ns=saving.range(),
        saving=saving.text(),
        likely_ns=float(saving.likely_ns),
        of_step_ns=of_step_ns,
        of_step=StepBasis.RECORDED,
        derivation=saving.derivation,
        evidence=tuple(Fact(one, Basis.MEASURED, source=Source.RANKS) for one in evidence),
        action=action,
        prove=_PROVE,
        wrong_if=wrong_if,
        ranks=tuple(ranks),
        is_replayed=saving.replayed_ns is not None,
    )


def _of_late(own: Own, late: Sequence[LateRank], replays: Replays | None, step: float) -> Iterator[JobFinding]:
    """Yield what each late rank costs: by replay, or else as a step is at most as long as the next one of its own."""
    numbers = {rank: place for place, rank in enumerate(own.ranks)}
    for count, one in enumerate(late):
        place = numbers[one.rank]
        saving = _bound(own, place, one)
        if count < _MOST_REPLAYS:
            saving = _replayed(saving, replays, own, [one.rank])
        if one.cause is LateCause.WORK:  # divided evenly it is not gone: the other ranks have more of it then
            share = 1 - 1 / len(own.ranks)
            saving = saving.at_most(int(share * one.late_ns * len(one.steps) / len(own.steps)))
        where = f" ({one.where})" if one.where else ""
        how_often = "" if len(one.steps) == len(own.steps) else f" in {len(one.steps)} of {len(own.steps)} steps"
        late_by = f"{format_ns(one.late_ns)} of {format_ns(one.of_step_ns)}{how_often}"
        title = f"rank {one.rank} is late by {late_by}: {one.cause}{where}"
        action = _ADVICE[one.cause]
        yield _finding(Rule.LATE_RANK, title, action, saving, step, evidence=one.evidence, ranks=[one.rank])


def _bound(own: Own, place: int, one: LateRank) -> _Saving:
    """Return the most that a step is shorter without the lateness of a rank."""
    late = one.late_ns * len(one.steps) / len(own.steps)
    if not own.is_known.all():
        others = np.delete(own.own_ns, place, axis=0).max(axis=0)
        return _Saving(int(np.maximum(own.own_ns[place] - others, 0).mean()), None, _BOUND)
    least = float(own.waits.least_for_ns[place].mean())
    waits = float(own.waits.waits_ns[place].mean())
    if least < min(_HIDDEN * late, waits):  # it waits itself, for ranks that are later still
        return _Saving(int(min(late, waits)), None, _BOUND_HIDDEN)
    return _Saving(int(min(least, late)), None, _BOUND_WAITED)


def _replayed(saving: _Saving, replays: Replays | None, own: Own, late: Sequence[int]) -> _Saving:
    """Return a saving as a replay tells it, if there is one."""
    if replays is None or len(late) > _MOST_REPLAYED:
        return saving
    others = np.take_along_axis(own.own_ns, own.typical[None], axis=0)[0]
    more = {rank: float((own.own_ns[own.ranks.index(rank)] - others).mean()) for rank in late}
    replayed = replays.saving(more) if min(more.values()) > 0 else None
    if replayed is None:
        return saving
    # Begin and end of a recording count too, and may seem to save more than the ranks are late.
    most = int(sum(more.values()))
    late_ns, early_ns = min(replayed.late_ns, most), min(replayed.early_ns, most)
    return _Saving(late_ns, (min(late_ns, early_ns), max(late_ns, early_ns)), _BY_REPLAY)


def _of_several(own: Own, late: Sequence[LateRank], replays: Replays | None, step: float) -> Iterator[JobFinding]:
    """Yield what ranks cost together that cost little alone: several that are as late, or one after the other."""
    if not own.steps:
        return
    named = sorted({one.rank for one in late})
    if len(named) > 1:
        others = [place for place, rank in enumerate(own.ranks) if rank not in named]
        rest = (
            own.own_ns[others].max(axis=0) if others else np.take_along_axis(own.own_ns, own.typical[None], axis=0)[0]
        )
        bound = _Saving(
            int(np.maximum(own.own_ns.max(axis=0) - rest, 0).mean()),
            None,
            "at most: the most that a rank does of its own in a step, less the most that a rank does that is not late",
        )
        saving = _replayed(bound, replays, own, named)
        title, rule, action = f"{len(named)} ranks are late: {listed_ranks(named)}", Rule.LATE_RANKS, "see each of them"
        if not _share_steps(late):
            title = f"ranks {listed_ranks(named)} are late in turn, never two of them in one step"
            rule, action = Rule.LATE_IN_TURN, _TAKE_TURNS
        evidence = [f"rank {one.rank} is late by {format_ns(one.late_ns)}" for one in late[:_LISTED]]
        yield _finding(rule, title, action, saving, step, evidence=evidence, ranks=named)
    slow = [own.ranks[place] for place in slow_ranks(own)] if not named else []
    if len(slow) > 1:
        yield _of_slow(own, slow, step)
    elif not named and own.is_comparable and len(own.ranks) > 1 and len(own.steps) > 1:
        yield from _in_turn(own, step)


def _share_steps(late: Sequence[LateRank]) -> bool:
    """Tell whether two ranks are late in one step; where steps have no numbers they are."""
    steps = [step for one in late for step in one.steps]
    return None in steps or len(set(steps)) < len(steps)


def _of_slow(own: Own, slow: Sequence[int], step: float) -> JobFinding:
    by = float(np.median(own.late_ns[[own.ranks.index(rank) for rank in slow]]))
    share = f"{len(slow)} of {len(own.ranks)} ranks"
    title = f"{share} have {format_ns(by)} a step more of their own than the rest: {listed_ranks(slow)}"
    action = "look for what these have in common, such as their host, device or share of the data"
    saving = _Saving(int(by), None, "at most: how much more of their own these ranks have in a step (median)")
    return _finding(Rule.SLOW_RANKS, title, action, saving, step, evidence=[title], ranks=slow)


def _in_turn(own: Own, step: float) -> Iterator[JobFinding]:
    lost, last = np.maximum(own.late_ns.max(axis=0), 0), own.late_ns.argmax(axis=0)
    often = np.bincount(last).max() / len(last)
    of_steps = lost / np.maximum(np.median(own.duration_ns, axis=0), 1)
    if float(of_steps.mean()) < _LEAST_IN_TURN or often > _HALF:
        return
    by = format_ns(float(lost.mean()))
    title = f"ranks are late in turn: in each step another one, by {by} on average"
    action = _TAKE_TURNS
    saving = _Saving(int(lost.mean()), None, "at most: how late the last rank is, as a mean over the steps")
    wrong_if = "another recording of the same job shows the same rank late in most steps"
    yield _finding(Rule.LATE_IN_TURN, title, action, saving, step, evidence=[title], wrong_if=wrong_if)


def _of_link(one: SlowLink, step: float) -> JobFinding:
    rates = f"{format_rate(one.bandwidth)}, others {format_rate(one.others_bandwidth)}"
    work = f"{one.calls} of {one.collective} with {format_bytes(one.bytes)} at {rates}"
    title = f"transfers between ranks {listed_ranks(one.ranks)} are slow: {work}"
    action = "look at the link (nvidia-smi topo -m, nvidia-smi nvlink -e) or network"
    saving = _Saving(one.costs_ns, None, "at most: how much longer these transfers take than others of as many bytes")
    wrong_if = "something else used the link or the network at the same time"
    return _finding(Rule.SLOW_LINK, title, action, saving, step, evidence=[work], ranks=one.ranks, wrong_if=wrong_if)


# ---------------------------------------------------------------- whom ranks wait for


_MOST_WAITED: Final = 4  # ranks that are named
_LEAST_WAITED: Final = 0.02  # of exposed communication, for a rank to be named
_UNKNOWN: Final = 0.01
_BY_CHANCE_ALONE: Final = (
    "its host takes longer over all that it does, which profilers do to single hosts by chance. Time the ranks without "
    "one to see whether it lasts."
)


def waiting_of(own: Own) -> JobWaiting | None:
    """Return what exposed communication is made of; None without steps or a second rank."""
    if len(own.ranks) < 2 or not own.steps:
        return None
    waits = own.waits
    mean, others = waits.mean_for_ns.mean(axis=1), waits.for_ns.mean(axis=1)
    order = np.argsort(-mean, kind="stable").tolist()
    each = [
        WaitedFor(own.ranks[place], round(float(mean[place])), round(float(others[place])))
        for place in order
        if mean[place] > 0
    ]
    exposed, transfer, unknown = (float(one.mean()) for one in (waits.exposed_ns, waits.transfer_ns, waits.unknown_ns))
    step = float(np.median(own.duration_ns))
    return JobWaiting(
        exposed_ns=round(exposed),
        transfer_ns=round(transfer),
        ranks=each,
        unknown_ns=round(unknown),
        of_step_ns=round(step),
        sentence=_exposed(exposed, transfer, each, unknown, step),
    )


def _exposed(exposed: float, transfer: float, each: Sequence[WaitedFor], unknown: float, step: float) -> str:
    text = f"devices only communicate for {format_ns(exposed)} of a step ({format_share(exposed, step)}, a mean)"
    if not exposed:
        return text
    parts = [f"{format_ns(transfer)} is transfer"] if transfer else []
    named = [one for one in each[:_MOST_WAITED] if one.waiting_ns >= _LEAST_WAITED * exposed]
    parts += [
        f"{format_ns(one.waiting_ns)} {'is waiting ' if place == 0 else ''}for rank {one.rank}"
        for place, one in enumerate(named)
    ]
    rest = sum(one.waiting_ns for one in each[len(named) :])
    if rest:
        left = len(each) - len(named)
        which = f"rank {each[-1].rank}" if left == 1 else f"{left} {'other ' if named else ''}ranks"
        parts.append(f"{format_ns(rest)} {'' if named else 'is waiting '}for {which}")
    if unknown > _UNKNOWN * exposed:
        parts.append(f"{format_ns(unknown)} is in messages and in collectives that could not be matched")
    return f"{text}: {', '.join(parts)}"


def verdict_of(own: Own, named: Sequence[Named], waiting: JobWaiting | None) -> str:
    """Say who is late, or whom others wait for where none is called that; empty where ranks cannot be compared.

    Args:
        own: what ranks do of their own.
        named: the ranks that are late, or that others waited for.
        waiting: whom ranks wait for.
    """
    if waiting is None or not own.is_comparable:
        return ""
    late = [one for one in named if one.is_called]
    each = ", ".join(
        f"rank {own.ranks[one.late.place]} by {format_ns(one.late.late_ns)} of {format_ns(one.late.of_step_ns)}"
        for one in late[:_LISTED]
    )
    who = f"Late: {each}{', ...' if len(late) > _LISTED else ''}." if late else ""
    most = max(waiting.ranks, key=lambda one: one.others_ns, default=None)
    if most is None or not most.others_ns or not own.is_known.any():
        return who or "No rank is late."
    share = format_share(most.others_ns, waiting.of_step_ns)
    by = f"{format_ns(most.others_ns)} of a step of {format_ns(waiting.of_step_ns)} ({share})"
    of_rank = next((one for one in named if own.ranks[one.late.place] == most.rank), None)
    if of_rank is None or of_rank.is_called:
        return who or f"No rank is late: others wait longest for rank {most.rank}, {by}."
    by_chance = of_rank.why.cause is LateCause.HOST and not of_rank.why.is_seen
    why = _BY_CHANCE_ALONE if by_chance else f"{of_rank.why.evidence[0]}."
    begins = f"{who} Besides," if late else "No rank is called late, but"
    return f"{begins} others wait {by} for rank {most.rank}: {why}"


def listed_ranks(ranks: Sequence[int]) -> str:
    """Name the first of some ranks."""
    return ", ".join(map(str, ranks[:_LISTED])) + (", ..." if len(ranks) > _LISTED else "")
