"""Where a measurement ran: the machine, the framework on it, and the process's place among others."""

from msgspec import Struct, field


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
