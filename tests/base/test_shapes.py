"""How recorded shapes are written."""

import json

import pytest

from opscope.base.units import input_shapes, tensor_shapes


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ("[[8,768],[],[768]]", "[8,768], [768]"),
        ("[[[8, 1], [8, 2], [8, 3]], []]", "[[8,1],[8,2],[8,3]]"),
        (json.dumps([[[2048, 2048], [2048]] * 13]), "[[2048,2048],[2048],[2048,2048], ... 26 tensors]"),
        ("[[],[]]", ""),
        # Step counters of a fused optimizer: scalars, few and many.
        ("[[[3,4],[5]],[[],[]]]", "[[3,4],[5]], [[],[]]"),
        (json.dumps([[[]] * 5, [[[]], []]]), "[[],[],[], ... 5 tensors], [[[]],[]]"),
        (None, ""),
    ],
)
def test_shapes_of_tensors(dims: str | None, text: str) -> None:
    assert tensor_shapes(dims) == text


def test_no_shapes_in_words() -> None:
    assert (input_shapes(None), input_shapes("[[]]"), input_shapes("[[2]]")) == ("not recorded", "scalars", "[2]")
