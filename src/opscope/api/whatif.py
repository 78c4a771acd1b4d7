"""The Python API of what-if questions: ``opscope.whatif``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured
from opscope.analysis.replay.build import Steps, replayed_steps
from opscope.analysis.replay.changes import above_zero
from opscope.base.errors import UsageError
from opscope.documents.whatif import WhatIfDocument
from opscope.readers.reading import read
from opscope.report.whatif_document import Asked, build_whatif, changes_asked


def whatif(
    source: str | Path | Analysis,
    *,
    finding: str | Sequence[str] = (),
    remove: str | Sequence[str] = (),
    scale: Mapping[str, float] | None = None,
    to_limit: str | Sequence[str] = (),
    no_wait: str | Sequence[str] = (),
    overlap_collectives: bool = False,
    bandwidth: Mapping[str, float] | None = None,
    workers: float | None = None,
    batch_size: float | None = None,
    fitted_to: str | Path | Analysis | None = None,
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
        workers: how many times as fast a DataLoader loads batches, ahead of the step: as many as it gets workers
            instead of the main process, or as its workers become more.
        batch_size: how many times as large a batch; needs ``fitted_to``.
        fitted_to: another trace of the same program, or its analysis, with another batch size: what work takes is
            fitted to both.
        no_launch_gaps: whether each step's work is launched at once, as by a CUDA graph.
        as_recorded: whether to start from the recorded step, with what recording cost the host.
        step_time_ns: the step's time without a profiler, in nanoseconds, where it was measured.

    Returns:
        The document of ``opscope whatif --format json``: ``changed_ns``, what each change saves, the critical path.

    Raises:
        UsageError: the trace holds nothing that could be replayed, or nothing of what a change is about.
    """
    if (batch_size is None) is not (fitted_to is None):
        raise UsageError("batch_size and fitted_to go together: costs are fitted to two traces")
    if step_time_ns is not None:
        above_zero("step_time_ns", step_time_ns)
    analysis = _analysis(source)
    steps = _steps_of(analysis)
    asked = Asked(
        finding=_names(finding),
        remove=_names(remove),
        scale=tuple((scale or {}).items()),
        to_limit=_names(to_limit),
        no_wait=_names(no_wait),
        overlap_collectives=overlap_collectives,
        bandwidth=tuple((bandwidth or {}).items()),
        workers=workers,
        batch_size=None if batch_size is None or fitted_to is None else (batch_size, _steps_of(_analysis(fitted_to))),
        no_launch_gaps=no_launch_gaps,
    )
    measured = Measured(analysis, step_time_ns=step_time_ns)
    changes = tuple(changes_asked(measured, steps, asked))
    return build_whatif(analysis.source.path, steps, changes, step_time_ns, as_recorded=as_recorded)


def _names(values: str | Sequence[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


def _analysis(source: str | Path | Analysis) -> Analysis:
    return source if isinstance(source, Analysis) else analyze(read(Path(source)))


def _steps_of(analysis: Analysis) -> Steps:
    steps = replayed_steps(analysis.trace, analysis.links)
    if steps is None:
        raise UsageError("nothing could be replayed: no operator, call or work of a device was recorded")
    return steps
