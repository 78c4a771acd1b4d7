"""Iterations of servers, and the kernels of LLM serving by the words of their names."""

from collections.abc import Callable

import pytest

from opscope.analysis.analyzed import Analysis
from opscope.knowledge.categories import Category
from opscope.knowledge.kernels.kinds import kind_of, short_name, word_rules
from opscope.knowledge.serving import ITERATION_FORMATS, Iteration, iteration_of
from tests.command import opscope
from tests.kineto import KinetoTrace

US = 1_000
Analyze = Callable[[KinetoTrace], Analysis]


@pytest.mark.parametrize(
    ("name", "iteration"),
    [
        ("execute_context_0(0)_generation_32(32)", Iteration("decode", 32, 32)),
        ("execute_context_2(512)_generation_0(0)", Iteration("prefill", 2, 512)),
        ("execute_context_2(512_1024)_generation_30(30)", Iteration("mixed", 32, 542)),
        ("execute_7_context_1(sq128sk256)_generation_4(sq4sk900)", Iteration("mixed", 5, 132)),
        (
            "execute_1_context_2(sq512sk512sqsq131072sqsk131072)_generation_30(sq30sk9000sqsq30sqsk9000)",
            Iteration("mixed", 32, 542),
        ),
        ("step[DECODE bs=63]", Iteration("decode", 63, 63)),
        ("step[EXTEND bs=17 toks=8192]", Iteration("prefill", 17, 8192)),
        ("step[MIXED bs=2]", Iteration("mixed", 2, None)),
        ("step[IDLE bs=0]", Iteration("idle", 0, None)),
        ("step[DECODE bs=32 flops=1.2e12 bytes=3e9]", Iteration("decode", 32, 32)),
        ("step[EXTEND bs=4 toks=8192 kv=120000]", Iteration("prefill", 4, 8192)),
        ("execute_new_2_cached_6", Iteration("mixed", 8, None)),
        ("execute_new_0_cached_8", Iteration("decode", 8, None)),
        ("[Executor] _forward_step 12: 1 ctx reqs, 512 ctx tokens, 8 gen reqs", Iteration("mixed", 9, 520)),
        ("[Executor] _forward_step 3: 0 ctx reqs, 8 gen reqs", Iteration("decode", 8, 8)),
        ("[Executor] _forward_step: 2 ctx reqs, 0 gen reqs", Iteration("prefill", 2, None)),
        ("execute_diffusion_4_1024x768", Iteration("diffusion", 4, None, "1024x768")),
        ("capture_64_FULL", Iteration("capture", 64, None, "full")),
        ("capture_8_PIECEWISE", Iteration("capture", 8, None, "piecewise")),
        ("capture_1_DECODE", Iteration("capture", 1, None, "decode")),
        ("execute_context_menu", None),
        ("step[DECODE bs=99999999999999999999]", None),
        ("ProfilerStep#3", None),
    ],
)
def test_names_of_iterations(name: str, iteration: Iteration | None) -> None:
    assert iteration_of(name) == iteration


def test_every_format_has_an_example() -> None:
    assert all(iteration_of(example) is not None for _, _, example in ITERATION_FORMATS)


def server() -> KinetoTrace:
    """Three decoding iterations of 32 requests, 100 us apart with 85 us of work, and one prefill of 400 us."""
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    for number in range(3):
        begin = number * 100 * US
        trace.annotation("step[DECODE bs=32]", begin, 40 * US)
        trace.launched_kernel("decode", (begin + 10 * US, 5 * US), (begin + 20 * US, 85 * US))
    trace.annotation("step[EXTEND bs=4 toks=2048]", 300 * US, 40 * US)
    trace.launched_kernel("prefill", (310 * US, 5 * US), (320 * US, 400 * US))
    return trace


def test_iterations_by_hand(analyzed: Analyze) -> None:
    prefill, decode = analyzed(server()).iterations
    assert (prefill.kind, prefill.requests, prefill.tokens, prefill.iterations) == ("prefill", 4, 2048, 1)
    assert (prefill.total_ns, prefill.device_sum_ns, prefill.idle_ns) == (400 * US, 400 * US, 0)
    assert (decode.kind, decode.requests, decode.tokens, decode.iterations) == ("decode", 32, 32, 3)
    assert (decode.total_ns, decode.median_ns, decode.host_ns) == (300 * US, 100 * US, 40 * US)
    assert (decode.device_sum_ns, decode.idle_ns, decode.bound) == (255 * US, 45 * US, "device")


def test_ranges_around_each_other_are_one_iteration_and_groups_are_none(analyzed: Analyze) -> None:
    """Around each of three iterations the same server names another range; around two of them there is a third."""
    trace = server()
    for number in range(3):
        trace.annotation("execute_context_0(0)_generation_32(32)", number * 100 * US - 5 * US, 60 * US)
    trace.annotation("step[DECODE bs=64]", -10 * US, 190 * US)
    prefill, decode = analyzed(trace).iterations
    assert (decode.kind, decode.iterations, decode.total_ns, decode.host_ns) == ("decode", 3, 300 * US, 60 * US)
    assert (prefill.kind, prefill.iterations) == ("prefill", 1)


