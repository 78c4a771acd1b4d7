"""What kind of work an operator does.

Statistics files had seven categories from the first version on; the others are for operators that none of those fits. A
category follows from what PyTorch says of the operator (tags, schema, aliasing, dispatch) wherever that decides it; a
name decides only where the facts are silent, and `Classification.by_fact` says which it was. Rules are tried in order:
the first hit wins.

A backward operator has the category of its forward operator; an in-place, ``out`` or ``_foreach_`` variant that of its
functional form.
"""

import enum
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern
from opscope.knowledge.native_functions import NativeFunction, NativeFunctions
from opscope.knowledge.rules import MANY_NAMES, NameRule, compiled


class Category(enum.StrEnum):
    """The kinds of work, as reports name them."""

    MATRIX = "Matrix Operations"
    CONVOLUTION = "Convolution"
    ATTENTION = "Attention"
    NORMALIZATION = "Normalization"
    ACTIVATION = "Activation"
    EMBEDDING = "Embedding"
    POOLING = "Pooling"
    RECURRENT = "Recurrent"
    LOSS = "Loss"
    ELEMENTWISE = "Elementwise"
    REDUCTION = "Reduction"
    SCAN = "Scan"
    SORT = "Sort"
    INDEXING = "Indexing"
    RANDOM = "Random"
    MEMORY = "Memory"
    LINEAR_ALGEBRA = "Linear Algebra"
    DISTANCE = "Distance"
    FFT = "FFT"
    INTERPOLATION = "Interpolation"
    QUANTIZATION = "Quantization"
    SPARSE = "Sparse"
    OPTIMIZER = "Optimizer"
    COMMUNICATION = "Communication"
    COMPILED = "Compiled (Inductor)"
    HOST = "Host query"
    FRAMEWORK = "Framework"
    OTHER = "Other"


class Classification(Struct, frozen=True):
    """A category and why.

    Attributes:
        category: the kind of work.
        rule: the rule that decided, in words.
        by_fact: True where PyTorch's own facts decided, False where a name pattern did.
    """

    category: Category
    rule: str
    by_fact: bool


class _Family(Struct, frozen=True):
    """What is known of an operator over all its overloads and variants (functional, in-place, out)."""

    base: str
    known: bool
    argument_names: frozenset[str]
    argument_types: frozenset[tuple[str, str]]
    returns: tuple[str, ...]
    tags: frozenset[str]
    python_module: str | None
    is_view: bool
    elementwise_iterator: bool
    dispatch_keys: frozenset[str]

    def has(self, *names: str) -> bool:
        return self.argument_names.issuperset(names)

    def has_any(self, *names: str) -> bool:
        return not self.argument_names.isdisjoint(names)

    def named(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.base) is not None


class _Rule(Struct, frozen=True):
    category: Category
    words: str
    by_fact: bool
    applies: Callable[[_Family], bool]
    pattern: re.Pattern[str] | None = None


def _fact(category: Category, words: str, applies: Callable[[_Family], bool]) -> _Rule:
    return _Rule(category, words, by_fact=True, applies=applies)


def _name(category: Category, pattern: str) -> _Rule:
    result = lazy_pattern(pattern)
    return _Rule(category, f"name pattern of {category}", False, lambda f: f.named(result), result)


def _only_dispatched_to(pattern: str) -> Callable[[_Family], bool]:
    return lambda f: bool(f.dispatch_keys) and all(re.search(pattern, key) for key in f.dispatch_keys)


def _only_answers(family: _Family) -> bool:
    # Types of libraries' operators say what the operator changes: Tensor(a!).
    changes = any("!" in kind for _, kind in family.argument_types)
    return not changes and not any("Tensor" in item for item in family.returns)


