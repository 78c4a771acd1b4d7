"""All changes that are tried, and what holds for several of them together. Needs no PyTorch."""

from collections.abc import Sequence
from typing import Final

from opscope.advise.changes import attention, compiling, host, layout, loading, optimizer, precision
from opscope.advise.changes.change import Change, workers_tried
from opscope.advise.writer import filled
from opscope.base.processes import cores
from opscope.documents.advise import ErrorClass, Facts

# In the order in which they are applied.
CHANGES: Final[tuple[Change, ...]] = (
    attention.SDPA,
    attention.FUSED_ATTENTION,
    precision.TF32,
    precision.WEIGHTS_BF16,
    precision.WEIGHTS_FP16,
    precision.INT8_WEIGHTS,
    precision.AUTOCAST_BF16,
    precision.AUTOCAST_FP16,
    layout.CHANNELS_LAST,
    layout.PADDED_PRODUCTS,
    layout.CUDNN_BENCHMARK,
    optimizer.FUSED_OPTIMIZER,
    optimizer.FOREACH_OPTIMIZER,
    host.NO_ANOMALY_DETECTION,
    host.ALL_THREADS,
    optimizer.SET_TO_NONE,
    compiling.COMPILE,
    compiling.COMPILE_DYNAMIC,
    compiling.COMPILE_REDUCE_OVERHEAD,
    compiling.COMPILE_MAX_AUTOTUNE,
    host.INFERENCE_MODE,
    host.DEFERRED_ITEMS,
    compiling.CUDA_GRAPH,
    host.HALF_THREADS,
    loading.PINNED_MEMORY,
    loading.PERSISTENT_WORKERS,
    loading.LOADER_WORKERS,
)
BY_NAME: Final[dict[str, Change]] = {change.name: change for change in CHANGES}
_PRECISION: Final = tuple(ErrorClass)


def class_of(changes: Sequence[str]) -> ErrorClass:
    """Return the lowest precision among changes."""
    return max((BY_NAME[name].error_class for name in changes), key=_PRECISION.index, default=ErrorClass.EXACT)


def settings_of(facts: Facts) -> dict[str, str]:
    """Return what stands for the words in capitals in what changes write."""
    workers, threads = workers_tried(), max(1, facts.threads // 2)
    return {
        "device": facts.device,
        "workers": str(workers),
        "threads": str(threads),
        "cores": str(cores()),
        "places": " and in ".join(facts.written_attention),
        "waits": " and ".join(facts.waits),
    }


def lines_of(changes: Sequence[str], facts: Facts) -> list[str]:
    """Return what to write for some changes."""
    lines = [line for name in changes for line in BY_NAME[name].edit.lines]
    optimizers = list(dict.fromkeys(facts.optimizers)) or ["OPTIMIZER"]
    lines = [
        line.replace("OPTIMIZER", name)
        for line in lines
        for name in (optimizers if "OPTIMIZER" in line else optimizers[:1])
    ]
    return [filled(line, settings_of(facts)) for line in lines]


def lower_than(error_class: ErrorClass, other: ErrorClass) -> bool:
    """Tell whether a class is of lower precision than another one."""
    return _PRECISION.index(error_class) > _PRECISION.index(other)


def fit_together(changes: Sequence[str]) -> bool:
    """Tell whether no two changes decide the same."""
    slots = [slot for name in changes for slot in BY_NAME[name].slots]
    return len(slots) == len(set(slots))


def in_order(changes: Sequence[str]) -> tuple[str, ...]:
    """Return changes in the order in which they are applied: that of `CHANGES`."""
    return tuple(change.name for change in CHANGES if change.name in changes)