def test_a_single_iteration_lasts_as_long_as_its_work(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    trace.annotation("step[DECODE bs=32]", 0, 900 * US)
    trace.launched_kernel("decode", (700 * US, 5 * US), (800 * US, 85 * US))
    (decode,) = analyzed(trace).iterations
    assert (decode.iterations, decode.total_ns, decode.host_ns) == (1, 85 * US, 900 * US)


def test_iterations_stand_in_a_table_and_other_ranges_in_none(analyzed: Analyze, tmp_path: object) -> None:
    path = str(server().write(tmp_path / "t.json"))  # type: ignore[operator]
    table = opscope("analyze", "--by", "iteration", path).stdout
    assert "decode" in table
    assert "2,048" in table
    plain = KinetoTrace()
    plain.annotation("forward", 0, 40 * US)
    plain.launched_kernel("k", (10 * US, 5 * US), (20 * US, 80 * US))
    assert analyzed(plain).iterations == ()


@pytest.mark.parametrize("rule", word_rules(), ids=lambda rule: rule.words)
def test_every_rule_on_words_has_a_real_name(rule: object) -> None:
    found = kind_of(rule.rule.example)  # type: ignore[attr-defined]
    assert found is not None
    assert found.likely
    assert found.category is rule.category  # type: ignore[attr-defined]
    assert rule.rule.origin  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("void vllm::paged_attention_v2_kernel<unsigned short, 128>(float*)", Category.ATTENTION),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>(...)", Category.INDEXING),
        ("void vllm::rms_norm_kernel<c10::BFloat16>(...)", Category.NORMALIZATION),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)", Category.COMMUNICATION),
        ("void vllm::act_and_mul_kernel<c10::BFloat16>(...)", Category.ACTIVATION),
        ("fused_moe_kernel", Category.MATRIX),
        ("void moe_align_block_size_kernel<int>(...)", Category.SORT),
        ("_w8a8_block_fp8_matmul", Category.MATRIX),
        ("flashinfer::BatchDecodeWithPagedKVCacheKernel", Category.ATTENTION),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>(...)", Category.RANDOM),
        ("_per_token_group_quant_8bit", Category.QUANTIZATION),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Category.COMMUNICATION),
        ("fused_recurrent_gated_delta_rule_fwd_kernel", Category.RECURRENT),
    ],
)
def test_kernels_of_serving_by_the_words_of_their_names(name: str, category: Category) -> None:
    found = kind_of(name)
    assert found is not None
    assert found.category is category


def test_a_name_without_known_words_says_nothing() -> None:
    assert kind_of("frobnicate_kernel") is None
    assert "likely" not in short_name("frobnicate_kernel")
    assert short_name("fused_moe_kernel").endswith("(matrix product, likely)")


def test_work_of_no_operator_counts_by_what_its_name_says(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for place, name in enumerate(("void vllm::paged_attention_v2_kernel<float>(...)", "frobnicate")):
        trace.launched_kernel(name, (place * 10 * US, US), (place * 10 * US + 2 * US, 5 * US))
    table = analyzed(trace).categories
    assert dict(table.select("category", "self_device_ns").iter_rows()) == {"Attention": 5 * US, "Unlinked": 5 * US}


def replays(captured: bool) -> KinetoTrace:
    trace = KinetoTrace()
    if captured:
        trace.launch(0, US, name="cudaStreamBeginCapture")
        for place, name in enumerate(("aten::mm", "aten::add")):
            trace.operator(name, 2 * US + place * 10 * US, 8 * US)
            trace.launch(4 * US + place * 10 * US, US)
        trace.launch(30 * US, US, name="cudaStreamEndCapture")
    for replay in range(2):
        begin = (100 + 100 * replay) * US
        correlation = trace.launch(begin, 5 * US, name="cudaGraphLaunch")
        for node, name in enumerate(("gemm", "add")):
            trace.kernel(
                name, begin + (10 + 20 * node) * US, 20 * US, correlation, **{"graph node id": node + 1, "graph id": 1}
            )
    return trace


def test_replays_are_charged_to_what_was_captured(analyzed: Analyze) -> None:
    for captured, names in (
        (True, {"aten::mm (graph replay)": 40 * US, "aten::add (graph replay)": 40 * US}),
        (False, {"(graph replay, not attributed)": 80 * US}),
    ):
        analysis = analyzed(replays(captured))
        rows = analysis.operators_and_unlinked
        found = {name: time for name, time in rows.select("name", "self_device_ns").iter_rows() if time}
        assert found == names
        assert sum(found.values()) == analysis.accounting.activities_ns
        assert analysis.mostly_unlinked
