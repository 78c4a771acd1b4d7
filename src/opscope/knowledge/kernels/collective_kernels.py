"""Kernels that move data between devices, by their names: for records that carry no collective's arguments."""

import re
from typing import Final

from opscope.knowledge.rules import NameRule, compiled

COMMUNICATION_RULES: Final[tuple[NameRule, ...]] = (
    NameRule(
        r"(^|[\s:])r?nccl\w*Kernel",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "recorded on an H200 with PyTorch 2.11: ddp_rank0",
    ),
    NameRule(
        r"^(void )?rccl",
        "rccl_main_kernel(ncclDevComm*, unsigned long, ncclWork*)",
        "rocprofv3 kernel_stats.csv of a parallel ResNet training",
    ),
    NameRule(
        r"nvshmem",
        "nvshmemi_signal_op_kernel(unsigned long*, unsigned long, int, int)",
        "symbol of libnvshmem_host.so.3 (nvidia-nvshmem-cu13 3.4.5)",
    ),
    NameRule(
        r"cross_device_reduce",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)",
        "torch.profiler comparison of vLLM traces",
    ),
    NameRule(
        r"custom_?all_?reduce",
        "FastllmCustomAllReduceKernel<half,4>",
        "nsys profile of FastLLM",
    ),
    NameRule(
        r"(?<![a-z])all_?reduce_kernel",
        "void (anonymous namespace)::multimem_all_reduce_kernel<float, 4>(float*, unsigned long, unsigned int**, unsigned long, unsigned long)",
        "symbol of libtorch_cuda.so (torch 2.14.1)",
    ),
    NameRule(
        r"one_shot_all_reduce",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<float, 4, 2>(float**, float*, float*, unsigned long, unsigned long, unsigned int**, unsigned long, unsigned long)",
        "symbol of libtorch_cuda.so (torch 2.14.1)",
    ),
    NameRule(
        r"two_shot_all_reduce",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 4, 2>(float**, unsigned long, unsigned long, unsigned int**, unsigned long, unsigned long)",
        "symbol of libtorch_cuda.so (torch 2.14.1)",
    ),
    NameRule(
        r"multimem_all",
        "void (anonymous namespace)::multimem_all_gather_kernel<4>(char*, char*, unsigned long, unsigned int**, unsigned long, unsigned long)",
        "symbol of libtorch_cuda.so (torch 2.14.1)",
    ),
    NameRule(
        r"(^|[\s:])(internode|internode_ll|intranode)::",
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int, int, int**, int)",
        "torch.profiler of SGLang serving on B200",
    ),
    NameRule(
        r"oneShotAllReduce",
        "void tensorrt_llm::oneShotAllReduceKernel<__half, (int)8>(tensorrt_llm::AllReduceParams)",
        "apache/tvm pull request 16842 (nsys kernel summary)",
    ),
    NameRule(
        r"twoShotAllReduce",
        "void tensorrt_llm::twoShotAllReduceKernel<__half, (int)8>(tensorrt_llm::AllReduceParams)",
        "apache/tvm pull request 16842 (nsys kernel summary)",
    ),
    NameRule(
        r"allreduce_fusion_kernel",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)",
        "torch.profiler of SGLang serving on B200",
    ),
    NameRule(
        r"mscclKernel",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        "rocprof top table of an LLM on MI300",
    ),
    NameRule(
        r"mscclpp::",
        "mscclpp::collective::allreducePacket",
        "kernel names in an nsys SQLite export with MSCCL++ preloaded",
    ),
    NameRule(
        r"userbuffers_",
        "void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int, int, int, int, int, int, int, void**, int, unsigned long)",
        "profile of Transformer Engine tensor-parallel overlap",
    ),
    NameRule(
        r"(^|[\s:])ncclSymk?DevKernel",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)",
        "symbol of libnccl.so.2 (nvidia-nccl-cu13 2.30.7)",
    ),
)
_COMPILED: Final = compiled(COMMUNICATION_RULES, re.IGNORECASE)


def is_named_communication(name: str) -> bool:
    """Tell whether a kernel has the name of one that moves data between devices; see `kinds.communicates`."""
    return _COMPILED.search(name) is not None
