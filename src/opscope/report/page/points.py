"""Few points of a long curve."""

import numpy as np

from opscope.analysis.structure.nesting import Ints


def extremes(values: Ints, most: int) -> Ints:
    """Return the positions of the first and last value and of each stretch's lowest and highest; all if few enough."""
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), most // 2, dtype=np.int64)
    begins, lengths = bounds[:-1], np.diff(bounds)
    ends = np.array([0, len(values) - 1])
    return np.unique(np.concatenate([ends, *(_first(values, of, begins, lengths) for of in (np.minimum, np.maximum))]))


def _first(values: Ints, of: np.ufunc, begins: Ints, lengths: Ints) -> Ints:
    """Return where each stretch first has its lowest or highest value."""
    equal = np.flatnonzero(values == np.repeat(of.reduceat(values, begins), lengths))
    result: Ints = equal[np.searchsorted(equal, begins)]
    return result
