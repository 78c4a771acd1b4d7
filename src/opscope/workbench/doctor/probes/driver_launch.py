"""Launches a small kernel on every GPU, through the driver alone, and compares its result with the CPU's."""

import ctypes
import sys
from typing import Final

from opscope.machine.driver import DriverFailedError, DriverLibrary
from opscope.record.codec import encode
from opscope.record.machine import Computed

# out[i] = i * i + 1, in PTX of CUDA 9, which every driver in use can translate for every device.
_PTX: Final = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry opscope_probe(.param .u64 out, .param .u32 count)
{
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [out];
    ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra DONE;
    cvta.to.global.u64 %rd1, %rd0;
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd3, %rd1, %rd2;
    mad.lo.s32 %r5, %r4, %r4, 1;
    st.global.u32 [%rd3], %r5;
DONE:
    ret;
}
"""
_COUNT: Final = 10_000
_THREADS: Final = 256


def _computed(library: DriverLibrary, device: int) -> Computed:
    try:
        result = _run(library, device)
    except DriverFailedError as error:
        return Computed(device=device, error=str(error))
    wrong = sum(result[i] != i * i + 1 for i in range(_COUNT))
    return Computed(device=device, error=f"{wrong} of {_COUNT} numbers are wrong" if wrong else None)


def _run(library: DriverLibrary, device: int) -> "ctypes.Array[ctypes.c_int]":
    handle = library.number("cuDeviceGet", device)
    context, module, function = (ctypes.c_void_p() for _ in range(3))
    library.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    try:
        library.call("cuCtxSetCurrent", context)
        library.call("cuModuleLoadData", ctypes.byref(module), _PTX)
        library.call("cuModuleGetFunction", ctypes.byref(function), module, b"opscope_probe")
        result = (ctypes.c_int * _COUNT)()
        memory = ctypes.c_uint64()
        library.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ctypes.sizeof(result)))
        count = ctypes.c_uint32(_COUNT)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(count))
        blocks = -(-_COUNT // _THREADS)
        library.call("cuLaunchKernel", function, blocks, 1, 1, _THREADS, 1, 1, 0, None, values, None)
        library.call("cuCtxSynchronize")
        library.call("cuMemcpyDtoH_v2", result, memory, ctypes.c_size_t(ctypes.sizeof(result)))
    finally:
        library.call("cuDevicePrimaryCtxRelease_v2", handle)
    return result


def main() -> None:
    """Try every GPU and print the results."""
    try:
        library = DriverLibrary()
        library.call("cuInit", 0)
        results = tuple(_computed(library, at) for at in range(library.number("cuDeviceGetCount")))
    except (OSError, DriverFailedError):
        results = ()  # the driver's own answer says why
    sys.stdout.buffer.write(encode(results))


if __name__ == "__main__":
    main()
