"""Locations of source code, as in documents."""

from msgspec import Struct

from opscope.knowledge.kernels.kernel_source import How


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
