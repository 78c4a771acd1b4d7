"""From a module and its inputs to a step: one call that does one inference or one training step."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from msgspec import Struct

from opscope.base.errors import UsageError
from opscope.record.capture import WorkloadInfo
from opscope.record.configuration import Configuration, Dtype

StepFunction: TypeAlias = Callable[[], object]

TORCH_DTYPES: Mapping[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Workload(Struct, frozen=True):
    """Something to measure.

    Attributes:
        info: what it is, for reports.
        step: does the work once, on ``device``; nothing in it waits for the device.
        device: where it runs.
        first_step_ns: the wall time of the very first step, where that was run to find out what the target is; else
            None.
    """

    info: WorkloadInfo
    step: StepFunction
    device: torch.device
    first_step_ns: int | None = None


class Model(Struct, frozen=True):
    """A module with the inputs of one call.

    Attributes:
        module: the model, on its device.
        args, kwargs: the inputs, on the same device.
        loss: turns the module's output into the scalar that training minimises.
        optimizer: makes the optimizer; only called for training.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Callable[[Any], torch.Tensor]
    optimizer: Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]


def refuse_unstarted(result: object) -> None:
    """Refuse a step whose call only makes something that would have to be run: its time would mean nothing.

    Raises:
        UsageError: it is a generator, a coroutine or the like.
    """
    if inspect.isgenerator(result) or inspect.isawaitable(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that it was never awaited
        raise UsageError(
            f"the step returned a {type(result).__name__}, so nothing was run: a step does its work when it is called"
        )


def precision_notes(configuration: Configuration) -> tuple[str, ...]:
    """Return what the data type means for the mode, in words."""
    if configuration.dtype in (None, "float32"):
        return ()
    if configuration.mode == "training":
        scaled = " with gradient scaling" if configuration.dtype == "float16" else ""
        return (f"{configuration.dtype} autocast over float32 parameters{scaled}",)
    return (f"parameters and floating-point inputs in {configuration.dtype}",)


def make_step(model: Model, configuration: Configuration, device: torch.device) -> StepFunction:
    """Make the step of a model for the configuration's mode, data type and ``torch.compile`` setting.

    Raises:
        UsageError: there is nothing to train, or autocast is asked for and the parameters are not float32.
    """
    dtype = None if configuration.dtype is None else TORCH_DTYPES[configuration.dtype]
    if configuration.mode == "training":
        return _training_step(model, dtype, device, compiled=configuration.compiled)
    module = model.module.eval()
    if dtype is not None:
        module = module.to(dtype)
    args = tuple(_cast(value, dtype) for value in model.args)
    kwargs = {key: _cast(value, dtype) for key, value in model.kwargs.items()}
    run = torch.compile(module) if configuration.compiled else module

    def step() -> object:
        with torch.no_grad():
            return run(*args, **kwargs)

    return step


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def _training_step(model: Model, dtype: torch.dtype | None, device: torch.device, *, compiled: bool) -> StepFunction:
    module = model.module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise UsageError(f"{type(model.module).__name__} has no parameter that requires a gradient: nothing to train")
    if dtype is not None and {parameter.dtype for parameter in parameters} != {torch.float32}:
        raise UsageError("training with a data type is autocast over float32 parameters, which this module has not")
    optimizer = model.optimizer(parameters)
    run = torch.compile(module) if compiled else module
    reduced = dtype not in (None, torch.float32)
    # Only float16 needs its gradients scaled; otherwise the scaler passes everything on as it is.
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=dtype) if reduced else nullcontext():
            loss = model.loss(run(*model.args, **model.kwargs))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()  # without the graph that led to it

    return step


def parameter_count(module: torch.nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())
