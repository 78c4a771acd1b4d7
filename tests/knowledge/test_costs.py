"""What operator calls must do at least: against PyTorch's own counts, by hand, and against what devices did."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.categories import Classifier
from opscope.knowledge.costs import Cost, cost_of, multi_tensor_cost, old_backward, old_convolution_cost
from opscope.knowledge.native_functions import NativeFunctions

FUNCTIONS = NativeFunctions.shipped()
CLASSIFIER = Classifier(FUNCTIONS)


def cost(
    operator: str,
    dims: list[object],
    types: list[str],
    values: list[str] | None = None,
    strides: list[object] | None = None,
) -> Cost | None:
    call = RecordedCall.read(
        json.dumps(dims), json.dumps(types), json.dumps(values or [""] * len(dims)), strides and json.dumps(strides)
    )
    assert call is not None
    call = call.named(FUNCTIONS.argument_names(operator, types))
    return cost_of(operator, CLASSIFIER.classify(operator).category, call)


F, H, I64, S, SL = "float", "c10::BFloat16", "long int", "Scalar", "ScalarList"
E8 = "c10::Float8_e4m3fn"


@pytest.mark.parametrize(
    ("operator", "dims", "types", "values", "flop", "least_bytes"),
    [
        ("aten::addmm", [[4], [2, 3], [3, 4], [], []], [F, F, F, S, S], None, 48, (4 + 6 + 12 + 8) * 4),
        # With a beta of 0 the third matrix is not read.
        (
            "aten::addmm",
            [[2, 4], [2, 3], [3, 4], [], []],
            [F, F, F, S, S],
            ["", "", "", "0", "1"],
            48,
            (6 + 12 + 8) * 4,
        ),
        ("aten::linear", [[5, 2, 3], [4, 3], [4]], [F, F, F], None, 2 * 10 * 3 * 4, (30 + 12 + 40) * 4),
        # The type of the result is not recorded: at least one byte an element.
        ("aten::_scaled_mm", [[16, 32], [32, 8], [], []], [E8, E8, F, F], None, 2 * 16 * 8 * 32, 512 + 256 + 128),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], [H, H], None, 240, 5 * (6 + 12 + 8) * 2),
        ("aten::mv", [[4, 3], [3]], [F, F], None, 24, (12 + 3 + 4) * 4),
        ("aten::_softmax", [[2, 3, 8], [], []], [F, S, S], ["", "-1", "False"], 0, 2 * 48 * 4),
        (
            *("aten::native_layer_norm", [[2, 5, 8], [], [8], [8], []], [F, SL, F, F, S]),
            *(["", "[8]", "", "", "1e-05"], 0, 2 * 80 * 4),
        ),
        ("aten::add", [[4, 1, 3], [2, 1], []], [F, F, S], None, 0, (12 + 2 + 24) * 4),
        ("aten::add", [[], [], []], [F, F, S], None, 0, 1),
        ("aten::eq", [[6], [6]], [F, F], None, 0, 48 + 6),
        ("aten::copy_", [[6], [6], []], [H, F, S], None, 0, 12 + 24),
        ("aten::fill_", [[6], []], [F, S], None, 0, 24),
        # Of complex numbers the result may be real, of whole ones float32.
        ("aten::abs", [[4]], ["c10::complex<float>"], None, 0, 4 * 8 + 4 * 4),
        ("aten::abs", [[4]], [I64], None, 0, 4 * 8 + 4 * 4),
        # The gradient that is written may have 16 bits.
        ("aten::_softmax_backward_data", [[4, 8], [4, 8], [], []], [F, F, S, S], ["", "", "1", "6"], 0, 2 * 128 + 64),
        ("aten::_softmax_backward_data", [[4, 8], [4, 8], [], []], [H, H, S, S], ["", "", "1", "15"], 0, 3 * 64),
        (
            *("aten::max_pool2d_with_indices", [[1, 2, 8, 8], [], [], [], [], []], [F, *[SL] * 4, S]),
            *(["", "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "False"], 0, 512),
        ),
        # The gradient of the input is not wanted in the second.
        (
            *("aten::native_batch_norm_backward", [*[[2, 4, 8, 8]] * 2, *[[4]] * 5, [], [], []], [*[F] * 7, S, S, SL]),
            *([*[""] * 7, "True", "1e-5", "[True, True, True]"], 0, 3 * 2048),
        ),
        (
            *("aten::native_batch_norm_backward", [*[[2, 4, 8, 8]] * 2, *[[4]] * 5, [], [], []], [*[F] * 7, S, S, SL]),
            *([*[""] * 7, "True", "1e-5", "[False, True, True]"], 0, 2 * 2048),
        ),
        ("aten::cat", [[[4, 2], [4, 3]], []], ["TensorList", S], ["", "1"], 0, 2 * 20),
        # One row is read at least, ten are written.
        ("aten::embedding", [[100, 16], [2, 5], [], [], []], [F, I64, S, S, S], None, 0, (160 + 16) * 4 + 80),
        ("aten::sum", [[4, 6], [], [], []], [F, SL, S, ""], ["", "[1]", "False", ""], 0, 96),
        ("aten::native_dropout", [[8], [], []], [F, S, S], None, 0, 32 + 32 + 8),
        (
            *("aten::convolution", [[2, 3, 8, 8], [4, 3, 3, 3], [4], [], [], [], [], [], []], [F, F, F, *[SL] * 3]),
            *(["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"], 2 * 2 * 4 * 64 * 27),
            (2 * 3 * 64 + 4 * 27 + 2 * 4 * 64) * 4,
        ),
        (
            "aten::cudnn_convolution_transpose",
            [[2, 6, 8, 8], [6, 4, 3, 3], [], [], [], [], [], [], [], []],
            [F, F, *[SL] * 4, *[S] * 4],
            ["", "", "[1, 1]", "[1, 1]", "[2, 2]", "[1, 1]", "2", "True", "False", "True"],
            2 * 2 * 64 * 6 * 4 * 9,
            (2 * 6 * 64 + 6 * 4 * 9 + 2 * 8 * 16 * 16) * 4,
        ),
        # 3 of 10 rows of 8 are written, and one is read at least.
        ("aten::index_select", [[10, 8], [], [3]], [F, S, I64], ["", "0", ""], 0, (3 + 1) * 8 * 4 + 24),
        (
            *("aten::embedding_dense_backward", [[2, 5, 16], [2, 5], [], [], []], [F, I64, S, S, S]),
            *(["", "", "100", "-1", "False"], 0, 160 * 4 + 80 + 1600 * 4),
        ),
        ("aten::where", [[6], [6], [6]], ["bool", F, F], None, 0, 6 + 24 + 24 + 24),
        ("aten::add_", [[6], [6], []], [F, H, S], None, 0, 24 + 12 + 24),
        # Inductor's: the last arguments are the sizes of the loops, and of a larger tensor no more is read.
        ("triton_poi_fused_gelu_7", [[8, 128], []], [H, S], ["", "1024"], 0, 2048),
        ("triton_per_fused_embedding_0", [[1000, 64], [8, 64], [], []], [F, F, S, S], ["", "", "8", "64"], 0, 4096),
    ],
)
def test_by_hand(
    operator: str, dims: list[object], types: list[str], values: list[str] | None, flop: int, least_bytes: int
) -> None:
    if operator == "aten::convolution":
        types = [F, F, F, SL, SL, SL, S, SL, S]
    found = cost(operator, dims, types, values)
    assert found is not None
    assert (found.flop, found.least_bytes) == (flop, least_bytes)


def test_numbers_that_no_program_gives_have_no_cost() -> None:
    dims: list[object] = [[2, 3, 8, 8], [4, 3, 3, 3], [4], [], [], [], [], [], []]
    types = [F, F, F, SL, SL, SL, S, SL, S]
    values = ["", "", "", "[1, 1]", f"[{'9' * 400}, 3]", "[1, 1]", "False", "[0, 0]", "1"]
    assert cost("aten::convolution", dims, types, values) is None


@pytest.mark.parametrize(
    ("operator", "dims", "shared_bytes"),
    [
        ("aten::mm", [[3, 4], [4, 3]], (12 + 9) * 4),  # as in x @ x.T
        ("aten::mm", [[3, 4], [4, 5]], None),
        ("aten::mul", [[6], [6]], 24 + 24),
        ("aten::mul", [[6], [1]], None),
        ("aten::eq", [[6], [6]], 24 + 6),
        ("aten::eq", [[6], [1]], None),
        ("aten::add_", [[6], [6]], 24 + 24),
    ],
)
def test_inputs_that_look_alike_may_be_one_tensor(operator: str, dims: list[object], shared_bytes: int | None) -> None:
    found = cost(operator, dims, [F, F])
    assert found is not None
    assert found.shared_bytes == shared_bytes


def test_a_product_is_said_with_its_batch_where_there_are_several() -> None:
    one, several = cost("aten::mm", [[2, 3], [3, 4]], [F, F]), cost("aten::bmm", [[5, 2, 3], [5, 3, 4]], [F, F])
    assert one is not None
    assert one.product is not None
    assert one.product.text == "2 x 3 by 3 x 4"
    assert several is not None
    assert several.product is not None
    assert several.product.text == "5 x 2 x 3 by 3 x 4"


def test_an_attention_backward_makes_five_products() -> None:
    """Hidden sizes 8, lengths 16: queries times keys again, and a product for each of four gradients."""
    dims: list[object] = [[2, 3, 16, 8]] * 5 + [[2, 3, 16]] + [[]] * 8
    values = [""] * 6 + ["", "", "16", "16", "0.", "False", "", ""]
    found = cost("aten::_scaled_dot_product_flash_attention_backward", dims, [H] * 5 + [F] + [S] * 8, values)
    assert found is not None
    assert found.flop == 5 * 2 * 2 * 3 * 16 * 16 * 8
    assert found.least_bytes == 8 * 2 * 3 * 16 * 8 * 2  # inputs, their gradients, the result and its gradient


def test_an_expanded_input_is_read_once() -> None:
    found = cost("aten::copy_", [[4, 6], [4, 6], []], [F, F, S], None, [[6, 1], [0, 1], []])
    assert found is not None
    assert found.least_bytes == (24 + 6) * 4


def test_a_causal_mask_leaves_half_out_of_what_must_be_done() -> None:
    dims: list[object] = [[2, 3, 16, 8]] * 3 + [[]] * 3
    found = cost(
        "aten::_scaled_dot_product_flash_attention", dims, [H, H, H, S, S, S], ["", "", "", "0.", "True", "False"]
    )
    assert found is not None
    assert found.flop == 4 * 2 * 3 * 16 * 16 * 8
    assert found.least_bytes == 4 * 2 * 3 * 16 * 8 * 2
    assert found.least_flop == found.flop * 17 // 32


@pytest.mark.parametrize(
    ("operator", "dims", "types"),
    [
        ("aten::mm", [[2, 3], [4, 5]], [F, F]),
        ("aten::add", [[3], [4], []], [F, F, S]),
        ("aten::linear", [[2, 3], [4, 3, 1]], [F, F]),
        ("aten::linear", [[2, 3], [4, 5]], [F, F]),
        ("aten::_scaled_mm", [[16, 32], [31, 8]], [E8, E8]),
        ("aten::_scaled_mm", [[2, 16, 32], [32, 8]], [E8, E8]),
        ("aten::eq", [[3], [4]], [F, F]),
        ("aten::mm", [[2, 3], [3, 5]], ["what", "what"]),
        ("aten::glu", [[4, 6], []], [F, S]),
        ("vendor::operator", [[4, 6]], [F]),
    ],
)
def test_what_does_not_follow_from_the_inputs_is_not_said(operator: str, dims: list[object], types: list[str]) -> None:
    found = cost(operator, dims, types)
    assert found is None or found.least_bytes is None


def test_pooling_windows_that_lie_apart_do_not_read_everything() -> None:
    dims: list[object] = [[1, 2, 8, 8], [], [], [], [], []]
    values = ["", "[2, 2]", "[3, 1]", "[0, 0]", "[1, 1]", "False"]
    assert cost("aten::max_pool2d_with_indices", dims, [F, *[SL] * 4, S], values) is None


LISTS = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
OF = "at::native::(anonymous namespace)::"
SQRT = f"{LISTS}TensorListMetadata<2>, {OF}UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt<float> >(...)"
DIVIDE = (
    f"{LISTS}TensorListScalarListMetadata<float, 3>, {OF}PointwiseOpScalarListFunctor<float, 3, 3, 0>, "
    "std::divides<float> >(...)"
)
ADAM = (
    f"{LISTS}FusedOptimizerTensorListMetadata<4>, {OF}FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, "
    "float const*>(...)"
)


@pytest.mark.parametrize(
    ("kernel", "blocks", "elements", "bytes_each"),
    [(SQRT, 320, 320 - 64, 8), (DIVIDE, 320, 320 - 48, 16), (ADAM, 320, 320 - 36, 28), (SQRT, 10, 0, 8)],
)
def test_lists_of_tensors_are_bounded_by_their_thread_blocks(
    kernel: str, blocks: int, elements: int, bytes_each: int
) -> None:
    """Each tensor's last chunk of 65,536 elements may hold one only."""
    found = multi_tensor_cost(kernel, blocks)
    assert found is not None
    assert found.least_bytes == elements * 65_536 * bytes_each
    assert multi_tensor_cost("void at::native::vectorized_elementwise_kernel<4>(int)", blocks) is None


