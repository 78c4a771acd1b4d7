"""Durations by the host's clock: of a call with a synchronise, and of issuing a call to an idle device."""

from collections.abc import Sequence
from time import perf_counter, perf_counter_ns
from typing import Final

import torch

from opscope.torch_support.tensors import synchronize
from opscope.workbench.benchmarking.rounds import Calls, Timer, is_steady

_BATCH: Final = 5  # calls of a warm-up's batch
_LONGEST_WARMUP_S: Final = 1.0  # per callable
_SLOW_NS: Final = 200e6  # slower calls make batches of one


def wall(device: torch.device) -> Timer:
    """Return a timer of calls, each with a synchronise before and after; only the one after is timed."""

    def rounds(calls: Calls, orders: Sequence[Sequence[str]]) -> list[list[float]]:
        return [[_once(calls, name, device, waits=True) for name in order] for order in orders]

    return rounds


def issue(device: torch.device) -> Timer:
    """Return a timer of calls without the synchronise after them: on a GPU, of issuing work to an idle device."""

    def rounds(calls: Calls, orders: Sequence[Sequence[str]]) -> list[list[float]]:
        return [[_once(calls, name, device, waits=False) for name in order] for order in orders]

    return rounds


def _once(calls: Calls, name: str, device: torch.device, *, waits: bool) -> float:
    call = calls[name]
    synchronize(device)
    began = perf_counter_ns()
    result = call()
    if waits:
        synchronize(device)
    elapsed = perf_counter_ns() - began
    del result
    return float(elapsed)


def warm_up(calls: Calls, device: torch.device) -> None:
    """Call each callable until its durations are steady, for a second at most."""
    for name in calls:
        batches: list[list[float]] = []
        began = perf_counter()
        while perf_counter() - began < _LONGEST_WARMUP_S:
            count = _BATCH if batches and batches[0][0] <= _SLOW_NS else 1
            batches.append([_once(calls, name, device, waits=True) for _ in range(count)])
            if is_steady(batches, sum(map(sum, batches))):
                break
