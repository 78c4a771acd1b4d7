"""The versions of the document of a trace (``opscope.analysis/1``): what was added when. Nothing changes its meaning.

A reader of version N reads all earlier ones: what they lack has a default.
"""

from collections.abc import Mapping
from typing import Final

HISTORY: Final[Mapping[int, str]] = {
    1: "the analysis of a trace; documents of this version do not say their version",
    2: "what was measured beside the trace (capture, measurement, step_count, trace, memory, device_times_reason), the "
    "details of operators and kernels (detail, summary, source_file, ...), annotations; the statistics file of "
    "'opscope profile' is this document, with the first reports' keys in milliseconds beside its own; idle time that "
    "the host caused is 'host wait' (it was 'host late')",
    3: "gaps; idle time that the host caused is 'dispatch', 'host work' or 'blocking call' (they were 'host wait' and "
    "'synchronisation'), and 'profiler' is told from them",
    4: "findings; findings_reason; limits; iterations; light; share_low, share_high of bound, whose kinds are single "
    "words now ('device' was 'device-bound', 'dispatch' was 'launch-bound' and 'partly launch-bound'); steps that do "
    "not wait for their work are measured by it",
}
CURRENT: Final = max(HISTORY)
