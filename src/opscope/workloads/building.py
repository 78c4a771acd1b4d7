"""From a module and its inputs to a step: one call that does one inference or one training step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from opscope.errors import EnvironmentLacksError, UsageError
from opscope.record import DEVICE_NAME, Configuration, Dtype, WorkloadInfo

Step: TypeAlias = Callable[[], object]

TORCH_DTYPES: Mapping[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Something to measure: ``step()`` does the work once, on ``device``; nothing in it waits for the device."""

    info: WorkloadInfo
    step: Step
    device: torch.device


@dataclass(frozen=True, slots=True)
class Model:
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


def resolve_device(name: str) -> torch.device:
    """Return the device that a name (``auto``, ``cpu``, ``cuda:1``) means here.

    Raises:
        UsageError: it is no such name.
        EnvironmentLacksError: a GPU is asked for that PyTorch does not see.
    """
    if not DEVICE_NAME.fullmatch(name):
        raise UsageError(f"a device is auto, cpu, cuda or cuda:N, not {name!r}")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        build = "this PyTorch is built without CUDA" if torch.version.cuda is None else f"PyTorch sees {count} GPUs"
        raise EnvironmentLacksError(f"device {name} is not there: {build}. Use --device cpu, or --device auto.")
    return torch.device("cuda", index)


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one, so that code which says just "cuda" means it; for a CPU, do nothing."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.init()  # memory statistics need a device that is set up
    with torch.cuda.device(device):
        yield


def precision_notes(configuration: Configuration) -> tuple[str, ...]:
    """Return what the data type means for the mode, in words."""
    if configuration.dtype in (None, "float32"):
        return ()
    if configuration.mode == "training":
        scaled = " with gradient scaling" if configuration.dtype == "float16" else ""
        return (f"{configuration.dtype} autocast over float32 parameters{scaled}",)
    return (f"parameters and floating-point inputs in {configuration.dtype}",)


def make_step(model: Model, configuration: Configuration, device: torch.device) -> Step:
    """Make the step of a model for the configuration's mode, data type and ``torch.compile`` setting.

    Raises:
        UsageError: there is nothing to train.
    """
    dtype = None if configuration.dtype is None else TORCH_DTYPES[configuration.dtype]
    if configuration.mode == "training":
        return _training_step(model, dtype, device, compiled=configuration.compile)
    module = model.module.eval()
    if dtype is not None:
        module = module.to(dtype)
    args = tuple(_cast(value, dtype) for value in model.args)
    kwargs = {key: _cast(value, dtype) for key, value in model.kwargs.items()}
    run = torch.compile(module) if configuration.compile else module

    def step() -> object:
        with torch.no_grad():
            return run(*args, **kwargs)

    return step


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def _training_step(model: Model, dtype: torch.dtype | None, device: torch.device, *, compiled: bool) -> Step:
    module = model.module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise UsageError(f"{type(model.module).__name__} has no parameter that requires a gradient: nothing to train")
    if dtype is not None and {parameter.dtype for parameter in parameters} != {torch.float32}:
        raise UsageError("training with a data type is autocast over float32 parameters, which this module has not")
    optimizer = model.optimizer(parameters)
    run = torch.compile(module) if compiled else module
    reduced = dtype not in (None, torch.float32)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=dtype) if reduced else nullcontext():
            loss = model.loss(run(*model.args, **model.kwargs))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def parameter_count(module: torch.nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())
