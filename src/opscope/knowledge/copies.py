"""Which way copies go, by the names that CUDA's and HIP's profilers give them."""

import re
from enum import StrEnum
from typing import Final


class Direction(StrEnum):
    """Which way a copy goes."""

    TO_DEVICE = "host to device"
    TO_HOST = "device to host"
    WITHIN = "within a device"
    BETWEEN_DEVICES = "between devices"


# CUDA: ``Memcpy HtoD (Pageable -> Device)``; HIP: ``CopyHostToDevice``, ``Memcpy HtoD``.
# In order: copies between devices before those within one, whose pattern fits DeviceToDevicePeer too.
_NAMES: Final = (
    (Direction.TO_DEVICE, re.compile(r"HtoD|HostToDevice")),
    (Direction.TO_HOST, re.compile(r"DtoH|DeviceToHost")),
    (Direction.BETWEEN_DEVICES, re.compile(r"PtoP|PeerToPeer|DeviceToDevicePeer")),
    (Direction.WITHIN, re.compile(r"DtoD|DeviceToDevice")),
)


def direction_of(name: str) -> Direction | None:
    """Return which way a copy goes; None if the name is not that of a copy, or does not say."""
    if not name.startswith(("Memcpy", "Copy")):
        return None
    return next((direction for direction, pattern in _NAMES if pattern.search(name)), None)


def is_pageable(name: str) -> bool:
    """Tell whether a copy's name says that its memory on the host is not pinned."""
    return "Pageable" in name
