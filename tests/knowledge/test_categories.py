"""Kinds of work: the first seven, the named others, and where the answer comes from."""

import pytest

from opscope.knowledge.categories import Category, Classification, Classifier
from opscope.knowledge.native_functions import (
    Argument,
    NativeFunction,
    NativeFunctions,
    NativeFunctionTable,
    TorchVersion,
)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier(NativeFunctions.shipped())


@pytest.mark.parametrize(
    ("category", "names"),
    [
        (Category.MATRIX, "mm matmul bmm addmm baddbmm linear addmv dot _scaled_mm _int_mm einsum linear_backward"),
        (Category.NORMALIZATION, "layer_norm native_layer_norm native_layer_norm_backward batch_norm cudnn_batch_norm "
         "cudnn_batch_norm_backward native_group_norm instance_norm rms_norm _fused_rms_norm native_batch_norm"),
        (Category.ACTIVATION, "gelu relu relu_ silu sigmoid tanh _softmax _log_softmax softmax _softmax_backward_data "
         "_log_softmax_backward_data gelu_backward threshold_backward tanh_backward leaky_relu elu hardtanh glu"),
        (Category.ATTENTION, "scaled_dot_product_attention _scaled_dot_product_flash_attention "
         "_scaled_dot_product_efficient_attention_backward _flash_attention_forward _efficient_attention_forward"),
        (Category.EMBEDDING, "embedding embedding_dense_backward _embedding_bag"),
        (Category.ELEMENTWISE, "add mul div sub add_ mul_ pow rsqrt exp erf where masked_fill addcmul_ lerp_ eq "
         "_foreach_add_ _foreach_addcdiv_ bitwise_and isinf"),
        (Category.MEMORY, "copy_ clone transpose view _to_copy to cat stack t expand as_strided empty zeros zero_ "
         "fill_ contiguous slice arange full ones_like item _local_scalar_dense detach slice_backward im2col "
         "_foreach_copy_"),
        (Category.CONVOLUTION, "conv2d convolution cudnn_convolution convolution_backward _convolution "
         "mkldnn_convolution"),
        (Category.POOLING, "max_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d "
         "adaptive_avg_pool2d _adaptive_avg_pool2d_backward"),
        (Category.LOSS, "nll_loss_forward nll_loss_backward cross_entropy_loss mse_loss binary_cross_entropy"),
        (Category.REDUCTION, "sum mean max amax argmax var_mean norm any _foreach_norm logsumexp std"),
        (Category.RANDOM, "rand randn normal_ uniform_ bernoulli_ native_dropout native_dropout_backward multinomial"),
        (Category.INDEXING, "index index_select gather scatter_add _index_put_impl_ nonzero take index_add"),
        (Category.SORT, "sort topk argsort unique_dim searchsorted median"),
        (Category.SCAN, "cumsum cumprod logcumsumexp"),
        (Category.OPTIMIZER, "_fused_adamw_ _fused_sgd_ _amp_foreach_non_finite_check_and_unscale_"),
        (Category.FFT, "fft_fft _fft_c2c stft"),
        (Category.LINEAR_ALGEBRA, "linalg_svd cholesky linalg_inv_ex lu_solve"),
        (Category.INTERPOLATION, "upsample_bilinear2d upsample_nearest2d_backward grid_sampler_2d"),
        (Category.RECURRENT, "lstm _cudnn_rnn _thnn_fused_lstm_cell gru"),
        (Category.DISTANCE, "cdist _cdist_forward _cdist_backward"),
        (Category.QUANTIZATION, "quantize_per_tensor dequantize fake_quantize_per_tensor_affine"),
        (Category.SPARSE, "_coalesce _sparse_coo_tensor_with_dims_and_tensors"),
    ],
)  # fmt: skip
def test_operators_by_kind(classifier: Classifier, category: Category, names: str) -> None:
    wrong = {
        name: found for name in names.split() if (found := classifier.classify(f"aten::{name}").category) != category
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("c10d::allreduce_", Category.COMMUNICATION),
        ("_c10d_functional::all_gather_into_tensor", Category.COMMUNICATION),
        ("record_param_comms", Category.COMMUNICATION),
        ("nccl:all_reduce", Category.COMMUNICATION),
        ("triton_poi_fused_gelu_1", Category.COMPILED),
        ("triton_per_fused_native_layer_norm_0", Category.COMPILED),
        ("AddmmBackward0", Category.FRAMEWORK),
        ("autograd::engine::evaluate_function: AddmmBackward0", Category.FRAMEWORK),
        ("torch::autograd::AccumulateGrad", Category.FRAMEWORK),
        ("Torch-Compiled Region: 0/0", Category.FRAMEWORK),
        ("aten::add.Tensor", Category.ELEMENTWISE),  # a profiler that records overload names
        ("detach", Category.MEMORY),  # recorded without its namespace
        ("aten::does_not_exist", Category.OTHER),
        ("mylib::mystery", Category.OTHER),
    ],
)
def test_names_that_are_no_aten_operators(classifier: Classifier, name: str, category: Category) -> None:
    assert classifier.classify(name).category == category


def test_add_and_addmm_differ_by_fact(classifier: Classifier) -> None:
    add, addmm = classifier.classify("aten::add"), classifier.classify("aten::addmm")
    assert add == Classification(Category.ELEMENTWISE, "tag pointwise, or built on TensorIterator", by_fact=True)
    assert addmm == Classification(Category.MATRIX, "schema: matrix or batch-of-matrices operands", by_fact=True)


@pytest.mark.parametrize("release", ["2.6.0", "2.11.0", "2.13.0", "2.15.0"])
def test_most_operators_are_classified_by_fact_and_only_test_operators_by_nothing(release: str) -> None:
    functions = NativeFunctions.shipped(TorchVersion.parse(release))
    classifier = Classifier(functions)
    assert functions.torch_version == release
    names = [name for name in functions.names() if any(f.yaml_line is not None for f in functions.overloads(name))]
    found = {name: classifier.classify(name) for name in names}
    other = sorted(name for name, result in found.items() if result.category is Category.OTHER)
    assert all(name.startswith(("aten::_test_", "aten::_foobar")) for name in other), other
    assert sum(result.by_fact for result in found.values()) / len(found) > 0.55


def test_backward_is_what_forward_is(classifier: Classifier) -> None:
    """For every backward operator whose forward PyTorch has under the same name."""
    functions = NativeFunctions.shipped()
    compared = 0
    for name in functions.names():
        forward = name.removesuffix("_backward")
        if forward == name or not functions.overloads(forward):
            continue
        assert classifier.classify(name) == classifier.classify(forward), name
        compared += 1
    assert compared > 60


def test_a_custom_operator_is_classified_by_its_schema() -> None:
    arguments = tuple(Argument(name, "Tensor") for name in ("query", "key", "value"))
    custom = NativeFunction("mylib::fused_op", "", "fused_op(...) -> Tensor", arguments, (Argument("", "Tensor"),))
    classifier = Classifier(NativeFunctions.of(NativeFunctionTable("2.13.0", (custom,))))
    assert classifier.classify("mylib::fused_op") == Classification(
        Category.ATTENTION, "schema: query, key and value", by_fact=True
    )
