"""The changes that a user asks for in a what-if question."""

from collections.abc import Iterator

from msgspec import Struct

from opscope.analysis.measured import Measured
from opscope.analysis.replay import changes
from opscope.analysis.replay.batch import other_batch
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.changes import ReplayedChange
from opscope.analysis.replay.loading import more_workers


class Asked(Struct, frozen=True, kw_only=True):
    """What a user asks for; each field is the option of `opscope whatif` with its name.

    Attributes:
        finding: ids of findings, whose advice is taken.
        remove: names of operators.
        scale: names of operators or kernels, each with a factor on its time.
        to_limit: names of operators or kernels.
        no_wait: names of calls or operators.
        overlap_collectives: whether other work no longer waits for collectives.
        bandwidth: links (`opscope.analysis.replay.changes.LINKS`), each with a factor on its speed.
        workers: how many times as fast a DataLoader loads batches, ahead of the step; None as it does.
        batch_size: how many times the batch, with the steps of another trace to which costs are fitted; None for the
            trace's own.
        no_launch_gaps: whether each step is launched at once.
    """

    finding: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    scale: tuple[tuple[str, float], ...] = ()
    to_limit: tuple[str, ...] = ()
    no_wait: tuple[str, ...] = ()
    overlap_collectives: bool = False
    bandwidth: tuple[tuple[str, float], ...] = ()
    workers: float | None = None
    batch_size: tuple[float, Steps] | None = None
    no_launch_gaps: bool = False


def changes_asked(measured: Measured, steps: Steps, asked: Asked) -> Iterator[ReplayedChange]:
    """Yield the changes, in the order of the options.

    Args:
        measured: the trace with what was measured beside it.
        steps: its steps as a graph.
        asked: what the user asks for.

    Raises:
        UsageError: the trace has nothing of what one is about.
    """
    limits = measured.analysis.limits
    yield from (measured.advice.change(name) for name in asked.finding)
    yield from (changes.remove(steps, name) for name in asked.remove)
    yield from (changes.scale(steps, name, factor) for name, factor in asked.scale)
    yield from (changes.to_limit(steps, name, limits) for name in asked.to_limit)
    yield from (changes.no_wait(steps, name) for name in asked.no_wait)
    if asked.overlap_collectives:
        yield changes.overlap_collectives(steps)
    yield from (changes.bandwidth(steps, link, factor, limits) for link, factor in asked.bandwidth)
    if asked.workers is not None:
        yield more_workers(steps, asked.workers)
    if asked.batch_size is not None:
        yield other_batch(steps, *asked.batch_size)
    if asked.no_launch_gaps:
        yield changes.no_launch_gaps()