# The order matters, since the first rule that applies decides: aten::embedding has an index tensor too, and is before
# the rule of indexing.
_RULES: tuple[_Rule, ...] = (
    _fact(
        Category.OPTIMIZER,
        "schema: lists of gradients and optimizer state",
        lambda f: f.has("grads") and f.has_any("state_steps", "momentum_buffer_list", "exp_avgs", "state_sums"),
    ),
    _name(Category.OPTIMIZER, r"^_amp_|^_fused_(adam|sgd|adagrad)"),
    _fact(
        Category.MEMORY,
        "schema: the result aliases an input (view)",
        lambda f: f.is_view or bool(f.tags & {"view_copy", "inplace_view"}),
    ),
    _fact(Category.ATTENTION, "schema: query, key and value", lambda f: f.has("query", "key", "value")),
    _name(Category.ATTENTION, r"attention|attn|transformer_encoder|^_?flash_|multi_head|rescale_qkv"),
    _fact(
        Category.RECURRENT,
        "schema: hidden state and gates",
        lambda f: f.has_any("hx", "w_ih", "input_gates", "hidden_gates", "cx"),
    ),
    _name(Category.RECURRENT, r"(^|_)(rnn|lstm|gru)(_|$)|packed_sequence"),
    _fact(
        Category.NORMALIZATION,
        "schema: saved or running statistics, or a normalized shape",
        lambda f: (
            f.has_any("running_mean", "save_mean", "saved_mean", "rstd", "invstd", "normalized_shape")
            or f.has("num_groups", "eps")
        ),
    ),
    _name(
        Category.NORMALIZATION,
        r"^_?(\w+_)?(batch|layer|group|instance|rms|weight|local_response)_?norm|^renorm",
    ),
    _fact(
        Category.CONVOLUTION,
        "schema: weight, stride, padding and dilation or groups",
        lambda f: (
            f.has("stride", "padding")
            and f.has_any("weight", "weight_size", "weight_sizes")
            and f.has_any("dilation", "groups", "output_padding")
        ),
    ),
    _name(Category.CONVOLUTION, r"conv(olution)?(_|\d|$)"),
    _fact(
        Category.POOLING,
        "schema: kernel size and rounding of the output size",
        lambda f: f.has("kernel_size", "ceil_mode"),
    ),
    _name(Category.POOLING, r"pool"),
    _fact(Category.LOSS, "schema: a reduction mode and a target", lambda f: f.has("reduction", "target")),
    _name(Category.LOSS, r"_loss|^l1_loss|^kl_div|^binary_cross_entropy|cross_entropy"),
    _name(Category.ACTIVATION, r"softmax|softmin|rrelu"),
    _name(Category.EMBEDDING, r"embedding"),
    _fact(Category.FFT, "Python module fft", lambda f: f.python_module == "fft"),
    _name(Category.FFT, r"^_?(fft|stft|istft)"),
    _fact(
        Category.RANDOM,
        "tag nondeterministic_seeded, or a generator in the schema",
        lambda f: "nondeterministic_seeded" in f.tags or f.has("generator"),
    ),
    _name(Category.RANDOM, r"dropout|masked_scale|^_?(sobol|standard_gamma|dirichlet|sample_dirichlet|philox)"),
    _fact(
        Category.QUANTIZATION,
        "schema: zero points, or kernels for quantized tensors only",
        lambda f: f.has_any("zero_point", "zero_points", "fake_quant_enabled") or _only_dispatched_to("Quantized")(f),
    ),
    _name(
        Category.QUANTIZATION,
        r"quantize|quantized|fbgemm|^q_(scale|zero|per)|qscheme|int_repr|_per_(tensor|channel)_affine|int[48]pack"
        r"|dyn_quant|choose_qparams|observer",
    ),
    _fact(
        Category.MATRIX,
        "schema: matrix or batch-of-matrices operands",
        lambda f: f.has_any("mat1", "mat2", "batch1", "batch2", "vec", "vec1", "vec2", "mat_a", "mat_b"),
    ),
    _name(
        Category.MATRIX,
        r"^_?(mm|bmm|matmul|linear|dot|vdot|mv|einsum|tensordot|inner|outer|ger|kron|chain_matmul|bilinear|trilinear"
        r"|linalg_(matmul|multi_dot|vecdot)|baddbmm_?|addmv_?|addr_?|matrix_power|mkldnn_linear\w*"
        r"|(scaled|int|grouped|scaled_grouped|sparse|weight_int)_mm\w*|mixed_dtypes_linear|cslt\w*"
        r"|sparse_semi_structured\w*|hspmm|sspaddmm)$",
    ),
    _name(Category.DISTANCE, r"^_?(cdist|pdist|euclidean_dist|pairwise_distance|cosine_similarity)"),
    _fact(Category.LINEAR_ALGEBRA, "Python module linalg", lambda f: f.python_module == "linalg"),
    _name(
        Category.LINEAR_ALGEBRA,
        r"^_?(linalg|cholesky|qr$|svd|lu(_|$)|lstsq|triangular_solve|inverse|det$|logdet|slogdet|geqrf|ormqr|orgqr"
        r"|pinverse|matrix_exp|symeig|lobpcg|householder|compute_linear_combination|spsolve|linalg_vander)",
    ),
    _fact(
        Category.SPARSE,
        "kernels for sparse or nested tensors only",
        lambda f: not f.tags & {"pointwise", "reduction"} and _only_dispatched_to("Sparse|Nested")(f),
    ),
    _name(
        Category.SPARSE,
        r"sparse|nested|jagged|_coo|csr|csc|bsr|bsc|(crow|ccol)_indices|coalesce|_nnz|^_?(values|indices)$|to_dense"
        r"|to_padded|^_dim[IV]$|dense_dim",
    ),
    _name(Category.SCAN, r"^_?(cum|logcumsumexp|associative_scan|diff$|gradient$|trapz|trapezoid)"),
    _name(
        Category.SORT,
        r"^_?(arg)?(sort|msort|topk|kthvalue|unique|searchsorted|bucketize|histc|histogram|bincount|isin$|mode$|median"
        r"|nanmedian|quantile|nanquantile)",
    ),
    _fact(
        Category.REDUCTION,
        "tag reduction, or dim and keepdim in the schema",
        lambda f: "reduction" in f.tags or f.has("dim", "keepdim") or f.has("dims", "keepdim"),
    ),
    _name(
        Category.REDUCTION,
        r"^_?(sum|mean|prod|var|std|min|max|all|any|amax|amin|aminmax|argmax|argmin|norm|nansum|nanmean|logsumexp"
        r"|count_nonzero|trace|equal|allclose|std_mean|var_mean|value_selecting_reduction|segment_reduce|is_all_true"
        r"|is_any_true|dist|nuclear_norm|frobenius_norm|native_norm|cov|corrcoef)(_|$)|powsum",
    ),
    _fact(
        Category.MEMORY,
        "schema: creates or fills a tensor",
        lambda f: (
            not any("Tensor" in kind for name, kind in f.argument_types if name != "out")
            and any("Tensor" in item for item in f.returns)
        ),
    ),
    _name(
        Category.MEMORY,
        r"_like$|^new_|^fill|^zero|^full|^empty|^resize|^_resize|^set_?$|^lin?space|^logspace|^align_"
        r"|^_?(copy|(lazy_)?clone|contiguous|to|to_copy|cat|concat|concatenate|stack|hstack|vstack|dstack|column_stack"
        r"|row_stack|block_diag|\w*pad\w*|flip|fliplr|flipud|roll|rot90|tile|repeat|repeat_interleave|tril|triu|diag"
        r"|diag_embed|diagflat|spdiags|pin_memory|lift\w*|type_as|chalf|item|local_scalar_dense|chunk_cat|unsafe_view"
        r"|unsafe_(split|chunk)\w*|expand\w*|reshape\w*|flatten\w*|unflatten\w*|ravel|unfold\w*|fold|im2col|col2im"
        r"|meshgrid|cartesian_prod|combinations|resolve_(conj|neg)|conj\w*|slice\w*|select\w*|diagonal\w*"
        r"|as_strided\w*|split\w*|detach|data|copy_from\w*|to_cpu|mkldnn_(reorder|reshape|transpose)\w*|to_mkldnn\w*"
        r"|cast_\w+|atleast_\dd|broadcast_\w+|(add|remove)_batch_dim|shape_as_tensor|dim_arange|new_zeros_\w+"
        r"|saturate_weight\w*|wrapped_linear_prepack)_?$",
    ),
    _fact(
        Category.INDEXING,
        "schema: index or mask tensor",
        lambda f: (
            any(name in ("index", "indices", "mask", "source") and "Tensor" in kind for name, kind in f.argument_types)
            and "pointwise" not in f.tags
        ),
    ),
    _name(
        Category.INDEXING,
        r"^_?(index|gather|scatter|take|put|masked_(select|scatter)|nonzero|argwhere|one_hot|\w+_scatter)",
    ),
    _name(
        Category.INTERPOLATION,
        r"upsample|grid_sampler|affine_grid|pixel_(un)?shuffle|channel_shuffle|interpolate",
    ),
    _fact(
        Category.ACTIVATION,
        "Python module nn and pointwise",
        lambda f: f.python_module == "nn" and ("pointwise" in f.tags or f.elementwise_iterator),
    ),
    _name(
        Category.ACTIVATION,
        r"^_?(prelu|relu6?|threshold|rrelu|celu|selu|sigmoid|tanh|gelu|glu|silu|mish|hardswish|softplus|elu|leaky_relu"
        r"|hardtanh|hardshrink|softshrink|hardsigmoid|log_sigmoid|prelu_kernel|glu_jvp|infinitely_differentiable_gelu)(_|$)",
    ),
    _fact(
        Category.ELEMENTWISE,
        "tag pointwise, or built on TensorIterator",
        lambda f: "pointwise" in f.tags or f.elementwise_iterator,
    ),
    _name(
        Category.ELEMENTWISE,
        r"^_?(special_)?(absolute|arc(cos|sin|tan)h?2?|divide|multiply|subtract|negative|fix|floor_divide|true_divide"
        r"|not_equal|(greater|less)(_equal)?|psi|gammaln|ndtr|expit|gammaincc?|multigammaln|isclose|isreal|complex"
        r"|polar|add_relu|__i?(and|or|xor|lshift|rshift)__|clip|where|add|sub|rsub|mul|div|digamma|erf\w*|exp2|log1p"
        r"|logit|polygamma|round|sinc|xlogy|i0|cross|lerp|frexp|expm1|vander|float_power|isposinf|isneginf|nan_to_num)_?$",
    ),
    _fact(Category.HOST, "schema: returns no tensor and changes none", _only_answers),
    _name(Category.HOST, r"^_functional_(assert|sym)|^requires_grad_$"),
)

