"""How each change is made in a variant."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

import torch
from msgspec import Struct

from opscope.advise.attention import written_out
from opscope.advise.changes import workers_tried
from opscope.advise.deferring import defer
from opscope.advise.loaders import Loaders
from opscope.advise.padding import pad_products
from opscope.advise.variant import Casting, Variant
from opscope.base.threads import cores

_SCALE: Final = 1_024.0  # of losses with float16; PyTorch begins with 65,536, where the first steps often overflow


class Applying(Struct, frozen=True):
    """How a change is made.

    Attributes:
        apply: makes it.
        prepare: makes what has to be made before the user's code runs.
        took_effect: returns why it changed nothing after all, once the step has run with it; None where it did.
    """

    apply: Callable[[Variant], None] = lambda _: None
    took_effect: Callable[[Variant], str | None] = lambda _: None
    prepare: Callable[[Loaders], None] = lambda _: None


def _tf32(_: Variant) -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _autocast(dtype: torch.dtype, variant: Variant) -> None:
    # Around forward pass and loss: a backward pass runs as its forward pass did, and needs none.
    kind = variant.device.type
    variant.within(lambda: torch.autocast(kind, dtype=dtype))
    backward = torch.autograd.backward

    def outside(*args: object, **kwargs: object) -> None:
        with torch.autocast(kind, enabled=False):
            backward(*args, **kwargs)
        torch.clear_autocast_cache()

    torch.autograd.backward = outside


def _autocast_and_scale(variant: Variant) -> None:
    _autocast(torch.float16, variant)
    scaler = torch.amp.GradScaler(variant.device.type, init_scale=_SCALE)
    (optimizer,) = variant.optimizers
    backward, step = torch.autograd.backward, optimizer.step
    passes, inside = [0], [False]

    def scaled(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if passes[0]:
            raise NotImplementedError("there are several backward passes before the optimizer's step: scale by hand")
        passes[0] += 1
        backward(scaler.scale(tensors), *args, **kwargs)
        scaler.unscale_(optimizer)

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

    torch.autograd.backward = scaled
    optimizer.step = stepping


def _benchmark_convolutions(_: Variant) -> None:
    torch.backends.cudnn.benchmark = True


def _weights(dtype: torch.dtype, variant: Variant) -> None:
    for top in variant.tops:
        top.to(dtype)
    variant.wrap(Casting(dtype))


def _int8_weights(variant: Variant) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # type: ignore[import-not-found]

    for top in variant.tops:
        quantize_(top, Int8WeightOnlyConfig())


def _compile(mode: str | None, variant: Variant, *, dynamic: bool | None = None) -> None:
    def around(call: Callable[..., object]) -> Callable[..., object]:
        def own_frame(*args: object, **kwargs: object) -> object:
            return call(*args, **kwargs)

        compiled: Callable[..., object] = torch.compile(own_frame, mode=mode, dynamic=dynamic)

        def in_steps(*args: object, **kwargs: object) -> object:
            # What comes between steps, such as an evaluation, may have other shapes, which take long to compile.
            return (call if variant.interrupted else compiled)(*args, **kwargs)

        return in_steps

    variant.wrap(around)
    variant.notes["frames"] = compiled_frames()
    if mode == "reduce-overhead":
        variant.before_step.append(torch.compiler.cudagraph_mark_step_begin)


def compiled_frames() -> int:
    """Return how many frames this process has compiled."""
    from torch._dynamo.utils import counters

    return int(counters["frames"]["ok"])


def _compiled(variant: Variant) -> str | None:
    return None if compiled_frames() > variant.notes["frames"] else "nothing was compiled"


def _to_channels_last(module: torch.nn.Module) -> None:
    """Convert a module; where it has a ``to`` of its own, which may know devices and types alone, what is in it."""
    if type(module).to is torch.nn.Module.to:
        module.to(memory_format=torch.channels_last)
    else:
        for child in module.children():
            _to_channels_last(child)


def _channels_last(variant: Variant) -> None:
    for top in variant.tops:
        _to_channels_last(top)
    for optimizer in variant.optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() == 4:
                    state[name] = value.to(memory_format=torch.channels_last)

    def around(call: Callable[..., object]) -> Callable[..., object]:
        def converted(*args: object, **kwargs: object) -> object:
            return call(*map(_four_last, args), **{name: _four_last(value) for name, value in kwargs.items()})

        return converted

    variant.wrap(around)


def _four_last(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dim() == 4:
        return value.to(memory_format=torch.channels_last)
    return value


def _sdpa(variant: Variant) -> None:
    for top in variant.tops:
        if hasattr(top, "set_attn_implementation"):
            before = getattr(top.config, "_attn_implementation", None)
            top.set_attn_implementation("sdpa")
            variant.notes["attention"] = variant.notes.get("attention", 0) + (before != "sdpa")


def _fused_attention(variant: Variant) -> None:
    for one in written_out(variant.tops):
        one.fuse()


def _defer(variant: Variant) -> None:
    variant.deferred = defer(variant.device.type)


def _is_put_off(variant: Variant) -> str | None:
    counted = variant.deferred
    assert counted is not None
    return None if counted.fetched < counted.made else "each number is looked at in the step that fetches it"


def _took_sdpa(variant: Variant) -> str | None:
    return None if variant.notes.get("attention") else "attention was fused already"


def _fused(variant: Variant) -> None:
    # Flags alone are not enough: the step counters of Adam must be on the device, which load_state_dict sees to.
    for optimizer in variant.optimizers:
        state = optimizer.state_dict()
        for group in state["param_groups"]:
            if "fused" in group:
                group["fused"] = True
                group["foreach"] = False
        optimizer.load_state_dict(state)
        optimizer._step_supports_amp_scaling = True  # as its constructor sets with fused=True: a GradScaler asks for it


def _foreach(variant: Variant) -> None:
    for optimizer in variant.optimizers:
        for group in optimizer.param_groups:
            if "foreach" in group and not group.get("fused"):
                group["foreach"] = True


def _without_anomaly_detection(_: Variant) -> None:
    torch.autograd.set_detect_anomaly(False)


def _detects_none(_: Variant) -> str | None:
    return "the step turns it on again" if torch.is_anomaly_enabled() else None


def _all_threads(_: Variant) -> None:
    torch.set_num_threads(cores())


def _let_go(variant: Variant) -> None:
    for optimizer in variant.optimizers:
        optimizer.zero_grad = partial(_without_gradients, optimizer.zero_grad)


def _without_gradients(zero_grad: Callable[..., None], *_: bool, **__: bool) -> None:
    zero_grad(set_to_none=True)


def _inference_mode(variant: Variant) -> None:
    variant.within(torch.inference_mode)


def _threads(share: float, variant: Variant) -> None:
    variant.notes["threads"] = torch.get_num_threads()
    torch.set_num_threads(max(1, round(torch.get_num_threads() * share)))


def _pin(loaders: Loaders) -> None:
    loaders.pins = True


def _copy_without_waiting(_: Variant) -> None:
    """Have copies from pinned memory not waited for: work of the GPU that needs them comes after them by itself."""
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _not_waiting(getattr(torch.Tensor, name)))


def _not_waiting(copy: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(copy)
    def copied(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        decided = kwargs.get("non_blocking") or any(isinstance(one, bool) for one in args)
        if not decided and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs["non_blocking"] = True
        return copy(tensor, *args, **kwargs)

    return copied


def _persist(loaders: Loaders) -> None:
    loaders.persist = True


def _loader_workers(loaders: Loaders) -> None:
    loaders.workers = workers_tried()


APPLYING: Final = {
    "sdpa": Applying(_sdpa, _took_sdpa),
    "fused_attention": Applying(_fused_attention),
    "tf32": Applying(_tf32),
    "weights_bf16": Applying(partial(_weights, torch.bfloat16)),
    "weights_fp16": Applying(partial(_weights, torch.float16)),
    "int8_weights": Applying(_int8_weights),
    "autocast_bf16": Applying(partial(_autocast, torch.bfloat16)),
    "autocast_fp16": Applying(_autocast_and_scale),
    "channels_last": Applying(_channels_last),
    "padded_products": Applying(lambda variant: pad_products(variant.tops)),
    "cudnn_benchmark": Applying(_benchmark_convolutions),
    "fused_optimizer": Applying(_fused),
    "foreach_optimizer": Applying(_foreach),
    "no_anomaly_detection": Applying(_without_anomaly_detection, _detects_none),
    "all_threads": Applying(_all_threads),
    "set_to_none": Applying(_let_go),
    "compile": Applying(partial(_compile, None), _compiled),
    "compile_dynamic": Applying(partial(_compile, None, dynamic=True), _compiled),
    "compile_reduce_overhead": Applying(partial(_compile, "reduce-overhead"), _compiled),
    "compile_max_autotune": Applying(partial(_compile, "max-autotune-no-cudagraphs"), _compiled),
    "deferred_items": Applying(_defer, _is_put_off),
    "cuda_graph": Applying(lambda variant: variant.capture()),
    "inference_mode": Applying(_inference_mode),
    "half_threads": Applying(partial(_threads, 0.5)),
    "pinned_memory": Applying(_copy_without_waiting, prepare=_pin),
    "persistent_workers": Applying(prepare=_persist),
    "loader_workers": Applying(prepare=_loader_workers),
}
