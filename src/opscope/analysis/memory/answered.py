"""A snapshot -> what is said of it: one entry a device, and what to do."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.memory.allocator import UNLIMITED, Change, Settings, segment_size
from opscope.analysis.memory.autocast import MOST_FOLLOWED
from opscope.analysis.memory.case import MOST_REPLAYED, Case
from opscope.analysis.memory.growth import growth_of, replaced_chains
from opscope.analysis.memory.owners import by_owner
from opscope.analysis.memory.pictures import picture_of
from opscope.analysis.memory.rules import LEAST_SHARE, Draft, drafts
from opscope.analysis.memory.stacks import stacks_of
from opscope.base.parts import Losses
from opscope.base.units import format_bytes
from opscope.documents.memory import (
    AliveEntry,
    DeviceMemoryEntry,
    GrowthEntry,
    MemoryDocument,
    MemoryFinding,
    MemoryPicture,
    MemoryRule,
    OutOfMemory,
    Owner,
    OwnerEntry,
    PinEntry,
    SettingEntry,
)
from opscope.trace.snapshot import Action, Segment, Snapshot

_PINS: Final = 10
_MIB: Final = 1 << 20
# What grows without end comes first, whatever it takes now.
_FIRST: Final = (MemoryRule.GROWTH,)
# Changes that take time or change results come after those that do not, unless the latter save next to nothing.
# Memory that is reserved and free does no harm before the device is full: it has to be more.
_TRADES: Final = (MemoryRule.CHECKPOINT, MemoryRule.OPTIMIZER_STATES, MemoryRule.LOW_PRECISION)
_WORTH: Final = {"allocated": 0.05, "reserved": 0.15}


def answer(snapshot: Snapshot) -> MemoryDocument:
    """Answer for a snapshot alone."""
    return answered(snapshot.path, cases_of(snapshot)).document


def cases_of(snapshot: Snapshot) -> tuple[Case, ...]:
    """Return all that is known of each device."""
    table = stacks_of(snapshot)
    return tuple(Case(snapshot, memory, table) for memory in snapshot.devices)


class Answered(Struct, frozen=True):
    """What is said of a snapshot or a trace, and what it rests on.

    Attributes:
        document: what is said.
        cases: its devices.
    """

    document: MemoryDocument
    cases: tuple[Case, ...]

    @property
    def pictures(self) -> tuple[MemoryPicture, ...]:
        """What the page draws of each device."""
        return tuple(map(picture_of, self.cases))


def answered(path: str, cases: Sequence[Case], notes: Sequence[str] = ()) -> Answered:
    """Answer what fills each device, and what would change it.

    Args:
        path: the file that they are of.
        cases: its devices.
        notes: what else is known of the recording.
    """
    devices, findings = [], []
    for case in cases:
        memory, losses = case.memory, Losses()
        is_whole = memory.device is not None and case.count and case.history.fits_together
        ranked = _ranked(case, drafts(case, losses) if is_whole else [])
        devices.append(_device(case, ranked, losses))
        findings += ranked
    numbered = [replace(finding, id=_id(finding, findings[:at])) for at, finding in enumerate(findings)]
    document = MemoryDocument(snapshot=path, devices=tuple(devices), findings=tuple(numbered), notes=tuple(notes))
    return Answered(document, tuple(cases))


def _id(finding: MemoryFinding, before: Sequence[MemoryFinding]) -> str:
    number = sum(one.rule == finding.rule for one in before)
    return str(finding.rule) if not number else f"{finding.rule}_{number + 1}"


# ---------------------------------------------------------------- findings


def _ranked(case: Case, unranked: Sequence[Draft]) -> list[MemoryFinding]:
    """Return findings that save something, what is wrong and what costs nothing first."""
    now = {"allocated": case.peak_bytes, "reserved": int(case.history.reserved.max())}
    made = [
        MemoryFinding(
            id="",
            rule=draft.rule,
            device=case.memory.device,
            title=draft.title,
            where=draft.where,
            of=draft.of,
            saves_bytes=max(now[draft.of] - draft.then_bytes, 0),
            then_bytes=draft.then_bytes,
            action=draft.action,
            costs=draft.costs,
            evidence=draft.evidence,
            wrong_if=draft.wrong_if,
        )
        for draft in unranked
        if now[draft.of] - draft.then_bytes >= LEAST_SHARE * now[draft.of] or draft.always
    ]

    certain = {draft.rule for draft in unranked if draft.is_certain}

    def place(finding: MemoryFinding) -> tuple[int, int]:
        worth = finding.saves_bytes >= _WORTH[finding.of] * now[finding.of]
        before = worth and finding.rule not in _TRADES and finding.rule in certain
        return 0 if finding.rule in _FIRST else 1 if before else 2, -finding.saves_bytes

    return sorted(made, key=place)


# ---------------------------------------------------------------- one device


def _device(case: Case, findings: Sequence[MemoryFinding], losses: Losses) -> DeviceMemoryEntry:
    history, memory = case.history, case.memory
    return DeviceMemoryEntry(
        device=memory.device,
        allocated_bytes=int(history.allocated[-1]),
        reserved_bytes=int(history.reserved[-1]),
        peak_bytes=history.peak_bytes,
        peak_reserved_bytes=int(history.reserved.max()),
        peak_step=_peak_step(case),
        peak_phase=_phase(case),
        owners=_owners(case),
        peak=_alive(case),
        fragmentation_bytes=None if memory.traced is not None else sum(map(_unusable, memory.segments)),
        pins=_pins(case),
        growth=losses.part("growth", lambda: _growth(case), tuple),
        oom=losses.part("the refused request", lambda: _out_of_memory(case, findings), lambda: None),
        settings=losses.part("the settings of the allocator", lambda: _settings(case), tuple),
        events=case.count,
        adds_up=bool(case.count) and history.fits_together,
        steps=len(case.steps.ends) + _is_begun(case),
        steps_by=case.steps.by,
        notes=(
            *_notes(case),
            *(f"{loss.part} could not be computed, a fault of opscope's own ({loss.reason})." for loss in losses.found),
        ),
    )


def _is_begun(case: Case) -> bool:
    """Tell whether something is allocated after the last step that is over."""
    ends = case.steps.ends
    return (
        bool(ends)
        and not case.steps.is_marked
        and bool((case.memory.events.action[ends[-1] + 1 :] == Action.ALLOC).any())
    )


def _peak_step(case: Case) -> int | None:
    ends = case.steps.ends
    if not ends or case.peak_row < 0:
        return None
    number = case.steps.number_at(case.peak_row)
    # What comes after the last range that PyTorch's profiler has recorded is no step.
    return None if number == len(ends) and case.steps.is_marked else number


def _phase(case: Case) -> str:
    if case.peak_row < 0:
        return "before the first recorded event"
    phase = str(case.owned.phase[case.peak_row])
    return {
        "forward": "in the forward pass", "backward": "in the backward pass", "optimizer": "in the optimizer's step",
    }.get(phase, "outside of modules and of the backward pass")  # fmt: skip


def _owners(case: Case) -> tuple[OwnerEntry, ...]:
    now = by_owner(case.owned.owner[case.alive], case.lives.bytes[case.alive])
    before = _owners_before(case)
    names = sorted({*now, *(before or {})}, key=lambda name: (-now.get(name, 0), name))
    return tuple(OwnerEntry(name, now.get(name, 0), None if before is None else before.get(name, 0)) for name in names)


def _owners_before(case: Case) -> dict[Owner, int] | None:
    """Return the owners at the peak of the step before; None if there is none."""
    first, _ = case.peak_step
    if first == 0 or case.peak_row < 0:
        return None
    number = case.steps.number_at(first - 1)
    begin = case.steps.ends[number - 1] + 1 if number else 0
    row = begin + int(np.argmax(case.history.allocated[begin + 1 : first + 1]))
    alive = (case.lives.begin <= row) & (case.lives.end > row)
    return dict(by_owner(case.owned.owner[alive], case.lives.bytes[alive]))


def _alive(case: Case) -> tuple[AliveEntry, ...]:
    sums: dict[tuple[Owner, str | None, str | None, str | None], list[int]] = {}
    for life in np.flatnonzero(case.alive).tolist():
        stack = case.table.stacks[int(case.lives.stack[life])]
        key = (case.owned.owner[life], stack.modules, stack.operator, stack.line)
        entry = sums.setdefault(key, [0, 0])
        entry[0] += int(case.lives.bytes[life])
        entry[1] += 1
    entries = [
        AliveEntry(owner=owner, module=module, operator=operator, line=line, bytes=size, count=count)
        for (owner, module, operator, line), (size, count) in sums.items()
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.owner, entry.line or "")))


def _unusable(segment: Segment) -> int:
    """Return what is free in a segment that holds something: it cannot be given back, and serves what fits alone.

    Pages of an expandable segment can be given back one by one.
    """
    free = sum(block.bytes for block in segment.blocks if not block.is_active)
    return free if free < segment.bytes and not segment.is_expandable else 0


def _pins(case: Case) -> tuple[PinEntry, ...]:
    pinned = sorted(
        (
            one
            for one in case.memory.segments
            if _unusable(one) >= _MIB and any(block.is_active for block in one.blocks)
        ),
        key=lambda one: -_unusable(one),
    )
    entries = []
    for segment in pinned[:_PINS]:
        largest = max((block for block in segment.blocks if block.is_active), key=lambda block: block.bytes)
        held = sum(block.bytes for block in segment.blocks if block.is_active)
        entries.append(
            PinEntry(segment.address, segment.bytes, _unusable(segment), held, case.table.stacks[largest.stack].line)
        )
    return tuple(entries)


def _growth(case: Case) -> tuple[GrowthEntry, ...]:
    grown = growth_of(case)
    kept = [] if grown is None else [GrowthEntry(grown.lines[0], grown.bytes_per_step, grown.steps, grown.bytes)]
    replaced: dict[str | None, list[int]] = {}
    for chain in replaced_chains(case):
        sizes = case.lives.requested[chain]
        line = replaced.setdefault(case.line_of(int(chain[0])), [0, 0, 0])
        line[0] += int(np.median(np.diff(sizes)))
        line[1] = max(line[1], len(chain) - 1)
        line[2] += int(sizes[-1])
    entries = kept + [GrowthEntry(line, *numbers) for line, numbers in replaced.items()]
    return tuple(sorted(entries, key=lambda entry: -entry.bytes_per_step))


# ---------------------------------------------------------------- out of memory


def _out_of_memory(case: Case, findings: Sequence[MemoryFinding]) -> OutOfMemory | None:
    events = case.memory.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if not len(rows):
        return None
    row = int(rows[-1])
    stack = case.table.stacks[int(events.stack[row])]
    asked, allocated, reserved = (
        int(events.bytes[row]),
        int(case.history.allocated[row]),
        int(case.history.reserved[row]),
    )
    free = int(events.address[row])
    entry = OutOfMemory(
        asked_bytes=asked,
        line=stack.line,
        module=stack.modules,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_free_bytes=free if free >= 0 else None,
        count=len(rows),
        sentence="",
    )
    return replace(entry, sentence=" ".join(_oom_sentences(case, entry, row, findings)))


def _oom_sentences(case: Case, oom: OutOfMemory, row: int, findings: Sequence[MemoryFinding]) -> Iterator[str]:
    alive = (case.lives.begin < row) & (case.lives.end > row)
    owners = sorted(by_owner(case.owned.owner[alive], case.lives.bytes[alive]).items(), key=lambda one: -one[1])
    most = ", ".join(f"{format_bytes(size)} of {name}" for name, size in owners[:3])
    where = f" at {oom.line}" if oom.line else ""
    yield (
        f"A request for {format_bytes(oom.asked_bytes)}{where} was refused while {format_bytes(oom.allocated_bytes)} "
        f"were allocated ({most})."
    )
    unused, elsewhere = case.unused_for(row), oom.reserved_bytes - oom.allocated_bytes
    if unused >= oom.asked_bytes:
        yield (
            f"{format_bytes(unused)} more were reserved and free, in pieces that were too small: memory was "
            "fragmented, not full."
        )
    elif elsewhere - unused >= oom.asked_bytes:
        yield (
            f"{format_bytes(elsewhere - unused)} more were reserved for other streams, sizes or pools, or still in use "
            "by another stream, so that this request could not have them."
        )
    if oom.device_free_bytes is not None and oom.device_free_bytes >= segment_size(oom.asked_bytes):
        yield (
            f"The device still had {format_bytes(oom.device_free_bytes)}: probably the program's own limit refused"
            " it (set_per_process_memory_fraction)."
        )
    if case.scale > 1:
        yield (
            f"The step is {case.scale:.3g} times as large as the one before it; by that one it would have come to "
            f"{format_bytes(case.peak_bytes)}."
        )
    best = next((finding for finding in findings if finding.of == "allocated" and finding.saves_bytes), None)
    if best is not None and best.then_bytes < oom.allocated_bytes:
        action = best.action.split(". ")[0].rstrip(".")
        until = " up to that request" if not case.steps.ends else ""
        yield f"With this the peak{until} is {format_bytes(best.then_bytes)}: {action}."


# ---------------------------------------------------------------- settings


def _settings(case: Case) -> tuple[SettingEntry, ...]:
    """Replay the settings that the allocator has, where they could matter."""
    if not case.is_replayed_right or case.memory.device is None:
        return ()
    now = case.settings
    tried = [("", now)]
    if not now.is_expandable:
        tried.append(("expandable_segments:True", replace(now, is_expandable=True)))
        tried += [(f"max_split_size_mb:{most}", replace(now, max_split_size=most * _MIB)) for most in (64, 256)]
        if case.limit[0] < UNLIMITED and not now.collects_at:
            tried.append(("garbage_collection_threshold:0.8", replace(now, collects_at=0.8)))
    return tuple(_tried(case, text, settings) for text, settings in tried)


def _tried(case: Case, text: str, settings: Settings) -> SettingEntry:
    gave, refused = case.limit
    low = case.replay(Change(settings))
    if not low.refused or not text:
        fits = None if gave >= UNLIMITED else not low.refused
        return SettingEntry(text, int(low.reserved.max()), fits)
    high = case.replay(Change(settings), limit=refused - 1)
    return SettingEntry(text, int((low if high.refused else high).reserved.max()), False if high.refused else None)


def _notes(case: Case) -> Iterator[str]:
    if not case.count:
        yield (
            "No history was recorded, only what was alive then: torch.cuda.memory._record_memory_history(), before the "
            "steps of interest, records one."
        )
        return
    if not case.history.fits_together:
        lost = "skip_actions, or several histories in one" if case.memory.traced is None else "or are out of order"
        yield (
            f"The entries of this history do not add up: some are missing ({lost}). So its peak is not to be trusted, "
            "and no change is proposed."
        )
    if not case.table.has_python:
        stacks = "with_stack=True" if case.memory.traced is not None else "context='all', stacks='python'"
        yield f"No lines of Python were recorded, which tell owners ({stacks})."
    before = int(case.history.allocated[0])
    if before:
        yield (
            f"{format_bytes(before)} were allocated before the history begins; a higher peak before that is not in it."
        )
    if case.memory.traced is not None:
        yield "The allocator's settings were not replayed: that takes a snapshot (opscope profile --memory)."
    elif case.count > MOST_REPLAYED:
        yield f"The allocator's settings were not replayed: {case.count:,} events are more than {MOST_REPLAYED:,}."
    elif not case.is_replayed_right:
        yield "The allocator's settings were not replayed: a replay of the recording itself is off by more than 2 %."
    if case.calls is not None and case.count > MOST_FOLLOWED:
        yield f"The effect of autocast was not estimated: {case.count:,} events are more than {MOST_FOLLOWED:,}."
    if (case.memory.events.action == Action.OOM).sum() and not case.steps.ends:
        yield "No whole step lies before the request that was refused, so that what it would have come to is unknown."
