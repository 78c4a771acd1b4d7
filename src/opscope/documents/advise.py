"""Changes that were tried on the user's own step: the schema ``opscope.advise/1``.

Findings use the names of changes, too.
"""

from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct, field

from opscope.base.summary import Summarised, Summary
from opscope.base.units import format_ns

UNDECIDED: Final = "not decidable"  # reasons begin with it where a measurement says neither yes nor no


class ChangeName(StrEnum):
    """The changes that are tried; docs/guides/advise.md has a row for each."""

    SDPA = "sdpa"
    FUSED_ATTENTION = "fused_attention"
    TF32 = "tf32"
    WEIGHTS_BF16 = "weights_bf16"
    WEIGHTS_FP16 = "weights_fp16"
    INT8_WEIGHTS = "int8_weights"
    AUTOCAST_BF16 = "autocast_bf16"
    AUTOCAST_FP16 = "autocast_fp16"
    CHANNELS_LAST = "channels_last"
    PADDED_PRODUCTS = "padded_products"
    CUDNN_BENCHMARK = "cudnn_benchmark"
    FUSED_OPTIMIZER = "fused_optimizer"
    FOREACH_OPTIMIZER = "foreach_optimizer"
    SET_TO_NONE = "set_to_none"
    COMPILE = "compile"
    COMPILE_DYNAMIC = "compile_dynamic"
    COMPILE_REDUCE_OVERHEAD = "compile_reduce_overhead"
    COMPILE_MAX_AUTOTUNE = "compile_max_autotune"
    DEFERRED_ITEMS = "deferred_items"
    CUDA_GRAPH = "cuda_graph"
    INFERENCE_MODE = "inference_mode"
    HALF_THREADS = "half_threads"
    ALL_THREADS = "all_threads"
    NO_ANOMALY_DETECTION = "no_anomaly_detection"
    PINNED_MEMORY = "pinned_memory"
    PERSISTENT_WORKERS = "persistent_workers"
    LOADER_WORKERS = "loader_workers"


# Asked for as changes are, and none of them: whether steps wait for their data, and what larger batches give.
INPUT: Final = "input"
LARGER_BATCH: Final = "larger_batch"


class ErrorClass(StrEnum):
    """How precise the arithmetic of a change is."""

    EXACT = "exact"  # to rounding, at the precision as written
    TF32 = "tf32"  # products of matrices with ten bits behind the point
    BF16 = "bf16"  # 16-bit numbers
    LOWER = "lower"  # fewer bits


class Outcome(StrEnum):
    """What became of some changes."""

    PROVEN = "proven"  # faster, and right
    TIMED = "timed"  # faster, but not proven: others of its class are at least as good
    UNDECIDED = UNDECIDED  # noise, rounding or lack of time hides whether it is faster, or right
    NO_DIFFERENCE = "no difference"  # not faster than as written, beyond what the same code differs from itself
    SLOWER = "slower"  # than as written, likewise
    REJECTED = "rejected"  # it failed, or its results are wrong
    REFUSED = "refused"  # not tried: it makes no sense here, or it would be wrong


