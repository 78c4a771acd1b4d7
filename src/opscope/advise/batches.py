"""The step as written with a larger batch: how many more samples are done in the same time."""

from msgspec.structs import replace

from opscope.advise.messages import VariantJob
from opscope.advise.session import Worker
from opscope.documents.advise import LargerBatch
from opscope.measuring.rounds import median_interval, ratios


def with_batch(job: VariantJob, size: int) -> VariantJob:
    """Return a job with another batch size."""
    configuration = job.configuration
    if "batch_size" in configuration.axes:
        changed = replace(configuration, axes={**configuration.axes, "batch_size": size})
    else:
        changed = replace(configuration, settings={**configuration.settings, "batch_size": size})
    return replace(job, configuration=changed)


def larger_batch(size: int, factor: float, base: Worker, worker: Worker) -> LargerBatch:
    """Return what a larger batch gives.

    Args:
        size: of the batch.
        factor: how many times as large it is.
        base: the step as written.
        worker: the step with the larger batch, timed beside it.
    """
    if worker.built is None or worker.broken is not None or not worker.blocks:
        reason = "it was not timed" if worker.broken is None else worker.broken.reason
        return LargerBatch(batch_size=size, reason=reason)
    gains = [factor * one for one in ratios(worker.blocks, base.blocks[-len(worker.blocks) :])]
    gain = median_interval(gains)
    return LargerBatch(
        batch_size=size,
        step_ns=median_interval(worker.blocks).median,
        ratio=gain.median,
        ci_low=gain.low,
        ci_high=gain.high,
        memory_bytes=worker.built.memory_bytes,
    )
