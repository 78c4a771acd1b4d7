"""Decodes the compiled reader's columns of text (lists, collectives' names, kernels' files), each text once."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.readers.events import dim3, list_text, text_of, text_or_list
from opscope.readers.native.filled import Array
from opscope.readers.odd import decode_event

_AT_ONCE: Final = 4_096  # lists are decoded together: one by one takes three times as long


def _file_or_name(value: Any) -> str | None:
    return text_of(value) if isinstance(value, str) else None


def _list_of_text(value: Any) -> str | None:
    return list_text(value, of_text=True)


_READINGS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    **dict.fromkeys(("input_dims", "input_strides"), list_text),
    **dict.fromkeys(("input_types", "concrete_inputs"), _list_of_text),
    **dict.fromkeys(("grid", "block"), dim3),
    **dict.fromkeys(("collective", "kernel_file", "cause"), _file_or_name),
    **dict.fromkeys(("group", "group_description", "element_type"), _file_or_name),
    **dict.fromkeys(("group_ranks", "splits_in", "splits_out"), text_or_list),
}


class TextColumn(Struct, frozen=True):
    """A decoded column, and how many bytes were replaced or unreadable, counted for every row that uses the text."""

    values: pl.Series
    replaced_bytes: int
    unreadable_bytes: int


def text_column(name: str, tokens: Sequence[bytes], codes: Array) -> TextColumn:
    """Decode a column.

    Args:
        name: the column, which decides how its texts are read.
        tokens: the JSON text of every string.
        codes: per row the index of its text in ``tokens``; -1 for none.
    """
    # The texts of all columns are in one pool; only those of this column are decoded.
    used = np.zeros(len(tokens) + 1, np.bool_)  # the last one is for -1
    used[codes] = True
    used[-1] = False
    numbers = np.flatnonzero(used)
    texts: list[str | None] = []
    damaged: dict[int, tuple[int, int]] = {}
    read = _READINGS[name]
    for number, (value, replaced, unreadable) in zip(numbers, _decoded(tokens, numbers), strict=True):
        texts.append(read(value))
        if replaced or unreadable:
            damaged[int(number)] = replaced, unreadable
    # From a text's number to its place among the decoded ones; the place after the last one is None.
    place = np.full(len(tokens) + 1, len(numbers), np.int64)
    place[numbers] = np.arange(len(numbers))
    values = pl.Series([*texts, None], dtype=pl.Categorical).gather(place[codes])
    return TextColumn(values, *_damage(damaged, codes))


def _decoded(tokens: Sequence[bytes], numbers: Array) -> Iterator[tuple[Any, int, int]]:
    """Yield the values of texts by their numbers, with how many bytes of each were replaced or unreadable."""
    for first in range(0, len(numbers), _AT_ONCE):
        chosen = [tokens[number] for number in numbers[first : first + _AT_ONCE]]
        try:
            values = json.loads((b"[" + b",".join(chosen) + b"]").decode())
        except (ValueError, RecursionError):
            values = ()
        if len(values) == len(chosen):
            yield from ((value, 0, 0) for value in values)
        else:
            yield from map(_one, chosen)


def _one(token: bytes) -> tuple[Any, int, int]:
    event, replaced = decode_event(b'{"value": ' + token + b"}")
    return (event.get("value"), replaced, 0) if event else (None, replaced, len(token))


def _damage(damaged: Mapping[int, tuple[int, int]], codes: Array) -> tuple[int, int]:
    rows = {number: int((codes == number).sum()) for number in damaged}
    return (
        sum(count * damaged[number][0] for number, count in rows.items()),
        sum(count * damaged[number][1] for number, count in rows.items()),
    )
