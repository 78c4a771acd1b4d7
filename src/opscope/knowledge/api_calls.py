"""What the calls of the CUDA runtime, the CUDA driver, HIP and SYCL do, by name.

Names are those that profilers record: ``cudaLaunchKernel``, ``cuLaunchKernelEx``, ``hipMemcpyAsync``, with suffixes of
the interface's version (``cudaStreamSynchronize_ptsz_v7000``). Sources: the references of the CUDA Runtime API, CUDA
Driver API and the HIP Runtime API.
"""

import functools
from enum import StrEnum
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern


class ApiKind(StrEnum):
    """What a call is for."""

    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph launch"
    COPY = "copy"
    FILL = "fill"
    SYNCHRONIZE = "synchronise"
    ALLOCATE = "allocate"
    FREE = "free"
    CAPTURE_BEGIN = "begin of a graph's capture"
    CAPTURE_END = "end of a graph's capture"
    MODULE_LOAD = "module load"
    QUERY = "query"
    OTHER = "other"


class ApiCall(Struct, frozen=True):
    """One function of an API.

    Attributes:
        kind: what it is for.
        enqueues: whether it hands work to a stream, so that a device activity follows it.
        blocks: whether the host waits in it until a device has done its work.
    """

    kind: ApiKind
    enqueues: bool = False
    blocks: bool = False


class ApiRule(Struct, frozen=True):
    """A rule that recognises calls by their names; the first rule of `API_RULES` that fits decides.

    Attributes:
        pattern: a regular expression that is searched for in the name.
        call: what calls of these names do.
        examples: recorded names that the pattern fits.
    """

    pattern: str
    call: ApiCall
    examples: tuple[str, ...]


