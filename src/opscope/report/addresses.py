"""Every value of a document by its address: ``findings/dispatch_bound/saving_ns/low``, ``operators/aten::mm/calls``.

An address goes from field to field. Of a list it takes the entry of a name (an id, the name of an operator) where one
entry alone has it, or that of a number, from 1 on, in the document's order. Single values
are also written for people here.
"""

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import msgspec
from msgspec import Struct

from opscope.base.errors import UsageError
from opscope.base.text import lazy_pattern
from opscope.base.units import format_bytes, format_count, format_ns
from opscope.documents.findings import ShownValue
from opscope.documents.trace import DeviceEntry
from opscope.render.blocks import Block, Bullets, Name, Paragraph, Section, Table, Whole

# What entries of lists are called by: the first of these fields that they have.
_KEYS: Final = ("id", "path", "name", "category", "number", "operator", "kernel")
_KEY_OF: Final[Mapping[type, str]] = {DeviceEntry: "device"}  # where another field names an entry
_NAMED: Final = 5  # addresses that an error names
_FIELD: Final = lazy_pattern(r"^    (?! )([a-z_0-9]+(?:, [a-z_0-9]+)*):\s*(.*)$")
_LISTED: Final = 12  # entries of a list
_COLUMNS: Final = 7  # of a table of entries, beside their addresses
_LONG: Final = 160  # characters of a value in a list


def value_at(document: Struct, address: str) -> ShownValue:
    """Return the value at an address of a document.

    Args:
        document: the document.
        address: fields and entries, separated by slashes.

    Raises:
        UsageError: there is nothing at that address.
    """
    value: object = document
    means: str | None = _first_sentence(type(document))
    rest, taken = address.strip("/"), list[str]()
    while rest:
        step, value, rest, meaning = _into(value, rest, "/".join(taken))
        means = meaning or means
        taken.append(step)
    return ShownValue(
        address="/".join(taken),
        value=msgspec.to_builtins(value),
        text=_text(value, _unit_of(taken)),
        means=means,
        inside=tuple("/".join((*taken, key)) for key in _keys(value)),
    )


def _into(value: object, rest: str, at: str) -> tuple[str, object, str, str | None]:
    """Take one step of an address; return it, where it leads, what is left, and what the field means."""
    step, _, after = rest.partition("/")
    if isinstance(value, Struct):
        if step in value.__struct_fields__:
            return step, getattr(value, step), after, definitions(type(value)).get(step)
    elif isinstance(value, Mapping):
        # Keys may hold slashes: the longest one that fits.
        for key in sorted(map(str, value), key=len, reverse=True):
            if rest == key or rest.startswith(f"{key}/"):
                return key, value[key], rest[len(key) + 1 :], None
    elif isinstance(value, list | tuple):
        for key, entry in sorted(_entries(value), key=lambda item: -len(item[0])):
            if rest == key or rest.startswith(f"{key}/"):
                return key, entry, rest[len(key) + 1 :], _first_sentence(type(entry))
        if step.isascii() and step.isdigit() and 1 <= int(step) <= len(value):
            return step, value[int(step) - 1], after, _first_sentence(type(value[int(step) - 1]))
    known = list(_keys(value))
    listed = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
    raise UsageError(f"there is no {rest} in {at or 'the document'}; it has {listed or 'no parts'}")


def _entries(values: Sequence[object]) -> Iterator[tuple[str, object]]:
    """Yield the entries of a list whose name no other entry has."""
    names = [_name_of(entry) for entry in values]
    counts = Counter(names)
    yield from ((name, entry) for name, entry in zip(names, values, strict=True) if name and counts[name] == 1)


def _name_of(entry: object) -> str | None:
    keys = (_KEY_OF[type(entry)],) if type(entry) in _KEY_OF else _KEYS
    result = (getattr(entry, key) for key in keys if isinstance(entry, Struct) and key in entry.__struct_fields__)
    return next((str(name) for name in result if name is not None), None)


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, Struct):
        yield from value.__struct_fields__
    elif isinstance(value, Mapping):
        yield from map(str, value)
    elif isinstance(value, list | tuple):
        named = {id(entry): name for name, entry in _entries(value)}
        yield from (named.get(id(entry), str(number)) for number, entry in enumerate(value, start=1))


