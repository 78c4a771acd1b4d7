"""Few points of a long curve."""

import numpy as np

from opscope.analysis.structure.nesting import Ints


def extremes(values: Ints, most: int) -> Ints:
    """Return the positions of the first and last value and of each stretch's lowest and highest; all if few enough."""
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), most // 2, dtype=np.int64)
    chosen = {0, len(values) - 1}
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        chosen |= {low + int(np.argmin(values[low:high])), low + int(np.argmax(values[low:high]))}
    return np.array(sorted(chosen), np.int64)
