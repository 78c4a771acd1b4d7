"""Data that move between devices: by name, by size, in many small messages, and what to do about it."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.documents.findings import Finding, Rule
from opscope.knowledge.collectives import Collective, collective_of
from opscope.readers.native import library as native
from opscope.readers.reading import read
from tests.kineto import KinetoTrace

US, MS = 1_000, 1_000_000
Analyze = Callable[[KinetoTrace], Analysis]
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (REDUCE, Collective.ALL_REDUCE),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t nccl:all_to_all", Collective.ALL_TO_ALL),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>) nccl:recv 3<-2", Collective.SEND),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(int)", Collective.REDUCE_SCATTER),
        ("ncclDevKernel_AllGather_RING_LL(int)", Collective.ALL_GATHER),
        ("ncclDevKernel_Broadcast_RING_LL(int)", Collective.BROADCAST),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(int)", Collective.REDUCE),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(int)", Collective.ALL_REDUCE),
        ("void deep_ep::internode::dispatch<false>(int)", Collective.ALL_TO_ALL),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", None),
    ],
)
def test_collectives_by_name(text: str, kind: Collective | None) -> None:
    assert collective_of(text) is kind


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({"In msg nelems": 100, "Out msg nelems": 400, "dtype": "BFloat16"}, 800),
        ({"In msg nelems": 100, "dtype": "Float"}, 400),
        ({"In msg nelems": 100, "dtype": "Unheard"}, None),
        ({"In msg nelems": 100}, None),
        ({"In msg nelems": -1, "dtype": "Float"}, None),
        ({"In msg nelems": 100, "dtype": 4}, None),
        ({"In msg nelems": "100", "dtype": "Double", "bytes": 7}, 7),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_sizes_of_messages(args: dict[str, object], size: int | None, compiled: bool, tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.operator("record_param_comms", 0, 10 * US, **args)
    trace.kernel(REDUCE, 20 * US, 10 * US, **args)
    path = trace.write(tmp_path / "t.json")
    with nullcontext() if compiled else mock.patch.object(native, "load_kineto", return_value=None):
        found = read(path)
    assert found.operators["message_bytes"].to_list() == [size]
    assert found.activities["bytes"].to_list() == [size]


def step(messages: int, elements: int | None, kernel: str = REDUCE, *, around: str | None = None) -> KinetoTrace:
    """A step of 10 ms: 4 ms of work, and 3 ms in messages beside which nothing runs."""
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    trace.operator("aten::mm", 0, 20 * US)
    trace.launched_kernel("gemm", (5 * US, 5 * US), (20 * US, 4 * MS))
    if around is not None:
        trace.annotation(around, 30 * US, 9 * MS)
    every = 3 * MS // messages
    for number in range(messages):
        at = 40 * US + number * 20 * US
        sizes = {} if elements is None else {"In msg nelems": elements, "dtype": "Float"}
        trace.operator("record_param_comms", at, 15 * US, **sizes)
        trace.launched_kernel(kernel, (at + 2 * US, 5 * US), (4_100 * US + number * every, every - 10))
    trace.launch(9 * MS, MS - 10 * US, name="cudaDeviceSynchronize")
    return trace


def findings(analysis: Analysis) -> dict[str, Finding]:
    return {finding.rule: finding for finding in Measured(analysis).findings}


@pytest.mark.parametrize(
    ("messages", "elements", "kernel", "fires"),
    [
        (100, 1_000, REDUCE, True),  # 4 kB each
        (100, 10_000_000, REDUCE, False),  # 40 MB each, whatever the protocol
        (101, None, REDUCE, True),  # of unknown size, by what they take: less than 30 us
        (20, None, REDUCE, False),  # LL is in the name of all of NCCL's kernels, whatever they send
        (10, 1_000, REDUCE, False),
    ],
)
def test_many_small_messages(messages: int, elements: int | None, kernel: str, fires: bool, analyzed: Analyze) -> None:
    found = findings(analyzed(step(messages, elements, kernel)))
    assert (Rule.SMALL_COLLECTIVES in found) is fires
    assert Rule.EXPOSED_COMMUNICATION in found
    if fires:
        own = found[Rule.SMALL_COLLECTIVES]
        assert 2.9 * MS <= own.saving_ns.high <= 3 * MS
        assert own.saving_ns.low == 0


@pytest.mark.parametrize("elements", [1_000_000, None])
def test_a_rank_that_waits_for_a_late_one(elements: int | None, analyzed: Analyze) -> None:
    """One of six calls takes 1 ms where the others of its size take 100 us: 700 us beyond three times as long."""
    trace = step(30, elements)
    late = next(event for event in trace.events if event["name"] == REDUCE and event["ts"] > 6_000)
    late["dur"] = 1_000.0
    found = findings(analyzed(trace))
    assert (Rule.LATE_RANK in found) is (elements is not None)  # nothing tells that they are alike
    if elements is not None:
        assert found[Rule.LATE_RANK].saving_ns.high == pytest.approx(700 * US, rel=0.01)
        assert "1 of 30 calls" in found[Rule.LATE_RANK].evidence[0].text
        assert "profile the other ranks" in found[Rule.LATE_RANK].action


def test_how_fast_the_largest_message_is(analyzed: Analyze) -> None:
    """30 messages of 40 MB in 0.1 ms each are 400 GB/s."""
    found = findings(analyzed(step(30, 10_000_000)))[Rule.EXPOSED_COMMUNICATION]
    (speed,) = [fact.text for fact in found.evidence if "largest messages" in fact.text]
    assert "400.0 GB/s" in speed


@pytest.mark.parametrize(
    ("name", "kernel", "words"),
    [
        ("nccl:all_to_all", "ncclDevKernel_SendRecv(int)", "send one part of the data while another one is computed"),
        ("torchrec:all_to_all", "ncclDevKernel_SendRecv(int)", "TrainPipelineSparseDist"),
        ("moe_all_to_all", "ncclDevKernel_SendRecv(int)", "experts compute"),
        ("tensor parallel", "void vllm::cross_device_reduce_1stage<__half, 4>(vllm::RankData*)", "(fused)"),
        ("nccl:send 0->1", "ncclDevKernel_SendRecv(int)", "micro-batches"),
        ("nccl:all_reduce", REDUCE, "fewer devices"),
    ],
)
def test_advice_fits_the_collective(name: str, kernel: str, words: str, analyzed: Analyze) -> None:
    action = findings(analyzed(step(10, 1_000_000, kernel, around=name)))[Rule.EXPOSED_COMMUNICATION].action
    assert words in action
    assert "DistributedDataParallel" not in action


def test_what_the_record_calls_a_collective_counts_first(analyzed: Analyze) -> None:
    """NCCL does all-to-all with the kernel that sends and receives, and without a range only the record says so."""
    trace = step(10, 1_000_000, "ncclDevKernel_SendRecv(int)")
    for event in trace.events:
        if event["cat"] == "kernel":
            event["args"]["Collective name"] = "all_to_allv"
    action = findings(analyzed(trace))[Rule.EXPOSED_COMMUNICATION].action
    assert "micro-batches" not in action
    assert "send one part of the data while another one is computed" in action


def test_buffers_that_ddp_sends_in_each_forward_pass(analyzed: Analyze) -> None:
    sends = "ncclDevKernel_Broadcast_RING_LL(int)"
    found = findings(analyzed(step(10, 1_000, sends, around="DistributedDataParallel.forward")))
    assert "broadcast_buffers=False" in found[Rule.BUFFER_BROADCAST].action
    assert Rule.BUFFER_BROADCAST not in findings(analyzed(step(10, 1_000, sends)))


def test_copies_within_the_device_are_named_beside_other_work(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10 * MS)
    trace.operator("aten::mm", 0, 20 * US)
    trace.launched_kernel("gemm", (5 * US, 5 * US), (20 * US, 7 * MS))
    trace.operator("aten::clone", 30 * US, 20 * US)
    trace.launched_kernel(
        "Memcpy DtoD (Device -> Device)", (35 * US, 5 * US), (7_020 * US, 2 * MS), category="gpu_memcpy"
    )
    trace.launch(60 * US, 9_900 * US, name="cudaDeviceSynchronize")
    own = findings(analyzed(trace))[Rule.DEVICE_COPIES]
    assert own.where.operator == "aten::clone"
    assert own.saving_ns.low == 0
    # They take 2 ms of 10; other work may find its data in the cache without them.
    assert 1.9 * MS <= own.saving_ns.high <= 2.5 * MS
    assert own.likely_ns == pytest.approx(1 * MS, rel=0.05)