class Ended(StrEnum):
    """Why not everything was done."""

    BUDGET = "budget"  # the time was over
    INTERRUPT = "interrupt"  # the user ended it


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a step before anything is tried.

    Attributes:
        device: its type, ``cuda`` or ``cpu``.
        training: whether the step runs a backward pass.
        draws_random_numbers: whether it draws any on the host.
        modules: how many modules it calls from outside of any other.
        parameter_types: floating-point types of their parameters.
        convolutions: how many convolutions they hold.
        benchmarks_convolutions: whether cuDNN tries out which algorithm is the fastest.
        attention_choices: how many of them offer a choice of attention, as models of transformers do, and have it
            written out.
        written_attention: the modules that compute attention step by step, each class once, with file and line.
        odd_products: how many large products, such as those with a vocabulary, have a number of columns that is no
            multiple of eight.
        waits: where the user's code fetches a number from the device by ``item()`` in a step, each place once.
        quantisable: how many products have weights that torchao can hold in 8 bits; 0 where it is not installed.
        compiled: whether a part of them is compiled already.
        optimizers: their names.
        unfused_optimizers: how many of them could be fused and are not.
        looping_optimizers: how many of them go through their parameters one by one.
        detects_anomalies: whether each operation of a backward pass is checked for NaN.
        kept_gradients: how often a step sets gradients to zero instead of None.
        changes_state: what else than tensors a step changes, such as a counter or the learning rate: the ways to it, a
            few of them; null for a script, whose loop is not looked into.
        threads: how many threads PyTorch uses within an operator on a CPU.
        loaders: from how many data loaders a step takes batches.
        loader_workers: the fewest workers that one of them has.
        iterable_loaders: how many of them have a dataset that yields, instead of being asked for an index.
        restarted_loaders: how many of them start their workers anew for each epoch.
        prefetched: how many batches their workers hold ready, at most.
    """

    device: str
    training: bool
    draws_random_numbers: bool
    modules: int
    parameter_types: tuple[str, ...]
    convolutions: int
    benchmarks_convolutions: bool
    attention_choices: int
    written_attention: tuple[str, ...]
    odd_products: int
    waits: tuple[str, ...]
    quantisable: int
    compiled: bool
    optimizers: tuple[str, ...]
    unfused_optimizers: int
    looping_optimizers: int
    detects_anomalies: bool
    kept_gradients: int
    changes_state: tuple[str, ...] | None
    threads: int
    loaders: int
    loader_workers: int
    iterable_loaders: int
    restarted_loaders: int
    prefetched: int


class Patch(Struct, frozen=True, kw_only=True):
    """Changes written into a script's source.

    Attributes:
        diff: what ``git apply`` takes; null if the changes cannot be written by themselves, or fail once they are.
        folder: where it is to be applied: the root of the script's repository, or a folder above the script.
        reason: why there is none; null if there is.
        ratio: how many times as fast the patched script's step is, run as it is; null without a patch.
        ci_low, ci_high: the 95 % interval of the ratio; null likewise, or if there were too few rounds.
    """

    diff: str | None = None
    folder: str | None = None
    reason: str | None = None
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


class Tried(Struct, frozen=True, kw_only=True):
    """Some changes, applied together.

    Attributes:
        changes: their names.
        error_class: the lowest precision among them; ``class`` in JSON.
        verdict: what became of them.
        reason: why, in one sentence.
        ratio: how many times as fast the step is with them, the median of rounds in which both ran; null if not timed.
        ci_low, ci_high: the 95 % interval of the ratio; null if there were too few rounds.
        step_ns: how long a step takes, in nanoseconds, the median; null if not timed.
        error: the largest error of a tensor against the reference, relative; null if not compared.
        own_error: that of the same tensor of the step as written; null likewise.
        reference: ``float64``, or ``as written`` where the step does not run in float64: then in another process.
        compared_tensors: how many results, gradients and tensors of the state were compared; null unless it is proven.
        compared_elements: how many elements of them, one by one; of a tensor of more than 65,536 elements so many, and
            the norms of its blocks; null likewise.
        memory_bytes: the peak of memory that steps reserved on the device; null on a CPU.
        compile_s: how many seconds the first steps took longer than those as written; null if it never ran.
        pays_after_steps: after how many steps that is made up for; null if never, or unknown.
        lines: what to write.
        caveats: what to know of it.
        patch: the same in the script's own source; null for what is not the best of its class, and for other targets.
    """

    changes: tuple[str, ...]
    error_class: ErrorClass = field(name="class")
    verdict: Outcome
    reason: str
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    step_ns: float | None = None
    error: float | None = None
    own_error: float | None = None
    reference: Literal["float64", "as written"] = "float64"
    compared_tensors: int | None = None
    compared_elements: int | None = None
    memory_bytes: int | None = None
    compile_s: float | None = None
    pays_after_steps: int | None = None
    lines: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    patch: Patch | None = None


class StageCost(Struct, frozen=True, kw_only=True):
    """What a stage of loading costs.

    Attributes:
        stage: read, decode, transform, sample (the dataset's own code, where its name does not tell what it does),
            collate, send (from a worker to the process that trains), or start (of workers).
        batch_ns: per batch, in nanoseconds, where it happens.
        step_ns: how much of that each step has to wait for at least: divided by the workers that share it.
        function: the function in which most of it is spent; null where that is not known.
        file, line: where that is; null for built-in functions.
    """

    stage: str
    batch_ns: float
    step_ns: float
    function: str | None = None
    file: str | None = None
    line: int | None = None


class OtherLoading(Struct, frozen=True, kw_only=True):
    """A step with other loading.

    Attributes:
        change: what is different.
        step_ns: how long a step takes.
        ratio: how many times as fast that is.
        measured: whether it ran; otherwise it is computed from what the stages cost.
    """

    change: str
    step_ns: float
    ratio: float
    measured: bool


class Copies(Struct, frozen=True, kw_only=True):
    """What copying batches to the GPU costs, found by giving steps batches that are there already.

    Attributes:
        blamed: whether copies cost time.
        from_device_ns: the step with batches that are on the GPU, the median.
        from_pinned_ns: the step with batches in pinned memory, the median; null if that does not run.
        ratio: how many times as fast steps are with batches on the GPU as with batches from memory.
        ci_low, ci_high: the 95 % interval of the ratio.
    """

    blamed: bool
    from_device_ns: float
    from_pinned_ns: float | None
    ratio: float
    ci_low: float | None
    ci_high: float | None


class InputProof(Struct, frozen=True, kw_only=True):
    """Whether steps wait for their data, found by giving them batches from memory.

    Attributes:
        blamed: whether loading costs time; false where a step with batches from memory takes as long, and where that
            cannot be decided.
        undecided: why it cannot be decided; null if it can.
        step_ns: the step as written, the median.
        from_memory_ns: the step with batches from memory, the median: no loading can make it shorter.
        ratio: how many times as fast it is with batches from memory.
        ci_low, ci_high: the 95 % interval of the ratio.
        wait_ns: how long a step waits for its batches, the mean.
        workers: how many workers load; 0 for the process itself.
        batches: how many batches a step takes.
        stages: what loading is made of, the costliest first.
        others: what other loading, and other copying, gives.
        copies: what copying batches to the GPU costs; null on a CPU, and where steps need batches that are not there.
    """

    blamed: bool
    undecided: str | None = None
    step_ns: float
    from_memory_ns: float
    ratio: float
    ci_low: float | None
    ci_high: float | None
    wait_ns: float
    workers: int
    batches: float
    stages: tuple[StageCost, ...]
    others: tuple[OtherLoading, ...]
    copies: Copies | None = None


class LargerBatch(Struct, frozen=True, kw_only=True):
    """The step as written with a larger batch. That is another step, and other training: it is measured, not proven.

    Attributes:
        batch_size: how many samples a step takes.
        step_ns: how long it takes, the median, in nanoseconds; null if it does not run.
        ratio: how many times as many samples are done in the same time; null likewise.
        ci_low, ci_high: the 95 % interval of the ratio; null likewise.
        memory_bytes: the peak of memory that steps reserved on the device; null on a CPU.
        reason: why it does not run; null if it does.
    """

    batch_size: int
    step_ns: float | None = None
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    memory_bytes: int | None = None
    reason: str | None = None


class AdviseDocument(Summarised, Struct, frozen=True, kw_only=True):
    """What was tried on one target.

    Attributes:
        schema: the version.
        target: what was run.
        device: its name.
        facts: what the step is like.
        baseline_ns: the step as written, the median, in nanoseconds.
        of_itself: how many times as fast the step as written was as itself, in two processes: low and high end of the
            interval. No gain within that is one.
        classes: the classes of which something was tried, the most precise first.
        results: everything that was tried or refused, the fastest proven ones first.
        best: per class the place in ``results`` of the fastest that is proven.
        processes: how many processes were started.
        seconds: how long it took.
        unfinished: why less was tried than planned; null if all was.
        ended: what ended it before everything was done; null if nothing did.
        input: whether steps wait for their data; null where that was not tried.
        larger_batches: the step as written with larger batches; empty where that was not tried.
    """

    schema: Literal["opscope.advise/1"] = "opscope.advise/1"
    target: str
    device: str
    facts: Facts
    baseline_ns: float
    of_itself: tuple[float, float]
    classes: tuple[ErrorClass, ...]
    results: tuple[Tried, ...]
    best: dict[ErrorClass, int]
    processes: int
    seconds: float
    unfinished: str | None
    ended: Ended | None = None
    input: InputProof | None = None
    larger_batches: tuple[LargerBatch, ...] = ()

    def summary(self) -> Summary:
        """Return the step as written, what is proven with the lines to write, and why less was tried than planned."""
        rows = [("as written", f"{format_ns(self.baseline_ns)} a step on {self.device}")]
        for place in self.best.values():
            one = self.results[place]
            rows.append(
                (f"proven, {one.error_class}", f"{one.ratio or 0:.2f} times as fast: {' + '.join(one.changes)}")
            )
            rows += [("write", line) for line in one.lines]
        if not self.best:
            rows.append(("proven", "nothing"))
        if self.unfinished is not None:
            rows.append(("not done", self.unfinished))
        return Summary(f"Advice on {self.target}", tuple(rows))