_NAMESPACES = {
    "c10d": Category.COMMUNICATION,
    "_c10d_functional": Category.COMMUNICATION,
    "_c10d_functional_autograd": Category.COMMUNICATION,
    "c10d_functional": Category.COMMUNICATION,
    "symm_mem": Category.COMMUNICATION,
    "nccl": Category.COMMUNICATION,
    "record_param_comms": Category.COMMUNICATION,
}
_PYTORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "inductor", "mkldnn", "onednn", "quantized", "sparse"})
# Categories for which the names of other libraries' operators are trusted: their "pool" or "index" can be anything.
_SAME_WORDS_EVERYWHERE = frozenset({Category.ATTENTION, Category.NORMALIZATION, Category.ACTIVATION, Category.MATRIX})
COLLECTIVE_RANGES: Final = (
    NameRule(r"^nccl:", "nccl:all_reduce", "recorded on two H200 with PyTorch 2.11.0"),
    NameRule(r"^gloo:", "gloo:all_reduce", "PyTorch's ProcessGroupGloo"),
    NameRule(r"^mpi:", "mpi:all_reduce", "PyTorch's ProcessGroupMPI"),
    NameRule(r"^ucc:", "ucc:all_reduce", "PyTorch's ProcessGroupUCC"),
)
COMPILED_NAMES: Final = (
    NameRule(
        r"^triton_poi_", "triton_poi_fused_add_mul_tanh_0", "recorded on an H200 with PyTorch 2.11.0: gelu_variants"
    ),
    NameRule(
        r"^triton_per_",
        "triton_per_fused_add_native_layer_norm_view_6",
        "recorded on an H200 with PyTorch 2.11.0: bert4_bf16_compiled",
    ),
    NameRule(r"^triton_red_", "triton_red_fused_native_layer_norm_0", "code that Inductor generates"),
    NameRule(r"^triton_tem_", "triton_tem_fused_mm_0", "PyTorch's own tests of profiler events"),
    NameRule(r"^triton_for_", "triton_for_fused_0", "PyTorch's own tests of profiler events"),
    NameRule(
        r"^triton_spl_", "triton_spl_fused_cumsum_0", "code that Inductor generates for a scan over a split dimension"
    ),
    NameRule(r"^triton_unk_", "triton_unk_fused_mul_0", "code that Inductor generates for Ascend NPUs"),
    NameRule(r"^triton_b?mm_", "triton_bmm_147", "a log of Inductor's autotuning"),
    NameRule(r"^cpp_fused_", "cpp_fused_add_mean_mul_pow_rsqrt_0", "torch.compile on a CPU"),
    NameRule(r"^extern_kernels", "extern_kernels.addmm", "code that Inductor generates"),
)
_COLLECTIVE_RANGE: Final = compiled(COLLECTIVE_RANGES)
_COMPILED_NAME: Final = compiled(COMPILED_NAMES)
_FRAMEWORK_NAME = lazy_pattern(
    r"^autograd::engine|^torch::autograd::|Backward\d*$|^Torch-Compiled Region|^TorchDynamo|CompiledFxGraph"
    r"|^CompiledFunction|^AOTDispatcher|^Pregraph|^nn\.Module|^Optimizer\.|^DataParallel|^DistributedDataParallel"
    r"|^enumerate\(|^ProfilerStep"
)
_PATTERNS: Final = tuple(rule.pattern for rule in _RULES if rule.pattern is not None)
# What is left to libraries: sorts, transforms and factorisations pass over their data several times, which no model
# counts.
OF_LIBRARIES: Final = frozenset({Category.SORT, Category.FFT, Category.LINEAR_ALGEBRA, Category.SPARSE})
_UNKNOWN_OPERATOR: Final = "not an operator that PyTorch's tables know"
_LONGEST_NAME: Final = 4_096  # characters of a name that are looked at
_VARIANT_PREFIX = lazy_pattern(r"^(_foreach_|_fused_moving_avg_obs_)")
_BACKWARD = lazy_pattern(r"^(?P<forward>\w+?)_(?:double_)?backward(?:_\w+)?$")
# What the forward operator's name may have before and after the word that stands before ``_backward``.
_FORWARD_PREFIXES = ("", "_")
_FORWARD_SUFFIXES = ("", "_forward", "_with_indices", "2d", "_dense")


