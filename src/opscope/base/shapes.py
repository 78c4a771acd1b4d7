"""Recorded input shapes as people read them."""

import json

# So many tensors of a list are written out, as `torch.cat` of query, key and value has them. An optimizer's lists hold
# hundreds, which would make every other row of a table as wide.
_WRITTEN_OUT = 3


def tensor_shapes(dims: str | None) -> str:
    """Format the shapes of a call's tensors; of a long list of tensors, only the first ones and their number.

    Args:
        dims: the shapes as a trace has them, JSON text (``[[8,768],[],[[768],[768]]]``); None if not recorded.

    Returns:
        ``[8,768], [[768],[768]]``; empty if no input is a tensor.
    """
    shapes = json.loads(dims) if dims else []
    return ", ".join(_text(shape) for shape in shapes if shape)


def input_shapes(dims: str | None) -> str:
    """Format shapes as `tensor_shapes` does; ``not recorded`` or ``scalars`` where it would return nothing."""
    if dims is None:
        return "not recorded"
    return tensor_shapes(dims) or "scalars"


def _text(shape: object) -> str:
    # A scalar has the shape [], such as each step counter in the lists of a fused optimizer.
    if isinstance(shape, list) and len(shape) > _WRITTEN_OUT and isinstance(shape[0], list):
        first = ",".join(_text(one) for one in shape[:_WRITTEN_OUT])
        return f"[{first}, ... {len(shape):,} tensors]"
    return str(shape).replace(" ", "")