def _unit_of(taken: Sequence[str]) -> str:
    """Return the name that tells a value's unit: of an entry of ``idle_by_cause_ns`` the mapping's."""
    return next(
        (name for name in reversed(taken[-2:]) if name.endswith(("_ns", "_bytes", "_share"))),
        taken[-1] if taken else "",
    )


def _text(value: object, name: str) -> str:
    """Return a value for people: a number with its unit and, where that rounds, its exact value."""
    if value is None:
        return "null: it was not measured, or does not apply"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value) if isinstance(value, str | bool) else f"{len(list(_keys(value)))} parts"
    if name.endswith("_ns") or name in ("low", "high"):
        return f"{format_ns(value)} ({value:,} ns)"
    if name.endswith("_bytes") or name == "bytes":
        return f"{format_bytes(value)} ({value:,} bytes)"
    if name.endswith("_share") or name in ("share", "mfu", "hfu"):
        return f"{value:.1%} ({value!r})"
    return f"{value!r}" if isinstance(value, float) else format_count(value)


@cache
def definitions(kind: type) -> Mapping[str, str]:
    """Return what the fields of a type stand for, by its docstring."""
    results: dict[str, str] = {}
    names: tuple[str, ...] = ()
    in_attributes = False
    for line in (inspect.getdoc(kind) or "").splitlines():
        if line.strip() == "Attributes:":
            in_attributes = True
        elif in_attributes and line and not line.startswith(" "):
            in_attributes = False
        elif in_attributes and (match := _FIELD.match(line)):
            names = tuple(match[1].split(", "))
            results.update(dict.fromkeys(names, match[2]))
        elif in_attributes and line.strip():
            results.update({name: f"{results[name]} {line.strip()}" for name in names})
    return results


def _first_sentence(kind: type) -> str | None:
    if not (issubclass(kind, Struct) or dataclasses.is_dataclass(kind)):
        return None
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0] or None


def shown_section(one: ShownValue) -> Section:
    """Return a value as a section: what it means, then the value with its parts."""
    return Section((Name(one.address or "the document"),), tuple(_blocks(one)))


def _blocks(one: ShownValue) -> Iterator[Block]:
    if one.means is not None:
        yield Paragraph.of(one.means)
    if isinstance(one.value, Mapping):
        lines = ((Name(key), ": ", *_brief(value)) for key, value in one.value.items())
        yield Bullets(tuple(lines))
    elif isinstance(one.value, list | tuple):
        yield Paragraph.of(f"{len(one.value):,} entries:")
        yield _shown_entries(one)
    else:
        yield Paragraph.of(Whole(one.text))


def _shown_entries(one: ShownValue) -> Table:
    """Return the entries of a list with their addresses, and what of them is a number or text."""
    entries = one.value
    called = [address.rpartition("/")[2] for address in one.inside]  # what the address says already
    scalars = dict.fromkeys(
        key
        for name, entry in zip(called, entries, strict=True)
        for key, value in (entry.items() if isinstance(entry, Mapping) else ())
        if isinstance(value, str | int | float) and value != name
    )
    columns = list(scalars)[:_COLUMNS]
    rows = tuple(
        (Name(address), *(Name(_brief(entry.get(key))[0]) for key in columns))
        if isinstance(entry, Mapping)
        else (Name(address), Name(str(entry)))
        for address, entry in zip(one.inside, entries, strict=True)
    )
    return Table(("address", *(columns or ["value"])), rows)


def _brief(value: object) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return (f"{len(value)} parts",)
    if isinstance(value, list | tuple):
        flat = all(isinstance(one, str | int | float) for one in value)
        return (Name(", ".join(map(str, value[:_LISTED]))),) if flat and value else (f"{len(value):,} entries",)
    text = "null" if value is None else str(value)
    return (Name(text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"),)
