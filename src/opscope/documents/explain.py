"""What is known of one operator or kernel: the schema ``opscope.explain/1``.

Times are integer nanoseconds. What is unknown is null; ``how`` and ``basis`` say how the rest is known.
"""

from dataclasses import dataclass
from typing import Literal

from opscope.documents.launch import OccupancyEntry
from opscope.documents.source import NativeFunctionDetail, SourceEntry
from opscope.documents.trust import Check
from opscope.knowledge.kernels.decoded import DecodedKernel
from opscope.knowledge.kernels.kernel_source import How


@dataclass(frozen=True, slots=True)
class HostFileEntry:
    """The file of a C++ function: verified where its own code names it, else likely (its neighbours' file)."""

    file: str
    how: How
    basis: str
    url: str | None


@dataclass(frozen=True, slots=True)
class NativeFunctionEntry:
    """The native function behind an operator.

    Attributes:
        name: as in ``native_functions.yaml``.
        detail: schema, dispatch, C++ function, and how they are known.
        yaml_url: its entry at the exact commit.
        host_file: the file of the C++ function.
        derivatives: differentiated inputs -> formula, from ``derivatives.yaml``.
        calls: operators that it called in the trace, with the number of calls.
    """

    name: str
    detail: NativeFunctionDetail
    yaml_url: str | None
    host_file: HostFileEntry | None
    derivatives: dict[str, str]
    calls: dict[str, int]


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """Inputs of an operator, the kernel they launched, and how."""

    operator: str | None
    input_dims: str | None
    input_types: str | None
    kernel: str
    summary: str
    kind: str
    device: int | None
    grid: str | None
    block: str | None
    registers_per_thread: int | None
    shared_memory_bytes: int | None
    occupancy: OccupancyEntry | None
    calls: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class CostEntry:
    """What it took in the trace. ``total_device_ns`` adds nested operators; ``share`` is of the device sum."""

    calls: int
    self_device_ns: int
    total_device_ns: int | None
    self_cpu_ns: int | None
    share: float | None


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """What the answer was looked up in. ``trace`` is null without one; ``failed_checks`` are those that it fails."""

    trace: str | None
    torch: str | None
    installed_libraries: dict[str, str]
    failed_checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class CandidateEntry:
    """A file that may hold an operator's device kernels, and why it may."""

    file: str
    basis: str
    url: str | None


@dataclass(frozen=True, slots=True)
class DeviceKernelsEntry:
    """Where an operator's device kernels may be, by names: always candidates. ``reason`` says why there are none."""

    candidates: tuple[CandidateEntry, ...]
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainDocument:
    """One operator or kernel.

    Attributes:
        kind: what the name is.
        name: as given, or as the trace has it.
        summary: a short name for people.
        category, category_rule: what kind of work it is, and which rule says so.
        decoded: what a kernel's name says; null for operators.
        native_function: behind an operator; null for kernels.
        source: where it is.
        launches: what launched what; empty without a trace that has it.
        cost: in the trace; null without one that has it.
        context: what was looked up.
        known: whether anything was recognised: an operator of this PyTorch, a kernel's name that can be read or found.
        did_you_mean: operators with names like it, where nothing was.
        device_kernels: of an operator of which no kernel is recorded: where its kernels may be; else null.
    """

    schema: Literal["opscope.explain/1"] = "opscope.explain/1"
    kind: Literal["operator", "kernel"]
    name: str
    summary: str
    category: str
    category_rule: str
    decoded: DecodedKernel | None
    native_function: NativeFunctionEntry | None
    source: SourceEntry
    launches: tuple[LaunchRow, ...]
    cost: CostEntry | None
    context: ContextEntry
    known: bool = True
    did_you_mean: tuple[str, ...] = ()
    device_kernels: DeviceKernelsEntry | None = None
