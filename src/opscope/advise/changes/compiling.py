"""Changes that compile the model, or capture the step as one graph."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from opscope.advise.changes.change import A_MODULE, ON_GPU, Change, Condition, SourceEdit, by_hand, for_model, needs
from opscope.documents.advise import ChangeName, Facts

if TYPE_CHECKING:
    from opscope.advise.variant import Variant

_NOT_COMPILED: Final[Condition] = (lambda facts: not facts.compiled, "the model is compiled already")


def _compile(mode: str | None, variant: "Variant", *, dynamic: bool | None = None) -> None:
    import torch

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


def _compiled(variant: "Variant") -> str | None:
    return None if compiled_frames() > variant.notes["frames"] else "nothing was compiled"


def _written(arguments: str = "") -> SourceEdit:
    # In place, names in checkpoints stay as they are; but of PyTorch's own classes nothing would be compiled.
    all_arguments = ", ".join(filter(None, ("MODEL", arguments)))
    return for_model(f"MODEL = TORCH.compile({all_arguments})", own_class=f"MODEL.compile({arguments})")


COMPILE: Final = Change(
    name=ChangeName.COMPILE,
    slots=("execution",),
    refuses=needs(A_MODULE, _NOT_COMPILED),
    edit=_written(),
    caveat="inputs of other shapes are compiled anew",
    compiles=True,
    apply=partial(_compile, None),
    took_effect=_compiled,
)
COMPILE_DYNAMIC: Final = Change(
    name=ChangeName.COMPILE_DYNAMIC,
    slots=("execution",),
    refuses=needs(A_MODULE, _NOT_COMPILED),
    edit=_written("dynamic=True"),
    caveat="one compiled model serves inputs of all shapes",
    alone=False,
    compiles=True,
    apply=partial(_compile, None, dynamic=True),
    took_effect=_compiled,
)
COMPILE_REDUCE_OVERHEAD: Final = Change(
    name=ChangeName.COMPILE_REDUCE_OVERHEAD,
    slots=("execution", "graph"),
    refuses=needs(ON_GPU, A_MODULE, _NOT_COMPILED),
    edit=_written('mode="reduce-overhead"'),
    caveat="outputs are overwritten by the next call: copy what is kept",
    compiles=True,
    apply=partial(_compile, "reduce-overhead"),
    took_effect=_compiled,
)
COMPILE_MAX_AUTOTUNE: Final = Change(
    name=ChangeName.COMPILE_MAX_AUTOTUNE,
    slots=("execution",),
    refuses=needs(ON_GPU, A_MODULE, _NOT_COMPILED),
    edit=_written('mode="max-autotune-no-cudagraphs"'),
    caveat="inputs of other shapes are tuned anew, for minutes",
    alone=False,
    compiles=True,
    apply=partial(_compile, "max-autotune-no-cudagraphs"),
    took_effect=_compiled,
)


def _changes_nothing_else(facts: Facts) -> str | None:
    """Return why a step cannot be one graph: what is not a tensor would stay as it was when the graph was captured."""
    if facts.device != "cuda":
        return "it is for GPUs"
    if facts.changes_state is None:
        return "a script's steps cannot be captured from outside: make the step a function"
    if facts.loaders:
        return "the step takes batches from a loader: each replay would see the same one"
    if facts.changes_state:
        return f"the step changes {', '.join(facts.changes_state)}: a graph would keep what was captured"
    return None


CUDA_GRAPH: Final = Change(
    name=ChangeName.CUDA_GRAPH,
    slots=("graph",),
    refuses=_changes_nothing_else,
    edit=by_hand(
        "graph = torch.cuda.CUDAGraph()",
        "with torch.cuda.graph(graph):  # after three steps on another stream; Adam with capturable=True",
        "    step()",
        "graph.replay()  # instead of step()",
    ),
    caveat="new inputs are copied into the tensors that were captured, and outputs are overwritten by each replay",
    apply=lambda variant: variant.capture(),
)
