"""Recorded input shapes as people read them."""

import json

# So many tensors of a list are written out, as `torch.cat` of query, key and value has them. An optimizer's lists hold
# hundreds, which would make every other row of a table as wide.
_WRITTEN_OUT = 3


def tensor_shapes(dims: str | None) -> str:
    """Write the shapes of a call's tensors, and of a long list of tensors the first ones and how many there are.

    Args:
        dims: the shapes as a trace has them, JSON text (``[[8,768],[],[[768],[768]]]``); None where it has none.

    Returns:
        ``[8,768], [[768],[768]]``; empty where no input is a tensor.
    """
    shapes = json.loads(dims) if dims else []
    return ", ".join(_text(shape) for shape in shapes if shape)


def input_shapes(dims: str | None) -> str:
    """Write what `tensor_shapes` does, and say it in words where there is nothing to write."""
    if dims is None:
        return "not recorded"
    return tensor_shapes(dims) or "scalars"


def _text(shape: object) -> str:
    if isinstance(shape, list) and isinstance(shape[0], list) and len(shape) > _WRITTEN_OUT:
        first = ",".join(_text(one) for one in shape[:_WRITTEN_OUT])
        return f"[{first}, ... {len(shape):,} tensors]"
    return str(shape).replace(" ", "")
