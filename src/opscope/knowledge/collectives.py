"""What moves data, by the words of its name: which way a copy goes, which collective operation a kernel or range is."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

from opscope.base.text import lazy_pattern

# ---------------------------------------------------------------- copies


class Direction(StrEnum):
    """Which way a copy goes."""

    TO_DEVICE = "host to device"
    TO_HOST = "device to host"
    WITHIN = "within a device"
    BETWEEN_DEVICES = "between devices"


# CUDA: ``Memcpy HtoD (Pageable -> Device)``; HIP: ``CopyHostToDevice``, ``Memcpy HtoD``, ``MEMORY_COPY_HOST_TO_DEVICE``
# (rocprofiler-sdk); SYCL: ``Memcpy M2D(Pageable -> Device)``.
# In order: copies between devices before those within one, whose pattern fits DeviceToDevicePeer too.
_NAMES: Final = (
    (Direction.TO_DEVICE, lazy_pattern(r"HtoD|M2D|HostToDevice|HOST_TO_DEVICE")),
    (Direction.TO_HOST, lazy_pattern(r"DtoH|D2M|DeviceToHost|DEVICE_TO_HOST")),
    (Direction.BETWEEN_DEVICES, lazy_pattern(r"PtoP|PeerToPeer|DeviceToDevicePeer|PEER_TO_PEER")),
    (Direction.WITHIN, lazy_pattern(r"DtoD|D2D|DeviceToDevice|DEVICE_TO_DEVICE")),
)


def direction_of(name: str) -> Direction | None:
    """Return which way a copy goes; None if the name is not that of a copy, or does not say."""
    if not name.startswith(("Memcpy", "Copy", "MEMORY_COPY_")):
        return None
    return next((direction for direction, pattern in _NAMES if pattern.search(name)), None)


def is_pageable(name: str) -> bool:
    """Tell whether a copy's name says that its memory on the host is not pinned."""
    return "Pageable" in name


# ---------------------------------------------------------------- collectives


class Collective(StrEnum):
    """Operations of all ranks of a group, and messages between two."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND = "send and receive"


# In order: what PyTorch's range says decides before NCCL's kernel, which does all-to-all by sending and receiving.
# Seen: nccl:all_to_allv, ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t,
# void vllm::cross_device_reduce_1stage, deep_ep::internode::dispatch, mori::EpDispatchIntraNodeKernel,
# multimem_all_reduce_kernel, nccl:_all_gather_base, nccl:recv 3<-2.
_WORDS: Final = (
    (
        Collective.ALL_TO_ALL,
        lazy_pattern(r"all_?to_?all|deep_?ep|internode|intranode|EpDispatch|EpCombine", re.IGNORECASE),
    ),
    (Collective.ALL_REDUCE, lazy_pattern(r"all_?reduce|cross_device_reduce|one_?shot|two_?shot", re.IGNORECASE)),
    (Collective.REDUCE_SCATTER, lazy_pattern(r"reduce_?scatter", re.IGNORECASE)),
    (Collective.ALL_GATHER, lazy_pattern(r"all_?gather", re.IGNORECASE)),
    (Collective.BROADCAST, lazy_pattern(r"broadcast", re.IGNORECASE)),
    (Collective.SEND, lazy_pattern(r"send_?recv|nccl:(send|recv)", re.IGNORECASE)),
    (Collective.REDUCE, lazy_pattern(r"nccl\w*[:_]reduce", re.IGNORECASE)),
)


# PyTorch's names of what its process groups do. Ranks leave these at about the same time: on two H100 within 5 us.
TIES: Final = (
    *("allreduce", "allreduce_coalesced", "_allgather_base", "allgather", "all_gather", "barrier"),
    *("allgather_into_tensor_coalesced", "_reduce_scatter_base", "reduce_scatter", "reduce_scatter_tensor_coalesced"),
)
# No one leaves these before the last has entered either, but each once it has its own part.
TOGETHER: Final = (*TIES, "all_to_all", "all_to_allv", "alltoall", "alltoall_base")
MESSAGES: Final = ("send", "recv")
# What a kernel's name says, as PyTorch calls it; of a message it does not say between which ranks it goes.
NAMED: Final[Mapping[Collective, str]] = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "all_gather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE: "reduce",
}


@lru_cache(maxsize=1 << 12)
def collective_of(text: str) -> Collective | None:
    """Return the collective that a name speaks of; None where it says nothing.

    Args:
        text: a kernel's name, or that and the name of the range that it was launched in.
    """
    return next((kind for kind, words in _WORDS if words.search(text)), None)
