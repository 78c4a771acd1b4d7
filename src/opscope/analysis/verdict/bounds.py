"""What bounds a step: the device, the host that launches, or the waiting between them."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from opscope.analysis.idle.steps import CAUSES, PAUSES, Waits, at_most
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.structure.launches import MOSTLY, Captures
from opscope.analysis.structure.step_work import WindowKind
from opscope.analysis.verdict.step_evidence import (
    MOVES,
    STACKS,
    WAITS_FOR,
    StepEvidence,
    Unknown,
    busiest,
    device_not_recorded,
    works_elsewhere,
)
from opscope.base.units import format_ns, format_share
from opscope.documents.trace import OddStep
from opscope.documents.verdict import Bound, BoundKind, CheckName, IdleCause, Trust

# From this share of the step on, the device is the bound: without any waiting the step is at most a quarter faster.
BUSY_SHARE: Final = 0.8
# Waiting that takes less of the step than this is not a bound.
_LEAST_SHARE: Final = 0.1
_HALF: Final = 0.5
# The parts of a step beside computing, as pictures and tables call them.
_NOUNS: Final[Mapping[BoundKind, str]] = {kind: str(causes[0]) for kind, causes in CAUSES.items()} | {
    BoundKind.BLOCKING: "blocking calls",
    BoundKind.COMMUNICATION: "communication",
    BoundKind.DEPENDENCY: "dependencies",
    BoundKind.MEMCPY: "exposed memcpy",
}
_MOST_WORDS: Final = 25  # of the verdict
_WORTH_SAYING: Final = 0.05  # of the window


def _withheld(unknown: Unknown) -> Bound:
    """Return the verdict that there is none."""
    return Bound(BoundKind.UNKNOWN, None, None, unknown.sentence, f"Withheld. {unknown.evidence}")


def bound_of(evidence: StepEvidence) -> Bound:
    """Judge what bounds the steps of a trace; the verdict is withheld where the trace allows none."""
    if (incomplete := evidence.trust.failed(CheckName.FILE_IS_VALID)) is not None:
        return _withheld(Unknown("The file is damaged or cut off: record it again.", incomplete.sentence))
    if not evidence.devices or evidence.waits is None:
        return _without_device(evidence)
    if (unlike := _unlike_a_step(evidence)) is not None:
        return unlike
    device, waits = evidence.timed_device, evidence.waits
    share = _DeviceShare.of(evidence, device, waits)
    parts = waiting_per_step(evidence, waits)
    kind = _kind(evidence, share, parts, waits)
    cause = _largest_cause(busiest(evidence.devices), parts)
    return Bound(
        kind=kind,
        device_share=share.measured,
        idle_cause=None if cause is None else str(cause),
        sentence=_sentence(evidence, kind, parts, share),
        evidence=f"{share.sentence} {_why_of(evidence, kind, parts, share)}",
        share_low=share.low,
        share_high=share.high,
    )


def _unlike_a_step(evidence: StepEvidence) -> Bound | None:
    """Return the verdict on a recording of something other than steps; None where it may be of steps."""
    device = busiest(evidence.devices)
    if not device.window.duration_ns:
        return _withheld(Unknown("The recorded steps have no length: mark whole steps, or none.", "Steps take 0 ns."))
    if evidence.is_capture and evidence.captures is not None:
        return _of_capture(evidence.captures)
    if evidence.is_warm_up or evidence.cold_first is not None:
        return _of_beginning(evidence.warm_up, evidence.cold_first)
    if evidence.mostly_elsewhere:
        return _elsewhere(evidence, device.window.duration_ns)
    if (timeless := evidence.timeless) is not None:
        again = "No device activity has a duration: record again; opscope doctor tests the profiler."
        return _withheld(Unknown(again, timeless.sentence))
    return None


def _of_beginning(share: float, first: OddStep | None) -> Bound:
    """Return the verdict where a warm-up was recorded, or a first step that is unlike the others."""
    what = f"{format_share(share, 1)} of the recording lies in ranges that call themselves warm-up"
    if first is not None:
        took = f"takes {format_ns(first.span_ns)}, most of the recording, and others {format_ns(first.typical_ns)}"
        what = f"The first step {took}"
    evidence = "What the first steps take, loading code and choosing kernels, later ones do not."
    return Bound(BoundKind.COLD_START, None, None, f"{what}: profile later steps.", evidence)


def _elsewhere(evidence: StepEvidence, window_ns: int) -> Bound:
    """Return the verdict where the host works for long before or after the device does."""
    cold_ns = evidence.cold_elsewhere_ns
    if cold_ns <= MOSTLY * evidence.host_elsewhere_ns:
        return _withheld(works_elsewhere(evidence.host_elsewhere_ns, window_ns))
    sentence = (
        f"The first calls take {format_ns(cold_ns)} to set the device up, and the device's work takes "
        f"{format_ns(window_ns)}: profile later steps."
    )
    why = "What creates a context or loads code happens once; later steps do not take that."
    return Bound(BoundKind.COLD_START, None, None, sentence, why)


def _of_capture(captures: Captures) -> Bound:
    evidence = f"{captures.launches:,} of {captures.of_launches:,} launches are noted in a capture: none of them runs."
    sentence = (
        "Mostly the capture of a graph was recorded, in which nothing runs: record replays to see what bounds them."
    )
    return Bound(BoundKind.CAPTURE, None, None, sentence, evidence)


class _DeviceShare(Struct, frozen=True):
    """The share of a step in which the device works.

    Attributes:
        measured: as measured; may exceed 1 for an unprofiled step.
        low, high: the range in which it lies without a profiler; at most 1.
        step_ns: the time that the shares refer to: a step, or the whole recording where no steps are marked.
        sentence: the same in words.
        of_steps: whether they refer to a step.
        hidden_ns: how much longer the device may have been busy in the window, by the checks that failed.
    """

    measured: float
    low: float
    high: float
    step_ns: float
    sentence: str
    of_steps: bool
    hidden_ns: int = 0

    @classmethod
    def of(cls, evidence: StepEvidence, device: DeviceTimeline, waits: Waits) -> "_DeviceShare":
        busy, hidden = evidence.busy_ns, _hidden(evidence.trust, device)
        doubt = "" if not hidden else f" (and for up to {format_ns(hidden)} more, by the checks that failed)"
        steps = evidence.steps or 1
        amount = f"{format_ns(busy / steps)} per step" if evidence.steps else f"{format_ns(busy)} in the recording"
        if (wall := evidence.unprofiled_ns) is not None:
            inside = evidence.inside_ns or wall
            share, high = busy / steps / inside, (busy + hidden) / steps / inside
            without = f" without the {format_ns(evidence.between_ns)} between steps" if inside < wall else ""
            sentence = (
                f"The device is busy {amount}{doubt}, {format_share(min(share, 1.0), 1)} of the unprofiled step of "
                f"{format_ns(wall)}{without}."
            )
            return cls(share, min(share, 1.0), min(high, 1.0), wall, sentence, of_steps=True, hidden_ns=hidden)
        # Idle time that the profiler itself caused would not be there without it.
        profiler_ns = (waits if evidence.light is None else evidence.light.waits).profiler_ns
        whole = device.window.duration_ns - profiler_ns
        share = busy / whole if whole > 0 else 0.0
        high = _most(evidence, waits, busy + hidden, whole)
        other = (
            f"An unprofiled step of {format_ns(evidence.like_recorded_ns)} {evidence.not_theirs}. It does not count. "
            if evidence.wall_ns and evidence.not_theirs
            else ""
        )
        own = profiler_ns >= _WORTH_SAYING * device.window.duration_ns
        less = f" without the profiler's own {format_ns(profiler_ns)}" if own else ""
        sentence = (
            f"{other}Under the profiler the device is busy {amount}{doubt}, {format_share(share, 1)} of the time{less}"
            f"; recording {evidence.timed_cost.collected} slows the host down, so without it that is "
            f"{_range(share, high)}."
        )
        return cls(
            share,
            share,
            max(high, share),
            whole / steps,
            sentence,
            of_steps=bool(evidence.steps),
            hidden_ns=hidden,
        )


def _range(low: float, high: float) -> str:
    if round(100 * low) >= round(100 * high):
        return f"about {format_share(low, 1)} too"
    return f"between {format_share(low, 1)} and {format_share(high, 1)}"


def _most(evidence: StepEvidence, waits: Waits, busy: int, whole: int) -> float:
    """Return the largest share of time in which the device can be busy without the profiler.

    Without it the host is faster by at most the profiler's factor. Blocking calls take as long without it, and so does
    other work of the host, unless stacks were recorded, which slow all Python down.

    Args:
        evidence: what the verdict rests on.
        waits: what the device waited for.
        busy: how long it works at most, in nanoseconds.
        whole: how long the recording took, without the profiler's own work.
    """
    kinds, most = _by_kind(evidence, waits), evidence.timed_cost.most
    same = sum(kinds.get(kind, 0) for kind in (BoundKind.BLOCKING, BoundKind.ALLOCATION, BoundKind.COLD_START))
    same += waits.quiet_ns if evidence.timed_cost is STACKS else sum(kinds.get(kind, 0) for kind in PAUSES)
    if evidence.light is not None:
        waits = evidence.light.waits
    # After a wait the queue is empty: nothing runs beside what the host does next, however fast it is.
    fixed = waits.quiet_after_waits_ns if evidence.timed_cost is STACKS else waits.work_after_waits_ns
    serial = fixed + (waits.after_waits_ns - fixed) / most
    # Queued work that waits for other streams, or for its turn, does not begin earlier with a faster host.
    taken = busy + sum(kinds.get(kind, 0) for kind in (BoundKind.DEPENDENCY, BoundKind.DEVICE))
    least = max(taken + min(serial, max(whole - taken, 0)), same + (whole - same) / most)
    return min(busy / least, 1.0) if least > 0 else 0.0


def _hidden(trust: Trust, device: DeviceTimeline) -> int:
    """Return how much longer the device may have been busy in the window, by the failed checks, in nanoseconds."""
    hidden = 0
    if (impossible := trust.failed(CheckName.IMPOSSIBLE_DURATIONS)) is not None:
        # They took no longer than they claim, if all of them claim anything.
        hidden = max(impossible.time_ns or 0, 0) or device.idle_ns
    for name in (CheckName.LAUNCHES_WITHOUT_ACTIVITY, CheckName.GRAPH_REPLAYS_COMPLETE):
        if (check := trust.failed(name)) is not None:
            hidden += device.idle_ns if check.time_ns is None else check.time_ns
    if device.window.kind is WindowKind.STEPS and trust.failed(CheckName.WORK_OUTSIDE_WINDOW) is not None:
        hidden += device.outside_window_ns
    return min(hidden, device.idle_ns)


def _by_kind(evidence: StepEvidence, waits: Waits) -> Mapping[BoundKind, float]:
    """Return how long the device waited per kind in all steps, by the pass whose times count."""
    return waits.by_kind if evidence.light is None else evidence.light.by_kind(waits)


def waiting_per_step(evidence: StepEvidence, waits: Waits) -> Mapping[BoundKind, float]:
    """Return per kind how long the device does not compute, in nanoseconds per step.

    The idle time of an unprofiled step goes first to what takes as long with a profiler as without one. Dispatch, and
    other work in which operators follow one another, which the profiler slows alike, share the rest in proportion.
    """
    steps = evidence.steps or 1
    by_kind = _by_kind(evidence, waits)
    parts = {kind: time / steps for kind, time in by_kind.items()}
    if evidence.inside_ns is not None:
        idle = max(evidence.inside_ns - evidence.busy_ns / steps, 0.0)
        # Waits for data come in bursts: those that were measured with the unprofiled steps say more than a few steps.
        loading = min(max(evidence.data_ns, 0.0), idle)
        measured = loading > parts.get(BoundKind.INPUT, 0.0)
        slowed = {BoundKind.DISPATCH: parts.pop(BoundKind.DISPATCH, 0.0)}
        for kind, dense in (waits.dense_ns if evidence.light is None else {}).items():
            if kind in parts and not (measured and kind is BoundKind.INPUT):
                slowed[kind] = min(dense / steps, parts[kind])
                parts[kind] -= slowed[kind]
        if measured:
            parts.pop(BoundKind.INPUT, None)
            parts = {**at_most(parts, idle - loading), BoundKind.INPUT: loading}
        parts = at_most(parts, idle)
        for kind, time in at_most(slowed, idle - sum(parts.values())).items():
            parts[kind] = parts.get(kind, 0.0) + time
    parts[BoundKind.COMMUNICATION] = evidence.timed_device.exposed_communication_ns / steps
    parts[BoundKind.MEMCPY] = evidence.timed_device.exposed_memcpy_ns / steps
    return parts


def _kind(evidence: StepEvidence, share: _DeviceShare, parts: Mapping[BoundKind, float], waits: Waits) -> BoundKind:
    # Busy enough at the lower end of the range: busy enough in any case.
    if share.low >= BUSY_SHARE:
        return _at_work(evidence.timed_device)
    if evidence.host_unknown is not None:
        return BoundKind.UNKNOWN
    kind = _largest_part(evidence, share, parts, share.low)
    if _is_open(evidence, share, parts, kind):
        moves = _moves_in_any_case(evidence.timed_device, share, parts)
        return BoundKind.COMMUNICATION if moves else BoundKind.UNKNOWN
    if kind is BoundKind.DISPATCH and _only_for_waiting(busiest(evidence.devices), parts[kind], waits):
        return BoundKind.BLOCKING
    return kind


def _at_work(device: DeviceTimeline) -> BoundKind:
    """Return what a device is bound by while it is busy: moving data, if that takes longer than computing."""
    communication, memcpy = device.exposed_communication_ns, device.exposed_memcpy_ns
    if max(communication, memcpy) <= device.compute_ns:
        return BoundKind.DEVICE
    return BoundKind.COMMUNICATION if communication >= memcpy else BoundKind.MEMCPY


def _largest_part(evidence: StepEvidence, share: _DeviceShare, parts: Mapping[BoundKind, float], busy: float
                  ) -> BoundKind:  # fmt: skip
    """Return the largest part of a step in which the device is busy for a given share.

    Args:
        evidence: what the verdict rests on.
        share: the device's share.
        parts: the other parts, in nanoseconds per step.
        busy: the share, within the range.
    """
    device = evidence.timed_device
    at_work = busy / share.low if share.low > 0 else 1.0
    idle = (1 - busy) / (1 - share.low) if share.low < 1 else 1.0
    scaled = {kind: time * (at_work if kind in MOVES else idle) for kind, time in parts.items()}
    computing = device.compute_ns / (evidence.steps or 1) * at_work + scaled.pop(BoundKind.DEVICE, 0.0)
    largest = max(scaled, key=lambda kind: scaled[kind])
    return largest if is_larger(scaled[largest], computing, share.step_ns) else _at_work(device)


def is_larger(part: float, computing: float, step: float) -> bool:
    """Tell whether a part of a step counts for more than computing does.

    Waiting can be taken away, computing hardly by half: a part that is half as large counts for more, if it is worth
    anything.

    Args:
        part: how long the device waits, or only moves data.
        computing: how long it computes.
        step: how long the step takes, in the same unit.
    """
    return part >= _LEAST_SHARE * step and part > _HALF * computing


def _is_open(evidence: StepEvidence, share: _DeviceShare, parts: Mapping[BoundKind, float], kind: BoundKind) -> bool:
    """Tell whether the range allows opposite answers, of which neither is the likely one.

    Only what recording slows down is in doubt: calls that wait, and code without any record inside, take as long
    without a profiler. Where records were lost, no answer is likelier than another one.
    """
    if share.high < BUSY_SHARE or _largest_part(evidence, share, parts, share.high) is kind:
        return False
    if share.hidden_ns:
        return True
    if kind is not BoundKind.DISPATCH and not (kind in PAUSES and evidence.timed_cost is STACKS):
        return False
    # The middle of the range decides. Of tests/data/findings, three wait for launches: their device's share without
    # the profiler was 0.57 of a range of 0.39 to 0.79, 0.55 of 0.38 to 0.77, 0.10 of 0.05 to 0.17. But where the range
    # goes on above `BUSY_SHARE`, it may lie at its end (a transformer's training on an H200: 0.91 of 0.37 to 0.89), so
    # launches have to be more than computing there, and not more than half.
    likely = (share.low + share.high) / 2
    if kind is BoundKind.DISPATCH:
        return parts[kind] / share.step_ns * (1 - likely) / (1 - share.low) <= _computing(evidence, likely)
    return _largest_part(evidence, share, parts, likely) is not kind


def _computing(evidence: StepEvidence, busy: float) -> float:
    """Return the share of a step in which the device computes, where it is busy for a share of it."""
    return busy * evidence.timed_device.compute_ns / max(evidence.timed_device.busy_in_window_ns, 1)


def _moves_in_any_case(device: DeviceTimeline, share: _DeviceShare, parts: Mapping[BoundKind, float]) -> bool:
    """Tell whether communication keeps the device from computing, however fast the host is without the profiler.

    That is the case if computing takes less than `BUSY_SHARE` even of the shortest step that is possible.
    """
    if not device.busy_in_window_ns:
        return False
    computed = share.high * device.compute_ns / device.busy_in_window_ns
    return computed < BUSY_SHARE and parts[BoundKind.COMMUNICATION] >= _LEAST_SHARE * share.step_ns


def _only_for_waiting(device: DeviceTimeline, dispatch: float, waits: Waits) -> bool:
    """Tell whether launches come late only because the host waits for the device between them.

    That is the case if a wait explains most of dispatch, and without waiting the host has the time to issue everything
    while the device is busy.
    """
    total = waits.by_kind.get(BoundKind.DISPATCH, 0)
    issuing = device.window.duration_ns - waits.profiler_ns - waits.host_waits_ns
    return dispatch > 0 and 2 * waits.drained_ns > total and issuing < device.busy_in_window_ns


def _largest_cause(device: DeviceTimeline, parts: Mapping[BoundKind, float]) -> IdleCause | None:
    """Return the largest cause of the kind of idle time that there is most of; None where there is none.

    Args:
        device: as the pass with names saw it: without names, no wait is one for data.
        parts: the idle time per kind.
    """
    idle = device.idle.by_cause()
    kinds = [kind for kind in CAUSES if parts.get(kind, 0.0) > 0]
    if not kinds:
        return None
    # A kind of the verdict may have several causes: the largest stands for it.
    return max(CAUSES[max(kinds, key=lambda kind: parts[kind])], key=lambda cause: idle[cause])


def _why_of(evidence: StepEvidence, kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare) -> str:
    if kind is BoundKind.UNKNOWN and (reason := evidence.host_unknown) is not None:
        return f"Why it waits is unknown. {reason.evidence}"
    return _why(kind, parts, share, unprofiled=evidence.unprofiled_ns is not None)


def _sentence(evidence: StepEvidence, kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare) -> str:
    """Return the verdict in a sentence; if it is unknown, what to record."""
    if kind is BoundKind.UNKNOWN and (reason := evidence.host_unknown) is not None:
        return reason.sentence
    unprofiled = evidence.unprofiled_ns is not None
    of_what = _base(share, unprofiled=unprofiled)
    largest = max(WAITS_FOR, key=lambda reason: parts.get(reason, 0.0))
    if kind is BoundKind.UNKNOWN:
        return _undecided(largest, evidence, of_steps=share.of_steps)
    if kind is BoundKind.DEVICE:
        return _of_device(parts, share, of_what)
    return _of_part(evidence, kind, parts, share)


def _of_part(evidence: StepEvidence, kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare) -> str:
    """Return the verdict that a step waits for something, or only moves data."""
    of_what = _base(share, unprofiled=evidence.unprofiled_ns is not None)
    largest = max(WAITS_FOR, key=lambda reason: parts.get(reason, 0.0))
    if kind is BoundKind.BLOCKING and largest is BoundKind.DISPATCH:
        late = format_share(parts[largest], share.step_ns)
        return f"For {late} of the {of_what} launches come late because the host waited for the device before."
    time = f"{format_share(parts.get(kind, 0.0), share.step_ns)} of the {of_what}"
    if kind is BoundKind.COLD_START:
        return f"For {time} the device waits for {WAITS_FOR[kind]}: profile later steps."
    then = _then(kind, parts, share)
    if kind in MOVES:
        return _joined(f"For {time} {MOVES[kind]}, and nothing is computed", then)
    doubt = _doubt(evidence, kind, parts, share)
    return _joined(f"For {time}{doubt} the device waits for {_awaited(evidence, kind)}", then)


_NEARLY_ALL: Final = 0.9
_OF_COMPILER: Final[Mapping[IdleCause, str]] = {
    IdleCause.COMPILING: "torch.compile to compile",
    IdleCause.GUARDS: "guards of compiled code to be checked",
}


def _awaited(evidence: StepEvidence, kind: BoundKind) -> str:
    """Return what the device waits for; of the host's other work, whether it is torch.compile's own."""
    idle = busiest(evidence.devices).idle.by_cause()
    largest, whole = max(CAUSES[kind], key=lambda cause: idle[cause]), sum(idle[cause] for cause in CAUSES[kind])
    if largest not in _OF_COMPILER:
        return WAITS_FOR[kind]
    return _OF_COMPILER[largest] if idle[largest] >= _NEARLY_ALL * whole else f"{WAITS_FOR[kind]}, mostly {largest}"


def _joined(sentence: str, then: str) -> str:
    """Return a verdict with the next part behind it, if that is not too long."""
    whole = f"{sentence}{then}."
    return whole if len(whole.split()) <= _MOST_WORDS else f"{sentence}."


def _doubt(evidence: StepEvidence, kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare) -> str:
    """Return in parentheses what a wait takes without the profiler, where it may not be the largest part then.

    At least what the other waits leave of the idle time that there is in any case; at most the same time, of a step
    that is shorter by what recording adds to launches.
    """
    if evidence.unprofiled_ns is not None or _largest_part(evidence, share, parts, share.high) is kind:
        return ""
    of_step = {other: parts.get(other, 0.0) / share.step_ns for other in WAITS_FOR if other is not kind}
    shortest = share.low / share.high if share.high > 0 else 1.0
    least = max(1 - share.high - sum(of_step.values()) / shortest, 0.0)
    added = of_step.get(BoundKind.DISPATCH, 0.0) * (1 - 1 / evidence.timed_cost.most)
    most = min(parts[kind] / share.step_ns / (1 - added), 1 - share.low)
    return f" ({_plain(least)} to {format_share(max(most, least), 1)} unprofiled)"


def _then(kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare) -> str:
    """Return the next part beside computing, as the end of a sentence; empty where none is worth it."""
    others = {other: time for other, time in parts.items() if other not in (kind, BoundKind.DEVICE)}
    after = max(others, key=lambda other: others[other])
    most = share.step_ns if kind is BoundKind.DEVICE else parts[kind]
    if not _LEAST_SHARE * share.step_ns <= others[after] <= most:
        return ""
    return f", then {_NOUNS[after]} ({format_share(others[after], share.step_ns)})"


def _of_device(parts: Mapping[BoundKind, float], share: _DeviceShare, of_what: str) -> str:
    busy = f"The device is busy {_shares(share.low, share.high)} of the {of_what}"
    moves = max(MOVES, key=lambda kind: parts.get(kind, 0.0))
    moving = parts.get(moves, 0.0)
    waiting = max(parts.get(kind, 0.0) for kind in WAITS_FOR)
    if share.low < BUSY_SHARE and waiting > moving and (then := _then(BoundKind.DEVICE, parts, share)):
        return f"{busy}{then}: faster or fewer kernels help most."
    if moving < _LEAST_SHARE * share.step_ns:
        return f"{busy}: faster kernels, or fewer of them, make it faster."
    only = "communicating" if moves is BoundKind.COMMUNICATION else "moving data"
    return f"{busy}, {format_share(moving, share.step_ns)} only {only}: compute faster, or move less."


def _undecided(largest: BoundKind, evidence: StepEvidence, *, of_steps: bool) -> str:
    if evidence.unprofiled_ns is not None:
        return "Records were lost, so that opposite answers are possible: record fewer steps at once."
    if largest is BoundKind.UNKNOWN:
        return "Launches of what the device waited for were not recorded: begin the recording before them."
    either = f"Either the device, or waiting for {WAITS_FOR[largest]}"
    if evidence.not_theirs is not None:
        return f"{either}. The unprofiled step does not fit the recorded ones: check it, or measure again."
    how = "give the unprofiled step (--step-time MS), or run" if of_steps else "mark steps (profiler.step()), or run"
    return f"{either}: {how} opscope profile."


def _base(share: _DeviceShare, *, unprofiled: bool) -> str:
    """Return in words what shares refer to."""
    if unprofiled:
        return "unprofiled step"
    return "profiled step" if share.of_steps else "recording"


def _plain(share: float) -> str:
    """Return a share without the sign that follows the end of its range."""
    return format_share(share, 1).removesuffix(" %")


def _shares(low: float, high: float) -> str:
    least, most = format_share(low, 1), format_share(high, 1)
    return least if least == most else f"{least} to {most}"


def _why(kind: BoundKind, parts: Mapping[BoundKind, float], share: _DeviceShare, *, unprofiled: bool) -> str:
    if kind is BoundKind.DEVICE:
        copied = parts.get(BoundKind.MEMCPY, 0.0) + parts.get(BoundKind.COMMUNICATION, 0.0)
        only = "ranks communicate or data move" if parts.get(BoundKind.COMMUNICATION) else "data move"
        moving = f" For {format_ns(copied)} of it only {only}." if copied >= _LEAST_SHARE * share.step_ns else ""
        return f"Faster kernels, or fewer of them, make the step faster.{moving}"
    if kind in (BoundKind.COMMUNICATION, BoundKind.MEMCPY):
        return _why_moving(kind, parts[kind], share, unprofiled=unprofiled)
    largest = max(WAITS_FOR, key=lambda reason: parts.get(reason, 0.0))
    of_step = format_share(parts.get(largest, 0.0), share.step_ns)
    whole = _base(share, unprofiled=unprofiled)
    waited = f"Most of its idle time ({of_step} of the {whole})"
    if kind is BoundKind.UNKNOWN and not unprofiled:
        return (
            f"{waited} is spent waiting for {WAITS_FOR[largest]}: whether that, or the device, bounds the step, the "
            f"{'unprofiled step time tells' if share.of_steps else 'time without a profiler would tell'}."
        )
    if largest is BoundKind.DISPATCH and kind is BoundKind.BLOCKING:
        return (
            f"{waited} is spent waiting for launches that come late because the host waited for the device before: "
            "it has the time to issue them while the device is busy."
        )
    if kind is BoundKind.DISPATCH and unprofiled:
        return (
            f"{waited} is spent waiting for {WAITS_FOR[kind]}: fewer or larger kernels, fewer synchronisations, "
            "torch.compile, or CUDA graphs help; faster kernels do not."
        )
    return f"{waited} is spent waiting for {WAITS_FOR[largest]}."


def _why_moving(kind: BoundKind, moving: float, share: _DeviceShare, *, unprofiled: bool) -> str:
    moves = f"For {format_ns(moving)} of it, {MOVES[kind]} and nothing is computed"
    if share.low < BUSY_SHARE <= share.high and not unprofiled:
        return f"{moves}, with or without the profiler. The other idle time may be the profiler's own."
    return f"{moves}."


def _without_device(evidence: StepEvidence) -> Bound:
    if evidence.ran_on_gpu:
        return _withheld(
            Unknown(
                "No device activity was recorded of a workload on a GPU: opscope doctor tells why.",
                "The workload ran on a GPU, but no device activity was recorded.",
            )
        )
    if (nothing := evidence.trust.failed(CheckName.DEVICE_WORK_RECORDED)) is not None:
        return _withheld(
            Unknown(
                "Nothing was recorded: read what the program printed; opscope doctor tests the profiler.",
                nothing.sentence,
            )
        )
    if (unknown := evidence.trust.failed(CheckName.DEVICES_UNDERSTOOD)) is not None:
        return _withheld(
            Unknown(
                "What may be the device's work is not understood: record with torch.profiler, CPU and CUDA activities.",
                unknown.sentence,
            )
        )
    if evidence.gpu_sign is not None and evidence.ran_on_gpu is None:
        return _withheld(device_not_recorded(evidence.gpu_sign))
    if not evidence.operator_time_ns and evidence.lacks_cuda:
        return _withheld(
            Unknown(
                "No work of a device was recorded: nsys profile --trace=cuda,nvtx records it, where a program has any.",
                "The export has neither operators nor work of a device: nothing in it tells what ran.",
            )
        )
    share = format_share(evidence.operator_time_ns, evidence.window.duration_ns)
    return Bound(
        BoundKind.HOST_ONLY,
        None,
        None,
        f"Everything ran on the CPU; operators take {share} of the {evidence.window.kind}.",
        "The rest was not recorded: Python, waiting, or work on threads of the workload's own.",
    )