def _own_name(name: str) -> tuple[str, str]:
    """Return an operator's namespace, which may be empty, and its name without namespace and overload."""
    namespace, _, base = name.rpartition("::")
    return namespace, base.partition(".")[0] if namespace else base


@lru_cache(maxsize=4)
def classifier_of(functions: NativeFunctions) -> "Classifier":
    """Return the classifier of a table; all that ask for one share it, and with it what it knows already."""
    return Classifier(functions)


class Classifier:
    """Classifies operators by the facts of one PyTorch build."""

    def __init__(self, functions: NativeFunctions) -> None:
        self._functions = functions
        self._known: dict[str, Classification] = {}
        self._nothing: frozenset[str] = frozenset()  # operators' own names in which no pattern is found

    def learn(self, names: Collection[str]) -> None:
        """Look at many names at once, so that `classify` answers for them sooner."""
        bases = {_own_name(name[:_LONGEST_NAME])[1] for name in names if name[:_LONGEST_NAME] not in self._known}
        if len(bases) >= MANY_NAMES:
            from opscope.knowledge.many_names import unmatched  # needs polars

            self._nothing = unmatched(bases, _PATTERNS)
            for name in names:
                self.classify(name)
            self._nothing = frozenset()

    def classify(self, name: str) -> Classification:
        """Classify an operator by its name in a trace (``aten::addmm``, ``AddmmBackward0``, ``triton_...``)."""
        name = name[:_LONGEST_NAME]
        if name not in self._known:
            self._known[name] = self._classify(name)
        return self._known[name]

    def _classify(self, name: str) -> Classification:
        namespace, base = _own_name(name)
        if (communication := _NAMESPACES.get(namespace or base)) is not None:
            return Classification(communication, f"namespace {namespace or base}", by_fact=True)
        if _COLLECTIVE_RANGE.match(name):
            return Classification(Category.COMMUNICATION, "name of a collective", by_fact=False)
        if _COMPILED_NAME.match(name):
            return Classification(Category.COMPILED, "name of a generated kernel", by_fact=False)
        if _FRAMEWORK_NAME.search(name):
            return Classification(Category.FRAMEWORK, "name of a wrapper around operators", by_fact=False)
        return self._of_forward(namespace or "aten", base) or self._by_rules(namespace or "aten", base)

    def _of_forward(self, namespace: str, base: str) -> Classification | None:
        """Classify a variant by the operator it is a variant of, where PyTorch has that operator."""
        if match := _VARIANT_PREFIX.match(base):
            original = base[match.end() :].rstrip("_")
            if self._functions.overloads(f"{namespace}::{original}"):
                return self.classify(f"{namespace}::{original}")
        match = _BACKWARD.match(base)
        for prefix in _FORWARD_PREFIXES if match else ():
            for suffix in _FORWARD_SUFFIXES:
                forward = f"{namespace}::{prefix}{match['forward'] if match else ''}{suffix}"
                if self._functions.overloads(forward):
                    return self.classify(forward)
        return None

    def _by_rules(self, namespace: str, base: str) -> Classification:
        # For a quick answer: what no table lists and no pattern fits, no rule can apply to.
        if not self._functions.overloads(f"{namespace}::{base}") and (
            base in self._nothing or not any(p.search(base) for p in _PATTERNS)
        ):
            return Classification(Category.OTHER, _UNKNOWN_OPERATOR, by_fact=False)
        family, ours = self._family(namespace, base), namespace in _PYTORCH_NAMESPACES
        for rule in _RULES:
            usable = family.known if rule.by_fact else ours or rule.category in _SAME_WORDS_EVERYWHERE
            if usable and rule.applies(family):
                return Classification(rule.category, rule.words, rule.by_fact)
        why = "no rule applies" if family.known else _UNKNOWN_OPERATOR
        return Classification(Category.OTHER, why, by_fact=False)

    def _family(self, namespace: str, base: str) -> _Family:
        """Join the facts of an operator's variants: tags stand mostly on one of them."""
        # Names such as __and__ end in underscores, and are not in-place variants.
        functional = base.rstrip("_") if not base.endswith("__") else base
        variants: dict[str, NativeFunction] = {}
        for name in (base, functional, f"{functional}_"):
            for function in self._functions.overloads(f"{namespace}::{name}"):
                variants[f"{function.name}.{function.overload}"] = function
        own = self._functions.overloads(f"{namespace}::{base}")
        return _Family(
            base=base,
            known=bool(own),
            argument_names=frozenset(item.name for function in own for item in function.arguments),
            argument_types=frozenset((item.name, item.type) for function in own for item in function.arguments),
            returns=tuple(item.type for function in own for item in function.returns),
            tags=frozenset(tag for function in variants.values() for tag in function.tags),
            python_module=next((function.python_module for function in own if function.python_module), None),
            is_view=any(function.is_view for function in own),
            elementwise_iterator=any(function.elementwise_iterator for function in variants.values()),
            dispatch_keys=frozenset(
                key for function in variants.values() if function.delegate is None for key in function.dispatch
            ),
        )
