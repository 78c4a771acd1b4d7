"""Data types of tensor elements, in all their spellings: PyTorch's, the profiler's, C++'s in kernel names."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct


class DataType(Struct, frozen=True):
    """One element type.

    Attributes:
        torch: the name of the ``torch.dtype``: ``bfloat16``.
        short: as kernel names and tables write it: ``bf16``.
        size_bytes: of one element.
        recorded: how profilers write it in ``Input type`` (the C++ type of ``ScalarType``).
        cpp: further spellings in template arguments of kernels.
        is_floating_point: whether it holds fractions.
    """

    torch: str
    short: str
    size_bytes: int
    recorded: tuple[str, ...]
    cpp: tuple[str, ...] = ()
    is_floating_point: bool = False

    @property
    def is_complex(self) -> bool:
        """Whether it holds complex numbers."""
        return self.torch.startswith("complex")


# Source: c10/core/ScalarType.h (AT_FORALL_SCALAR_TYPES), and template arguments in recorded kernel names.
DATA_TYPES: Final[tuple[DataType, ...]] = (
    DataType("float32", "f32", 4, ("float",), is_floating_point=True),
    DataType("float64", "f64", 8, ("double",), is_floating_point=True),
    DataType("bfloat16", "bf16", 2, ("c10::BFloat16",), ("__nv_bfloat16",), is_floating_point=True),
    DataType("float16", "f16", 2, ("c10::Half",), ("__half",), is_floating_point=True),
    DataType("int64", "i64", 8, ("long int", "long")),
    DataType("int32", "i32", 4, ("int",)),
    DataType("int16", "i16", 2, ("short int", "short")),
    DataType("int8", "i8", 1, ("signed char",)),
    DataType("uint8", "u8", 1, ("unsigned char",)),
    DataType("bool", "bool", 1, ("bool",)),
    DataType("complex64", "complex64", 8, ("c10::complex<float>",)),
    DataType("complex128", "complex128", 16, ("c10::complex<double>",)),
    DataType("float8_e4m3fn", "f8e4m3", 1, ("c10::Float8_e4m3fn",), is_floating_point=True),
    DataType("float8_e5m2", "f8e5m2", 1, ("c10::Float8_e5m2",), is_floating_point=True),
)
_BY_RECORDED: Final[Mapping[str, DataType]] = {name: dtype for dtype in DATA_TYPES for name in dtype.recorded}
_BY_CPP: Final[Mapping[str, DataType]] = {name: dtype for dtype in DATA_TYPES for name in (*dtype.recorded, *dtype.cpp)}


def recorded_dtype(text: str) -> DataType | None:
    """Return the type that a profiler wrote in ``Input type``; None if it is not a tensor's, or is not known."""
    return _BY_RECORDED.get(text)


def cpp_dtype(text: str | None) -> str | None:
    """Return the short name (``bf16``) of a C++ type in a kernel's name; None if it is not an element type."""
    dtype = _BY_CPP.get(text or "")
    return dtype.short if dtype else None


def promoted(dtypes: Sequence[DataType | None]) -> DataType | None:
    """Return the type that PyTorch computes tensors of these types in (torch.promote_types); None if one is unknown."""
    known = [dtype for dtype in dtypes if dtype is not None]
    if not known or len(known) != len(dtypes):
        return None
    # Floating-point types win over whole numbers of any size. Neither of the two 16-bit ones holds the other's numbers.
    floating = [dtype for dtype in known if dtype.is_floating_point or dtype.is_complex]
    complex_ones = [dtype for dtype in floating if dtype.is_complex]
    if complex_ones:  # as precise as the most precise part: complex64 with float64 is complex128
        return max(complex_ones, key=_part_bytes) if _holds_all(complex_ones, floating) else _COMPLEX128
    widest = max(floating or known, key=lambda dtype: dtype.size_bytes)
    halves = {dtype.torch for dtype in floating if dtype.size_bytes == widest.size_bytes == _HALF_BYTES}
    return _FLOAT32 if len(halves) > 1 else widest


def _part_bytes(dtype: DataType) -> int:
    """Return the size of the real part."""
    return dtype.size_bytes // 2 if dtype.is_complex else dtype.size_bytes


def _holds_all(complex_ones: Sequence[DataType], others: Sequence[DataType]) -> bool:
    return max(map(_part_bytes, complex_ones)) >= max(map(_part_bytes, others))


_HALF_BYTES: Final = 2
_FLOAT32: Final = DATA_TYPES[0]
_COMPLEX128: Final = next(dtype for dtype in DATA_TYPES if dtype.torch == "complex128")
