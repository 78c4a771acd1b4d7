"""Which calls of a trace do what, as masks over its table of launches."""

from collections.abc import Callable

import numpy as np
import polars as pl

from opscope.analysis.structure.nesting import Bools
from opscope.knowledge.api_calls import ApiCall, ApiKind, api_call


def calls_that(launches: pl.DataFrame, wanted: Callable[[ApiCall], bool]) -> Bools:
    """Tell per row of a table of launches whether a condition holds for its call."""
    return names_that(launches["name"], lambda name: wanted(api_call(name)))


def calls_of(launches: pl.DataFrame, *kinds: ApiKind) -> Bools:
    """Tell per row of a table of launches whether its call is of one of the kinds."""
    return calls_that(launches, lambda call: call.kind in kinds)


def names_that(names: pl.Series, wanted: Callable[[str], object]) -> Bools:
    """Tell per name whether a condition holds for it; False for null.

    Args:
        names: a categorical column.
        wanted: the condition; it is asked once per distinct name.
    """
    distinct = names.unique().drop_nulls()
    if not len(distinct):
        return np.zeros(len(names), np.bool_)
    # By code, not by text: there are millions of names, but only a few hundred different ones.
    numbers = distinct.to_physical().to_numpy()
    mask = np.zeros(int(numbers.max()) + 2, np.bool_)
    mask[numbers] = [bool(wanted(name)) for name in distinct.cast(pl.String)]
    # Nulls read the last entry, which stays False.
    result: Bools = mask[names.to_physical().fill_null(len(mask) - 1).to_numpy()]
    return result
