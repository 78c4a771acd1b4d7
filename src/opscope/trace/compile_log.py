"""What PyTorch wrote while ``torch.compile`` compiled: breaks, recompilations, skipped CUDA graphs, kernels' lines."""

from msgspec import Struct


class CodePlace(Struct, frozen=True):
    """A line of the program.

    Attributes:
        file: the path as Python has it.
        line: counted from 1.
        function: the name of its function; empty where the log does not have it.
        text: the line; empty where the log does not have it.
    """

    file: str
    line: int
    function: str = ""
    text: str = ""


class Compilation(Struct, frozen=True):
    """One compilation of one function.

    Attributes:
        id: frame and number, as ``1/0``: the trace has it in ``Torch-Compiled Region: 1/0``.
        place: the function's first line.
        called_from: the innermost line of the program, outside of PyTorch, that led there; None where unknown.
        duration_ns: of all of it; None where PyTorch did not write it.
        guards: how many conditions a call is checked for.
        operators: how many operators the graph has; 0 for a function without any.
        failure: why it failed; None where it did not.
    """

    id: str
    place: CodePlace | None
    called_from: CodePlace | None
    duration_ns: int | None
    guards: int | None
    operators: int | None
    failure: str | None


class GraphBreak(Struct, frozen=True):
    """Where a graph ended before its function did.

    Attributes:
        id: the compilation.
        place: the line that could not be traced.
        title: what PyTorch calls the reason.
        explanation: its sentence on it; empty where there is none (before PyTorch 2.7).
        hints: what it proposes.
    """

    id: str
    place: CodePlace
    title: str
    explanation: str
    hints: tuple[str, ...]


class FailedGuard(Struct, frozen=True):
    """A condition of an earlier compilation that a call did not fulfil.

    Attributes:
        of: the compilation that has the guard.
        text: the condition, or what differed.
        expected: the value that was compiled for; None where the log does not have it.
        actual: the value of the call; None where the log does not have it.
        place: the line that needed the condition; None where the log does not have it.
        hint: what PyTorch proposes; empty where it proposes nothing.
    """

    of: str
    text: str
    expected: str | None
    actual: str | None
    place: CodePlace | None
    hint: str


class Recompilation(Struct, frozen=True):
    """A compilation of a function that had been compiled before, and why none of the earlier ones was used.

    Attributes:
        id: the new compilation.
        guards: per earlier compilation the guard that failed, the newest first.
    """

    id: str
    guards: tuple[FailedGuard, ...]


class SkippedGraph(Struct, frozen=True):
    """A compiled graph that runs without a CUDA graph, although one was asked for.

    Attributes:
        id: the compilation; None where the log does not have it.
        reason: PyTorch's words.
        place: the line that is the reason; None where the log does not have it.
        is_part: whether it is only a part that was left out: the rest is a CUDA graph.
    """

    id: str | None
    reason: str
    place: CodePlace | None
    is_part: bool = False


class CompiledKernel(Struct, frozen=True):
    """One call of a kernel in the code that Inductor wrote.

    Attributes:
        id: the compilation.
        name: the kernel's, or the library's call (``extern_kernels.mm``).
        graph: the key of its graph: the trace has it in ``## Call CompiledFxGraph``; None where the log does not.
        number: counted from 1 among the calls of its graph.
        places: the lines of the program that it computes.
        operators: what the fused nodes of the traced graph call, or the node's name where that is unknown.
    """

    id: str
    name: str
    graph: str | None
    number: int
    places: tuple[CodePlace, ...]
    operators: tuple[str, ...]


class CompileLog(Struct, frozen=True):
    """All of one process.

    Attributes:
        path: the file, or the folder.
        process: its number, as in the log.
        compilations: in the order of their ends; attempts that were begun anew count once.
        breaks: by time; one for each compilation and line.
        recompilations: by time; also of what the limit kept from being compiled.
        skipped: the skipped CUDA graphs.
        recorded: how many CUDA graphs were recorded for each set of sizes of dynamic shapes; empty without any.
        limited: the compilations that were not made, as the limit of recompilations was reached.
        kernels: by compilation, graph and number; two compilations may share a graph. Empty where the log has no code
            that Inductor wrote.
        tells_skipped: whether the log tells of CUDA graphs at all: only ``TORCH_LOGS=cudagraphs`` does.
        damage: why a file ended early; None if none did.
        records: how many records there are.
        unknown: how many there are of each kind that this reader does not use.
        broken: how many lines or payloads cannot be read.
    """

    path: str
    process: int | None = None
    compilations: tuple[Compilation, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()
    skipped: tuple[SkippedGraph, ...] = ()
    recorded: dict[str, int] = {}
    limited: tuple[str, ...] = ()
    kernels: tuple[CompiledKernel, ...] = ()
    tells_skipped: bool = False
    damage: str | None = None
    records: int = 0
    unknown: dict[str, int] = {}
    broken: int = 0
