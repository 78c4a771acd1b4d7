"""How much is tried: a little in every run of the tests, for as long as you like with ``make fuzz``."""

import os
import random

EFFORT = int(os.environ.get("OPSCOPE_FUZZ", "1"))  # how many times as much
SEED = os.environ.get("OPSCOPE_FUZZ_SEED", "")


def examples(count: int) -> int:
    """Return how many examples are tried where every run of the tests tries ``count``."""
    return count * EFFORT


def chance(*what: object) -> random.Random:
    """Return random numbers: the same in every run of the tests, others for each seed."""
    return random.Random(" ".join(map(str, (*what, SEED))))
