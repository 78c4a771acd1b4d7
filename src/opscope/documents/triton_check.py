"""Whether a Triton kernel is right, in Triton's interpreter and on the GPU: the schema ``opscope.triton-check/1``."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class ProblemKind(StrEnum):
    """What a kernel did that it must not.

    Attributes:
        LOAD_OUTSIDE: it reads outside the tensor that a pointer was made from.
        STORE_OUTSIDE: it writes there.
        ATOMIC_OUTSIDE: it does both at once there.
        UNWRITTEN_READ: it reads memory of ``torch.empty`` that nothing was written to.
        UNWRITTEN_RESULT: such memory is part of what is returned.
    """

    LOAD_OUTSIDE = "load out of bounds"
    STORE_OUTSIDE = "store out of bounds"
    ATOMIC_OUTSIDE = "atomic out of bounds"
    UNWRITTEN_READ = "read of memory that nothing was written to"
    UNWRITTEN_RESULT = "part of a result is not written"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProblem:
    """Accesses of one line of a kernel that are wrong in the same way.

    Attributes:
        kind: in which.
        kernel: its function; null of a result.
        location: file and line of the access; null where it is not known.
        tensor: the argument that the pointer was made from, else the nearest one; or the number of the result.
        tensor_elements: how many elements it has.
        elements: accesses of single elements that are wrong, over all programs.
        programs: how many programs have such an access.
        first_program: the program id of the first.
        first_offset: the smallest offset of such an access, in elements from the beginning of the tensor.
        last_offset: the largest.
        in_storage: whether all are inside the memory that the tensor is a view of; null where that is not the question.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A result beside what is right.

    Attributes:
        right: whether it is.
        compared_with: what is right.
        sentence: what was found.
        dtype: of the result.
        relative_error: norm of the difference over that of what is right, the largest of all results; null where that
            is no number.
        element_error: how far off a single element is, of its size and the typical one together.
        tolerance: the largest relative error that is allowed for the data type.
    """

    right: bool
    compared_with: str
    sentence: str
    dtype: str | None = None
    relative_error: float | None = None
    element_error: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRun:
    """One run of the case.

    Attributes:
        device: where.
        ran: whether it came to an end.
        reason: why it was not tried, or cannot be; null where it was.
        error: what it raised, or how it ended; null where it ended well.
        agreement: its result beside what is right; null where nothing was compared.
        launches: kernels launched; null where they were not counted.
        accesses: accesses of single elements that were checked; null where none were.
        problems: what was found in them.
        not_checked: what was not, and why.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonCheckDocument:
    """A case, run in Triton's interpreter, and on the GPU where there is one.

    Attributes:
        target: the function.
        parameters: what its inputs were made with.
        triton: the version.
        torch: PyTorch's.
        passed: whether at least one run came to an end, and nothing was found in any.
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
