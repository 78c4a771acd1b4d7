"""The user's own function: ``package.module:function`` or ``path/to/file.py:function``.

It returns a step (a callable without arguments), or ``(module, example inputs)``; one that does the work itself, and
returns something else or nothing, is the step. Its parameters get the configuration's values by their names:
``batch_size``, ``seq_len``, ``mode``, ``dtype`` (a ``torch.dtype``), ``device`` (a ``torch.device``), and those of
``--set``.
"""

import functools
import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from msgspec.structs import replace

from opscope.base.errors import UsageError
from opscope.measuring.clock import synchronize
from opscope.record.capture import WorkloadInfo
from opscope.record.configuration import SETTINGS, Configuration, option_of
from opscope.workloads.catalog import target_name
from opscope.workloads.stepping import (
    TORCH_DTYPES,
    Model,
    Workload,
    make_step,
    parameter_count,
    precision_notes,
    refuse_unstarted,
)

_RETURNS = "a callable without arguments (the step), or (module, example inputs)"
_APPLIED = frozenset({"mode", "dtype", "compile"})  # to what a function returns, if it does not take them itself


def build_custom(configuration: Configuration, device: torch.device) -> Workload:
    """Build the workload that a user's function returns.

    Raises:
        UsageError: the function cannot be found or called, or returns something else.
    """
    function = load_function(configuration.target)
    available = _settings(configuration, device)
    accepted = _accepted(function, available, configuration.target)
    for name in (*configuration.settings, *configuration.axes):
        if name not in accepted and name not in _APPLIED:
            raise UsageError(f"{option_of(name)} is set, but {configuration.target} takes no parameter {name!r}")
    arguments = {name: available[name] for name in accepted}
    began = time.perf_counter_ns()
    result = function(**arguments)
    if _is_workload(result):
        return from_object(result, configuration, device, accepted)
    # It made neither a step nor a module, so it is the step itself, and that was its first run.
    synchronize(device)
    elapsed = time.perf_counter_ns() - began
    refuse_unstarted(result)
    step = functools.partial(function, **arguments)
    return replace(_from_step(step, configuration, device, accepted), first_step_ns=elapsed)


def _is_workload(result: object) -> bool:
    return callable(result) or (
        isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], torch.nn.Module)
    )


def from_object(
    result: object, configuration: Configuration, device: torch.device, accepted: frozenset[str] = frozenset()
) -> Workload:
    """Build the workload around a step, or around a module with its inputs.

    Args:
        result: a callable without arguments, or ``(module, inputs)``; inputs are a tensor, a tuple or a dict.
        configuration: mode, data type and compile setting, applied to a module.
        device: where the module and its inputs are moved.
        accepted: the settings that were already handed to the function that made ``result``.

    Raises:
        UsageError: ``result`` is neither, or a setting cannot be applied to a plain step.
    """
    match result:
        case (torch.nn.Module() as module, inputs):
            return _from_module(module, inputs, configuration, device)
        case torch.nn.Module():
            raise UsageError(f"{configuration.target} returned a module without example inputs; expected {_RETURNS}")
        case _ if callable(result):
            return _from_step(result, configuration, device, accepted)
    raise UsageError(f"{configuration.target} returned {type(result).__name__}; expected {_RETURNS}")


def load_module(place: str) -> ModuleType:
    """Import a file (``path/to/file.py``) or a module by its name.

    Raises:
        UsageError: it is not there, or cannot be imported.
    """
    return _load_file(Path(place)) if place.endswith(".py") else _load_module(place)


def load_function(target: str) -> Callable[..., object]:
    """Import a function: ``path/to/file.py:function`` or ``package.module:function``.

    Raises:
        UsageError: it is not there, or cannot be called.
    """
    place, _, name = target.rpartition(":")
    module = load_module(place)
    function = getattr(module, name, None)
    if function is None:
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{place} has no function {name!r}; it has: {', '.join(public) or 'none'}")
    if not callable(function):
        raise UsageError(f"{target} is not a function but {type(function).__name__}")
    return function  # type: ignore[no-any-return]


