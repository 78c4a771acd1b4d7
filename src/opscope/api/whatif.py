"""The Python API of what-if questions: ``opscope.whatif``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured
from opscope.analysis.replay.build import steps_of
from opscope.base.errors import UsageError
from opscope.documents.whatif import WhatIfDocument
from opscope.readers import read
from opscope.report.whatif_changes import Asked, changes_asked
from opscope.report.whatif_document import build_whatif


def whatif(
    source: str | Path | Analysis,
    *,
    finding: Sequence[str] = (),
    remove: Sequence[str] = (),
    scale: Mapping[str, float] | None = None,
    to_limit: Sequence[str] = (),
    no_wait: Sequence[str] = (),
    overlap_collectives: bool = False,
    bandwidth: Mapping[str, float] | None = None,
    no_launch_gaps: bool = False,
    as_recorded: bool = False,
    step_time_ns: float | None = None,
) -> WhatIfDocument:
    """Tell how long a step would take with some changes, by replay of its recording.

    Args:
        source: a trace file, or an analysis of one.
        finding: ids of findings, whose advice is taken: ``["fp32_products"]``.
        remove: names of operators that are not called. Here and below names may hold * and ?.
        scale: by name of operators or kernels the factor on their time: ``{"aten::mm": 0.5}``.
        to_limit: names of operators or kernels that take the least time that the device allows.
        no_wait: names of API calls, or of operators that make them, that no longer wait for the device.
        overlap_collectives: whether other work no longer waits for collectives.
        bandwidth: by link (``nvlink``, ``pcie``, ``memory``) how many times as fast it is.
        no_launch_gaps: whether each step's work is launched at once, as by a CUDA graph.
        as_recorded: whether to start from the recorded step, with what recording cost the host.
        step_time_ns: the step's time without a profiler, in nanoseconds, where it was measured.

    Returns:
        The document of ``opscope whatif --format json``: ``changed_ns``, what each change saves, the critical path.

    Raises:
        UsageError: the trace holds nothing that could be replayed, or nothing of what a change is about.
    """
    analysis = source if isinstance(source, Analysis) else analyze(read(Path(source)))
    steps = steps_of(analysis.trace, analysis.links)
    if steps is None:
        raise UsageError("nothing could be replayed: no operator, call or work of a device was recorded")
    asked = Asked(
        finding=tuple(finding),
        remove=tuple(remove),
        scale=tuple((scale or {}).items()),
        to_limit=tuple(to_limit),
        no_wait=tuple(no_wait),
        overlap_collectives=overlap_collectives,
        bandwidth=tuple((bandwidth or {}).items()),
        no_launch_gaps=no_launch_gaps,
    )
    measured = Measured(analysis, step_time_ns=step_time_ns)
    changes = tuple(changes_asked(measured, steps, asked))
    return build_whatif(analysis.source.path, steps, changes, step_time_ns, as_recorded=as_recorded)
