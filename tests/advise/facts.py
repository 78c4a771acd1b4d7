"""Facts of a step, of which tests change what they are about."""

from typing import Any

from msgspec.structs import replace

from opscope.documents.advise import Facts

_OF_A_STEP = Facts(
    device="cuda",
    training=False,
    draws_random_numbers=False,
    modules=1,
    parameter_types=("float32",),
    convolutions=0,
    benchmarks_convolutions=False,
    attention_choices=0,
    written_attention=(),
    odd_products=0,
    waits=(),
    quantisable=0,
    compiled=False,
    optimizers=(),
    unfused_optimizers=0,
    looping_optimizers=0,
    detects_anomalies=False,
    kept_gradients=0,
    changes_state=(),
    threads=4,
    loaders=0,
    loader_workers=0,
    iterable_loaders=0,
    restarted_loaders=0,
    prefetched=0,
)


def facts(**changes: Any) -> Facts:
    """Return facts of an inference step on a GPU, with some of them changed."""
    return replace(_OF_A_STEP, **changes)
