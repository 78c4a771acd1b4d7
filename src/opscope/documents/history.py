"""The versions of a trace's document (``opscope.analysis/1``), and what each added. No field ever changes its meaning.

A reader of version N can read all earlier versions of releases: fields that they lack have defaults.
"""

from collections.abc import Mapping
from typing import Final

HISTORY: Final[Mapping[int, str]] = {
    1: "release 0.2.0",
}
CURRENT: Final = max(HISTORY)