_PREFIX = r"^(cuda|cu|hip)"
API_RULES: Final[tuple[ApiRule, ...]] = (
    # SYCL's unified runtime (ur, before it pi) hands work to Level Zero (ze), whose calls lie within it.
    ApiRule(
        r"^(ur|pi)Enqueue(\w*Kernel)",
        ApiCall(ApiKind.LAUNCH, enqueues=True),
        ("urEnqueueKernelLaunch", "urEnqueueKernelLaunchWithArgsExp", "piEnqueueKernelLaunch"),
    ),
    ApiRule(
        r"^(ur|pi)(Ext)?(Enqueue)?\w*(Memcpy|BufferCopy|BufferRead|BufferWrite)",
        ApiCall(ApiKind.COPY, enqueues=True),
        ("urEnqueueUSMMemcpy", "piextUSMEnqueueMemcpy", "urEnqueueMemBufferCopy"),
    ),
    ApiRule(r"^(ur|pi)\w*Fill", ApiCall(ApiKind.FILL, enqueues=True), ("urEnqueueUSMFill", "piextUSMEnqueueFill")),
    ApiRule(
        r"^(ur|pi)(QueueFinish|EventWait|EventsWait)|^ze\w*Synchronize",
        ApiCall(ApiKind.SYNCHRONIZE, blocks=True),
        ("urQueueFinish", "urEventWait", "piQueueFinish", "zeEventHostSynchronize", "zeCommandQueueSynchronize"),
    ),
    ApiRule(r"^ze", ApiCall(ApiKind.OTHER), ("zeCommandListAppendLaunchKernel", "zeCommandListAppendMemoryCopy")),
    ApiRule(r"^(ur|pi(ext)?)USM\w*Alloc", ApiCall(ApiKind.ALLOCATE), ("urUSMDeviceAlloc", "piextUSMHostAlloc")),
    ApiRule(r"^(ur|pi(ext)?)USMFree", ApiCall(ApiKind.FREE), ("urUSMFree",)),
    ApiRule(r"GraphLaunch", ApiCall(ApiKind.GRAPH_LAUNCH, enqueues=True), ("cudaGraphLaunch", "hipGraphLaunch")),
    ApiRule(
        r"LaunchKernel|LaunchCooperative|ModuleLaunch",
        ApiCall(ApiKind.LAUNCH, enqueues=True),
        (
            *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel"),
            *("cudaLaunchCooperativeKernel", "hipExtModuleLaunchKernel"),
        ),
    ),
    # hipMemcpyWithStream enqueues on its stream, and waits for it.
    ApiRule(r"^hipMemcpyWithStream", ApiCall(ApiKind.COPY, enqueues=True, blocks=True), ("hipMemcpyWithStream",)),
    # Asynchronous copies and fills stand before the general rules, whose patterns fit them too.
    ApiRule(
        _PREFIX + r"Memcpy\w*Async",
        ApiCall(ApiKind.COPY, enqueues=True),
        ("cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", "hipMemcpyAsync", "cudaMemcpy2DAsync"),
    ),
    ApiRule(
        r"^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|Peer|DtoH|HtoD|DtoD)?(_|$)",
        ApiCall(ApiKind.COPY, blocks=True),
        ("cudaMemcpy", "cudaMemcpy_v3020", "cudaMemcpyToSymbol", "hipMemcpy", "hipMemcpyDtoH"),
    ),
    ApiRule(
        r"^cuMemcpy(DtoH|HtoD|AtoH|HtoA)(_v2)?(_ptds)?$",
        ApiCall(ApiKind.COPY, blocks=True),
        ("cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2_ptds"),
    ),
    ApiRule(_PREFIX + r"Memcpy", ApiCall(ApiKind.COPY), ("cuMemcpy3D_v2",)),
    ApiRule(_PREFIX + r"Memset\w*Async", ApiCall(ApiKind.FILL, enqueues=True), ("cudaMemsetAsync", "cuMemsetD8Async")),
    ApiRule(_PREFIX + r"Memset", ApiCall(ApiKind.FILL), ("cudaMemset", "hipMemset")),
    ApiRule(
        r"(Device|Stream|Event|Ctx)Synchronize",
        ApiCall(ApiKind.SYNCHRONIZE, blocks=True),
        ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cuCtxSynchronize"),
    ),
    ApiRule(r"StreamBeginCapture", ApiCall(ApiKind.CAPTURE_BEGIN), ("cudaStreamBeginCapture", "hipStreamBeginCapture")),
    ApiRule(r"StreamEndCapture", ApiCall(ApiKind.CAPTURE_END), ("cudaStreamEndCapture",)),
    ApiRule(
        r"(Module|Library)Load(Data|From|Fat|$)",
        ApiCall(ApiKind.MODULE_LOAD),
        ("cuModuleLoadData", "cuModuleLoadDataEx", "cuLibraryLoadData", "hipModuleLoadData"),
    ),
    ApiRule(
        _PREFIX + r"(Ext)?(Malloc|MemAlloc|MemCreate|HostAlloc|HostMalloc|MemHostAlloc|MemAddressReserve|MemMap)",
        ApiCall(ApiKind.ALLOCATE),
        ("cudaMalloc", "cudaMallocAsync", "cudaHostAlloc", "cuMemCreate", "hipMalloc", "hipExtMallocWithFlags"),
    ),
    ApiRule(
        _PREFIX + r"(Free|MemFree|HostFree|MemRelease|MemUnmap)",
        ApiCall(ApiKind.FREE),
        ("cudaFree", "cudaFreeHost", "cuMemRelease", "hipFree"),
    ),
    ApiRule(
        _PREFIX + r"\w*(Query|Get|IsCapturing|Occupancy|PeekAtLastError)",
        ApiCall(ApiKind.QUERY),
        (
            *("cudaStreamQuery", "cudaEventQuery", "cudaStreamIsCapturing", "cudaGetDevice", "cudaDeviceGetAttribute"),
            *("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cuKernelGetFunction"),
        ),
    ),
)
_COMPILED: Final = tuple((lazy_pattern(rule.pattern), rule.call) for rule in API_RULES)
_OTHER: Final = ApiCall(ApiKind.OTHER)
# How Kineto and the driver name loading in their own records, which are not calls.
_LOADING_RECORD: Final = lazy_pattern(r"Module Loading|Lazy Function Loading")


# What Kineto calls the work of CUPTI, in its category "overhead".
_PROFILER_RECORD: Final = lazy_pattern(r"Activity Buffer Request|Buffer Flush|Instrumentation|Resource|CUPTI")


@functools.cache
def api_call(name: str) -> ApiCall:
    """Return what a call does; of the kind `ApiKind.OTHER` if no rule fits its name."""
    return next((call for pattern, call in _COMPILED if pattern.search(name)), _OTHER)


_EARLIER_ERROR: Final = lazy_pattern(_PREFIX + r"(GetLastError|PeekAtLastError)")
_NOT_READY: Final = 600  # cudaErrorNotReady, CUDA_ERROR_NOT_READY: what a query was asked for is still going on


def returns_earlier_error(name: str, status: int) -> bool:
    """Tell whether a call that returned an error did not fail itself.

    It may report the error of an earlier call, or that the work that it asks about still goes on.

    Args:
        name: the call's.
        status: the error number that it returned, of the CUDA runtime or driver.
    """
    return _EARLIER_ERROR.search(name) is not None or status == _NOT_READY


def loads_code(name: str) -> bool:
    """Tell whether a call, or one of the profiler's own records, is about loading code onto a device."""
    return api_call(name).kind is ApiKind.MODULE_LOAD or _LOADING_RECORD.search(name) is not None


def is_profilers_own(name: str) -> bool:
    """Tell whether a record is about the profiler's own work."""
    return _PROFILER_RECORD.search(name) is not None
