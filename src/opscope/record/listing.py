"""Which kernels to list: sent to the process that compiles them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingRequest:
    """Kernels of a function, or of Triton.

    Attributes:
        target: ``file.py:function`` or ``package.module:kernel``.
        inputs: what makes the function's arguments; None takes the file's own ``inputs``.
        inductor: whether the function is compiled by torch.compile.
        signature: types of a Triton kernel's arguments, in order: ``*fp32``, ``i32``; None where it is called.
        constants: values of its constexpr arguments, by name.
        arch: the compute capability to compile a Triton kernel for; None for that of the device.
    """

    target: str
    inputs: str | None = None
    inductor: bool = False
    signature: tuple[str, ...] | None = None
    constants: dict[str, str] = field(default_factory=dict)
    arch: str | None = None
