"""What ``opscope kernel check`` says of kernels that are right, and of kernels that are wrong in one way each."""

import functools
import importlib.util
from pathlib import Path

import msgspec
import pytest

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.cli import triton_check
from opscope.documents.triton_check import MemoryProblem, ProblemKind, TritonCheckDocument
from opscope.workbench.triton_check import interpreter as interpreted
from opscope.workbench.triton_check.interpreter import check_kernel
from tests.command import opscope
from tests.zygote import ROOT

pytestmark = pytest.mark.slow

CASES = ROOT / "tests" / "data" / "triton"
SECONDS = 300

needs_triton = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("torch", "triton")),
    reason="needs PyTorch and Triton: pip install 'opscope[torch,triton]'",
)


@functools.cache
def checked(case: str, **words: str) -> TritonCheckDocument:
    """Run a case in the interpreter alone: some are made for the CPU; tests of the GPU are elsewhere."""
    settings = [word for name, value in words.items() for word in ("--set", f"{name}={value}")]
    target = case if Path(case).is_absolute() else f"{CASES}/{case}"
    done = opscope("kernel", "check", target, *settings, "--format", "json", env={"CUDA_VISIBLE_DEVICES": ""})
    if done.returncode == UsageError.exit_code:
        raise UsageError(done.stderr)
    return msgspec.json.decode(done.stdout, type=TritonCheckDocument)


def only(document: TritonCheckDocument) -> MemoryProblem:
    assert not document.passed
    (problem,) = document.cpu.problems
    return problem


def is_right(document: TritonCheckDocument) -> bool | None:
    return None if document.cpu.agreement is None else document.cpu.agreement.right


