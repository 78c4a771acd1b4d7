"""Which library a kernel belongs to, by its name: for libraries whose source is closed, or not ATen's.

Only the function's own qualified name is looked at: the arguments of an ATen kernel may well mention cuDNN.
"""

import re
from typing import Final

from opscope.knowledge.kernels.names import base_name

# Library, and how names of its kernels begin, or what they contain. The first rule that fits decides.
_RULES: Final[tuple[tuple[str, str], ...]] = (
    ("CUDA", r"^Mem(cpy|set)$"),
    ("Triton", r"^triton_|^_?triton"),
    ("NCCL", r"^nccl(Dev)?Kernel"),
    ("RCCL", r"^rccl"),
    ("NVSHMEM", r"^nvshmem"),
    ("cuDNN", r"^cudnn|_5x_cudnn|^cask_plugin|^xmma__5x_cudnn|^sm\d+_xmma_(fprop|dgrad|wgrad)"
              r"|^cutlass_\w*(fprop|dgrad|wgrad)|_(fprop|dgrad|wgrad)_|implicit_convolve|^explicit_convolve|^im2col4d|^winograd|scudnn|^bn_(fw|bw)_"),
    ("cuBLAS", r"^nvjet_|_5x_cublas|^cublas|^sm\d+_xmma_gemm"
               r"|^(maxwell|pascal|volta|turing|ampere|hopper|blackwell)_\w*gemm|^cutlass_\d+_(tensorop|wmma_tensorop|simt)_|^internal::gemvx|^gemv|^gemmSN_|^gemmk1|^dot_kernel"
               r"|^reduce_1Block|^splitKreduce|^[sdhcz]gemm_|^scal_kernel|^trsm|^(axpy|nrm2|asum|iamax|ger|syrk)_kernel"),
    ("cuFFT", r"^(vector_fft|regular_fft|multi_bluestein|composite_\d*way_fft|spRadix|dpRadix|postprocess_kernel)"),
    ("cuSPARSE", r"^cusparse"),
    ("cuSOLVER", r"^cusolver|^(geqr|potrf|getrf|syevj|trti2|larft)"),
    ("MAGMA", r"^magma"),
    ("FlashAttention", r"^flash::|^flash_(fwd|bwd)"),
    ("FlashInfer", r"^flashinfer"),
    ("TensorRT-LLM", r"^tensorrt_llm|^trtllm|^fmhaSm\d"),
    ("vLLM", r"^vllm::|^paged_attention"),
    ("Tensile (rocBLAS, hipBLASLt)", r"^Cijk_"),
    ("MIOpen", r"^MIOpen|^miopen|^SubTensorOp|^igemm_(fwd|bwd|wrw)|^batched_transpose_|^naive_conv|^gridwise"),
    ("Composable Kernel", r"^ck::|^ck_tile::"),
    ("rocPRIM", r"^rocprim|^hipcub"),
    ("ROCm runtime", r"^__amd_rocclr_"),
    ("CUTLASS", r"^cutlass(::|_|3x)"),  # of a library that builds on it; which one, the name does not say
    ("CUB", r"^(at_cuda_detail::)?cub(_\d+)?::|^thrust::"),
)  # fmt: skip
_COMPILED: Final = tuple((library, re.compile(rule)) for library, rule in _RULES)
_WRAPPED = re.compile(r"cutlass\w*::Kernel2?<(?P<inner>cutlass_\w+)>")


def library_of(name: str) -> str | None:
    """Return the library that a kernel's name belongs to; None if no rule knows it."""
    plain = name.strip().removeprefix("void ")
    wrapped = _WRAPPED.match(plain)
    names = (wrapped["inner"], base_name(plain)) if wrapped else (base_name(plain),)
    for library, rule in _COMPILED:
        if any(rule.search(candidate) for candidate in names):
            return library
    return None
