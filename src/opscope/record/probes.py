"""Results of the doctor's probes of a machine."""

from msgspec import Struct, field

from opscope.record.driver import Driver


class Computed(Struct, frozen=True, kw_only=True):
    """A computation on one GPU, compared with the CPU.

    Attributes:
        device: its number.
        error: why it failed; None if the results agree.
    """

    device: int
    error: str | None = None


class TorchProbe(Struct, frozen=True, kw_only=True):
    """What PyTorch can do on this machine.

    Attributes:
        version: PyTorch's version.
        cuda: the CUDA version it is built with; None for a CPU build.
        hip: the ROCm version it is built with; None without.
        architectures: GPU architectures it has code for: ``sm_90``, ``compute_120``.
        available: whether it sees a GPU.
        warning: its message if it sees none.
        computed: matrix products on each GPU.
        runtime: version of the CUDA runtime that it loaded; None if it loaded none.
        nccl: version of NCCL; None if PyTorch has none.
        reduced: a sum over all GPUs by NCCL; None with fewer than two GPUs.
        cupti: the CUPTI library that its profiler loaded.
        cupti_version: the version of that library's API.
        cupti_held: the error of subscribing to CUPTI; None if it worked or was not tried.
        profiled: number of kernels in a short profile; None if none was taken.
        profile_error: why none was taken.
    """

    version: str
    cuda: str | None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    available: bool = False
    warning: str | None = None
    computed: tuple[Computed, ...] = ()
    runtime: str | None = None
    nccl: str | None = None
    reduced: Computed | None = None
    cupti: str | None = None
    cupti_version: int | None = None
    cupti_held: str | None = None
    profiled: int | None = None
    profile_error: str | None = None


class ToolProbe(Struct, frozen=True, kw_only=True):
    """A program, and a trial of it.

    Attributes:
        path: the program's path; None if it was not found.
        version: its version.
        error: why the trial failed; None if it worked or was not made.
        tried: what was tried; None if nothing was.
    """

    path: str | None = None
    version: str | None = None
    error: str | None = None
    tried: str | None = None


class Probes(Struct, frozen=True, kw_only=True):
    """All probes of a machine.

    Attributes:
        cards: number of NVIDIA display controllers on the PCI bus.
        nodes: whether the kernel's device files exist (``/dev/nvidia0``).
        driver: the driver's answer.
        launched: a kernel of opscope's own on each GPU, through the driver alone.
        torch: PyTorch's answer; None if it is not installed or could not be asked.
        torch_error: why PyTorch could not be asked.
        nvcc: the compiler, and a library built and run with it.
        capabilities: the compute capabilities that nvcc builds for.
        host: the host's compiler.
        triton: a Triton kernel.
        ncu: Nsight Compute, and a counter read with it.
        nsys: Nsight Systems.
        vllm: vLLM's version; None if it is not installed.
        injected: environment variables that load a profiler into every program.
    """

    cards: int
    nodes: bool
    driver: Driver
    launched: tuple[Computed, ...] = ()
    torch: TorchProbe | None = None
    torch_error: str | None = None
    nvcc: ToolProbe = field(default_factory=ToolProbe)
    capabilities: tuple[str, ...] = ()
    host: ToolProbe = field(default_factory=ToolProbe)
    triton: ToolProbe = field(default_factory=ToolProbe)
    ncu: ToolProbe = field(default_factory=ToolProbe)
    nsys: ToolProbe = field(default_factory=ToolProbe)
    vllm: str | None = None
    injected: dict[str, str] = field(default_factory=dict)
