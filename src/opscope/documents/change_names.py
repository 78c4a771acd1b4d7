"""Names of what ``opscope advise`` tries: findings name them, too."""

from enum import StrEnum
from typing import Final


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
