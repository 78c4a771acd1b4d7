"""A DataLoader that delivers batches faster, and ahead of the step."""

from typing import Final

import numpy as np

from opscope.analysis.idle.causes import loading_by_thread, loads_in_workers
from opscope.analysis.replay.build import Steps
from opscope.analysis.replay.changes import ReplayedChange, above_zero
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.intervals import Intervals
from opscope.analysis.structure.nesting import Ints
from opscope.base.errors import UsageError

# A loader with workers is why the step is as long as it is only if the step waits for it; taking what is ready is
# quicker: pinned batches that were there took 0.1 to 0.3 ms of steps of 6 to 40 ms in recorded programs.
_WAITS: Final = 0.05
_ROUNDS: Final = 20


def more_workers(steps: Steps, factor: float) -> ReplayedChange:
    """Let a DataLoader load batches so many times as fast, in processes of its own.

    Args:
        steps: the steps.
        factor: how many times as many batches it loads a second: as many as it gets workers instead of the main
            process, or as its workers become more.

    Raises:
        UsageError: the trace shows no DataLoader at work in its steps, or one that the step does not wait for, or the
            factor is none.
    """
    text = f"--workers {factor:g}x"
    above_zero(text, factor)
    threads = {thread: spans for thread, spans in loading_by_thread(steps.trace).items() if len(spans)}
    edit = Edit(steps)
    waits = sum(edit.host_time(thread, spans) for thread, spans in threads.items()) / edit.graph.count
    has_workers = loads_in_workers(steps.trace)
    if not waits:
        raise UsageError(f"{text}: no step of the trace loads a batch with a DataLoader")
    if has_workers and waits < _WAITS * edit.graph.step_ns:
        raise UsageError(f"{text}: the DataLoader has workers, and no step waits for them")

    def apply(edit: Edit) -> int:
        # Its workers take as long as a recorded step for a batch, or they would be ahead, whatever else is changed; the
        # main process takes as long as it loads.
        before = recorded if has_workers else sum(edit.host_time(*one) for one in threads.items()) / count
        for thread, spans in threads.items():
            edit.remove_host(thread, spans)
        _not_faster_than(edit, _ends(edit, threads), before / factor)
        return count

    count, recorded = edit.graph.count, edit.graph.step_ns
    return ReplayedChange(
        text,
        f"at best: batches are loaded ahead, {factor:g} times as fast, as far as the host has free cores, and taking a "
        "batch that is ready costs nothing (in two recorded programs it cost 0.3 and 2.7 ms)",
        apply,
    )


def _ends(edit: Edit, threads: dict[int, Intervals]) -> Ints:
    """Return the moments at which threads have a batch."""
    graph, result = edit.graph, []
    for thread, spans in threads.items():
        own = np.flatnonzero(graph.thread == thread)
        own = own[np.argsort(graph.time_ns[own], kind="stable")]
        at = np.searchsorted(graph.time_ns[own], spans.end)
        result.append(own[np.unique(at[at < len(own)])])
    return np.concatenate(result)


def _not_faster_than(edit: Edit, moments: Ints, least_ns: float) -> None:
    """Delay some moments, all alike, until a step takes some time."""
    if not len(moments) or edit.step_ns >= least_ns:
        return
    low, high = 0, int(least_ns * edit.graph.count)  # a single step may have to wait for all
    for _ in range(_ROUNDS):
        tried = edit.copy()
        tried.delay(moments, (low + high) // 2)
        low, high = (low, (low + high) // 2) if tried.step_ns >= least_ns else ((low + high) // 2, high)
    edit.delay(moments, high)
