"""What drivers answer on machines of several kinds: `data/machines/h200.json` was recorded, others are made of it."""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from opscope.record.machine import Driver, DriverDevice

ONE = msgspec.json.decode((Path(__file__).parent / "data" / "machines" / "h200.json").read_bytes(), type=Driver)
H200 = ONE.devices[0]
EIGHT = replace(ONE, devices=tuple(replace(H200, index=at) for at in range(8)))
RTX_4090 = replace(
    H200, index=1, name="NVIDIA GeForce RTX 4090", compute_capability="8.9", multiprocessors=128,
    memory_bytes=25_757_220_864, l2_bytes=75_497_472, clock_khz=2_520_000, memory_clock_khz=10_501_000,
    memory_bus_bits=384, ecc=False,
)  # fmt: skip
MIXED = replace(ONE, devices=(H200, RTX_4090))
SLICE = replace(
    H200, name="NVIDIA H200 MIG 1g.18gb", multiprocessors=16, memory_bytes=18_253_611_008, memory_bus_bits=0
)
MIG = replace(ONE, devices=(SLICE,))
UNKNOWN = replace(ONE, devices=(replace(RTX_4090, index=0, name="NVIDIA GeForce RTX 4095", multiprocessors=140),))
FUTURE = replace(ONE, devices=(replace(H200, name="NVIDIA X1", compute_capability="14.0"),))
HIDDEN = replace(
    ONE, devices=(), visible="", error="cuInit failed: no CUDA-capable device is detected (CUDA error 100)"
)
NONE = Driver(library=None, cuda=None, release=None, error="there is no CUDA driver: libcuda.so.1 is not found")
BROKEN = Driver(
    library="/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", cuda=None, release="580.95.05",
    error="cuInit failed: system has unsupported display driver / cuda driver combination (CUDA error 803)",
)  # fmt: skip
OLD = replace(ONE, cuda="12.2", release="535.129.03")


def device(name: str) -> DriverDevice:
    """Return an H200 that has this name."""
    return replace(H200, name=name)
