"""The names of files in run directories, for those who look for them."""

from typing import Final

from opscope.base.patterns import lazy_pattern

MANIFEST: Final = "manifest.json"  # a folder with one is the run directory of a sweep
KEPT: Final = ".opscope"  # the folder beside traces that keeps what was read of them
WORD: Final = r"[^/\x00-\x1f]+"
TRACE_NAME: Final = lazy_pattern(rf"{WORD}_trace_{WORD}\.json")  # of the traces in a sweep's run directory
