"""What changed between two snapshots, at their peaks: by owner, and by place in the code."""

import re
from collections.abc import Iterator
from typing import Final

from opscope.base.units import format_bytes, signed_bytes
from opscope.documents.memory import (
    DeviceMemoryDifference,
    DeviceMemoryEntry,
    LineChange,
    MemoryDifference,
    MemoryDocument,
    Owner,
    OwnerChange,
)

_NAMED: Final = 3  # owners in a sentence
_NUMBER: Final = re.compile(r":\d+(?= \()")


def difference_of(before: MemoryDocument, after: MemoryDocument) -> MemoryDifference:
    """Compare two snapshots, device by device."""
    first = {device.device: device for device in before.devices}
    second = {device.device: device for device in after.devices}
    rules = [{(finding.device, finding.rule): finding.title for finding in one.findings} for one in (before, after)]
    return MemoryDifference(
        before=before.snapshot,
        after=after.snapshot,
        devices=tuple(_device(first[number], second[number]) for number in first if number in second),
        gone=tuple(title for key, title in rules[0].items() if key not in rules[1]),
        new=tuple(title for key, title in rules[1].items() if key not in rules[0]),
        notes=tuple(_notes(first, second)),
    )


def _notes(first: dict[int | None, DeviceMemoryEntry], second: dict[int | None, DeviceMemoryEntry]) -> Iterator[str]:
    for number in first.keys() ^ second.keys():
        name = "Pinned memory of the host" if number is None else f"GPU {number}"
        yield f"{name} is only in the {'first' if number in first else 'second'} snapshot."
    for number in first.keys() & second.keys():
        if not first[number].events or not second[number].events:
            yield "A snapshot without a history shows only the end, so that peaks are not compared with it."


def _device(before: DeviceMemoryEntry, after: DeviceMemoryEntry) -> DeviceMemoryDifference:
    owners = _owners(before, after)
    return DeviceMemoryDifference(
        device=before.device,
        sentence=_sentence(before, after, owners),
        before_peak_bytes=before.peak_bytes,
        after_peak_bytes=after.peak_bytes,
        before_reserved_bytes=before.peak_reserved_bytes,
        after_reserved_bytes=after.peak_reserved_bytes,
        owners=owners,
        lines=_lines(before, after),
    )


def _owners(before: DeviceMemoryEntry, after: DeviceMemoryEntry) -> tuple[OwnerChange, ...]:
    sums = [{entry.owner: entry.bytes for entry in one.owners} for one in (before, after)]
    changes = [
        OwnerChange(owner, sums[0].get(owner, 0), sums[1].get(owner, 0))
        for owner in Owner
        if sums[0].get(owner) or sums[1].get(owner)
    ]
    return tuple(sorted(changes, key=lambda one: -abs(one.after_bytes - one.before_bytes)))


def _lines(before: DeviceMemoryEntry, after: DeviceMemoryEntry) -> tuple[LineChange, ...]:
    sums: dict[tuple[Owner, str], list[int]] = {}
    lines: dict[tuple[Owner, str], str | None] = {}
    for at, one in ((1, after), (0, before)):  # entries are sorted by size: the first line of a place has most
        for entry in one.peak:
            key = (entry.owner, _NUMBER.sub("", entry.line or entry.operator or "without a line"))
            sums.setdefault(key, [0, 0])[at] += entry.bytes
            lines.setdefault(key, entry.line)
    changes = [LineChange(owner, place, lines[owner, place], *sizes) for (owner, place), sizes in sums.items()]
    return tuple(sorted(changes, key=lambda one: -abs(one.after_bytes - one.before_bytes)))


def _sentence(before: DeviceMemoryEntry, after: DeviceMemoryEntry, owners: tuple[OwnerChange, ...]) -> str:
    was, now = before.peak_bytes, after.peak_bytes
    peak = f"{format_bytes(was)}, then {format_bytes(now)}"
    reserved = f"reserved {format_bytes(before.peak_reserved_bytes)}, then {format_bytes(after.peak_reserved_bytes)}"
    if was == now:
        return f"The peak is the same: {format_bytes(now)}; {reserved}."
    named = [one for one in owners if one.after_bytes != one.before_bytes][:_NAMED]
    listed = ", ".join(f"{one.owner} {signed_bytes(one.after_bytes - one.before_bytes)}" for one in named)
    direction = "higher" if now > was else "lower"
    return f"The peak is {format_bytes(abs(now - was))} {direction} ({peak}): {listed}; {reserved}."
