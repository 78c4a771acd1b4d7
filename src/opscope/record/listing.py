"""The request for a listing of kernels, sent to the process that compiles them."""

from msgspec import Struct, field


class ListingRequest(Struct, frozen=True, kw_only=True):
    """Which kernels to list: those of a function, or one Triton kernel.

    Attributes:
        target: ``file.py:function`` or ``package.module:kernel``.
        inputs: the function that makes the arguments; None takes the file's own ``inputs``.
        inductor: whether to compile the function with torch.compile.
        signature: types of a Triton kernel's arguments, in order: ``*fp32``, ``i32``; None if it is called instead.
        constants: values of its constexpr arguments, by name.
        arch: the compute capability to compile a Triton kernel for; None takes the device's.
    """

    target: str
    inputs: str | None = None
    inductor: bool = False
    signature: tuple[str, ...] | None = None
    constants: dict[str, str] = field(default_factory=dict)
    arch: str | None = None
