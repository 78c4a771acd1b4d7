"""Which rows of a table have a name that does something, as masks: of calls by what they are, of others by the text."""

from collections.abc import Callable

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import kept
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.knowledge.api_calls import ApiCall, ApiKind, api_call


def calls_that(launches: pl.DataFrame, wanted: Callable[[ApiCall], bool]) -> Bools:
    """Tell per row of a table of launches whether a condition holds for its call."""
    return names_that(launches, lambda name: wanted(api_call(name)))


def calls_of(launches: pl.DataFrame, *kinds: ApiKind) -> Bools:
    """Tell per row of a table of launches whether its call is of one of the kinds."""
    return calls_that(launches, lambda call: call.kind in kinds)


def names_that(table: pl.DataFrame, wanted: Callable[[str], object]) -> Bools:
    """Tell per row of a table whether a condition holds for its name; False for null.

    Args:
        table: it has a categorical column ``name``.
        wanted: the condition; it is asked once per distinct name.
    """
    names = _names_of(table)
    mask = np.zeros(names.codes_end + 1, np.bool_)
    mask[names.distinct] = np.fromiter(map(bool, map(wanted, names.texts)), np.bool_, len(names.texts))
    # Nulls read the last entry, which stays False.
    result: Bools = mask[names.codes]
    return result


def any_name(table: pl.DataFrame, wanted: Callable[[str], object]) -> bool:
    """Tell whether a condition holds for any name of a table, which has a categorical column ``name``."""
    return any(map(wanted, _names_of(table).texts))


def names_in(table: pl.DataFrame) -> tuple[str, ...]:
    """Return each name of a table once; it has a categorical column ``name``."""
    return _names_of(table).texts


class _Names(Struct, frozen=True):
    """The names of a table by number: per row (``codes``), and each name once (``distinct`` and ``texts``).

    ``codes_end`` is larger than all numbers of names, and stands in ``codes`` for null.
    """

    codes: Ints
    codes_end: int
    distinct: Ints
    texts: tuple[str, ...]

    @staticmethod
    def of(names: pl.Series) -> "_Names":
        distinct = names.unique().drop_nulls()
        numbers, codes = distinct.to_physical().to_numpy(), names.to_physical()
        end = int(numbers.max()) + 1 if len(numbers) else 0
        if codes.null_count():
            codes = codes.fill_null(end)
        return _Names(codes.to_numpy(), end, numbers, tuple(distinct.cast(pl.String)))


def _names_of(table: pl.DataFrame) -> _Names:
    # A trace's tables are asked some hundred times which of their names do something.
    return kept(table, "names", lambda: _Names.of(table["name"]))
