"""From an operator's recorded calls to the one native function that served them."""

from pathlib import Path

import msgspec
import pytest

from opscope.base.errors import BadInputError
from opscope.knowledge.categories import classifier_of
from opscope.knowledge.native_functions import (
    NativeFunction,
    NativeFunctions,
    NativeFunctionTable,
    RecordedCalls,
    matching_overloads,
)


@pytest.fixture(scope="module")
def functions() -> NativeFunctions:
    return NativeFunctions.shipped()


def calls(*types: str | None, time_ns: int = 1) -> RecordedCalls:
    return RecordedCalls(tuple(item or "" for item in types), time_ns)


@pytest.mark.parametrize(
    ("name", "types", "overload", "cpp_function", "key"),
    [
        ("aten::addmm", ("float", "float", "float", "Scalar", "Scalar"), "addmm",
         "at::native::structured_addmm_out_cuda::impl", "CUDA"),
        ("aten::add", ("float", "float", "Scalar"), "add.Tensor",
         "at::native::structured_ufunc_add_CUDA::impl", "CUDA"),
        ("aten::add_", ("float", "float", "Scalar"), "add_.Tensor",
         "at::native::structured_ufunc_add_CUDA::impl", "CUDA"),
        ("aten::gelu", ("float", None), "gelu", "at::native::structured_gelu_out_cuda::impl", "CUDA"),
        ("aten::linear", ("float", "float", "float"), "linear", "at::native::linear", "CompositeImplicitAutograd"),
        ("aten::copy_", ("float", "float", "Scalar"), "copy_", "at::native::copy_", "CompositeExplicitAutograd"),
        ("aten::sum", ("float", "ScalarList", "Scalar", None), "sum.dim_IntList",
         "at::native::structured_sum_out::impl", "CUDA"),
        ("aten::native_layer_norm", ("float", "ScalarList", "float", "float", "Scalar"), "native_layer_norm",
         "at::native::layer_norm_cuda", "CUDA"),
        ("aten::_foreach_add_", ("TensorList", "Scalar"), "_foreach_add_.Scalar",
         "at::native::foreach_tensor_add_scalar_kernel_cuda_", "CUDA"),
        ("aten::cat", ("TensorList", "Scalar"), "cat", "at::native::structured_cat_out_cuda::impl", "CUDA"),
    ],
)  # fmt: skip
def test_recorded_types_tell_the_overload_and_the_cpp_function(
    functions: NativeFunctions, name: str, types: tuple[str, ...], overload: str, cpp_function: str, key: str
) -> None:
    resolution = functions.resolve(name, [calls(*types)], "CUDA")
    assert resolution.function is not None
    assert resolution.function.yaml_name == overload
    assert (resolution.cpp_function, resolution.dispatch_key) == (cpp_function, key)


def test_the_device_decides_the_function(functions: NativeFunctions) -> None:
    layer_norm = [calls("float", "ScalarList", "float", "float", "Scalar")]
    assert functions.resolve("aten::native_layer_norm", layer_norm, "CPU").cpp_function == "at::native::layer_norm_cpu"
    assert (
        functions.resolve("aten::native_layer_norm", layer_norm, "CUDA").cpp_function == "at::native::layer_norm_cuda"
    )


def test_of_several_overloads_the_one_with_the_most_time_is_named_first(functions: NativeFunctions) -> None:
    used = [
        calls("float", "Scalar", time_ns=5),
        calls("float", "float", time_ns=90),
        calls("float", "Scalar", time_ns=6),
    ]
    resolution = functions.resolve("aten::mul", used, "CUDA")
    assert resolution.function is not None
    assert resolution.function.yaml_name == "mul.Tensor"
    assert resolution.other_overloads == ("mul.Scalar",)


def test_unrecorded_inputs_leave_the_overload_open(functions: NativeFunctions) -> None:
    resolution = functions.resolve("aten::gelu", [RecordedCalls(None, 1)], "CUDA")
    assert (resolution.function, resolution.cpp_function) == (None, None)
    assert "one of gelu, gelu.out" in resolution.how


def test_a_recorded_overload_name_is_enough(functions: NativeFunctions) -> None:
    resolution = functions.resolve("aten::add.Tensor", [RecordedCalls(None, 1)], "CUDA")
    assert resolution.function is not None
    assert resolution.function.yaml_name == "add.Tensor"


def test_an_unknown_operator_is_said_to_be_unknown(functions: NativeFunctions) -> None:
    resolution = functions.resolve("mylib::op", [calls("float")], "CUDA")
    assert resolution.function is None
    assert "no operator of this name" in resolution.how