@functools.cache  # functions of one file come from one module
def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    # As when Python runs the file: it can import what lies beside it.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Another module that is missing is one that this module imports: that error is for the log.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {name!r} on the Python path or in {Path.cwd()}") from error
        raise


def _settings(configuration: Configuration, device: torch.device) -> Mapping[str, Any]:
    """Return the values that a function's parameters may get, by their names; None for settings that are not set."""
    offered = [name for name, setting in SETTINGS.items() if not setting.built_in_only and setting.kind != "flag"]
    values: dict[str, Any] = {name: configuration.get(name) for name in offered}
    values |= {name: value for name, value in configuration.items() if name not in SETTINGS}
    dtype = configuration.dtype
    return {
        **values,
        "mode": configuration.mode,
        "dtype": None if dtype is None else TORCH_DTYPES[dtype],
        "device": device,
    }


def _accepted(function: Callable[..., object], settings: Mapping[str, Any], target: str) -> frozenset[str]:
    """Return the settings to pass: those that the function has parameters for, and that are set.

    Raises:
        UsageError: a required parameter has no value.
    """
    parameters = inspect.signature(function).parameters
    accepts_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if not required:
            continue
        if name not in settings:
            raise UsageError(f"{target} requires a parameter {name!r}: give it a value with --set {name}=VALUE")
        if settings[name] is None:
            raise UsageError(f"{target} requires {name!r}: set {option_of(name)}")
    named = [name for name in settings if accepts_all or name in parameters]
    return frozenset(name for name in named if settings[name] is not None)


def _from_step(
    step: Callable[[], object], configuration: Configuration, device: torch.device, accepted: frozenset[str]
) -> Workload:
    if configuration.mode != "inference" and "mode" not in accepted:
        raise UsageError(
            f"--mode {configuration.mode} cannot be applied to a step: train in it, or return (module, inputs)"
        )
    if configuration.dtype is not None and "dtype" not in accepted:
        raise UsageError(
            f"--dtype {configuration.dtype} cannot be applied to a step: take a parameter 'dtype' and use it"
        )
    info = WorkloadInfo(
        name=target_name(configuration.target),
        description=configuration.target,
        sequences_per_step=configuration.count("batch_size"),
        tokens_per_step=_tokens(configuration),
        own_step=True,
    )
    return Workload(info, torch.compile(step) if configuration.compiled else step, device)


def _from_module(module: torch.nn.Module, inputs: Any, configuration: Configuration, device: torch.device) -> Workload:
    args, kwargs = _as_call(inputs, device)
    model = Model(module.to(device), args, kwargs, _any_loss, lambda parameters: torch.optim.AdamW(parameters, lr=1e-4))
    notes = list(precision_notes(configuration))
    if configuration.mode == "training":
        notes.append("AdamW; the loss is the output's own, or the mean square of the output where it has none")
    info = WorkloadInfo(
        name=target_name(configuration.target),
        description=f"{type(module).__name__} from {configuration.target}",
        parameters=parameter_count(module),
        sequences_per_step=configuration.count("batch_size"),
        tokens_per_step=_tokens(configuration),
        notes=tuple(notes),
        dtype=configuration.dtype or _dtype_of(module),
    )
    return Workload(info, make_step(model, configuration, device), device)


def _dtype_of(module: torch.nn.Module) -> str | None:
    names = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point())
    return " and ".join(names) or None


def _tokens(configuration: Configuration) -> int | None:
    batch, length = configuration.count("batch_size"), configuration.count("seq_len")
    return None if batch is None or length is None else batch * length


def _as_call(inputs: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    if isinstance(inputs, Mapping):
        return (), {str(key): moved(value) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(moved(value) for value in inputs), {}
    return (moved(inputs),), {}


def _any_loss(output: Any) -> torch.Tensor:
    # The module is the user's and may return anything: its own loss, else a number, else the square of a tensor.
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    tensor = _first_tensor(output)
    return tensor if tensor.ndim == 0 else tensor.float().square().mean()


def _first_tensor(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    for value in values if isinstance(values, tuple | list) or isinstance(output, Mapping) else ():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise UsageError(
        f"training needs a loss: the module's output ({type(output).__name__}) holds no floating-point tensor"
    )
