"""Operator calls with their arguments, as profilers record them, by the names of the schema."""

import json
import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.knowledge.dtypes import DataType, recorded_dtype

Shape = tuple[int, ...]
_MOST_SIDES: Final = 64
_LARGEST: Final = 1 << 48  # elements: a hundred times what any device holds
_LONGEST_NUMBER: Final = 12  # digits


class RecordedCall(Struct, frozen=True):
    """The inputs of one call as recorded, one entry per argument of the schema.

    Attributes:
        dims: shapes of tensors; None for other arguments.
        types: as the profiler writes them (``float``, ``Scalar``).
        values: of arguments that are not tensors, as text; empty where they were not recorded.
        strides: of tensors, in elements; None for other arguments, empty where they were not recorded.
        names: of the arguments in the schema; None where the schema in question is not certain.
        lists: shapes of the tensors of a list; None for other arguments.
    """

    dims: tuple[Shape | None, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    strides: tuple[Shape | None, ...] = ()
    names: tuple[str | None, ...] = ()
    lists: tuple[tuple[Shape, ...] | None, ...] = ()

    @classmethod
    def read(
        cls,
        dims: str | None,
        types: str | None,
        values: str | None,
        strides: str | None = None,
        names: Sequence[str | None] = (),
    ) -> "RecordedCall | None":
        """Read what the tables hold as JSON text; None where shapes were not recorded or are not plain.

        Args:
            dims: JSON list of shapes, one per argument; None if not recorded, as with the other texts.
            types: JSON list of types.
            values: JSON list of values.
            strides: JSON list of strides.
            names: the arguments' names in the schema; None for uncertain ones.
        """
        try:
            read_dims = json.loads(dims or "null")
            read_types, read_values = json.loads(types or "null"), json.loads(values or "null")
            read_strides = json.loads(strides or "null")
        except (ValueError, RecursionError):
            return None
        if not isinstance(read_dims, list) or not isinstance(read_types, list):
            return None
        if not all(isinstance(name, str) for name in read_types):
            return None
        return cls(
            tuple(tuple(d) if _is_shape(d) else None for d in read_dims),
            tuple(read_types),
            tuple(read_values) if isinstance(read_values, list) else (),
            tuple(tuple(s) if _are_strides(s) else None for s in read_strides)
            if isinstance(read_strides, list)
            else (),
            tuple(names),
            tuple(tuple(map(tuple, d)) if _is_list_of_shapes(d) else None for d in read_dims),
        )

    def named(self, names: Sequence[str | None]) -> "RecordedCall":
        """Return the call with these names of its arguments."""
        return replace(self, names=tuple(names))

    def shape(self, name: str) -> Shape | None:
        """Return an argument's shape; None where it is not a tensor, or has no dimensions."""
        position = self._position(name)
        return None if position is None or position >= len(self.dims) else self.dims[position] or None

    def shapes(self, name: str) -> tuple[Shape, ...] | None:
        """Return the shapes of an argument that is a list of tensors; None where they were not recorded."""
        position = self._position(name)
        return None if position is None or position >= len(self.lists) else self.lists[position]

    def booleans(self, name: str) -> tuple[bool, ...] | None:
        """Return an argument that is a list of truth values; None if it is something else, or was not recorded."""
        text = (self._value(name) or "").strip("[]")
        parts = [part.strip() for part in text.split(",")]
        return tuple(part == "True" for part in parts) if set(parts) <= {"True", "False"} else None

    def says_no(self, name: str) -> bool:
        """Tell whether an argument was recorded as False or 0."""
        return self._value(name) in ("False", "0")

    def says_yes(self, name: str) -> bool:
        """Tell whether an argument was recorded as True or 1."""
        return self._value(name) in ("True", "1")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an argument that is an integer or a list of them; None if it is neither, or was not recorded."""
        try:
            value = json.loads(self._value(name) or "null")
        except (ValueError, RecursionError):
            return None
        values = value if isinstance(value, list) else [value]
        # Not isinstance, which true and false would pass.
        return tuple(values) if all(type(item) is int and abs(item) < _LARGEST for item in values) else None

    def dtype(self, name: str) -> DataType | None:
        """Return the data type of a tensor argument; None if it is not a tensor, or of a type that is not known."""
        position = self._position(name)
        return None if position is None or position >= len(self.types) else recorded_dtype(self.types[position])

    def bytes_of(self, name: str) -> int | None:
        """Return how many bytes a tensor argument takes in memory; None without dimensions, or of unknown type."""
        position = self._position(name)
        return None if position is None else self._bytes_at(position)

    def tensors(self) -> list[tuple[Shape, DataType | None, int | None]]:
        """Return shape, data type and bytes of every tensor argument with dimensions, except ``out``."""
        out = self._position("out")
        return [
            (shape, recorded_dtype(self.types[at]) if at < len(self.types) else None, self._bytes_at(at))
            for at, shape in enumerate(self.dims)
            if shape and at != out
        ]

    def is_strided(self) -> bool:
        """Tell whether all tensors have strides, as far as strides were recorded: sparse ones have none."""
        if not self.strides:
            return True
        return all(
            not shape or at >= len(self.strides) or len(self.strides[at] or ()) == len(shape)
            for at, shape in enumerate(self.dims)
            if at < len(self.types) and recorded_dtype(self.types[at]) is not None
        )

    def number(self, name: str) -> int | None:
        """Return an argument that is a whole number; None if it is something else, or was not recorded."""
        text = (self._value(name) or "").strip()
        digits = text.removeprefix("-")
        return int(text) if digits.isdecimal() and len(digits) <= _LONGEST_NUMBER else None

    def gives(self, name: str) -> bool:
        """Tell whether an optional argument was given: a tensor, or a value that is not None."""
        position = self._position(name)
        if position is None:
            return False
        tensor = position < len(self.types) and recorded_dtype(self.types[position]) is not None
        return tensor or (self._value(name) or "None") not in ("", "None")

    def _bytes_at(self, position: int) -> int | None:
        """Return the bytes that an argument takes in memory: an expanded side (stride 0) takes one element."""
        shape = self.dims[position] if position < len(self.dims) else None
        dtype = recorded_dtype(self.types[position]) if position < len(self.types) else None
        if not shape or dtype is None:
            return None
        steps = self.strides[position] if position < len(self.strides) else None
        expanded = steps is not None and len(steps) == len(shape)
        if not expanded or steps is None:
            return dtype.size_bytes * math.prod(shape)
        sides = (1 if steps[i] == 0 else side for i, side in enumerate(shape))
        # Windows that overlap (unfold) reach no further than their last element.
        reach = 1 + sum((side - 1) * step for side, step in zip(shape, steps, strict=True))
        return dtype.size_bytes * min(math.prod(sides), max(reach, 1))

    def _value(self, name: str) -> str | None:
        position = self._position(name)
        return None if position is None or position >= len(self.values) else self.values[position]

    def _position(self, name: str) -> int | None:
        return self.names.index(name) if name in self.names else None


def _are_strides(value: object) -> bool:
    if not isinstance(value, list) or len(value) > _MOST_SIDES:
        return False
    return all(type(step) is int and 0 <= step < _LARGEST for step in value)


def _is_list_of_shapes(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_shape(item) for item in value)


def _is_shape(value: object) -> bool:
    """Tell whether a recorded value is the sizes of a tensor that can exist."""
    if not isinstance(value, list) or len(value) > _MOST_SIDES:
        return False
    return all(type(side) is int and 0 <= side < _LARGEST for side in value) and math.prod(value) < _LARGEST
