"""What was tried on a machine to see whether it works, and what came of it."""

from dataclasses import dataclass, field

from opscope.record.driver import Driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A computation on one GPU, compared with the CPU.

    Attributes:
        device: its number.
        error: why it failed; None where the results agree.
    """

    device: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchProbe:
    """What PyTorch does here.

    Attributes:
        version: of PyTorch.
        cuda: that it is built with; None of a build for the CPU.
        hip: ROCm that it is built with.
        architectures: that it has code for: ``sm_90``, ``compute_120``.
        available: whether it sees a GPU.
        warning: what it says where it does not.
        computed: products on each GPU.
        runtime: version of the CUDA runtime that it loaded; None where it loaded none.
        nccl: version of NCCL; None where PyTorch has none.
        reduced: a sum over all GPUs by NCCL; None where there is one GPU, or none.
        cupti: the library that its profiler loaded.
        cupti_version: its API's version.
        cupti_held: why CUPTI could not be subscribed to, by its error; None where it could, or was not tried.
        profiled: kernels in a short profile; None where none was taken.
        profile_error: why not.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProbe:
    """A program, or a step that was tried with it.

    Attributes:
        path: where it is; None where it is not.
        version: of it.
        error: why what was tried with it failed; None where it worked, or was not tried.
        tried: what was tried; None where nothing was.
    """

    path: str | None = None
    version: str | None = None
    error: str | None = None
    tried: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """All answers of a machine.

    Attributes:
        cards: NVIDIA's display controllers on the PCI bus.
        nodes: whether the kernel's device files, ``/dev/nvidia0``, are there.
        driver: the driver's answer.
        launched: a kernel of our own on each GPU, through the driver alone.
        torch: PyTorch's; None where it is not installed.
        torch_error: why it could not be asked.
        nvcc: the compiler, and a library built and run with it.
        capabilities: the compute capabilities that it builds for.
        host: the host's compiler.
        triton: a kernel of Triton.
        ncu: Nsight Compute, and a counter read with it.
        nsys: Nsight Systems.
        vllm: version; None where it is not installed.
        injected: variables of the environment that load a profiler into every program.
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
