"""What is known about one operator or kernel: the schema ``opscope.explain/1``.

Times are integer nanoseconds. Unknown values are null; ``how`` and ``basis`` say how the others are known.

The schema ``opscope.dossier/1`` says the same of the most expensive operators of a trace.
"""

from typing import Literal

from msgspec import Struct

from opscope.documents.build import OccupancyEntry
from opscope.documents.findings import Finding
from opscope.documents.statements import OperatorStatements
from opscope.documents.verdict import Check
from opscope.knowledge.kernels.decoded import DecodedKernel
from opscope.knowledge.kernels.kernel_source import How

# ---------------------------------------------------------------- sources


class PlaceEntry(Struct, frozen=True):
    """A line of a source file; ``line`` is null if only the file is known, ``function`` is the host function."""

    file: str
    line: int | None
    function: str | None
    url: str | None


class SourceEntry(Struct, frozen=True):
    """Where the source of a kernel or operator is. What is unknown is null.

    Attributes:
        file: the translation unit that instantiates the kernel. For an operator, that of the kernel that took most of
            its time, or the file of its C++ function if no kernel is known.
        line: the line of that file that launches the kernel.
        how: verified, likely, candidate, library or unknown.
        basis: how it is known, in a sentence.
        definition: where the kernel's template is defined.
        launch_site: the line that launches it.
        launch_sites: all such lines.
        library: the library that it belongs to.
        candidates: the possible files if there are several; the first ones of ``candidate_count``.
        url: a link to ``file`` at the commit ``git``; null if the file is generated or its folder is unknown.
        torch, git: the version of PyTorch that the answer is about.
    """

    file: str | None
    line: int | None
    how: How
    basis: str
    definition: PlaceEntry | None
    launch_site: PlaceEntry | None
    launch_sites: tuple[PlaceEntry, ...]
    library: str | None
    candidates: tuple[str, ...]
    candidate_count: int
    url: str | None
    torch: str | None
    git: str | None


class NativeFunctionDetail(Struct, frozen=True):
    """The native function behind an operator on the device used.

    Attributes:
        schema: its signature.
        yaml_line: line of its entry in the ``native_functions.yaml`` of ``torch_version``.
        dispatch_key: the key whose kernel serves the device.
        cpp_function: the C++ function registered for it.
        torch_version: the PyTorch whose table answered.
        how: the source of the answer, or why there is none.
        other_overloads: further overloads that calls of the operator used, with less time than the first.
    """

    schema: str | None
    yaml_line: int | None
    dispatch_key: str | None
    cpp_function: str | None
    torch_version: str
    how: str
    other_overloads: tuple[str, ...]


# ---------------------------------------------------------------- explanations


class HostFileEntry(Struct, frozen=True):
    """The file of a C++ function: verified if its own code names it, else likely (its neighbours' file)."""

    file: str
    how: How
    basis: str
    url: str | None


class NativeFunctionEntry(Struct, frozen=True):
    """The native function behind an operator.

    Attributes:
        name: as in ``native_functions.yaml``.
        detail: schema, dispatch, C++ function, and how they are known.
        yaml_url: link to its entry at the exact commit; null if unknown.
        host_file: the file of the C++ function; null if unknown.
        derivatives: differentiated inputs -> formula, from ``derivatives.yaml``.
        calls: operators that it called in the trace, with the number of calls.
    """

    name: str
    detail: NativeFunctionDetail
    yaml_url: str | None
    host_file: HostFileEntry | None
    derivatives: dict[str, str]
    calls: dict[str, int]


class LaunchRow(Struct, frozen=True):
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


class CostEntry(Struct, frozen=True):
    """Its cost in the trace. ``total_device_ns`` includes nested operators; ``share`` is of the device sum."""

    calls: int
    self_device_ns: int
    total_device_ns: int | None
    self_cpu_ns: int | None
    share: float | None


class ContextEntry(Struct, frozen=True):
    """The sources of the answer. ``trace`` is null without a trace; ``failed_checks`` are its failed trust checks."""

    trace: str | None
    torch: str | None
    installed_libraries: dict[str, str]
    failed_checks: tuple[Check, ...] = ()


class CandidateEntry(Struct, frozen=True):
    """A file that may hold an operator's device kernels, and why it may."""

    file: str
    basis: str
    url: str | None


class DeviceKernelsEntry(Struct, frozen=True):
    """Files that may hold an operator's device kernels, judged by names alone. ``reason`` says why there are none."""

    candidates: tuple[CandidateEntry, ...]
    reason: str | None


class ExplainDocument(Struct, frozen=True, kw_only=True):
    """One operator or kernel.

    Attributes:
        kind: whether the name is an operator's or a kernel's.
        name: the user's spelling, or that of the trace.
        summary: a short name for people.
        category, category_rule: the kind of work, and the rule that decided it.
        decoded: what a kernel's name says; null for operators.
        native_function: the function behind an operator; null for kernels.
        source: where its source is.
        launches: its launches by inputs and kernel; empty without a trace that has any.
        cost: its cost in the trace; null without a trace that has it.
        context: the sources of the answer.
        known: whether it was recognised: an operator of this PyTorch, or a kernel whose name can be read or found.
        did_you_mean: operators with similar names, if it was not recognised.
        device_kernels: for an operator without a recorded kernel, files that may hold its kernels; else null.
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


class Dossier(Struct, frozen=True):
    """One operator: its explanation, as from ``opscope explain``, and the statements on it."""

    explanation: ExplainDocument
    findings: OperatorStatements


class DossierDocument(Struct, frozen=True, kw_only=True):
    """The most expensive operators of a trace, and the trust checks that it fails.

    Attributes:
        trace: its file.
        bound: what bounds its steps, in a sentence.
        actions: what could make a step faster, the largest likely saving first.
        operators: the most expensive ones.
        failed_checks: the trust checks that the trace fails.
    """

    schema: Literal["opscope.dossier/1"] = "opscope.dossier/1"
    trace: str
    bound: str
    operators: tuple[Dossier, ...]
    failed_checks: tuple[Check, ...] = ()
    actions: tuple[Finding, ...] = ()
