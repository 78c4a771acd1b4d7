"""Two tiny traces whose every figure is worked out by hand in the comments. Times are nanoseconds."""

from tests.kineto import KinetoTrace

BACKWARD_THREAD = 200


def inference() -> KinetoTrace:
    """Two equal steps of 100 us: a linear layer and a GELU on one stream, each step ending with a synchronise.

    Per step, from its start b:

    ============================  ==================  =====================================================
    aten::linear                  b+10 .. b+40 us     contains aten::addmm
    aten::addmm                   b+12 .. b+38        contains a launch b+20 .. b+25
    gemm (stream 7)               b+30 .. b+50        5 us after its call, stream empty: launch latency
    aten::gelu                    b+42 .. b+52        contains a launch b+44 .. b+48
    gelu (stream 7)               b+51 .. b+60        3 us after its call, gemm still ran then: backlog
    cudaDeviceSynchronize         b+55 .. b+65
    ============================  ==================  =====================================================

    Device sum and busy: 2 x (20 + 9) = 58 us. Step window 0 .. 200, so idle = 142 us:
    0 .. 20 dispatch, 20 .. 30 latency (step 1); 50 .. 51 dependency (each step); 60 .. 65 blocking call (until it
    returned), 65 .. 120 dispatch, 120 .. 130 latency; 160 .. 200 after the last activity.
    """
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    dims = {"Input Dims": [[4], [2, 8], [8, 4], [], []], "Input type": ["float", "float", "float", "Scalar", "Scalar"]}
    for number, base in ((1, 0), (2, 100_000)):
        trace.step(number, base, 100_000)
        trace.operator("aten::linear", base + 10_000, 30_000)
        trace.operator("aten::addmm", base + 12_000, 26_000, **dims)
        geometry = {"grid": [8, 12, 1], "block": [128, 1, 1]}
        trace.kernel("gemm", base + 30_000, 20_000, trace.launch(base + 20_000, 5_000), **geometry)
        trace.operator("aten::gelu", base + 42_000, 10_000)
        trace.launched_kernel("gelu", (base + 44_000, 4_000), (base + 51_000, 9_000))
        trace.slice("cuda_runtime", "cudaDeviceSynchronize", base + 55_000, 10_000)
    return trace


def training() -> KinetoTrace:
    """One training step without step ranges: forward, backward on another thread, all-reduce, optimizer, a lost launch.

    ==========================  ===========  ======================================================
    aten::mm (thread 100)       0 .. 10      launch 2 .. 4,   kernel mm 10 .. 20 on stream 7
    autograd engine             20 .. 40     thread 200, contains MmBackward0
    MmBackward0                 21 .. 39     contains aten::mm and record_param_comms
    aten::mm                    22 .. 30     launch 24 .. 26, kernel mm 30 .. 40 on stream 7
    record_param_comms          31 .. 35     launch 32 .. 33, ncclDevKernel 35 .. 50 on stream 20
    aten::_foreach_add_         51 .. 57     in Optimizer.step, launch 53 .. 55, multi_tensor 56 .. 60 on stream 7
    Memcpy DtoH                 62 .. 65     no launch recorded
    ==========================  ===========  ======================================================

    Device sum 10 + 10 + 15 + 4 + 3 = 42 us, busy (union) 10 + 20 + 4 + 3 = 37. Device window 10 .. 65 = 55, idle 18:
    20 .. 24 dispatch, 24 .. 30 latency, 50 .. 53 dispatch, 53 .. 56 latency, 60 .. 62 launch not recorded.
    Compute 10 + 10 + 4 = 24, exposed communication 40 .. 50 = 10, exposed memcpy 3: 24 + 10 + 3 + 18 = 55.
    """
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    trace.operator("aten::mm", 0, 10_000)
    trace.launched_kernel("mm", (2_000, 2_000), (10_000, 10_000))
    engine = "autograd::engine::evaluate_function: MmBackward0"
    trace.operator(engine, 20_000, 20_000, tid=BACKWARD_THREAD)
    trace.operator("MmBackward0", 21_000, 18_000, tid=BACKWARD_THREAD)
    trace.operator("aten::mm", 22_000, 8_000, tid=BACKWARD_THREAD)
    trace.launched_kernel("mm", (24_000, 2_000), (30_000, 10_000), tid=BACKWARD_THREAD)
    trace.operator("record_param_comms", 31_000, 4_000, tid=BACKWARD_THREAD)
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    trace.launched_kernel(nccl, (32_000, 1_000), (35_000, 15_000), tid=BACKWARD_THREAD, stream=20)
    trace.annotation("Optimizer.step#SGD.step", 50_000, 10_000)
    trace.operator("aten::_foreach_add_", 51_000, 6_000)
    trace.launched_kernel("multi_tensor", (53_000, 2_000), (56_000, 4_000))
    trace.kernel("Memcpy DtoH (Device -> Pageable)", 62_000, 3_000, category="gpu_memcpy", bytes=4096)
    return trace
