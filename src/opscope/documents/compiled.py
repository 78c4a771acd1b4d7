"""What ``torch.compile`` did, and what the recorded steps show of that: ``compile`` in ``opscope.analysis/1``."""

from msgspec import Struct

from opscope.trace.compile_log import CodePlace, SkippedGraph


class BreakEntry(Struct, frozen=True):
    """A line at which graphs end.

    Attributes:
        place: the innermost line of the program; where PyTorch's own code cannot be traced, the line that calls it.
        reason: PyTorch's name of it.
        explanation: its sentence.
        hints: what it proposes.
        compilations: the compilations that ended there, as the trace has them (``1/0``).
        passes: how often a step passes it; null where the trace does not show it.
        between_ns: how long the host was between the graphs that it separates, in a step as recorded: guards, calls,
            and what runs between them. Null where the trace has no calls of graphs.
        sentence: all this, for people.
    """

    place: CodePlace
    reason: str
    explanation: str
    hints: tuple[str, ...]
    compilations: tuple[str, ...]
    passes: float | None
    between_ns: float | None
    sentence: str


class RecompilationEntry(Struct, frozen=True):
    """A condition for which a function was compiled again.

    Attributes:
        function: the function's name; empty where it is unknown.
        place: the line that needs the condition, or else the line that calls the function; null where neither is known.
        guard: the condition.
        expected: the values that were compiled for, in their order.
        actual: the values of calls, where the log has them.
        compilations: the new compilations; empty where the limit kept all from being made.
        compile_ns: how long they took together; null where PyTorch did not write it.
        in_steps: how many of them were made in the recorded steps, also in those that are left out as unlike the
            others; null where the trace has no records of compiling.
        limited: whether PyTorch reached its limit, so that it compiles the function no more.
        hint: what PyTorch proposes; empty where it proposes nothing.
        sentence: all this, for people.
    """

    function: str
    place: CodePlace | None
    guard: str
    expected: tuple[str, ...]
    actual: tuple[str, ...]
    compilations: tuple[str, ...]
    compile_ns: int | None
    in_steps: int | None
    limited: bool
    hint: str
    sentence: str


class RegionEntry(Struct, frozen=True):
    """A compiled function in the steps.

    Attributes:
        compilation: its number.
        function: the function's name; empty without a record of it.
        place: its first line; null without a record of it.
        executions: how often a step runs it.
        host_ns: how long the host was in it and in no other compiled function, in a step as recorded.
        device_ns: how long the work took that it launched, in a step.
        elsewhere_ns: how long the work took that its graphs launched outside of it, in a step: its backward pass.
        launches: how many activities it launched, in a step.
    """

    compilation: str
    function: str
    place: CodePlace | None
    executions: float
    host_ns: float
    device_ns: float
    elsewhere_ns: float
    launches: float


class CompiledKernelEntry(Struct, frozen=True):
    """Calls of a kernel in a compiled graph that compute the same lines.

    Attributes:
        compilation: whose graph.
        name: the kernel's, or the library's call.
        numbers: their places among the calls of the graph, from 1.
        places: the lines of the program.
        operators: the fused operators, by the traced graph.
        activities: how many activities of a step they are.
        device_ns: how long they take, in a step.
    """

    compilation: str
    name: str
    numbers: tuple[int, ...]
    places: tuple[CodePlace, ...]
    operators: tuple[str, ...]
    activities: float
    device_ns: float


class CompileDocument(Struct, frozen=True):
    """All of it. Where the trace marks no steps, what is of a step is of the whole recording.

    Attributes:
        log: the file or folder.
        of: ``a step``, or ``the recording`` where the trace marks no steps.
        compilations: how many there are.
        compile_ns: how long they took together; null where PyTorch did not write it.
        breaks: the lines that cost most first.
        recompilations: those that took longest first.
        skipped: skipped CUDA graphs.
        recorded_sizes: for how many sets of sizes CUDA graphs were recorded, one after another.
        guards_ns: how long a step checks guards, as recorded; null where the trace does not show it.
        regions: the compiled functions of the steps, by the device's time.
        kernels: the kernels' calls of the steps with known lines, by the device's time.
        graphs_ns: how long the device works for compiled graphs in a step.
        known_ns: how much of it has lines.
        notes: what is not known, and why.
    """

    log: str
    of: str
    compilations: int
    compile_ns: int | None
    breaks: tuple[BreakEntry, ...]
    recompilations: tuple[RecompilationEntry, ...]
    skipped: tuple[SkippedGraph, ...]
    recorded_sizes: int
    guards_ns: float | None
    regions: tuple[RegionEntry, ...]
    kernels: tuple[CompiledKernelEntry, ...]
    graphs_ns: float
    known_ns: float
    notes: tuple[str, ...]
