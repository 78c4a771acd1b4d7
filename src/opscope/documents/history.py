"""The versions of the document of a trace (``opscope.analysis/1``): what was added when. Nothing changes its meaning.

A reader of version N reads all earlier ones that a release wrote: what they lack has a default.
"""

from collections.abc import Mapping
from typing import Final

HISTORY: Final[Mapping[int, str]] = {
    1: "release 0.2.0",
}
CURRENT: Final = max(HISTORY)
