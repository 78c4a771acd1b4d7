"""Changes of how batches are loaded and copied to the device."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from opscope.advise.changes.change import LOADS, ON_GPU, Change, Condition, SourceEdit, by_hand, needs, workers_tried
from opscope.documents.advise import ChangeName

if TYPE_CHECKING:
    import torch

    from opscope.advise.loaders import Loaders
    from opscope.advise.variant import Variant

_INDEXED: Final[Condition] = (
    lambda facts: facts.iterable_loaders < facts.loaders,
    "the loader's dataset yields: each worker would yield all of it, unless it shares the work out itself",
)
_RESTARTS: Final[Condition] = (
    lambda facts: facts.restarted_loaders > 0,
    "no loader starts its workers anew for each epoch",
)
_MORE_WORKERS: Final[Condition] = (
    lambda facts: facts.loader_workers < workers_tried(),
    "loaders have a worker for each core already; more help only if they wait, as for a disk: not tried",
)


def _pin(loaders: "Loaders") -> None:
    loaders.pins = True


def _copy_without_waiting(_: "Variant") -> None:
    """Have copies from pinned memory not waited for: work of the GPU that needs them comes after them by itself."""
    import torch

    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _not_waiting(getattr(torch.Tensor, name)))


def _not_waiting(copy: "Callable[..., torch.Tensor]") -> "Callable[..., torch.Tensor]":
    @wraps(copy)
    def copied(tensor: "torch.Tensor", *args: Any, **kwargs: Any) -> "torch.Tensor":
        decided = kwargs.get("non_blocking") or any(isinstance(one, bool) for one in args)
        if not decided and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs["non_blocking"] = True
        return copy(tensor, *args, **kwargs)

    return copied


PINNED_MEMORY: Final = Change(
    name=ChangeName.PINNED_MEMORY,
    slots=("copying",),
    refuses=needs(ON_GPU, LOADS),
    edit=by_hand(
        "loader = DataLoader(..., pin_memory=True)",
        'batch = batch.to("DEVICE", non_blocking=True)  # for each tensor of it',
    ),
    caveat="pinned memory is taken from what other programs may use",
    prepare=_pin,
    apply=_copy_without_waiting,
)


def _persist(loaders: "Loaders") -> None:
    loaders.persist = True


PERSISTENT_WORKERS: Final = Change(
    name=ChangeName.PERSISTENT_WORKERS,
    slots=("loading",),
    refuses=needs(LOADS, _RESTARTS),
    edit=SourceEdit(
        ("loader = DataLoader(..., persistent_workers=True)",), lambda writer: writer.loaders(persistent_workers="True")
    ),
    caveat="workers do not see what the program changes in the dataset after they have started",
    prepare=_persist,
)


def _more_workers(loaders: "Loaders") -> None:
    loaders.workers = workers_tried()


LOADER_WORKERS: Final = Change(
    name=ChangeName.LOADER_WORKERS,
    slots=("loading",),
    refuses=needs(LOADS, _INDEXED, _MORE_WORKERS),
    edit=SourceEdit(
        ("loader = DataLoader(..., num_workers=WORKERS, persistent_workers=True)",),
        lambda writer: writer.loaders(num_workers="WORKERS", persistent_workers="True"),
    ),
    caveat="random numbers that the dataset draws are others: each worker has a seed of its own",
    prepare=_more_workers,
)
