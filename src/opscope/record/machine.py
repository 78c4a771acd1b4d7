"""Where a measurement ran: the machine, its driver and peaks, the framework on it, the process's place among others."""

from typing import Literal

from msgspec import Struct, field

# ---------------------------------------------------------------- peaks


class PeakSample(Struct, frozen=True, kw_only=True):
    """One measured pattern.

    Attributes:
        name: what it does: ``bf16``, ``read``.
        detail: its sizes.
        rates: operations or bytes per second of each burst.
        best: the largest of the rates. The best of all patterns is the peak.
    """

    name: str
    detail: str
    rates: tuple[float, ...]
    best: float


class MeasuredPeaks(Struct, frozen=True, kw_only=True):
    """The measured peaks of one device.

    Attributes:
        device: the driver's name for it.
        multiprocessors: their number; devices of one name with different numbers are different devices.
        l2_bytes: size of the L2 cache, from the driver.
        torch: the PyTorch that measured.
        created: UTC, ISO 8601.
        flop_per_s: by precision, named as in `opscope.knowledge.devices.Device`.
        memory_bytes_per_s: bytes read and written together, for the best pattern.
        seconds: how long measuring took.
        samples: all measured patterns.
    """

    schema: Literal["opscope.peaks/1"] = "opscope.peaks/1"
    device: str
    torch: str
    created: str
    flop_per_s: dict[str, float]
    memory_bytes_per_s: float
    seconds: float
    samples: tuple[PeakSample, ...]
    multiprocessors: int | None = None
    l2_bytes: int | None = None


class PeaksList(Struct, frozen=True, kw_only=True):
    """What one command measured: the schema ``opscope.peaks-list/1``."""

    schema: Literal["opscope.peaks-list/1"] = "opscope.peaks-list/1"
    peaks: tuple[MeasuredPeaks, ...]


# ---------------------------------------------------------------- the driver


class DriverDevice(Struct, frozen=True, kw_only=True):
    """One device, as ``cuDeviceGetAttribute`` describes it.

    Attributes:
        index: its number.
        name: ``NVIDIA H200``; for a slice, the card's name with " MIG " and the slice's profile.
        compute_capability: ``9.0``.
        multiprocessors: their number.
        memory_bytes, l2_bytes: size of its memory, and of the L2 cache that its multiprocessors share.
        clock_khz, memory_clock_khz: the highest clocks.
        memory_bus_bits: width of the memory bus; 0 for a slice.
        threads_per_block: the most threads of a block.
        block, grid: the largest size in each dimension (x, y, z).
        registers_per_block: the most registers of a block.
        shared_memory_per_block_bytes: the most shared memory that a block can opt in to.
        threads_per_multiprocessor, blocks_per_multiprocessor, registers_per_multiprocessor,
            shared_memory_per_multiprocessor_bytes: what one multiprocessor holds.
        ecc: whether memory errors are corrected.
        managed: whether host and device can use managed memory at the same time.
    """

    index: int
    name: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    threads_per_block: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    registers_per_block: int
    shared_memory_per_block_bytes: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_memory_per_multiprocessor_bytes: int
    ecc: bool
    managed: bool

    @property
    def is_slice(self) -> bool:
        """Whether this is a MIG slice of a card."""
        return " MIG " in self.name


class Driver(Struct, frozen=True, kw_only=True):
    """The driver's answer.

    Attributes:
        library: path of ``libcuda``; None if there is none.
        cuda: the newest CUDA that it supports, ``13.0``; None if it does not say.
        release: the driver's own version, ``580.95.05``; None if unknown.
        devices: the devices that ``CUDA_VISIBLE_DEVICES`` lets it list.
        visible: that variable; None if it is not set.
        error: why there are no devices, in the driver's words; None if nothing failed.
    """

    library: str | None
    cuda: str | None
    release: str | None
    devices: tuple[DriverDevice, ...] = ()
    visible: str | None = None
    error: str | None = None


# ---------------------------------------------------------------- the machine


class Gpu(Struct, frozen=True):
    """One GPU as the framework and the driver describe it."""

    index: int
    name: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int


class Machine(Struct, frozen=True):
    """The machine. ``driver`` is None without an NVIDIA driver; ``gpus`` is empty if none was used."""

    platform: str
    cpu: str
    cpu_count: int
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None


class Framework(Struct, frozen=True):
    """The PyTorch that ran. Versions of what is not installed are None.

    Attributes:
        python: version of the interpreter.
        torch, torch_git: version and commit of PyTorch.
        torch_threads: threads of its operators on the CPU.
        device: where the workload ran: ``cpu``, ``cuda:0``.
        cuda, cudnn, triton, transformers: versions.
        float32_matmul_precision, cudnn_allow_tf32: settings that decide whether float32 is multiplied as TF32.
        torch_libraries: build ids of PyTorch's libraries with CUDA kernels.
    """

    python: str
    torch: str
    torch_git: str | None
    torch_threads: int
    device: str
    cuda: str | None
    cudnn: str | None
    triton: str | None
    transformers: str | None
    float32_matmul_precision: str
    cudnn_allow_tf32: bool | None
    torch_libraries: dict[str, str] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether the workload ran on a GPU."""
        return self.device.startswith("cuda")


class Rank(Struct, frozen=True):
    """The place of a process in a distributed job, as torchrun sets it (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``)."""

    number: int
    world_size: int
    local_number: int | None = None


# ---------------------------------------------------------------- probes


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
