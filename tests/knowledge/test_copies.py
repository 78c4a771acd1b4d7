"""Which way copies go, by the names that profilers give them."""

import pytest

from opscope.knowledge.collectives import Direction, direction_of


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Pageable -> Device)", Direction.TO_DEVICE),
        ("Memcpy DtoH (Device -> Pinned)", Direction.TO_HOST),
        ("Memcpy DtoD (Device -> Device)", Direction.WITHIN),
        ("Memcpy PtoP (Device -> Device)", Direction.BETWEEN_DEVICES),
        ("CopyHostToDevice", Direction.TO_DEVICE),
        ("CopyDeviceToHost", Direction.TO_HOST),
        ("CopyDeviceToDevice", Direction.WITHIN),
        ("Memset (Device)", None),
        ("void copy_HtoD_kernel()", None),
        ("", None),
    ],
)
def test_the_direction_of_copies(name: str, direction: Direction | None) -> None:
    assert direction_of(name) is direction
