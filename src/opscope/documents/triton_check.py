"""Whether a Triton kernel is right, in Triton's interpreter and on the GPU: the schema ``opscope.triton-check/1``."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class ProblemKind(StrEnum):
    """A kind of error of a kernel.

    Attributes:
        LOAD_OUTSIDE: it reads outside the tensor that a pointer was made from.
        STORE_OUTSIDE: it writes outside that tensor.
        ATOMIC_OUTSIDE: an atomic operation is outside that tensor.
        UNWRITTEN_READ: it reads memory of ``torch.empty`` that nothing was written to.
        UNWRITTEN_RESULT: the result contains such memory.
    """

    LOAD_OUTSIDE = "load out of bounds"
    STORE_OUTSIDE = "store out of bounds"
    ATOMIC_OUTSIDE = "atomic out of bounds"
    UNWRITTEN_READ = "read of memory that nothing was written to"
    UNWRITTEN_RESULT = "part of a result is not written"


class MemoryProblem(Struct, frozen=True, kw_only=True):
    """Accesses of one line of a kernel that are wrong in the same way.

    Attributes:
        kind: of the error.
        kernel: the kernel's function; null for a result.
        location: file and line of the access; null if unknown.
        tensor: the argument that the pointer was made from, else the nearest one; or the number of the result.
        tensor_elements: number of elements of the tensor.
        elements: wrong accesses of single elements, over all programs.
        programs: number of programs with such an access.
        first_program: id of the first such program; null if unknown.
        first_offset: the smallest offset of such an access, in elements from the beginning of the tensor.
        last_offset: the largest offset.
        in_storage: whether all are inside the memory that the tensor is a view of; null if that does not apply.
    """

    kind: ProblemKind
    kernel: str | None
    location: str | None
    tensor: str
    tensor_elements: int
    elements: int
    programs: int
    first_program: tuple[int, int, int] | None
    first_offset: int
    last_offset: int
    in_storage: bool | None = None


class Agreement(Struct, frozen=True, kw_only=True):
    """The comparison of a result with the right one.

    Attributes:
        right: whether it agrees.
        compared_with: the source of the right result.
        sentence: the outcome in words.
        dtype: data type of the result.
        relative_error: norm of the difference over the norm of the right result, the largest over all results; null if
            it is not a number.
        element_error: the error of a single element relative to its size and the typical size together.
        tolerance: the largest relative error allowed for the data type.
    """

    right: bool
    compared_with: str
    sentence: str
    dtype: str | None = None
    relative_error: float | None = None
    element_error: float | None = None
    tolerance: float | None = None


class KernelRun(Struct, frozen=True, kw_only=True):
    """One run of the case.

    Attributes:
        device: where it ran.
        ran: whether it completed.
        reason: why it was not tried; null if it was.
        error: what it raised, or how it ended; null if it ended well.
        agreement: its result compared with the right one; null if nothing was compared.
        launches: kernels launched; null if they were not counted.
        accesses: accesses of single elements that were checked; null if none were.
        problems: errors found in them.
        not_checked: what was not checked, and why.
        seconds: how long the run took.
    """

    device: str
    ran: bool
    reason: str | None = None
    error: str | None = None
    agreement: Agreement | None = None
    launches: int | None = None
    accesses: int | None = None
    problems: tuple[MemoryProblem, ...] = ()
    not_checked: tuple[str, ...] = ()
    seconds: float | None = None


class TritonCheckDocument(Struct, frozen=True, kw_only=True):
    """A case, run in Triton's interpreter, and on the GPU if there is one.

    Attributes:
        target: the function.
        parameters: of the function that made its inputs.
        triton: Triton's version; null if it is not installed.
        torch: PyTorch's version; null if it is not installed.
        passed: whether at least one run completed, and no run found an error.
        cpu: the run in the interpreter.
        gpu: the run on the GPU.
    """

    schema: Literal["opscope.triton-check/1"] = "opscope.triton-check/1"
    target: str
    parameters: dict[str, str]
    triton: str | None
    torch: str | None
    passed: bool
    cpu: KernelRun
    gpu: KernelRun
