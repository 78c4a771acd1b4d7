"""Corrects bfloat16 in Triton's interpreter, which computes with the bits as if they were whole numbers."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np

# Methods of InterpreterBuilder that compute elementwise.
_ARITHMETIC: Final = ("binary_op", "unary_op", "create_clampf", "create_fma")

_Call = Callable[..., Any]


class Bfloat16:
    """Makes the interpreter compute in float32 and round the result to bfloat16, as GPUs do."""

    def __init__(self, interpreter: ModuleType) -> None:
        self._interpreter = interpreter

    def install(self) -> None:
        """Replace the interpreter's methods that compute, as far as this version of Triton has them."""
        builder = getattr(self._interpreter, "InterpreterBuilder", None)
        for name in _ARITHMETIC:
            _replace(builder, name, self._in_float32)
        _replace(builder, "create_dot", self._product_in_float32)
        _replace(builder, "cast_impl", self._cast_by_float32)
        for name in ("ReduceOps", "ScanOps"):
            _replace(getattr(self._interpreter, name, None), "apply_impl", self._reduced_in_float32)

    def _in_float32(self, original: _Call) -> _Call:
        def compute(builder: Any, *args: Any) -> Any:
            if not any(map(self._is_bfloat16, args)):
                return original(builder, *args)
            result = original(builder, *map(self._wide, args))
            # Comparisons give truth values, which stay as they are.
            return self._narrow(result) if result.data.dtype == np.float32 else result

        return compute

    def _product_in_float32(self, original: _Call) -> _Call:
        def multiply(builder: Any, one: Any, other: Any, *args: Any) -> Any:
            return original(builder, self._wide(one), self._wide(other), *args)

        return multiply

    def _cast_by_float32(self, original: _Call) -> _Call:
        def cast(builder: Any, source: Any, kind: Any) -> Any:
            if kind.scalar == self._interpreter.tl.bfloat16:  # other types go through float32
                wide = source if self._is_bfloat16(source) else original(builder, source, self._interpreter.tl.float32)
                return self._narrow(self._wide(wide))
            return original(builder, self._wide(source), kind)

        return cast

    def _reduced_in_float32(self, original: _Call) -> _Call:
        language = self._interpreter.tl

        def narrowed(value: Any) -> Any:
            shape = list(value.shape)
            kind = language.block_type(language.bfloat16, shape) if shape else language.bfloat16
            return language.tensor(self._narrow(value.handle), kind)

        def reduce(operation: Any, values: Any) -> Any:
            if not isinstance(values, tuple) or not any(self._is_bfloat16(value.handle) for value in values):
                return original(operation, values)
            narrow = [self._is_bfloat16(value.handle) for value in values]
            wide = (
                operation.to_tensor(self._wide(value.handle).data, language.float32) if is_narrow else value
                for value, is_narrow in zip(values, narrow, strict=True)
            )
            results = original(operation, tuple(wide))
            several = results if isinstance(results, (tuple, list)) else (results,)
            return tuple(narrowed(one) if back else one for one, back in zip(several, narrow, strict=False))

        return reduce

    def _is_bfloat16(self, value: Any) -> bool:
        return isinstance(value, self._interpreter.TensorHandle) and value.dtype == self._interpreter.tl.bfloat16

    def _wide(self, value: Any) -> Any:
        if not self._is_bfloat16(value):
            return value
        # A bfloat16 is the upper half of a float32.
        bits = value.data.astype(np.uint32) << np.uint32(16)
        return self._interpreter.TensorHandle(bits.view(np.float32), self._interpreter.tl.float32)

    def _narrow(self, value: Any) -> Any:
        """Round float32 to the nearest bfloat16, and to the even one of two that are equally near, as GPUs do."""
        # A NaN is not rounded: it could become infinite. Its highest mantissa bit, 22, keeps it a NaN when the lower
        # half is cut off.
        bits = np.ascontiguousarray(value.data).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = np.where(np.isnan(value.data), bits | np.uint32(1 << 22), bits + np.uint32(0x7FFF) + odd)
        return self._interpreter.TensorHandle(
            (rounded >> np.uint32(16)).astype(np.uint16), self._interpreter.tl.bfloat16
        )


def _replace(owner: object, name: str, make: Callable[[_Call], _Call]) -> None:
    if (original := getattr(owner, name, None)) is not None:
        setattr(owner, name, make(original))