def shipped(name: str, overload: str) -> NativeFunction:
    return next(f for f in NativeFunctions.shipped().overloads(name) if f.overload == overload)


def registered(where: str) -> NativeFunctions:
    gelu, out = shipped("aten::gelu", ""), shipped("aten::gelu", "out")
    table = NativeFunctionTable("2.13.0", (msgspec.structs.replace(gelu, registrations={"CUDA": where}), out))
    return NativeFunctions.of(table)


def test_the_dispatcher_has_the_last_word_on_the_key() -> None:
    used = [calls("float", None)]
    kernel = registered("RegisterCUDA_0.cpp:1 (kernel)").resolve("aten::gelu", used, "CUDA")
    assert (kernel.dispatch_key, kernel.cpp_function) == ("CUDA", "at::native::structured_gelu_out_cuda::impl")
    assert "dispatcher: RegisterCUDA_0.cpp:1" in kernel.how
    overridden = registered("my_kernels.py:7 (kernel)").resolve("aten::gelu", used, "CUDA")
    assert overridden.cpp_function is None
    assert "registered outside ATen: my_kernels.py:7" in overridden.how


def test_tables_survive_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "table.json.gz"
    table = NativeFunctionTable("2.13.0", (shipped("aten::gelu", ""), shipped("aten::add", "Tensor")))
    path.write_bytes(table.packed())
    assert table.packed() == table.packed()
    functions = NativeFunctions.read(path)
    assert (functions.torch_version, functions.names()) == ("2.13.0", ["aten::gelu", "aten::add"])
    assert [*functions.overloads("aten::gelu"), *functions.overloads("aten::add")] == list(table.functions)
    assert functions.overloads("aten::no_such_operator") == []


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08"])
def test_a_damaged_table_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table.json.gz"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match="cannot read the operator table"):
        NativeFunctions.read(path)


@pytest.mark.torch
def test_the_installed_pytorch_tells_its_own_table() -> None:
    torch = pytest.importorskip("torch")
    from opscope.collect.native_functions import installed_table

    table = installed_table("CPU")
    functions = NativeFunctions.of(table)
    assert table.torch_version == torch.__version__
    resolution = functions.resolve("aten::addmm", [calls("float", "float", "float", "Scalar", "Scalar")], "CPU")
    assert resolution.cpp_function == "at::native::structured_addmm_out_cpu::impl"
    assert "dispatcher: RegisterCPU" in resolution.how
    # Operators of libraries come from the dispatcher alone.
    assert functions.overloads("c10d::allreduce_") or not torch.distributed.is_available()


@pytest.mark.torch
def test_operators_of_libraries_say_what_they_change_and_take() -> None:
    torch = pytest.importorskip("torch")
    from opscope.collect.native_functions import installed_table

    library = torch.library.Library("opscope_test_schemas", "DEF")
    library.define(
        "writes(Tensor? a, Tensor[] xs, Tensor(b!)[] outs, Tensor(c!)? o, Scalar s, float[]? g, int[2] k) -> ()"
    )
    library.define("looks(Tensor(a) x) -> Tensor(a)")
    library.define("answers(Tensor x) -> int")
    library.define("adds(Tensor(a!) x) -> Tensor(a!)")
    library.define("both(Tensor(a) x, Tensor(b!) y) -> (Tensor(a), Tensor(b!))")
    library.define("lists(Tensor(a!)?[] xs) -> ()")

    @torch.library.custom_op("opscope_test_schemas::fills", mutates_args=("out",))
    def fills(table: torch.Tensor, out: torch.Tensor) -> None:
        out.add_(table)

    functions = NativeFunctions.of(installed_table("CPU"))
    (writes,) = functions.overloads("opscope_test_schemas::writes")
    assert [argument.type for argument in writes.arguments] == [
        "Tensor?", "Tensor[]", "Tensor(a!)[]", "Tensor(c!)?", "Scalar", "float[]?", "int[]"
    ]  # fmt: skip
    # The profiler records a tensor that was left out as nothing, and lists of tensors as such.
    assert matching_overloads([writes], ["", "TensorList", "TensorList", "float", "Scalar", "", "ScalarList"])
    (lists,) = functions.overloads("opscope_test_schemas::lists")
    assert matching_overloads([lists], ["TensorList"])
    views = [function.is_view for name in NAMES for function in functions.overloads(f"opscope_test_schemas::{name}")]
    assert views == [False, False, True, False, False, False]
    classifier = classifier_of(functions)
    found = [str(classifier.classify(f"opscope_test_schemas::{name}").category) for name in NAMES]
    assert found == ["Other", "Other", "Memory", "Host query", "Other", "Other"]


NAMES = ("writes", "fills", "looks", "answers", "adds", "both")
