"""The changes that are tried: small objects, read from top to bottom. `applying` makes them. Needs no PyTorch."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from opscope.base.threads import cores
from opscope.documents.advise import ChangeName, ErrorClass, Facts

_MOST_WORKERS: Final = 8  # of one loader: more are seldom better, and each has the dataset once more

Refuses = Callable[[Facts], str | None]


class Change(Struct, frozen=True, kw_only=True):
    """One change.

    Attributes:
        name: its name on the command line and in results.
        slots: what it decides; changes that decide the same exclude each other.
        error_class: how precise arithmetic is with it.
        refuses: returns why it makes no sense for a step; None where it may.
        lines: what to write.
        caveat: what to know of it; empty where there is nothing.
        alone: whether it is tried alone; others, which take minutes or seldom are the best, only in place of another
            change of the best combination.
    """

    name: ChangeName
    slots: tuple[str, ...]
    error_class: ErrorClass
    refuses: Refuses
    lines: tuple[str, ...]
    caveat: str = ""
    alone: bool = True


def workers_tried() -> int:
    """Return how many workers a loader without any is tried with: one for each core that this process may use."""
    return max(1, min(_MOST_WORKERS, cores()))


# ---------------------------------------------------------------- why not


def _needs(*conditions: tuple[Callable[[Facts], bool], str]) -> Refuses:
    """Return what refuses a step for the first condition that does not hold."""

    def refuses(facts: Facts) -> str | None:
        return next((reason for holds, reason in conditions if not holds(facts)), None)

    return refuses


_ON_GPU = (lambda facts: facts.device == "cuda", "it is for GPUs")
_ON_CPU = (lambda facts: facts.device == "cpu", "it is for CPUs")
_A_MODULE = (lambda facts: facts.modules > 0, "the step calls no module that it could be applied to")
_INFERENCE = (lambda facts: not facts.training, "the step trains")
_TRAINING = (lambda facts: facts.training and bool(facts.optimizers), "the step has no optimizer")
_ONE_OPTIMIZER = (lambda facts: len(facts.optimizers) == 1, "there are several optimizers: scale each loss by hand")
_CHOOSES_BY_RULE = (lambda facts: not facts.benchmarks_convolutions, "cuDNN tries algorithms out already")
_IN_FP32 = (lambda facts: "float32" in facts.parameter_types, "no parameter is in float32")
_NOT_COMPILED = (lambda facts: not facts.compiled, "the model is compiled already")
_UNFUSED = (lambda facts: facts.unfused_optimizers > 0, "every optimizer is fused already, or cannot be")
_CONVOLVES = (lambda facts: facts.convolutions > 0, "the model has no convolutions")
_OFFERS_ATTENTION = (
    lambda facts: facts.attention_choices > 0,
    "no model offers a choice of attention, and has it written out",
)
_WRITES_ATTENTION = (
    lambda facts: bool(facts.written_attention),
    "no module writes attention out in a form that is known",
)
_QUANTISABLE = (lambda facts: facts.quantisable > 0, "torchao is not installed, or the model has no linear layers")
_WAITS = (lambda facts: bool(facts.waits), "no number is fetched from the GPU by item() in a step")
_ODD_PRODUCTS = (lambda facts: facts.odd_products > 0, "all large products have multiples of eight columns")
_KEEPS_GRADIENTS = (lambda facts: facts.kept_gradients > 0, "gradients are set to None already")
_LOOPING = (lambda facts: facts.looping_optimizers > 0, "no optimizer goes through its parameters one by one")
_DETECTS_ANOMALIES = (lambda facts: facts.detects_anomalies, "anomaly detection is off")
_IDLE_CORES = (lambda facts: facts.threads < cores(), "PyTorch uses a thread for each core already")
_SEVERAL_THREADS = (lambda facts: facts.threads > 1, "PyTorch uses one thread already")
_LOADS = (lambda facts: facts.loaders > 0, "the step takes no batches from a DataLoader")
_INDEXED = (
    lambda facts: facts.iterable_loaders < facts.loaders,
    "the loader's dataset yields: each worker would yield all of it, unless it shares the work out itself",
)
_RESTARTS = (lambda facts: facts.restarted_loaders > 0, "no loader starts its workers anew for each epoch")
_MORE_WORKERS = (lambda facts: facts.loader_workers < workers_tried(), "loaders have a worker for each core already")


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


# ---------------------------------------------------------------- the list

CHANGES: Final[tuple[Change, ...]] = (
    Change(
        name=ChangeName.SDPA,
        slots=("attention",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_OFFERS_ATTENTION),
        lines=("model.set_attn_implementation('sdpa')",),
    ),
    Change(
        name=ChangeName.FUSED_ATTENTION,
        slots=("written attention",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_WRITES_ATTENTION),
        lines=(
            "y = torch.nn.functional.scaled_dot_product_attention(",
            "    q, k, v, attn_mask=..., dropout_p=p if self.training else 0.0, scale=...)  # in PLACES",
        ),
        caveat="masks are True where something is seen, and a row that sees nothing becomes NaN or zero; "
        "for a plain causal mask, is_causal=True instead",
    ),
    Change(
        name=ChangeName.TF32,
        slots=("products",),
        error_class=ErrorClass.TF32,
        refuses=_needs(_ON_GPU, _IN_FP32),
        lines=("torch.set_float32_matmul_precision('high')",),
        caveat="it holds for the whole process",
    ),
    Change(
        name=ChangeName.WEIGHTS_BF16,
        slots=("precision",),
        error_class=ErrorClass.BF16,
        refuses=_needs(_A_MODULE, _INFERENCE, _IN_FP32),
        lines=("model = model.to(torch.bfloat16)  # and its floating-point inputs",),
    ),
    Change(
        name=ChangeName.WEIGHTS_FP16,
        slots=("precision",),
        error_class=ErrorClass.BF16,
        refuses=_needs(_ON_GPU, _A_MODULE, _INFERENCE, _IN_FP32),
        lines=("model = model.to(torch.float16)  # and its floating-point inputs",),
        caveat="numbers above 65,504 overflow",
    ),
    Change(
        name=ChangeName.INT8_WEIGHTS,
        slots=("weights",),
        error_class=ErrorClass.LOWER,
        refuses=_needs(_A_MODULE, _INFERENCE, _QUANTISABLE),
        lines=(
            "from torchao.quantization import Int8WeightOnlyConfig, quantize_",
            "quantize_(model, Int8WeightOnlyConfig())  # once the model has its weights, and before it is compiled",
        ),
        caveat="what it costs in accuracy is to be seen on your own task",
    ),
    Change(
        name=ChangeName.AUTOCAST_BF16,
        slots=("precision",),
        error_class=ErrorClass.BF16,
        refuses=_needs(_IN_FP32),
        lines=("with torch.autocast(DEVICE, dtype=torch.bfloat16):  # around forward pass and loss",),
    ),
    Change(
        name=ChangeName.AUTOCAST_FP16,
        slots=("precision",),
        error_class=ErrorClass.BF16,
        refuses=_needs(_ON_GPU, _TRAINING, _ONE_OPTIMIZER, _IN_FP32),
        lines=(
            "scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)",
            "with torch.autocast(DEVICE, dtype=torch.float16):  # around forward pass and loss",
            "scaler.scale(loss).backward()",
            "scaler.unscale_(optimizer)  # before gradients are clipped",
            "scaler.step(optimizer)  # instead of optimizer.step()",
            "scaler.update()",
        ),
        caveat="a step whose gradients overflow is left out, and its scale halved",
    ),
    Change(
        name=ChangeName.CHANNELS_LAST,
        slots=("layout",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_A_MODULE, _CONVOLVES),
        lines=(
            "model = model.to(memory_format=torch.channels_last)",
            "images = images.to(memory_format=torch.channels_last)",
        ),
    ),
    Change(
        name=ChangeName.PADDED_PRODUCTS,
        slots=("padding",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_GPU, _ODD_PRODUCTS),
        lines=(
            "padded = -(-columns // 64) * 64  # of a head's weight and bias, with zeros",
            "logits = F.linear(x, F.pad(head.weight, (0, 0, 0, padded - columns)), ...)[..., :columns]",
        ),
        caveat="a weight that is made with as many rows from the beginning needs no padding in each step",
    ),
    Change(
        name=ChangeName.CUDNN_BENCHMARK,
        slots=("cudnn",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_GPU, _CONVOLVES, _CHOOSES_BY_RULE),
        lines=("torch.backends.cudnn.benchmark = True",),
        caveat="each new shape of an input is tried out first",
    ),
    Change(
        name=ChangeName.FUSED_OPTIMIZER,
        slots=("optimizer",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_TRAINING, _UNFUSED),
        lines=("optimizer = OPTIMIZER(..., fused=True)",),
    ),
    Change(
        name=ChangeName.FOREACH_OPTIMIZER,
        slots=("optimizer",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_TRAINING, _LOOPING),
        lines=("optimizer = OPTIMIZER(..., foreach=True)",),
        caveat="it holds a copy of the parameters' size for a moment",
    ),
    Change(
        name=ChangeName.NO_ANOMALY_DETECTION,
        slots=("checks",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_DETECTS_ANOMALIES),
        lines=("torch.autograd.set_detect_anomaly(False)",),
        caveat="NaN in a backward pass is no longer reported where it arises",
    ),
    Change(
        name=ChangeName.ALL_THREADS,
        slots=("threads",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_CPU, _IDLE_CORES),
        lines=("torch.set_num_threads(CORES)",),
    ),
    Change(
        name=ChangeName.SET_TO_NONE,
        slots=("gradients",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_TRAINING, _KEEPS_GRADIENTS),
        lines=("optimizer.zero_grad(set_to_none=True)",),
        caveat="p.grad is None, not zero, after it",
    ),
    Change(
        name=ChangeName.COMPILE,
        slots=("execution",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_A_MODULE, _NOT_COMPILED),
        lines=("model = torch.compile(model)",),
        caveat="inputs of other shapes are compiled anew",
    ),
    Change(
        name=ChangeName.COMPILE_DYNAMIC,
        slots=("execution",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_A_MODULE, _NOT_COMPILED),
        lines=("model = torch.compile(model, dynamic=True)",),
        caveat="one compiled model serves inputs of all shapes",
        alone=False,
    ),
    Change(
        name=ChangeName.COMPILE_REDUCE_OVERHEAD,
        slots=("execution", "graph"),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_GPU, _A_MODULE, _NOT_COMPILED),
        lines=("model = torch.compile(model, mode='reduce-overhead')",),
        caveat="outputs are overwritten by the next call: copy what is kept",
    ),
    Change(
        name=ChangeName.COMPILE_MAX_AUTOTUNE,
        slots=("execution",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_GPU, _A_MODULE, _NOT_COMPILED),
        lines=("model = torch.compile(model, mode='max-autotune-no-cudagraphs')",),
        caveat="inputs of other shapes are tuned anew, for minutes",
        alone=False,
    ),
    Change(
        name=ChangeName.INFERENCE_MODE,
        slots=("autograd",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_INFERENCE),
        lines=("with torch.inference_mode():",),
        caveat="what is made inside takes no part in autograd later",
    ),
    Change(
        name=ChangeName.DEFERRED_ITEMS,
        slots=("waits",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_GPU, _WAITS),
        lines=(
            "total += loss.detach()  # instead of loss.item(), in WAITS",
            "print(total.item())  # where it is looked at",
        ),
        caveat="the host runs ahead of the GPU then, and errors of the GPU are reported later",
    ),
    Change(
        name=ChangeName.CUDA_GRAPH,
        slots=("graph",),
        error_class=ErrorClass.EXACT,
        refuses=_changes_nothing_else,
        lines=(
            "graph = torch.cuda.CUDAGraph()",
            "with torch.cuda.graph(graph):  # after three steps on another stream; Adam with capturable=True",
            "    step()",
            "graph.replay()  # instead of step()",
        ),
        caveat="new inputs are copied into the tensors that were captured, and outputs are overwritten by each replay",
    ),
    Change(
        name=ChangeName.HALF_THREADS,
        slots=("threads",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_CPU, _SEVERAL_THREADS),
        lines=("torch.set_num_threads(THREADS)",),
    ),
    Change(
        name=ChangeName.PINNED_MEMORY,
        slots=("copying",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_ON_GPU, _LOADS),
        lines=(
            "loader = DataLoader(..., pin_memory=True)",
            "batch = batch.to(DEVICE, non_blocking=True)  # for each tensor of it",
        ),
        caveat="pinned memory is taken from what other programs may use",
    ),
    Change(
        name=ChangeName.PERSISTENT_WORKERS,
        slots=("loading",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_LOADS, _RESTARTS),
        lines=("loader = DataLoader(..., persistent_workers=True)",),
        caveat="workers do not see what the program changes in the dataset after they have started",
    ),
    Change(
        name=ChangeName.LOADER_WORKERS,
        slots=("loading",),
        error_class=ErrorClass.EXACT,
        refuses=_needs(_LOADS, _INDEXED, _MORE_WORKERS),
        lines=("loader = DataLoader(..., num_workers=WORKERS, persistent_workers=True)",),
        caveat="random numbers that the dataset draws are others: each worker has a seed of its own",
    ),
)
BY_NAME: Final[dict[str, Change]] = {change.name: change for change in CHANGES}
_PRECISION: Final = tuple(ErrorClass)


def class_of(changes: Sequence[str]) -> ErrorClass:
    """Return the lowest precision among changes."""
    return max((BY_NAME[name].error_class for name in changes), key=_PRECISION.index, default=ErrorClass.EXACT)


def settings_of(facts: Facts) -> dict[str, str]:
    """Return what stands for the words in capitals in lines of changes."""
    workers, threads = workers_tried(), max(1, facts.threads // 2)
    return {
        "device": facts.device,
        "workers": str(workers),
        "threads": str(threads),
        "cores": str(cores()),
        "places": " and in ".join(facts.written_attention),
        "waits": " and ".join(facts.waits),
    }


def lines_of(changes: Sequence[str], facts: Facts) -> list[str]:
    """Return what to write for some changes."""
    settings = settings_of(facts) | {"device": repr(facts.device)}
    lines = [line for name in changes for line in BY_NAME[name].lines]
    optimizers = list(dict.fromkeys(facts.optimizers)) or ["OPTIMIZER"]
    lines = [
        line.replace("OPTIMIZER", name)
        for line in lines
        for name in (optimizers if "OPTIMIZER" in line else optimizers[:1])
    ]
    for word, value in settings.items():
        lines = [line.replace(word.upper(), value) for line in lines]
    return lines


def lower_than(error_class: ErrorClass, other: ErrorClass) -> bool:
    """Tell whether a class is of lower precision than another one."""
    return _PRECISION.index(error_class) > _PRECISION.index(other)


def fit_together(changes: Sequence[str]) -> bool:
    """Tell whether no two changes decide the same."""
    slots = [slot for name in changes for slot in BY_NAME[name].slots]
    return len(slots) == len(set(slots))


def in_order(changes: Sequence[str]) -> tuple[str, ...]:
    """Return changes in the order in which they are applied: that of `CHANGES`."""
    return tuple(change.name for change in CHANGES if change.name in changes)
