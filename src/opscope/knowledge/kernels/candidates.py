"""From an operator without a trace to the files that may instantiate its device kernels: always *candidates*.

An index knows the files that hold kernels, the identifiers in those kernels' names (host functions among them: a kernel
of a lambda is named after the function around the lambda) and the files of C++ functions. It does not know which
function calls which. So the chain operator -> C++ function -> stub -> kernels is bridged by names, and only where the
whole name agrees, apart from words that say nothing (``cuda``, ``kernel``, ``impl``).

Measured against the kernels that PyTorch's own operator samples launched on a GPU (470 operators, PyTorch 2.11): 324
are answered, 316 of them with a file that the kernels really come from; of 75 that launch library kernels alone, one
is. Wrong are mostly operators that the kernel of another one serves, as ``clamp_min``.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from opscope.base.text import lazy_pattern
from opscope.knowledge.kernels.index import SourceIndex
from opscope.knowledge.native_functions import Resolution

MOST = 5  # candidates; more tell nothing
_WORD_FILES = 2  # an identifier in the kernels of more files is a shared template


class CandidateBasis(StrEnum):
    """Why a file is a candidate, the surest first."""

    HOST = "its C++ function stands in this file, which holds kernels"
    FILE = "the file, which holds kernels, is named like the operator"
    FUNCTION = "a kernel, or the host function that a kernel is launched from, is named like the operator there"
    BEGINNING = "kernels there have names that begin with the operator's"
    FUNCTOR = "kernels there are instantiated with a functor that is named like the operator"


class Candidate(Struct, frozen=True):
    """A file that may instantiate an operator's kernels.

    Attributes:
        file: its path.
        basis: why it is one.
        named: the identifier that is named like the operator; empty where the basis is not an identifier.
    """

    file: str
    basis: CandidateBasis
    named: str = ""


class KernelCandidates(Struct, frozen=True):
    """The candidates of an operator, or why there are none.

    Attributes:
        files: the candidates; empty where there are none.
        reason: why there are none; empty where there are some.
        decomposes: whether other operators do its work.
    """

    files: tuple[Candidate, ...]
    reason: str = ""
    decomposes: bool = False


# ------------------------------------------------------------ names

# A word: capitals that another word follows (CUDA in CUDAKernel), a word with or without a capital, or capitals alone.
_WORD = lazy_pattern(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*")
# Words that do not tell operators apart.
_EMPTY = frozenset(
    {"cuda", "gpu", "kernel", "impl", "out", "structured", "stub", "launch", "template", "ufunc", "frame", "forward"}
)
_FUNCTOR = frozenset({"functor", "ops"})
# Families of operators, with which file names begin (``UnaryGeometricTanhKernel.cu``).
_FAMILIES = ("activation", "binary", "unary", "geometric", "compare", "distribution", "reduce", "tensor")
_FOLDERS = ("linalg_", "special_", "native_")  # operators' names may begin with one of these
# Files whose functions launch kernels of other files (of libraries built into PyTorch), and hold helpers alone.
_CALLERS = ("transformers/cuda/attention.cu",)
# Files with one of these words in their path serve operators, or tensors, of that kind alone.
_WORLDS = ("foreach", "sparse", "nested", "quantized", "fused")


def parts(name: str) -> list[str]:
    """Split ``GeluCUDAKernelImpl`` or ``gelu_kernel_cuda`` into lower-case words."""
    return [word.lower() for piece in name.split("_") for word in _WORD.findall(piece)]


def telling(name: str) -> list[str]:
    """Return the words of a name that tell operators apart: ``GeluCUDAKernelImpl`` -> ``gelu``."""
    return [part for part in parts(name) if part not in _EMPTY]


class _Operator(Struct, frozen=True):
    """What the rules ask about.

    Attributes:
        names: what its kernels may be named (without separators): after the operator, or after its C++ functions.
        functions: its C++ functions on the device.
        worlds: those of `_WORLDS` that it belongs to.
    """

    names: frozenset[str]
    functions: tuple[str, ...]
    worlds: frozenset[str]

    @classmethod
    def of(cls, base: str, functions: Sequence[str]) -> "_Operator":
        base = base.strip("_")
        spellings = [base, *(base.removeprefix(folder) for folder in _FOLDERS), *map(_own_name, functions)]
        names = frozenset("".join(telling(spelling)) for spelling in spellings)
        asked = "_".join((base, *functions)).lower()
        return cls(
            names=frozenset(name for name in names if len(name) > 1),
            functions=tuple(functions),
            worlds=frozenset(world for world in _WORLDS if world in asked),
        )

    def has(self, file: str) -> bool:
        """Tell whether a file may serve the operator: it is of no world that the operator does not belong to."""
        lowered = file.lower()
        return all(world in self.worlds for world in _WORLDS if world in lowered)


def _own_name(cpp_function: str) -> str:
    """Return ``structured_gelu_out_cuda`` of ``at::native::structured_gelu_out_cuda::impl``."""
    return cpp_function.removesuffix("::impl").rpartition("::")[2]


def namesakes(operator: str) -> tuple[str, ...]:
    """Return likely names of the operator that does the work of a decomposing one: ``aten::_softmax``."""
    base = operator.removeprefix("aten::")
    return tuple(f"aten::{before}{base}" for before in ("_", "native_"))


# ------------------------------------------------------------ the answer


def kernel_candidates(
    overloads: Sequence[Resolution], index: SourceIndex, device_key: str = "CUDA"
) -> KernelCandidates:
    """Return the files that may instantiate an operator's kernels, the surest first.

    Args:
        overloads: what serves each overload on the device; the one that is meant, where it is known.
        index: of the PyTorch in question.
        device_key: the dispatch key of GPUs.
    """
    known = [resolved for resolved in overloads if resolved.function is not None]
    own = [resolved for resolved in known if resolved.dispatch_key == device_key and resolved.cpp_function]
    if not own:
        reason = _why_none(known)
        return KernelCandidates((), reason, decomposes=reason in (_DECOMPOSES, _FOR_ALL))
    if all(resolved.function.is_view for resolved in own if resolved.function):
        return KernelCandidates((), _VIEW)
    assert own[0].function is not None
    functions = list(dict.fromkeys(resolved.cpp_function for resolved in own if resolved.cpp_function))
    operator = _Operator.of(own[0].function.base, functions)
    # The surest rule with an answer decides. One that finds too many files says nothing, and the next is asked.
    for rule in _RULES:
        results = tuple({candidate.file: candidate for candidate in rule(operator, index)}.values())
        if results and len(results) <= MOST:
            return KernelCandidates(results)
    return KernelCandidates((), "nothing in the index is named like it; a trace tells which kernels it launches")


_DECOMPOSES = "it decomposes into other operators and has no kernels of its own"
_FOR_ALL = "one function serves all devices; a trace tells which operators and kernels it calls"
_VIEW = "it returns a view and launches no kernel"


def _why_none(known: Sequence[Resolution]) -> str:
    """Say why an operator without a function for the device has no kernels of its own."""
    if not known:
        return "it is not an operator of this PyTorch"
    keys = {resolved.dispatch_key or "" for resolved in known}
    if "CompositeImplicitAutograd" in keys:
        return _DECOMPOSES
    if all(resolved.function.is_view for resolved in known if resolved.function):
        return _VIEW
    if any(key.startswith("CompositeExplicit") for key in keys):
        return _FOR_ALL
    return "no function of the device is listed for it"


# ------------------------------------------------------------ rules


def by_host(operator: _Operator, index: SourceIndex) -> Iterator[Candidate]:
    """Take the files of its C++ functions that hold kernels."""
    for function in operator.functions:
        host = index.host_file(function)
        if host is None or not host.file.endswith(".cu"):
            continue
        for file in index.kernel_files:
            # The host file may be known by its name alone, without a folder.
            same = file == host.file or ("/" not in host.file and file.endswith("/" + host.file))
            if same and operator.has(file) and not file.endswith(_CALLERS):
                yield Candidate(file, CandidateBasis.HOST)


def by_file(operator: _Operator, index: SourceIndex) -> Iterator[Candidate]:
    """Take the files that are named like it; if there are none, those that are without the name of their family."""
    return (Candidate(file, CandidateBasis.FILE) for file in _named(operator, index))


def _named(operator: _Operator, index: SourceIndex) -> list[str]:
    files = [file for file in index.kernel_files if operator.has(file) and "Kernels." not in file]
    whole = [file for file in files if "".join(_stem(file)) in operator.names]
    return whole or [file for file in files if _without_family(_stem(file)) in operator.names]


def _stem(file: str) -> list[str]:
    return telling(file.rpartition("/")[2].rpartition(".")[0])


def _without_family(stem: list[str]) -> str:
    while len(stem) > 1 and stem[0] in _FAMILIES:
        stem = stem[1:]
    return "".join(stem)


def by_function(operator: _Operator, index: SourceIndex) -> Iterator[Candidate]:
    """Take the files with kernels, or with host functions around their kernels, that are named like it."""
    for word, files in _own_identifiers(operator, index):
        if not _EMPTY.isdisjoint(parts(word)) and "".join(telling(word)) in operator.names:
            yield from (Candidate(file, CandidateBasis.FUNCTION, word) for file in files)


def by_functor(operator: _Operator, index: SourceIndex) -> Iterator[Candidate]:
    """Take the files with functors that are named like it (``MeanOps``)."""
    for word, files in _own_identifiers(operator, index):
        words = telling(word)
        rest = [part for part in words if part not in _FUNCTOR]
        if len(rest) < len(words) and ("".join(rest) in operator.names or _without_family(rest) in operator.names):
            yield from (Candidate(file, CandidateBasis.FUNCTOR, word) for file in files)


def by_beginning(operator: _Operator, index: SourceIndex) -> Iterator[Candidate]:
    """Take the files of kernels whose names begin with the operator's, if that has two words or more."""
    for word, files in _own_identifiers(operator, index):
        words = telling(word)
        backward = "backward" in words or "grad" in words
        if _EMPTY.isdisjoint(parts(word)) or backward != any("backward" in name for name in operator.names):
            continue
        if any("".join(words[:count]) in operator.names for count in range(2, len(words))):
            yield from (Candidate(file, CandidateBasis.BEGINNING, word) for file in files)


def _own_identifiers(operator: _Operator, index: SourceIndex) -> Iterator[tuple[str, list[str]]]:
    helpers = {base.rpartition("::")[2] for base in index.kernels if _is_helper(base)}
    for word, files in index.identifiers.items():
        if len(files) <= _WORD_FILES and word not in helpers:
            of_its_world = [file for file in files if operator.has(file)]
            if of_its_world:
                yield word, of_its_world


_NAMESPACES = frozenset({"at", "native", "{anonymous}", "cuda"})


def _is_helper(base: str) -> bool:
    """Tell whether a kernel stands outside of ATen's namespaces: its name says nothing of an operator then."""
    return not _NAMESPACES.issuperset(base.split("::")[:-1]) or "::" not in base


_Rule = Callable[[_Operator, SourceIndex], Iterator[Candidate]]
_RULES: tuple[_Rule, ...] = (by_host, by_file, by_function, by_beginning, by_functor)
