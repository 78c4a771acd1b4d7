"""Changes of precision: fewer bits for products, weights, or whatever autocast chooses."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opscope.advise.changes.change import (
    A_MODULE,
    IN_FP32,
    INFERENCE,
    ON_GPU,
    TRAINING,
    Arithmetic,
    Change,
    Condition,
    SourceEdit,
    around_forward,
    by_hand,
    for_process,
    needs,
)
from opscope.documents.advise import ChangeName, ErrorClass

if TYPE_CHECKING:
    from opscope.advise.variant import Variant
    from opscope.advise.writer import Writer

_SCALE: Final = 1_024.0  # of losses with float16; PyTorch begins with 65,536, where the first steps often overflow
_ONE_OPTIMIZER: Final[Condition] = (
    lambda facts: len(facts.optimizers) == 1,
    "there are several optimizers: scale each loss by hand",
)
_QUANTISABLE: Final[Condition] = (
    lambda facts: facts.quantisable > 0,
    "torchao is not installed, or the model has no linear layers",
)

# Bits behind the point: of IEEE 754 for float16, of the formats' definitions for the others.
_TF32_BITS: Final = 10
_BF16_BITS: Final = 7
_FP16_BITS: Final = 10

# ---------------------------------------------------------------- products


def _allow_tf32(_: "Variant") -> None:
    import torch

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


TF32: Final = Change(
    name=ChangeName.TF32,
    slots=("products",),
    error_class=ErrorClass.TF32,
    arithmetic=Arithmetic(bits=_TF32_BITS),
    refuses=needs(ON_GPU, IN_FP32),
    edit=for_process('TORCH.set_float32_matmul_precision("high")'),
    caveat="it holds for the whole process",
    apply=_allow_tf32,
)

# ---------------------------------------------------------------- weights


def _cast(dtype: str, variant: "Variant") -> None:
    import torch

    from opscope.advise.variant import Casting

    for top in variant.tops:
        top.to(getattr(torch, dtype))
    variant.wrap(Casting(getattr(torch, dtype)))


def _weights(dtype: str) -> SourceEdit:
    def write(writer: "Writer") -> None:
        from opscope.advise.source import NotWritableError

        if any(call.nested for call in writer.calls()):
            raise NotWritableError("the model's inputs are inside of other objects: cast them where they are made")
        writer.for_model(lambda _, name, torch: f"{name}.to({torch}.{dtype})")
        writer.inputs(lambda call: call.floats, f".to(TORCH.{dtype})")

    return SourceEdit((f"model = model.to(torch.{dtype})  # and its floating-point inputs",), write)


WEIGHTS_BF16: Final = Change(
    name=ChangeName.WEIGHTS_BF16,
    slots=("precision",),
    error_class=ErrorClass.BF16,
    arithmetic=Arithmetic(bits=_BF16_BITS, results=True, everything=True, weight_bits=_BF16_BITS),
    refuses=needs(A_MODULE, INFERENCE, IN_FP32),
    edit=_weights("bfloat16"),
    apply=partial(_cast, "bfloat16"),
)
WEIGHTS_FP16: Final = Change(
    name=ChangeName.WEIGHTS_FP16,
    slots=("precision",),
    error_class=ErrorClass.BF16,
    arithmetic=Arithmetic(bits=_FP16_BITS, results=True, everything=True, weight_bits=_FP16_BITS),
    refuses=needs(ON_GPU, A_MODULE, INFERENCE, IN_FP32),
    edit=_weights("float16"),
    caveat="numbers above 65,504 overflow",
    apply=partial(_cast, "float16"),
)


def _quantise(variant: "Variant") -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # type: ignore[import-not-found]

    for top in variant.tops:
        quantize_(top, Int8WeightOnlyConfig())


INT8_WEIGHTS: Final = Change(
    name=ChangeName.INT8_WEIGHTS,
    slots=("weights",),
    error_class=ErrorClass.LOWER,
    arithmetic=Arithmetic(rows_of_eight_bits=True),
    refuses=needs(A_MODULE, INFERENCE, _QUANTISABLE),
    edit=by_hand(
        "from torchao.quantization import Int8WeightOnlyConfig, quantize_",
        "quantize_(model, Int8WeightOnlyConfig())  # once the model has its weights, and before it is compiled",
    ),
    caveat="what it costs in accuracy is to be seen on your own task",
    apply=_quantise,
)

# ---------------------------------------------------------------- autocast


def _autocast(dtype: str, variant: "Variant") -> None:
    import torch

    # Around forward pass and loss: a backward pass runs as its forward pass did, and needs none.
    kind = variant.device.type
    variant.within(lambda: torch.autocast(kind, dtype=getattr(torch, dtype)))
    backward = torch.autograd.backward

    def outside(*args: object, **kwargs: object) -> None:
        with torch.autocast(kind, enabled=False):
            backward(*args, **kwargs)
        torch.clear_autocast_cache()

    torch.autograd.backward = outside


def _autocast_and_scale(variant: "Variant") -> None:
    import torch

    _autocast("float16", variant)
    scaler = torch.amp.GradScaler(variant.device.type, init_scale=_SCALE)
    (optimizer,) = variant.optimizers
    passes = [0]
    torch.autograd.backward = _scaled(scaler, optimizer, torch.autograd.backward, passes)
    optimizer.step = _stepping(scaler, optimizer, optimizer.step, passes)


def _scaled(scaler: Any, optimizer: Any, backward: Callable[..., None], passes: list[int]) -> Callable[..., None]:
    """Return a backward pass of the scaled loss; ``passes`` counts them since the optimizer's last step."""

    def scaled(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if passes[0]:
            raise NotImplementedError("there are several backward passes before the optimizer's step: scale by hand")
        passes[0] += 1
        backward(scaler.scale(tensors), *args, **kwargs)
        scaler.unscale_(optimizer)

    return scaled


def _stepping(scaler: Any, optimizer: Any, step: Callable[..., Any], passes: list[int]) -> Callable[..., Any]:
    """Return the optimizer's step as the scaler takes it."""
    inside = [False]

    def stepping(*args: Any, **kwargs: Any) -> Any:
        if inside[0]:  # called by the scaler
            return step(*args, **kwargs)
        inside[0] = True
        try:
            result = scaler.step(optimizer, *args, **kwargs)
        finally:
            inside[0] = False
        scaler.update()
        passes[0] = 0
        return result

    return stepping


AUTOCAST_BF16: Final = Change(
    name=ChangeName.AUTOCAST_BF16,
    slots=("precision",),
    error_class=ErrorClass.BF16,
    arithmetic=Arithmetic(bits=_BF16_BITS, results=True),
    refuses=needs(IN_FP32),
    edit=around_forward('with TORCH.autocast("DEVICE", dtype=TORCH.bfloat16)'),
    apply=partial(_autocast, "bfloat16"),
)
AUTOCAST_FP16: Final = Change(
    name=ChangeName.AUTOCAST_FP16,
    slots=("precision",),
    error_class=ErrorClass.BF16,
    arithmetic=Arithmetic(bits=_FP16_BITS, results=True),
    refuses=needs(ON_GPU, TRAINING, _ONE_OPTIMIZER, IN_FP32),
    edit=by_hand(
        'scaler = torch.amp.GradScaler("DEVICE", init_scale=1024.0)',
        'with torch.autocast("DEVICE", dtype=torch.float16):  # around forward pass and loss',
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)  # before gradients are clipped",
        "scaler.step(optimizer)  # instead of optimizer.step()",
        "scaler.update()",
    ),
    caveat="a step whose gradients overflow is left out, and its scale halved",
    apply=_autocast_and_scale,
)
