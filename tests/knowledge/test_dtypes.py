"""The type that PyTorch computes tensors of several types in."""

import itertools

import pytest

from opscope.knowledge.dtypes import DATA_TYPES, promoted

BY_NAME = {dtype.torch: dtype for dtype in DATA_TYPES}


@pytest.mark.parametrize(
    ("names", "result"),
    [
        (("float32", "int64"), "float32"),
        (("bfloat16", "float16"), "float32"),
        (("complex64", "float32"), "complex64"),
        (("complex64", "float64"), "complex128"),
        (("complex64", "int64"), "complex64"),
        (("complex128", "bfloat16"), "complex128"),
    ],
)
def test_types_by_hand(names: tuple[str, ...], result: str) -> None:
    assert promoted([BY_NAME[name] for name in names]) == BY_NAME[result]
    assert promoted([*(BY_NAME[name] for name in names), None]) is None


def test_sizes_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    pairs = itertools.combinations([name for name in BY_NAME if not name.startswith("float8")], 2)
    for one, other in pairs:
        found = promoted([BY_NAME[one], BY_NAME[other]])
        assert found is not None
        if {one, other} == {"int8", "uint8"}:  # PyTorch takes int16, which holds both
            continue
        expected = torch.promote_types(getattr(torch, one), getattr(torch, other))
        assert BY_NAME[found.torch].size_bytes == expected.itemsize, (one, other, found.torch, expected)
