"""Recorded inputs as people read them."""

import json


def input_shapes(dims: str | None) -> str:
    """Write the shapes of a call (JSON text, as tables have it) without what is no tensor."""
    if dims is None:
        return "not recorded"
    return ", ".join(str(shape) for shape in json.loads(dims) if shape) or "scalars"
