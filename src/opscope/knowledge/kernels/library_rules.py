"""Which library kernels of a name belong to: every rule with a real name that it is for, and where that was seen.

Symbols are of the libraries in NVIDIA's and PyTorch's packages; the other names are of traces and of published
profiles. The order matters: the first rule that fits decides.
"""

from typing import Final

from opscope.knowledge.rules import NameRule

LIBRARY_RULES: Final[tuple[tuple[str, tuple[NameRule, ...]], ...]] = (
    # Names that look like another library's, so they come first.
    (
        "cuBLAS",
        (
            NameRule(
                r"_5x_cublas",
                "void cask_plugin__5x_cublas::xmma__5x_cublas::init_device_workspace_kernel<xmma__5x_cublas::gemm::Warp_specialized_params_nontemplate>(xmma__5x_cublas::gemm::Warp_specialized_params_nontemplate, bool)",
                "symbol of libcublasLt.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^magma_(lds128_|[hs]gemmEx)",
                "void magma_lds128_strmm_kernel<false, true, 6, 6, 4, 3, 4>(int, int, float const*, int, float const*, int, float*, int, float const*, float const*, float, float, int, int, bool, bool)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^getrf_semiwarp",
                "void getrf_semiwarp<float, float, 2, 3, true>(int, float* const*, int, int*, int*, int)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^geqr2_batch_kernel",
                "void geqr2_batch_kernel<float, float, 32, 8>(int, int, int, float* const*, int, float* const*, int)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
        ),
    ),
    (
        "cuSOLVER",
        (
            NameRule(
                r"^gemvn_template_kernel_scalaronhost",
                "void gemvn_template_kernel_scalaronhost<float, 32, 2, 32>(int, int, float, float const*, int, float const*, int, float, float*, int)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
            NameRule(
                r"^trsm_right$",
                "void trsm_right<float, 32, 32, 128>(int, int, void*, int, unsigned int*, int, int)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
        ),
    ),
    (
        "cuDNN",
        (
            NameRule(
                r"^maxwell_gcgemm",
                "maxwell_gcgemm_32x32_nt",
                "a TensorFlow profile, among cuDNN's kernels of convolutions by FFT",
            ),
        ),
    ),
    (
        "CUDA",
        (
            NameRule(
                r"^Memcpy$",
                "Memcpy DtoH (Device -> Pinned)",
                "recorded on an H200 with PyTorch 2.11: bert_bf16_sdpa_bs8_seq128",
            ),
            NameRule(
                r"^Memset$",
                "Memset (Device)",
                "recorded on an H200 with PyTorch 2.11: bert_bf16_sdpa_bs8_seq128",
            ),
        ),
    ),
    (
        "Triton",
        (
            NameRule(
                r"^triton_",
                "triton_poi_fused_add_mul_tanh_0",
                "recorded on an H200 with PyTorch 2.11: gelu_variants",
            ),
            NameRule(
                r"^_?triton",
                "_triton_paged_decode_kernel",
                "torch.profiler table of an LLM decode benchmark",
            ),
        ),
    ),
    (
        "NCCL",
        (
            NameRule(
                r"^nccl(Dev)?Kernel",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "recorded on an H200 with PyTorch 2.11: ddp_rank0",
            ),
            NameRule(
                r"^ncclSymk?DevKernel",
                "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)",
                "symbol of libnccl.so.2 (nvidia-nccl-cu13 2.30.7)",
            ),
        ),
    ),
    (
        "RCCL",
        (
            NameRule(
                r"^rccl",
                "rccl_main_kernel(ncclDevComm*, unsigned long, ncclWork*)",
                "rocprofv3 kernel_stats.csv of a parallel ResNet training",
            ),
        ),
    ),
    (
        "NVSHMEM",
        (
            NameRule(
                r"^nvshmem",
                "nvshmemi_signal_op_kernel(unsigned long*, unsigned long, int, int)",
                "symbol of libnvshmem_host.so.3 (nvidia-nvshmem-cu13 3.4.5)",
            ),
        ),
    ),
    (
        "cuDNN",
        (
            NameRule(
                r"^cudnn",
                "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
                "recorded on an H200 with PyTorch 2.11: bert_bf16_sdpa_bs8_seq128",
            ),
            NameRule(
                r"_5x_cudnn",
                "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride_align4>(cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride_align4::Params)",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^cask_plugin",
                "void cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace_kernel<xmma__5x_cudnn::implicit_gemm::wgrad_indexed::Warp_specialized_params<xmma__5x_cudnn::Grid_constant_params> >(xmma__5x_cudnn::implicit_gemm::wgrad_indexed::Warp_specialized_params<xmma__5x_cudnn::Grid_constant_params>, bool)",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^xmma__5x_cudnn",
                "void xmma__5x_cudnn::implicit_gemm::strided_dgrad_indexed::kernel_helper_stage_0<xmma__5x_cudnn::implicit_gemm::strided_dgrad_indexed::Params_pre_hopper>(xmma__5x_cudnn::implicit_gemm::strided_dgrad_indexed::Params_pre_hopper)",
                "symbol of libcudnn_engines_precompiled.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
            NameRule(
                r"^sm\d+_xmma_fprop",
                "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x32_stage5_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^sm\d+_xmma_dgrad",
                "sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^sm\d+_xmma_wgrad",
                "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x32_warpgroupsize1x1x1_g1_execute_split_k_kernel__5x_cudnn",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^cutlass_\w*fprop",
                "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8::Params)",
                "AMD-AGI/TraceLens, test of verbatim names (H100 inference trace)",
            ),
            NameRule(
                r"^cutlass_\w*dgrad",
                "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride_align4>(cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride_align4::Params)",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^cutlass_\w*wgrad",
                "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_h884wgrad_optimized_64x64_32x2_nhwc_align8>(cutlass_tensorop_h884wgrad_optimized_64x64_32x2_nhwc_align8::Params)",
                "symbol of libcudnn_engines_precompiled.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
            NameRule(
                r"_fprop_",
                "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
                "recorded on an H200 with PyTorch 2.11: bert_bf16_sdpa_bs8_seq128",
            ),
            NameRule(
                r"_dgrad_",
                "sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"_wgrad_",
                "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x32_warpgroupsize1x1x1_g1_execute_split_k_kernel__5x_cudnn",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"implicit_convolve",
                "void implicit_convolve_sgemm<float, float, int, 128, 5, 5, 3, 3, 3, 0, true, true, true>(int, int, int, float const*, int, float*, float const*, kernel_conv_params, unsigned long long, int, float, float, int, float const*, float const*, bool, bool, int, int)",
                "symbol of libcudnn_engines_precompiled.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
            NameRule(
                r"^explicit_convolve",
                "void explicit_convolve_sgemm<float, int, 128, 5, 5, 3, 3, 3, 0, true>(int, int, int, float const*, int, float const*, int, float*, kernel_conv_params, unsigned long long, int, unsigned long long, int, float, float, int, bool, bool, float const*, float const*)",
                "symbol of libcudnn_engines_precompiled.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
            NameRule(
                r"^im2col4d",
                "void im2col4d_kernel<float, int>(im2col4d_params, cudnnConvolutionStruct, cudnnTensor4dStruct, float const*, float*, int)",
                "TensorFlow profile (kernel_stats) of a convolutional network, cuDNN 7",
            ),
            NameRule(
                r"scudnn",
                "volta_scudnn_128x32_relu_small_nn_v1",
                "symbol of libcudnn_engines_precompiled.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
            NameRule(
                r"^DSE::",
                "void DSE::vector_fft<0, 1, 128, 8, 8, 1, float, float, float2>(float2*, float2*, int, int3, int3)",
                "symbol of libcudnn_engines_precompiled.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
            NameRule(
                r"\dcudnn_",
                "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_large_nhwc_tn_v1",
                "symbol of libcudnn_engines_precompiled.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
        ),
    ),
    (
        "cuBLAS",
        (
            NameRule(
                r"^nvjet_",
                "nvjet_sm90_tst_96x64_64x10_1x2_h_bz_bias_TNN",
                "recorded on an H200 with PyTorch 2.11: bert4_bf16_compiled",
            ),
            NameRule(
                r"^cublas",
                "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false, float, float, float, true, true, false, false>(cublasLt::cublasSplitKParams<float>, float const*, float const*, float*, float*, float const*, float const*, float const*, float const*, float*, void*, long, float*, int*, float*, float*, float const*, float const*, float const*, float const*, float const*)",
                "recorded on an H200 with PyTorch 2.11: bert_trace_bs1_seq128",
            ),
            NameRule(
                r"^sm\d+_xmma_gemm",
                "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^maxwell_\w*gemm",
                "maxwell_sgemm_128x64_nt",
                "TensorFlow profile, Conv2DBackpropFilter",
            ),
            NameRule(
                r"^volta_\w*gemm",
                "volta_sgemm_64x32_sliced1x4_nn",
                "nsys/NVTX profile JSON of a PyTorch model",
            ),
            NameRule(
                r"^turing_\w*gemm",
                "turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn",
                "torch.profiler table",
            ),
            NameRule(
                r"^ampere_\w*gemm",
                "ampere_sgemm_128x64_nn",
                "torch.profiler trace export; also a kernel symbol in libcublasLt.so.13",
            ),
            NameRule(
                r"^cutlass_\d+_tensorop_",
                "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x6_nn_align4>(cutlass_80_tensorop_s1688gemm_128x128_16x6_nn_align4::Params)",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^cutlass_\d+_wmma_tensorop_",
                "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8::Params)",
                "AMD-AGI/TraceLens, test of verbatim names (H100 inference trace)",
            ),
            NameRule(
                r"^cutlass_\d+_simt_",
                "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm_128x32_8x5_nn_align1::Params)",
                "recorded on an H200 with PyTorch 2.11: resnet50_train_fp32",
            ),
            NameRule(
                r"^internal::gemvx",
                "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false, true, true, false, 7, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float> >(cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float>)",
                "recorded on an H200 with PyTorch 2.11: bert_fp32_sdpa_bs1_seq128",
            ),
            NameRule(
                r"^gemv",
                "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, true, cublasGemvParamsEx<int, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float>, float> >(cublasGemvParamsEx<int, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float>, float>, float, float)",
                "symbol of libcublasLt.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^gemmSN_",
                "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float> >(cublasGemmSmallNParams<cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float>)",
                "recorded on an H200 with PyTorch 2.11: bert_fp32_eager_bs8_seq128",
            ),
            NameRule(
                r"^gemmk1",
                "void gemmk1_kernel<int, float, 256, 5, true, false, true, false, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float>, float, 0>(cublasGemmk1Params<float, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float const>, cublasGemvTensorBatched<float>, float, biasType<cublasGemvTensorBatched<float>::value_type, float>::type>)",
                "symbol of libcublasLt.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^dot_kernel",
                "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensorStridedBatched<float> > >(cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensorStridedBatched<float> >)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^reduce_1Block",
                "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>, cublasGemvTensor<float>, cublasGemvTensor<float> >(float const*, float, cublasGemvTensorStridedBatched<float>, int, float const*, float, cublasGemvTensor<float>, cublasGemvTensor<float>, cublasPointerMode_t, cublasLtEpilogue_t, cublasGemvTensorStridedBatched<biasType<cublasGemvTensor<float>::value_type, float>::type const>)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^splitKreduce",
                "void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>, float const*, float const*, float*, float const*, float const*, float const*)",
                "nsys/NVTX profile JSON of a PyTorch model",
            ),
            NameRule(
                r"^[sdhcz]gemm_",
                "void sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 34>(float*, float const*, float const*, int, int, int, int, int, int, float const*, float const*, float, float, int, int, int*, int*)",
                "recorded on an H200 with PyTorch 2.11: bert_fp32_sdpa_bs1_seq128",
            ),
            NameRule(
                r"^scal_kernel",
                "void scal_kernel<float, float, 1, true, 6, 5, 5, 3>(cublasTransposeParams<float>, float const*, float*, float const*)",
                "recorded on an H200 with PyTorch 2.11: bert_fp32_sdpa_bs1_seq128",
            ),
            NameRule(
                r"^trsm",
                "void trsm_ln_kernel<float, 32u, 32u, 4u, true>(int, int, float const*, int, float*, int, float, float const*, int, int*)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^axpy_kernel",
                "void axpy_kernel_val<float, float>(cublasAxpyParamsVal<float, float, float>)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^nrm2_kernel",
                "void nrm2_kernel<float, float, float, 0, 0, 128>(cublasNrm2Params<int, float, float>)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^asum_kernel",
                "void asum_kernel<int, float, float>(cublasAsumParams<float, float>)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^iamax_kernel",
                "void iamax_kernel<int, float, float, 256>(cublasIamaxParams<int, float, float>)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^ger_kernel",
                "void ger_kernel<float, float, 256, 5, false>(cublasGerParams<float, float>)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
            NameRule(
                r"^syherk_kernel",
                "void syherk_kernel_core<int, float, float, 512, 5, true, false, false, false, true, true>(cublasSyherkParams<int, float, float>)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
        ),
    ),
    (
        "cuFFT",
        (
            NameRule(
                r"^vector_fft",
                "void vector_fft<unsigned int=32, unsigned int=8, unsigned int=32, unsigned int=10, padding_t=1, twiddle_t=0, loadstore_modifier_t=2, layout_t=0, unsigned int, float>(kernel_arguments_t<unsigned int>)",
                "nvprof log",
            ),
            NameRule(
                r"^regular_fft",
                "void regular_fft<192u, EPT<12u, 16u>, 16u, 2u, (padding_t)6, (twiddle_t)0, (loadstore_modifier_t)2, (layout_t)1, unsigned int, double, HostConfigPlaceholder>(kernel_arguments_t<unsigned int>)",
                "CUDA.jl profile",
            ),
            NameRule(
                r"^multi_bluestein",
                "multi_bluestein_fft",
                "course text on Nsight Compute: cuFFT-internal kernels such as multi_bluestein_fft",
            ),
            NameRule(
                r"^composite_\d*way_fft",
                "void composite_2way_fft<unsigned int=20, unsigned int=4, unsigned int=32, padding_t=0, twiddle_t=0, loadstore_modifier_t=2, unsigned int=5, layout_t=1, unsigned int, double>(kernel_arguments_t<unsigned int>)",
                "nvprof log of Quantum ESPRESSO on GPU",
            ),
            NameRule(
                r"^dpRadix",
                "void dpRadix0256C::kernel1Mem<unsigned int, double, fftDirection_t=-1, unsigned int=8, unsigned int=2, CONSTANT, ALL, WRITEBACK>(kernel_parameters_t<fft_mem_radix1_t, unsigned",
                "NVIDIA developer forum, topic 60066 (nvprof of cufftExecD2Z)",
            ),
            NameRule(
                r"^postprocess_kernel",
                "void postprocess_kernel<float, unsigned int, loadstore_modifier_t=2>(real_complex_args_t<unsigned int>)",
                "nvprof log of a cuFFT R2C transform",
            ),
        ),
    ),
    (
        "cuSPARSE",
        (
            NameRule(
                r"^cusparse",
                "void cusparse::csrmv_v3_kernel<std::integral_constant<bool, true>, int, int, float, float, float, float, void>(cusparse::KernelCoeffs<float>, int const*, int const*, int const*, float const*, int, int, int, float const*, float*, int*, float*)",
                "symbol of libcusparse.so.12 (nvidia-cusparse 12.6.3.3)",
            ),
        ),
    ),
    (
        "cuSOLVER",
        (
            NameRule(
                r"^cusolver",
                "void cusolver_update_diagG_kernel<float, 256>(int, float, int const*, float*)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
            NameRule(
                r"^geqr",
                "void geqr2_smem<float, float, 8, 5, 5>(int, int, float*, unsigned long, float*, int)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
            NameRule(
                r"^potrf",
                "void potrf_cta_lower_batch<float, float, 16>(int, int, int, float**, unsigned long, int*)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
            NameRule(
                r"^getrf",
                "void getrf_pivot<getrf_params_<float, 32, 1, 32, 32, 1> >(int, int, int, void*, int, long*, int, getrf_params_<float, 32, 1, 32, 32, 1>::data_type*, unsigned int*, unsigned int*, getrf_params_<float, 32, 1, 32, 32, 1>::data_type*, unsigned int, unsigned int, unsigned int, int*)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
            NameRule(
                r"^syevj",
                "void syevj_diagonal_kernel<float, float, 256>(long, float const*, long, float*)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
            NameRule(
                r"^larft",
                "void larft_T_32<float, 256>(int, float*, int, long, float const*, long)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
            NameRule(
                r"^ormtr_",
                "void ormtr_gemv_c<float, 4>(long, long, float const*, long, long, float const*, long, int, float*, long)",
                "symbol of libcusolver.so.12 (nvidia-cusolver 12.0.4.66)",
            ),
        ),
    ),
    (
        "MAGMA",
        (
            NameRule(
                r"^magma",
                "magma_iset_pointer_kernel(int**, int*, int, int, int, int)",
                "symbol of libtorch_cuda_linalg.so (torch 2.14.1)",
            ),
        ),
    ),
    (
        "FlashAttention",
        (
            NameRule(
                r"^flash::",
                "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, false, false, false, false, true, false, false>(flash::Flash_fwd_params)",
                "torch.profiler kernel table (flash_attn package)",
            ),
            NameRule(
                r"^flash_fwd",
                "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, 0, 0, half_t, Flash_kernel_traits<128, 128, 64, 4, half_t>>, 0, 0, 0, 0, 1, 1, 0, 0>(Flash_fwd_params)",
                "Nsight Compute name of a FlashAttention-2 kernel (ncu leaves out namespaces)",
            ),
            NameRule(
                r"^flash_bwd",
                "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<96, 64, 128, 8, 2, 4, 4, true, false, cutlass::half_t, Flash_kernel",
                "nm of the flash_attn library, quoted in a docstring",
            ),
            NameRule(
                r"^pytorch_flash::",
                "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<96, 64, 64, 4, false, false, cutlass::half_t, Flash_kernel_traits<96, 64, 64, 4, cutlass::half_t> >, true, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
                "symbol of libtorch_cuda.so (torch 2.14.1)",
            ),
        ),
    ),
    (
        "FlashInfer",
        (
            NameRule(
                r"^flashinfer",
                "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, unsigned int, unsigned int, unsigned int, float, float)",
                "torch.profiler of SGLang serving on B200",
            ),
        ),
    ),
    (
        "TensorRT-LLM",
        (
            NameRule(
                r"^tensorrt_llm",
                "void tensorrt_llm::twoShotAllReduceKernel<__half, (int)8>(tensorrt_llm::AllReduceParams)",
                "apache/tvm pull request 16842 (nsys kernel summary)",
            ),
            NameRule(
                r"^fmhaSm\d",
                "fmhaSm100fKernel_QkvBfloat16OBfloat16H64PagedKvCausalP64VarSeqQ128Kv128PersistentContext",
                "torch.profiler of SGLang serving on B200 (trtllm-gen cubin, launched through FlashInfer)",
            ),
        ),
    ),
    (
        "vLLM",
        (
            NameRule(
                r"^vllm::",
                "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)",
                "torch.profiler comparison of vLLM traces",
            ),
            NameRule(
                r"^paged_attention",
                "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0, 256>(float*, int*)",
                "test of real ROCm symbols (arguments cut down by its author)",
            ),
        ),
    ),
    (
        "Tensile (rocBLAS, hipBLASLt)",
        (
            NameRule(
                r"^Cijk_",
                "Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA2_GRVWB2_GSUAMB_GLS0_ISA942_IU1_K1_LBSPPA256_LBSPPB512_LBSPPM0_LPA16_LPB8_LPM0_LRVW4_LWPMn1_MIAV0_MIWT1_1_MO40_NTn1_NTA4_NTB0_NTC0_NTD4_NTM0_NEPBS16_NLCA1_NLCB1_ONLL1_PGR2_PLR1_PKA1_SIA3_SS1_SPO0_SRVW0_SSO0_SVW1_SK0_SKXCCM0_TLDS1_ULSGRO0_USL1_UIOFGRO0_USFGROn1_VSn1_VWA1_VWB1_WSGRA0_WSGRB0_WS64_WG16_4_4",
                "AMD-AGI/TraceLens, test of verbatim names (MI300 Qwen inference trace)",
            ),
        ),
    ),
    (
        "MIOpen",
        (
            NameRule(
                r"^MIOpen",
                "MIOpenBatchNormFwdTrainSpatial",
                "rocprofv3 kernel_stats.csv of ResNet training on MI300",
            ),
            NameRule(
                r"^miopen",
                "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1",
                "profile of VGG16 on MI300-class GPU",
            ),
            NameRule(
                r"^SubTensorOp",
                "SubTensorOpWithScalar1d",
                "rocprofv3 kernel_stats.csv of ResNet training on MI300",
            ),
            NameRule(
                r"^igemm_fwd",
                "igemm_fwd_gtcx3_nhwc_fp16_bx0_ex0_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64_tb1x8x2x1_1x4x1x64_gkgs",
                "rocprofv3 kernel_stats.csv of ResNet training on MI300",
            ),
            NameRule(
                r"^igemm_bwd",
                "igemm_bwd_gtcx3_nhwc_fp16_bx0_ex0_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64_tb1x8x1x2_1x4x1x64_gkgs",
                "rocprofv3 kernel_stats.csv of ResNet training on MI300",
            ),
            NameRule(
                r"^igemm_wrw",
                "igemm_wrw_gtcx3_nhwc_fp16_bx0_ex1_bt256x256x32_wt32x32x8_ws2x2_wr2x2_ta1x4x1x8_1x8x1x32_tb1x4x1x8_1x8x1x32_gkgs",
                "rocprofv3 kernel_stats.csv of ResNet training on MI300",
            ),
            NameRule(
                r"^batched_transpose_",
                "batched_transpose_32x32_half",
                "MIOpen documentation of per-kernel times (kernel list of a solution)",
            ),
            NameRule(
                r"^naive_conv",
                "naive_conv_ab_nonpacked_wrw_nchw_float_double_float.kd",
                "rocprof stats on Radeon 7900 XT",
            ),
            NameRule(
                r"^gridwise",
                "gridwise_convolution_implicit_gemm_v4r4_xdlops_nchw_kc1x1_nkhw_lds_double_buffer",
                "MIOpen source: kernel.GetName() is compared with this name; the family is also in ROCm/MIOpen pull request 167",
            ),
        ),
    ),
    (
        "Composable Kernel",
        (
            NameRule(
                r"^ck::",
                "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemmMultiD_ABScale_xdl_cshuffle_v3<ck::tensor_layout::gemm::RowMajor, ck::tensor_layout::gemm::ColumnMajor, ck::Tuple<>, ck::tensor_layout::gemm::RowMajor, ck::f8_fnuz_t, ck::f8_fnuz_t, float, float, ck::Tuple<>, unsigned short, ck::tensor_operation::element_wise::PassThrough, ck::tensor_operation::element_wise::PassThrough, ck::tensor_operation::element_wise::PassThrough, (ck::tensor_operation::device::GemmSpecialization)0, 256, 1, 128, 128, 16, 128, 256, 16, 16, 16, 16, 1, 2, ck::Sequence<16, 16, 1>, ck::Sequence<1, 0, 2>, ck::Sequence<1, 0, 2>, 2, 16, 16, false, 0, ck::Sequence<16, 16, 1>, ck::Sequence<1, 0, 2>, ck::Sequence<1, 0, 2>, 2, 16, 16, false, 0, 1, 2, ck::Sequence<1, 16, 1, 16>, ck::Sequence<8>, (ck::BlockGemmPipelineScheduler)0, (ck::BlockGemmPipelineVersion)0, ck::f8_fnuz_t, ck::f8_fnuz_t, ck::f8_fnuz_t, ck::f8_fnuz_t>, true, (ck::InMemoryDataOperationEnum)0, 2, (ck::TailNumber)10>",
                "AMD-AGI/TraceLens, test of verbatim names (MI300 SGLang FP8 trace)",
            ),
            NameRule(
                r"^ck_tile::",
                "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<...",
                "torch.profiler key_averages() table, flash_attn on ROCm (shortened by PyTorch itself)",
            ),
        ),
    ),
    (
        "rocPRIM",
        (
            NameRule(
                r"^rocprim",
                "void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<rocprim::ROCPRIM_4...",
                "torch.profiler comparison of vLLM on MI355X; the same in SGLang and rocprofv3 outputs",
            ),
        ),
    ),
    (
        "ROCm runtime",
        (
            NameRule(
                r"^__amd_rocclr_",
                "__amd_rocclr_copyBuffer",
                "rocprofv3 kernel_stats.csv of ResNet training on MI300",
            ),
        ),
    ),
    (
        "CUTLASS",
        (
            NameRule(
                r"^cutlass::",
                "void cutlass::Kernel<cutlass::transform::kernel::Compression<signed char, unsigned int, cutlass::layout::RowMajor, 2, 4, 2, 1, 2> >(cutlass::transform::kernel::Compression<signed char, unsigned int, cutlass::layout::RowMajor, 2, 4, 2, 1, 2>::Params)",
                "symbol of libcusparseLt.so.0 (nvidia-cusparselt-cu13 0.8.1)",
            ),
            NameRule(
                r"^cutlass3x",
                "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu",
                "torch.profiler of SGLang serving on B200; names of this form are in libcublasLt.so.13 (7039), libcudnn_engines_precompiled (1714) and libcusparseLt (2280)",
            ),
        ),
    ),
    (
        "CUB",
        (
            NameRule(
                r"^(at_cuda_detail::)?cub(_\d+)?::",
                "void at_cuda_detail::cub::detail::scan::DeviceScanInitKernel<at_cuda_detail::cub::ScanTileState<int, true> >(at_cuda_detail::cub::ScanTileState<int, true>, int)",
                "symbol of libtorch_cuda.so (torch 2.14.1)",
            ),
            NameRule(
                r"^thrust::",
                "void thrust::THRUST_300001_SM_750_800_860_900_1000_1200_NS::cuda_cub::core::detail::_kernel_agent<thrust::THRUST_300001_SM_750_800_860_900_1000_1200_NS::cuda_cub::__reduce::DrainAgent<int>, at_cuda_detail::cub::GridQueue<unsigned int>, int>(at_cuda_detail::cub::GridQueue<unsigned int>, int)",
                "symbol of libtorch_cuda.so (torch 2.14.1)",
            ),
        ),
    ),
)
# Kernels without a namespace are told by the types of their parameters: the libraries' own.
PARAMETER_RULES: Final[tuple[tuple[str, tuple[NameRule, ...]], ...]] = (
    (
        "cuBLAS",
        (
            NameRule(
                r"\bcublas",
                "void geam_kernel<int, float, true, true, true, true, 6, 5, 3, false>(cublasGeamParams<int, float>, float const*, float const*, float*, float const*, float const*)",
                "symbol of libcublas.so.13 (nvidia-cublas 13.1.1.3)",
            ),
        ),
    ),
    (
        "cuDNN",
        (
            NameRule(
                r"\bcudnn",
                "void RNN_blockPersist_fp_LSTM<float, float, float, 32>(float const*, float*, float const*, float*, float const*, float*, float*, float const*, float const*, float*, int, int, int, int, int, int, cudnnRNNClipMode_t, cudnnNanPropagation_t, float, float)",
                "symbol of libcudnn_adv.so.9 (nvidia-cudnn-cu13 9.24.0.43)",
            ),
        ),
    ),
    (
        "cuSPARSE",
        (
            NameRule(
                r"\bcusparse",
                "void gemvi_kernel<float, 32, 5, 8, 3, (cusparseOperation_t)0, false>(cusparseGemviParams<float>)",
                "symbol of libcusparse.so.12 (nvidia-cusparse 12.6.3.3)",
            ),
        ),
    ),
    (
        "MAGMA",
        (
            NameRule(
                r"\bmagma_\w+_t\b",
                "void sgemm_batched_smallsq_kernel<1>(magma_trans_t, magma_trans_t, float, float const* const*, int, int, int, float const* const*, int, int, int, float, float**, int, int, int, int)",
                "symbol of libtorch_cuda_linalg.so (torch 2.14.1)",
            ),
        ),
    ),
)
