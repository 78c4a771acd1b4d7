"""What the threads of the host did, as one tree: named ranges, operators and API calls, nested as they ran."""

import re
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, nesting_of
from opscope.analysis.structure.nesting import Ints, Nesting
from opscope.base.text import lazy_pattern
from opscope.trace.model import Trace

# Every step has a number of its own, so that each would make a path of its own.
_NUMBERED_STEP: Final = lazy_pattern(r"^ProfilerStep#\d+$")
STEP: Final = "ProfilerStep"


class CallTree(Struct, frozen=True, dict=True):
    """The annotations, operators and API calls of a trace, one after the other, with their nesting.

    Attributes:
        nesting: which slice lies in which; of equal times, an annotation is around an operator, and that around a call.
        first_operator: the position of the first operator; annotations come before it.
        first_launch: the position of the first API call.
        name: per slice the position of its name in ``names``.
        names: the distinct names; all steps share one.
    """

    nesting: Nesting
    first_operator: int
    first_launch: int
    name: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, trace: Trace) -> "CallTree":
        """Build the tree of a trace."""
        tables = (trace.annotations, trace.operators, trace.launches)
        every = pl.concat([table.select("thread", "name", "start_ns", "duration_ns") for table in tables])
        # Operators have numbers that grow as they begin; annotations and calls have none.
        number = column(trace.operators, "external_id")
        unknown = [np.full(table.height, -1, np.int64) for table in tables]
        began = np.concatenate([unknown[0], np.where(number > 0, number, -1), unknown[2]])
        name, names = numbered(every["name"])
        first_operator = trace.annotations.height
        return cls(nesting_of(every, began), first_operator, first_operator + trace.operators.height, name, names)

    @cached_property
    def self_ns(self) -> Ints:
        """Per slice its duration without what lies in it; 0 where slices that overlap leave nothing."""
        return self_time(self.nesting)


def numbered(
    texts: pl.Series, rename: re.Pattern[str] | None = _NUMBERED_STEP, to: str = STEP
) -> tuple[Ints, tuple[str, ...]]:
    """Return per text the position of its name, and the distinct names.

    Args:
        texts: a categorical column.
        rename: texts that match it share one name; None for none.
        to: that name.
    """
    distinct = texts.unique(maintain_order=True)
    names: dict[str, int] = {}
    spelled = (to if rename is not None and rename.match(text) else text for text in distinct.cast(pl.String))
    number = [names.setdefault(text, len(names)) for text in spelled]
    codes = distinct.to_physical().to_numpy()
    place = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
    place[codes] = number
    result: Ints = place[texts.to_physical().to_numpy()]
    return result, tuple(names)


def self_time(nesting: Nesting) -> Ints:
    """Return per slice its duration without what lies in it; 0 where slices that overlap leave nothing."""
    length = nesting.end - nesting.start
    inner = np.flatnonzero(nesting.parent >= 0)
    own = length.copy()
    np.subtract.at(own, nesting.parent[inner], length[inner])
    positive: Ints = np.maximum(own, 0)
    return positive