def line_of(case: str, text: str) -> str:
    file = CASES / case
    number = next(at for at, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return f"{file.name}:{number}"


@needs_triton
@pytest.mark.parametrize(
    "case",
    [
        *("add.py:right", "add.py:in_place", "add.py:onto_zeros", "add.py:onto_filled", "counts.py:right"),
        "bfloat16.py:mixed",
        *("views.py:strided", "views.py:transposed", "views.py:by_address"),
    ],
)
def test_right_kernels_pass(case: str) -> None:
    document = checked(case)
    assert document.passed, document
    assert document.cpu.problems == ()
    assert is_right(document)
    assert document.cpu.accesses


@needs_triton
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8"])
def test_data_types(dtype: str) -> None:
    document = checked("add.py:right", dtype=dtype, size="129")
    assert document.passed, document
    assert document.cpu.agreement is not None
    assert document.cpu.agreement.relative_error is not None  # memory without content is -1 in int8, as are some sums
    assert document.parameters == {"dtype": dtype, "size": "129"}


@needs_triton
def test_a_size_that_fills_the_blocks_hides_a_missing_mask() -> None:
    assert checked("add.py:load_unmasked", size="256").passed


@needs_triton
def test_a_load_without_a_mask() -> None:
    problem = only(checked("add.py:load_unmasked"))
    assert problem.kind is ProblemKind.LOAD_OUTSIDE
    assert (problem.kernel, problem.tensor, problem.tensor_elements) == ("load_unmasked_kernel", "y_ptr", 300)
    assert (problem.first_offset, problem.last_offset, problem.elements) == (300, 383, 84)
    assert (problem.first_program, problem.programs, problem.in_storage) == ((2, 0, 0), 1, False)
    assert problem.location == line_of("add.py", "y = tl.load(y_ptr + at)  # no mask")


@needs_triton
def test_a_store_without_a_mask_is_reported_and_not_made() -> None:
    document = checked("add.py:store_unmasked")
    problem = only(document)
    assert (problem.kind, problem.tensor, problem.elements) == (ProblemKind.STORE_OUTSIDE, "z_ptr", 84)
    assert problem.location == line_of("add.py", "tl.store(z_ptr + at, x + y)  # no mask")
    assert is_right(document)


@needs_triton
def test_a_load_before_the_tensor() -> None:
    document = checked("add.py:load_before")
    problem = only(document)
    assert (problem.kind, problem.first_offset, problem.last_offset) == (ProblemKind.LOAD_OUTSIDE, -2, -1)
    assert not is_right(document)


@needs_triton
def test_an_atomic_operation_out_of_bounds() -> None:
    problem = only(checked("counts.py:too_few_bins"))
    assert (problem.kind, problem.tensor) == (ProblemKind.ATOMIC_OUTSIDE, "counts_ptr")
    assert (problem.first_offset, problem.last_offset, problem.elements) == (6, 7, 50)


@needs_triton
def test_a_part_of_the_result_that_is_not_written() -> None:
    document = checked("add.py:tail_forgotten")
    problem = only(document)
    assert (problem.kind, problem.tensor) == (ProblemKind.UNWRITTEN_RESULT, "result 1")
    assert (problem.first_offset, problem.last_offset, problem.elements) == (290, 299, 10)
    assert not is_right(document)


@needs_triton
def test_reads_of_memory_that_nothing_was_written_to() -> None:
    problem = only(checked("add.py:reads_empty"))
    assert (problem.kind, problem.tensor, problem.elements) == (ProblemKind.UNWRITTEN_READ, "z_ptr", 300)
    problem = only(checked("counts.py:onto_empty"))
    assert (problem.kind, problem.tensor) == (ProblemKind.UNWRITTEN_READ, "counts_ptr")


@needs_triton
def test_a_wrong_result() -> None:
    document = checked("add.py:twice_the_first")
    assert not document.passed
    assert document.cpu.problems == ()
    assert document.cpu.agreement is not None
    assert not document.cpu.agreement.right
    assert document.cpu.agreement.tolerance == 1e-5
    assert (document.cpu.agreement.relative_error or 0) > 0.1


@needs_triton
def test_a_kernel_that_raises() -> None:
    document = checked("add.py:raises")
    assert not document.passed
    assert document.cpu.error is not None
    assert "NameError: name 'missing' is not defined" in document.cpu.error
    assert line_of("add.py", "x + missing") in document.cpu.error


@needs_triton
def test_a_case_without_kernels_was_not_checked() -> None:
    document = checked("add.py:no_kernel")
    assert not document.passed
    assert document.cpu.error == "it launched no Triton kernel"


@needs_triton
def test_outside_the_view_and_inside_its_memory() -> None:
    problem = only(checked("views.py:beyond"))
    assert (problem.kind, problem.tensor, problem.in_storage) == (ProblemKind.LOAD_OUTSIDE, "x_ptr", True)
    assert problem.elements == 30


@needs_triton
def test_pointers_made_from_numbers_are_held_against_storages() -> None:
    (sentence,) = checked("views.py:by_address").cpu.not_checked
    assert sentence.startswith("table_kernel makes pointers from numbers")


def _has_descriptors() -> bool:
    try:
        return importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
    except ModuleNotFoundError:
        return False


needs_descriptors = pytest.mark.skipif(not _has_descriptors(), reason="this Triton has no tensor descriptors")


@needs_triton
@needs_descriptors
def test_tensor_descriptors() -> None:
    document = checked("blocks.py:described")
    assert document.passed, document
    problem = only(checked("blocks.py:said_too_large"))
    assert (problem.kind, problem.tensor, problem.elements) == (ProblemKind.LOAD_OUTSIDE, "x_desc", 12)


@needs_triton
@needs_descriptors
def test_without_a_reference_nothing_is_compared_where_there_is_no_gpu() -> None:
    document = checked("blocks.py:tuned")
    assert document.passed, document
    assert document.cpu.agreement is None
    assert (document.gpu.agreement is not None) == document.gpu.ran
    assert any("of the 2 configurations of tuned_kernel one was run" in one for one in document.cpu.not_checked)


@needs_triton
@needs_descriptors
def test_what_the_interpreter_cannot_do_is_not_the_kernels_fault() -> None:
    document = checked("blocks.py:assembly")
    assert document.cpu.error is None
    assert not document.cpu.ran
    assert "inline_asm not supported" in (document.cpu.reason or "")
    assert document.passed == document.gpu.ran


@needs_triton
@pytest.mark.parametrize(
    ("case", "words", "said"),
    [
        ("add.py:returns_nothing", {}, "returns no tensors"),
        ("add.py:nope", {}, "has no function 'nope'"),
        ("nope.py:nope", {}, "there is no file"),
        ("add.py:right", {"rows": "3"}, "takes no parameter 'rows'"),
        ("add.py:run", {}, "cannot be called"),
    ],
)
def test_wrong_usage(case: str, words: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        checked(case, **words)


@needs_triton
def test_a_run_that_does_not_end() -> None:
    document = check_kernel(f"{CASES}/add.py:right", {}, 0.05)
    assert not document.passed
    assert document.cpu.error == "it did not end within 0.05 s"


@needs_triton
def test_the_example() -> None:
    document = checked(f"{ROOT}/examples/triton_check.py:softmax", columns="77")
    assert document.passed, document


def test_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentLacksError, match="triton is not installed"):
        check_kernel("add.py:right", {}, SECONDS)


@needs_triton
@pytest.mark.parametrize("output_format", ["table", "json", "md", "csv"])
def test_what_is_printed(
    output_format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    document = checked("add.py:store_unmasked")
    monkeypatch.setattr(triton_check, "check_kernel", lambda *arguments: asked.append(arguments) or document)
    target = f"{CASES}/add.py:store_unmasked"
    with pytest.raises(SystemExit) as ended:
        triton_check.command.main([target, "--size", "300", "--format", output_format], standalone_mode=False)
    assert ended.value.code == 1
    assert asked == [(target, {"size": "300"}, 300)]
    printed = capsys.readouterr().out
    if output_format == "json":
        assert msgspec.json.decode(printed, type=TritonCheckDocument) == document
    else:
        assert "store out of bounds" in printed
        assert "store_unmasked_kernel" in printed
