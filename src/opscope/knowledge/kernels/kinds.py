"""What the words of a kernel's name say of its work, where no family of names is understood: likely, and not certain.

The words are those that vLLM, SGLang, FlashInfer, FlashAttention, TensorRT-LLM, triton_kernels, AITER, Composable
Kernel, hipBLASLt, DeepGEMM, DeepEP, CUTLASS and NVSHMEM use; each rule has a real name that it is for.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from opscope.knowledge.categories import Category
from opscope.knowledge.kernels.collective_kernels import is_named_communication
from opscope.knowledge.kernels.decode import decode
from opscope.knowledge.kernels.decoded import Operation
from opscope.knowledge.kernels.names import base_name
from opscope.knowledge.rules import NameRule


@dataclass(frozen=True, slots=True)
class WordRule:
    """A rule on the words of a name; the first that fits decides."""

    category: Category
    words: str
    rule: NameRule


@dataclass(frozen=True, slots=True)
class KernelKind:
    """What kind of work a kernel does.

    Attributes:
        category: the kind, as of operators.
        words: in short.
        likely: whether only words of the name say so; else its whole name is understood.
    """

    category: Category
    words: str
    likely: bool


WORD_RULES: Final[tuple[WordRule, ...]] = (
    WordRule(
        Category.COMMUNICATION,
        "communication",
        NameRule(
            r"all_?reduce|cross_device_reduce|reduce_?scatter|all_?gather|all_?to_?all|(^|_)a2a(_|$)|nccl|rccl"
            r"|mscclpp|nvshmem|deep_ep|internode|intranode|multimem|nvls|_on_stream_kernel|lamport|device_load"
            r"_rmsnorm",
            "aiter::allgather_vec",
            "aiter_meta/csrc/include/custom_all_reduce.cuh:566 (amd-aiter 0.1.7.post2.dev18, __global__; temp"
            "late arguments left out)",
        ),
    ),
    WordRule(
        Category.INDEXING,
        "KV-cache write",
        NameRule(
            r"_and_(maybe_)?(\w+_)?cache(_|$)|append_?paged|store_?kv|process_?kv|flatten_?kv",
            "reshape_and_cache_kernel_flash",
            "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py:33 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.SORT,
        "MoE alignment",
        NameRule(
            r"(^|_)moe_?(lora_)?(align|alig)|(^|_)moe_(\w+_)?sort|opus_moe_sorting",
            "_moe_mxfp4_sort_kernel",
            "aiter/utility/fp4_utils.py:429 (amd-aiter 0.1.7.post2.dev18, @triton.jit)",
        ),
    ),
    WordRule(
        Category.REDUCTION,
        "MoE combination",
        NameRule(
            r"finalize(?!.*all_?reduce)|(^|_)moe_?(sum|reduce|combine)|unpermute|mul_sum|post_?reorder|ep_gath"
            r"er|arg_?max|greedy_sample",
            "moe_sum_kernel",
            "vLLM runtime profile comparison of DeepSeek V4 on Hopper, search-index id 68694424763",
        ),
    ),
    WordRule(
        Category.CONVOLUTION,
        "convolution",
        NameRule(
            r"convolv|convolution|implicit_gemm|igemm_(fwd|bwd|wrw)|conv_?[123]d|(?<!post_)(?<!_post)(^|_)conv"
            r"(_|$)(?!.*mtp)",
            "_causal_conv1d_fwd_kernel",
            "vllm/model_executor/layers/mamba/ops/causal_conv1d.py:17 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.ACTIVATION,
        "activation and product",
        NameRule(
            r"(silu|swiglu|gelu)(_?and)?_?mul\w*(quant|cvt)|act_?(and_?)?mul",
            "_silu_and_mul_post_quant_kernel",
            "PER_SCENARIO_INFOS of DeepSeek profile traces (SGLang / DeepSeek open infra), search-index id 41157624835",
        ),
    ),
    WordRule(
        Category.QUANTIZATION,
        "quantization",
        NameRule(
            r"dequant_?mm|dequantize_|(^|_)quant(ize)?_?.*hadamard(?!.*rope)",
            "awq_dequantize_kernel",
            "vllm/model_executor/layers/quantization/awq_triton.py:12 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.MATRIX,
        "matrix product",
        NameRule(
            r"^Cijk_|^Custom_Cijk_|mfma_moe[12]|(^|_)(fmoe|fused_?moe|moe_?flatmm|flatmm|(?<=\d_)mega_moe|e2e_"
            r"moe)|run_global|marlin(?!.*(repack|preprocess))|gemm(?!a)|gemv|matmul|(^|_)mul_mat|(^|_)(mm|bmm|"
            r"gmm)(_|$)|(^|_)b?gmv|sgmv|lora_?(a|b|shrink|expand)(_|$)|do_(shrink|expand)|wv_?split_?k|batched"
            r"_triton|moe_(q\d|vec_q)|kkt|recompute_w_u|solve_tril|to_\d+x\d+_inverse|moe_stage\d|compute_?str"
            r"ides|(?<!rope_)hadamard",
            "gmm_kernel",
            "aiter/ops/triton/_triton_kernels/gmm.py:87 (amd-aiter 0.1.7.post2.dev18, @triton.jit; launch not"
            " in the same file)",
        ),
    ),
    WordRule(
        Category.RECURRENT,
        "recurrent state",
        NameRule(
            r"fused_recurrent|recurrent_?gdr|selective_(scan|state)_update|selective_state|(kda|gdn|gated_delt"
            r"a|linear_attn)\w*decode|decode\w*(kda|gdn|linear_attn)|rwkv",
            "_selective_scan_update_kernel",
            "vllm/model_executor/layers/mamba/ops/mamba_ssm.py:240 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.SCAN,
        "scan",
        NameRule(
            r"selective_scan|chunk_\w*(scan|state|cumsum|fwd|bwd|kernel_(h|o))|state_passing|cumsum|prefix_?su"
            r"m|ssd_?kernel|flash_kda|(^|_)scan(_|$)|ep_scatter_1|chunked_?gdr",
            "chunk_fwd_kernel_o",
            "fla/ops/common/chunk_o.py:58 (fla-core 0.6.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.NORMALIZATION,
        "normalization",
        NameRule(
            r"rms_?norm|layer_?norm|group_?norm|l2_?norm|(q|k|qk)_?norm|(^|_)norm(_|$)|(^|_)fused_rms_",
            "l2norm_fwd_kernel",
            "fla/modules/norm/l2norm.py:69 (fla-core 0.6.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.RANDOM,
        "sampling",
        NameRule(
            r"sampling_from|(^|_)(min|top)_?[kp]_?(top_?p_?)?sampling|gumbel|philox|rejection_random|recovered"
            r"_tokens|(^|_)sampl(e|ing)(_|$)|speculative_sampling",
            "_gumbel_sample_kernel",
            "vllm/v1/worker/gpu/sample/gumbel.py:282 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.ACTIVATION,
        "log-softmax",
        NameRule(
            r"log_?softmax",
            "_topk_log_softmax_kernel",
            "vllm/v1/worker/gpu/sample/logprob.py:17 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.SORT,
        "selection",
        NameRule(
            r"top_?[kp](?!_?sampling)|routing|(^|_)moe_?(gate|fused_gate)|(^|_)sort(ing)?(_|$)|expert_maps|exp"
            r"t_data|bincount|count_and_sort|(^|_)radix_?(sort|top)|histogram",
            "_topk_forward",
            "vllm/third_party/triton_kernels/topk_details/_topk_forward.py:90 (vllm 0.33.0, @triton.jit; laun"
            "ch not in the same file)",
        ),
    ),
    WordRule(
        Category.ATTENTION,
        "attention",
        NameRule(
            r"attention|attn|fmha|(^|_)mha(_|$)|xqa|(^|_)pod_?with|mqa_logits|flash_(fwd|bwd|attn)|merge_?stat"
            r"es?|prefill_?with|decode_?with|prepare_varlen|_fwd_(grouped_)?kernel_(stage\d|unified)|nsa_fwd|e"
            r"agle_verify|(^|_)pa_(bf16|fp16|a16|a8)|decode_score|index_?(score|logits)|(?<!concat_)(?<!concat"
            r")(^|_)mla(_|$)(?!k|q|_k|_q)|turbomind::attention|flash_?mla",
            "kernel_mha",
            'torch.profiler tables of Qwen3-14B/30B-A3B on H100 ("Unified LLM Torch Profiler Triage Bundle"),'
            " search-index id 52739867955",
        ),
    ),
    WordRule(
        Category.ELEMENTWISE,
        "position or gating",
        NameRule(
            r"rope|rotary|temperature|penalt(y|ies)|bitmask|(^|_)min_p_|gating",
            "_min_p_kernel",
            "vllm/v1/worker/gpu/sample/min_p.py:9 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.ELEMENTWISE,
        "elementwise",
        NameRule(
            r"elementwise|operator_",
            "kernel_batched_elementwise",
            "include/ck/tensor_operation/gpu/grid/gridwise_elementwise_dynamic_vector_dims.hpp (composable_kernel)",
        ),
    ),
    WordRule(
        Category.ACTIVATION,
        "activation",
        NameRule(
            r"silu|swiglu|gelu|relu|geglu|swish|activation|softmax",
            "_softmax_kernel_online",
            "aiter/ops/triton/_triton_kernels/softmax.py:15 (amd-aiter 0.1.7.post2.dev18, @triton.jit; launch"
            " not in the same file)",
        ),
    ),
    WordRule(
        Category.EMBEDDING,
        "embedding",
        NameRule(
            r"embed(ding)?(?!.*rot)",
            "void turbomind::embeddingLookupKernel<unsigned short, 8>(unsigned short*, int, unsigned short co"
            "nst*, int, int const*, int, int)",
            "registered symbol of lmdeploy/turbomind/_turbomind.cpython-311-x86_64-linux-gnu.so (lmdeploy 0.18.0)",
        ),
    ),
    WordRule(
        Category.QUANTIZATION,
        "quantization",
        NameRule(
            r"quant|to_?fp[48]|downcast|upcast|ue8m0|reconstruct|segmented_max_reduction",
            "_downcast_to_mxfp",
            "vllm/model_executor/layers/quantization/utils/mxfp4_utils.py:349 (vllm 0.33.0, @triton.jit)",
        ),
    ),
    WordRule(
        Category.INDEXING,
        "indexing",
        NameRule(
            r"gather|scatter|(kv_)?indices|slot_mapping|permute|shuffle_?(input_?)?rows|expand_?input_?rows|re"
            r"q_to_token|src2dst|(^|_)expand_kernel",
            "expand_kernel",
            "vllm/v1/sample/rejection_sampler.py:1023 (vllm 0.33.0, @triton.jit; launch not in the same file)",
        ),
    ),
    WordRule(
        Category.REDUCTION,
        "reduction",
        NameRule(
            r"(^|_)(reduce|reduction)(_|$)|(^|_)sum(_|$)",
            "_reduce_grouped",
            "vllm/third_party/triton_kernels/matmul_ogs_details/_reduce_grouped.py:8 (vllm 0.33.0, @triton.ji"
            "t; launch not in the same file)",
        ),
    ),
    WordRule(
        Category.MEMORY,
        "copy",
        NameRule(
            r"copy|memcpy|memset|fill_?buffer|(^|_)zero_|repack|prepack|concat|interleave|transpose|transfer|s"
            r"plit_reshape|(^|_)(un)?swizzle",
            "memcpy32_post",
            'torch.profiler tables of Qwen3-14B/30B-A3B on H100 ("Unified LLM Torch Profiler Triage Bundle"),'
            " search-index id 52739867955",
        ),
    ),
)
_COMPILED: Final = tuple((rule, re.compile(rule.rule.pattern, re.IGNORECASE)) for rule in WORD_RULES)
_OF_COMMUNICATION: Final = re.compile(
    "|".join(rule.rule.pattern for rule in WORD_RULES if rule.category is Category.COMMUNICATION), re.IGNORECASE
)
# Templates that hold another kernel: what they run is the first argument.
_WRAPPER: Final = re.compile(
    r"^(?:void )?(?:cutlass::device_kernel|ck_tile::kentry|cutlass::Kernel2?|fused_moe::run_global)<(?:\d+, )*"
    r"(?:flash::enable_\w+<)?(.*)"
)
_MANGLED_KERNEL: Final = re.compile(r"\d{1,3}([A-Z][A-Za-z0-9]{0,200}Kernel)")
# Characters of a name that are looked at, and of what is left of it without templates: the patterns take their square.
_LOOKED_AT: Final = 1_000
_WORDS: Final = 160
_OF_OPERATION: Final[dict[Operation, Category]] = {
    **dict.fromkeys((Operation.GEMM, Operation.GEMV, Operation.DOT, Operation.SPLIT_K_REDUCTION), Category.MATRIX),
    Operation.TEMPLATE: Category.MATRIX,
    **dict.fromkeys((Operation.FPROP, Operation.DGRAD, Operation.WGRAD), Category.CONVOLUTION),
    **dict.fromkeys((Operation.ATTENTION, Operation.ATTENTION_BACKWARD), Category.ATTENTION),
    **dict.fromkeys((Operation.SOFTMAX, Operation.SOFTMAX_BACKWARD), Category.ACTIVATION),
    **dict.fromkeys((Operation.NORMALIZATION, Operation.NORMALIZATION_BACKWARD), Category.NORMALIZATION),
    **dict.fromkeys((Operation.DROPOUT, Operation.RANDOM), Category.RANDOM),
    Operation.EMBEDDING_BACKWARD: Category.EMBEDDING,
    **dict.fromkeys((Operation.LOSS, Operation.LOSS_BACKWARD), Category.LOSS),
    **dict.fromkeys((Operation.POOLING, Operation.POOLING_BACKWARD), Category.POOLING),
    **dict.fromkeys((Operation.ELEMENTWISE, Operation.POINTWISE, Operation.FOREACH), Category.ELEMENTWISE),
    Operation.REDUCTION: Category.REDUCTION,
    **dict.fromkeys((Operation.INDEXING, Operation.SCATTER_GATHER), Category.INDEXING),
    **dict.fromkeys((Operation.COPY, Operation.FILL, Operation.LAYOUT_CHANGE), Category.MEMORY),
    Operation.SCAN: Category.SCAN,
    **dict.fromkeys((Operation.SORT, Operation.SELECTION), Category.SORT),
    Operation.COLLECTIVE: Category.COMMUNICATION,
}


@lru_cache(maxsize=1 << 16)
def kind_of(name: str) -> KernelKind | None:
    """Return what kind of work a kernel does; None where its name tells nothing."""
    if is_named_communication(name):
        return KernelKind(Category.COMMUNICATION, "communication", likely=False)
    operation = decode(name).operation
    if operation in _OF_OPERATION:
        return KernelKind(_OF_OPERATION[operation], str(operation), likely=False)
    subject = _subject(name[:_LOOKED_AT])[:_WORDS]
    last = subject.rpartition("::")[2]
    for text in (_words(last), last, _words(subject), subject):
        for rule, pattern in _COMPILED:
            if pattern.search(text):
                return KernelKind(rule.category, rule.words, likely=True)
    return None


@lru_cache(maxsize=1 << 14)
def communicates(name: str) -> bool:
    """Tell whether a kernel moves data between devices, by its name or its words: the one place that says so."""
    if is_named_communication(name):
        return True
    if not _OF_COMMUNICATION.search(name):  # most names, told quickly
        return False
    kind = kind_of(name)
    return kind is not None and kind.category is Category.COMMUNICATION


def short_name(name: str) -> str:
    """Return a kernel's name as people read it: what the name says, else its words, said to be likely."""
    decoded = decode(name)
    kind = kind_of(name)
    return f"{decoded.summary} ({kind.words}, likely)" if kind is not None and kind.likely else decoded.summary


_CUTLASS_KERNELS: Final = (("4gemm6kernel", "gemm"), ("4fmha", "fmha"))


def _subject(name: str) -> str:
    """Return the part of a name that says what runs, without the arguments of templates."""
    if (wrapped := _WRAPPER.match(name)) is not None:
        inner = wrapped[1].replace("(anonymous namespace)", "anonymous")
        return re.split(r"[<(,>]", inner)[0]
    if name.startswith("_ZN7ck_tile6kentryI"):
        found = _MANGLED_KERNEL.search(name)
        return found[1] if found else name
    if name.startswith("_ZN7cutlass13device_kernel"):
        return next((word for part, word in _CUTLASS_KERNELS if part in name), name)
    if "kernel_cutlass_" in name:  # CuTe's Python DSL appends the types of all arguments
        return name.split("_object_at_", maxsplit=1)[0].split("_tensorptr", maxsplit=1)[0]
    return base_name(name).replace("{anonymous}", "")


def _words(name: str) -> str:
    """Split words that are told apart by capitals only."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
