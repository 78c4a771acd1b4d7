"""How much is tried: a little in every run of the tests, for hours by ``make fuzz``."""

import os

EFFORT = int(os.environ.get("OPSCOPE_FUZZ", "1"))  # how many times as much


def examples(count: int) -> int:
    """Return how many examples a property is tried on, where every run of the tests takes ``count``."""
    return count * EFFORT