def recorded_costs(step: Callable[[], object], path: Path) -> dict[str, Cost]:
    """Run a step under the profiler, and take the costs of its products as the trace records them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    found = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        args = event.get("args", {})
        if event.get("cat") != "cpu_op" or "Input Dims" not in args:
            continue
        inputs = (args[name] for name in ("Input Dims", "Input type", "Concrete Inputs", "Input Strides"))
        one = cost(event["name"], *inputs)
        if one is not None and one.flop:
            found[event["name"]] = one
    return found


def steps() -> dict[str, tuple[str, Callable[[], object]]]:
    """Steps with one product each (or its gradients), and the operator that makes it."""
    torch = pytest.importorskip("torch")
    functional, rand = torch.nn.functional, torch.rand

    def gradients(forward: Callable[..., object], *inputs: object) -> Callable[[], object]:
        leaves = [value.requires_grad_() for value in inputs]
        result = forward(*leaves)
        return lambda: torch.autograd.grad(result.sum(), leaves, retain_graph=True)

    query = lambda: rand(2, 3, 16, 8)  # noqa: E731
    return {
        "mm": ("aten::mm", lambda: rand(5, 7) @ rand(7, 3)),
        "addmm": ("aten::addmm", lambda: functional.linear(rand(5, 7), rand(3, 7), rand(3))),
        "bmm": ("aten::bmm", lambda: rand(4, 5, 7) @ rand(4, 7, 3)),
        "baddbmm": ("aten::baddbmm", lambda: torch.baddbmm(rand(4, 5, 3), rand(4, 5, 7), rand(4, 7, 3))),
        "conv2d": ("aten::mkldnn_convolution", lambda: functional.conv2d(rand(2, 6, 9, 9), rand(8, 6, 3, 3), stride=2)),
        "conv1d": ("aten::mkldnn_convolution", lambda: functional.conv1d(rand(2, 6, 9), rand(8, 6, 3), padding=1)),
        "groups": ("aten::mkldnn_convolution", lambda: functional.conv2d(rand(2, 6, 9, 9), rand(6, 3, 3, 3), groups=2)),
        "dilated": (
            "aten::convolution",
            lambda: functional.conv2d(rand(2, 6, 9, 9), rand(8, 6, 3, 3), dilation=2, padding=2),
        ),
        "conv_backward": (
            "aten::convolution_backward",
            gradients(lambda a, b: functional.conv2d(a, b, padding=1), rand(2, 6, 9, 9), rand(8, 6, 3, 3)),
        ),
        "groups_backward": (
            "aten::convolution_backward",
            gradients(lambda a, b: functional.conv2d(a, b, groups=2), rand(2, 6, 9, 9), rand(8, 3, 3, 3)),
        ),
        "transposed": (
            "aten::convolution",
            lambda: functional.conv_transpose2d(
                rand(2, 6, 9, 9), rand(6, 4, 3, 3), stride=2, output_padding=1, groups=2
            ),
        ),
        "transposed_backward": (
            "aten::convolution_backward",
            gradients(
                lambda a, b: functional.conv_transpose2d(a, b, stride=2, padding=1, groups=2),
                *(rand(2, 6, 9, 9), rand(6, 4, 3, 3)),
            ),
        ),
        "attention": (
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            lambda: functional.scaled_dot_product_attention(query(), query(), query()),
        ),
        "causal": (
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            lambda: functional.scaled_dot_product_attention(query(), query(), query(), is_causal=True),
        ),
        "attention_backward": (
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            gradients(functional.scaled_dot_product_attention, query(), query(), query()),
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("mm", "addmm", "bmm", "baddbmm", "conv2d", "conv1d", "groups", "dilated", "conv_backward", "attention"),
        *("causal", "attention_backward", "groups_backward", "transposed", "transposed_backward"),
    ],
)
def test_operations_equal_pytorchs_own_count(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    # PyTorch counts attention on GPUs only; the formulas are the same.
    mapping = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
            lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
        ),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda grad, query, key, value, *_, **__: sdpa_backward_flop_count(grad, query, key, value)
        ),
    }
    operator, step = steps()[name]
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        step()
    found = recorded_costs(step, tmp_path / "t.json")
    assert operator in found
    assert found[operator].flop == counter.get_total_flops()


# ---------------------------------------------------------------- convolutions of PyTorch before 1.11

# 2 images of 3 channels and 5 x 5 pixels, 4 filters of 3 x 3 pixels, steps of 2: 2 x 2 pixels come out.
IMAGE, FILTERS, RESULT = [2, 3, 5, 5], [4, 3, 3, 3], [2, 4, 2, 2]
OLD_FLOP = 2 * 2 * (2 * 2) * (4 * 3 * 3 * 3)
OLD_BYTES = 4 * (2 * 3 * 25 + 4 * 3 * 9 + 2 * 4 * 4)
G = "GenericList"


def recorded(dims: list[object], types: list[str]) -> RecordedCall:
    call = RecordedCall.read(json.dumps(dims), json.dumps(types), None)
    assert call is not None
    return call


@pytest.mark.parametrize("library", ["cudnn", "miopen", "mkldnn"])
@pytest.mark.parametrize(
    ("part", "dims", "types"),
    [
        ("convolution", [IMAGE, FILTERS, [], [], []], [F, F, G, G, G]),
        ("convolution_backward_input", [[], RESULT, FILTERS, [], []], [G, F, F, G, G]),
        ("convolution_backward_weight", [[], RESULT, IMAGE, [], []], [G, F, F, G, G]),
    ],
)
def test_a_backward_pass_gives_the_costs_of_all_parts_of_an_old_convolution(
    library: str, part: str, dims: list[object], types: list[str]
) -> None:
    sizes = old_backward(f"aten::{library}_convolution_backward", recorded([IMAGE, RESULT, FILTERS, []], [F, F, F, G]))
    assert sizes is not None
    found = old_convolution_cost(f"aten::{library}_{part}", recorded(dims, types), [sizes])
    assert found is not None
    assert (found.flop, found.least_bytes) == (OLD_FLOP, OLD_BYTES)


def test_two_convolutions_of_the_same_inputs_leave_the_forward_pass_without_a_cost() -> None:
    call = recorded([IMAGE, RESULT, FILTERS, []], [F, F, F, G])
    wider = recorded([IMAGE, [2, 4, 5, 5], FILTERS, []], [F, F, F, G])
    known = [old_backward("aten::cudnn_convolution_backward", one) for one in (call, wider)]
    assert None not in known
    forward = recorded([IMAGE, FILTERS, [], [], []], [F, F, G, G, G])
    assert old_convolution_cost("aten::cudnn_convolution", forward, [sizes for sizes in known if sizes]) is None


def test_a_transposed_convolution_is_not_taken_for_a_plain_one() -> None:
    # Its filters begin with the channels that go in.
    call = recorded([[2, 4, 2, 2], [2, 3, 5, 5], [4, 3, 3, 3], []], [F, F, F, G])
    assert old_backward("aten::cudnn_convolution_backward", call) is None
