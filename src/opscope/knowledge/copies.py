"""Which way copies go, by the names that CUDA's and HIP's profilers give them."""

from enum import StrEnum
from typing import Final

from opscope.base.text import lazy_pattern


class Direction(StrEnum):
    """Which way a copy goes."""

    TO_DEVICE = "host to device"
    TO_HOST = "device to host"
    WITHIN = "within a device"
    BETWEEN_DEVICES = "between devices"


# CUDA: ``Memcpy HtoD (Pageable -> Device)``; HIP: ``CopyHostToDevice``, ``Memcpy HtoD``.
# In order: copies between devices before those within one, whose pattern fits DeviceToDevicePeer too.
_NAMES: Final = (
    (Direction.TO_DEVICE, lazy_pattern(r"HtoD|HostToDevice")),
    (Direction.TO_HOST, lazy_pattern(r"DtoH|DeviceToHost")),
    (Direction.BETWEEN_DEVICES, lazy_pattern(r"PtoP|PeerToPeer|DeviceToDevicePeer")),
    (Direction.WITHIN, lazy_pattern(r"DtoD|DeviceToDevice")),
)


def direction_of(name: str) -> Direction | None:
    """Return which way a copy goes; None if the name is not that of a copy, or does not say."""
    if not name.startswith(("Memcpy", "Copy")):
        return None
    return next((direction for direction, pattern in _NAMES if pattern.search(name)), None)


def is_pageable(name: str) -> bool:
    """Tell whether a copy's name says that its memory on the host is not pinned."""
    return "Pageable" in name
