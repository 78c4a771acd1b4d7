"""Changes of how tensors lie in memory, and of what convolutions and products do with it."""

from typing import TYPE_CHECKING, Final

from opscope.advise.changes.change import (
    A_MODULE,
    CONVOLVES,
    ON_GPU,
    Change,
    Condition,
    SourceEdit,
    by_hand,
    for_process,
    needs,
)
from opscope.documents.advise import ChangeName

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from opscope.advise.variant import Variant
    from opscope.advise.writer import Writer

_ODD_PRODUCTS: Final[Condition] = (
    lambda facts: facts.odd_products > 0,
    "all large products have multiples of eight columns",
)
_CHOOSES_BY_RULE: Final[Condition] = (
    lambda facts: not facts.benchmarks_convolutions,
    "cuDNN tries algorithms out already",
)


def _to_channels_last(module: "torch.nn.Module") -> None:
    """Convert a module; where it has a ``to`` of its own, which may know devices and types alone, what is in it."""
    import torch

    if type(module).to is torch.nn.Module.to:
        module.to(memory_format=torch.channels_last)
    else:
        for child in module.children():
            _to_channels_last(child)


def _channels_last(variant: "Variant") -> None:
    for top in variant.tops:
        _to_channels_last(top)
    for optimizer in variant.optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                state[name] = _four_last(value)

    def around(call: "Callable[..., object]") -> "Callable[..., object]":
        def converted(*args: object, **kwargs: object) -> object:
            return call(*map(_four_last, args), **{name: _four_last(value) for name, value in kwargs.items()})

        return converted

    variant.wrap(around)


def _four_last(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor) and value.dim() == 4:
        return value.to(memory_format=torch.channels_last)
    return value


def _write_channels_last(writer: "Writer") -> None:
    writer.for_model(lambda _, name, torch: f"{name}.to(memory_format={torch}.channels_last)")
    writer.inputs(lambda call: call.images, ".to(memory_format=TORCH.channels_last)")


CHANNELS_LAST: Final = Change(
    name=ChangeName.CHANNELS_LAST,
    slots=("layout",),
    refuses=needs(A_MODULE, CONVOLVES),
    edit=SourceEdit(
        (
            "model = model.to(memory_format=torch.channels_last)",
            "images = images.to(memory_format=torch.channels_last)",
        ),
        _write_channels_last,
    ),
    apply=_channels_last,
)


def _pad(variant: "Variant") -> None:
    from opscope.advise.padding import pad_products

    pad_products(variant.tops)


PADDED_PRODUCTS: Final = Change(
    name=ChangeName.PADDED_PRODUCTS,
    slots=("padding",),
    refuses=needs(ON_GPU, _ODD_PRODUCTS),
    edit=by_hand(
        "padded = -(-columns // 64) * 64  # of a head's weight and bias, with zeros",
        "logits = F.linear(x, F.pad(head.weight, (0, 0, 0, padded - columns)), ...)[..., :columns]",
    ),
    caveat="a weight that is made with as many rows from the beginning needs no padding in each step",
    apply=_pad,
)


def _benchmark_convolutions(_: "Variant") -> None:
    import torch

    torch.backends.cudnn.benchmark = True


CUDNN_BENCHMARK: Final = Change(
    name=ChangeName.CUDNN_BENCHMARK,
    slots=("cudnn",),
    refuses=needs(ON_GPU, CONVOLVES, _CHOOSES_BY_RULE),
    edit=for_process("TORCH.backends.cudnn.benchmark = True"),
    caveat="each new shape of an input is tried out first",
    apply=_benchmark_convolutions,
)
