"""What a multiprocessor of each compute capability can hold (``data/compute_capabilities.toml``)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiprocessorLimits:
    """The limits of one multiprocessor.

    Attributes:
        blocks, threads, registers, shared_memory_bytes: how much it holds at a time.
        reserved_shared_memory_bytes: what the system takes of it per thread block.
        shared_memory_unit_bytes: what a thread block's shared memory is rounded up to.
    """

    blocks: int
    threads: int
    registers: int
    shared_memory_bytes: int
    reserved_shared_memory_bytes: int
    shared_memory_unit_bytes: int


@cache
def multiprocessor_limits() -> Mapping[str, MultiprocessorLimits]:
    """Return the limits by compute capability (``9.0``)."""
    text = resources.files("opscope.knowledge").joinpath("data", "compute_capabilities.toml").read_text("utf-8")
    return {capability: MultiprocessorLimits(**values) for capability, values in tomllib.loads(text).items()}
