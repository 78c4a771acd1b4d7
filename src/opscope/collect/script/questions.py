"""Small questions to PyTorch, asked while somebody else's program runs in it."""

import gc
import sys
from typing import Any


def grad_enabled() -> bool:
    """Tell whether gradients are recorded."""
    return bool(sys.modules["torch"].is_grad_enabled())


def capturing() -> bool:
    """Tell whether a CUDA graph is being captured, during which nothing may be synchronised or profiled."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def synchronize_if_used() -> None:
    """Wait for the current device if the program has used CUDA; never set CUDA up."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def profiler_running() -> bool:
    """Tell whether any profiler runs."""
    import torch

    return bool(torch.autograd._profiler_enabled())


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has made; a step in which it made one is not steady."""
    # Looked up, not imported: a program that has not imported Dynamo has compiled nothing.
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def compiling() -> bool:
    """Tell whether torch.compile is at work in this thread."""
    guards = sys.modules.get("torch._guards")
    return guards is not None and guards.CompileContext.try_get() is not None


def on_device() -> bool:
    """Tell whether the script works on a CUDA device."""
    import torch

    return bool(torch.cuda.is_initialized())


def has_model() -> bool:
    """Tell whether the script has made a module with parameters; it looks at every object that Python knows."""
    import torch

    modules = (one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module))
    return any(vars(one).get("_parameters") for one in modules)


def torch_is_idle() -> bool:
    """Tell whether there is a GPU for the script's PyTorch, which it has not used; False without PyTorch or a GPU."""
    if "torch" not in sys.modules:
        return False
    import torch

    return torch.cuda.is_available() and not torch.cuda.is_initialized()


def current_device() -> Any:
    """Return the CUDA device that is current, or the CPU if the script has not used CUDA."""
    import torch

    if torch.cuda.is_initialized():
        return torch.device("cuda", torch._C._cuda_getDevice())
    return torch.device("cpu")


_MOST_ARGUMENTS = 4


def shapes_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[object, ...]:
    """Return the shapes of a call's first arguments, None for those without one.

    Shapes tell calls apart: the first call of a generation has the whole prompt, the others have one token each.
    """
    values = (*arguments, *named.values()) if named else arguments
    return tuple(getattr(value, "shape", None) for value in values[:_MOST_ARGUMENTS])
