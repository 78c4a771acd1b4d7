"""From a kernel's name to its source, with how that is known.

Looked up in this order; the first answer counts:

1. the installed library, where the question is about this machine's PyTorch: *verified*;
2. the shipped index of the same release (all its builds come from one commit): *verified*;
3. the libraries whose source is not PyTorch's: *library*;
4. other releases, the nearest first, by the exact name: *likely*; libraries of templates come after that;
5. all releases, by the template's name and the identifiers in its arguments: *candidate*.

An exact name comes before the libraries' rules: arguments of ATen's kernels may mention cuDNN.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from opscope.knowledge.kernels.index import (
    KernelPlaces,
    SourceIndex,
    SourceLine,
    by_nearness,
    same_release,
    shipped_index,
)
from opscope.knowledge.kernels.names import base_name, canonical, library_of
from opscope.knowledge.native_functions import TorchVersion

_REPOSITORY = "https://github.com/pytorch/pytorch/blob"
_LISTED = 8  # candidates
_GENERATED = "build/"
# Libraries of templates, of which PyTorch's own libraries hold instances.
_BUILT_INTO_TORCH = ("CUB", "CUTLASS", "FlashAttention", "MAGMA")


class How(StrEnum):
    """How a source file is known."""

    VERIFIED = "verified"
    LIKELY = "likely"
    CANDIDATE = "candidate"
    LIBRARY = "library"
    UNKNOWN = "unknown"


class KernelSource(Struct, frozen=True):
    """Where a kernel comes from. The three meanings of "file" are kept apart.

    Attributes:
        how: how it is known.
        basis: the same in a sentence.
        file: the translation unit that instantiates it: a path in PyTorch's repository, or a file name alone where the
            library records no folder. None for libraries, and where several are possible.
        candidates: the files that are possible, where there are several.
        definition: the header or file that defines the kernel's template, with its line where known.
        launch_sites: lines that launch it, with the host function around them.
        library: the library that it belongs to.
        torch: the version of PyTorch that the answer is about.
        git: the commit of that version.
    """

    how: How
    basis: str
    file: str | None = None
    candidates: tuple[str, ...] = ()
    definition: SourceLine | None = None
    launch_sites: tuple[SourceLine, ...] = ()
    library: str | None = None
    torch: str | None = None
    git: str | None = None

    @property
    def url(self) -> str | None:
        """A link to the file at the exact commit; None where the file is generated, or its folder unknown."""
        return None if self.file is None else repository_link(self.file, self.line, self.git)

    @property
    def line(self) -> int | None:
        """The line of the instantiating file that launches the kernel, where one is known."""
        return next((site.line for site in self.launch_sites if site.file == self.file), None)


def repository_link(file: str, line: int | None, git: str | None) -> str | None:
    """Return a link to a file of PyTorch's repository; None where it is not there under this path.

    Args:
        file: its path in the repository.
        line: the line to link to; None or 0 for the file.
        git: the commit; without one there is no link.
    """
    if git is None or "/" not in file or file.startswith((_GENERATED, "third_party/", "/")):
        return None
    return f"{_REPOSITORY}/{git}/{file}" + (f"#L{line}" if line else "")


class SourceResolver(Struct):
    """Answers where kernels come from, for one PyTorch.

    Attributes:
        version: of the PyTorch that ran; None if unknown.
        git: its commit; None if unknown.
        installed: indexes of libraries on this machine, where the question is about them.
        doubt: why the version may not be that of the PyTorch that ran; nothing is verified then.
    """

    version: TorchVersion | None = None
    git: str | None = None
    installed: Sequence[SourceIndex] = ()
    doubt: str | None = None
    _answers: dict[str, KernelSource] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"SourceResolver({self.version!r}, {self.git!r})"  # without its answers

    def resolve(self, name: str) -> KernelSource:
        """Return where a kernel comes from."""
        if name not in self._answers:
            self._answers[name] = self._resolve(name)
        return self._answers[name]

    def _resolve(self, name: str) -> KernelSource:
        if (result := self._in_installed(name) or self._in_same_release(name)) is not None:
            return result
        library = _in_library(name)
        if library is not None and library.library not in _BUILT_INTO_TORCH:
            return library
        return self._in_other_releases(name) or library or self._similar(name) or _unknown(name)

    def _in_installed(self, name: str) -> KernelSource | None:
        release = self._release_index()
        for index in self.installed:
            if (places := index.exact(name)) is None:
                continue
            # The same build has been indexed with its launches; of another one the shipped index completes folders.
            shipped = release.exact(name) if release else None
            completed = _completed(places, index, shipped)
            libraries = " and ".join(index.build_ids) or "the installed library"
            of = f" of PyTorch {index.torch}" if index.torch else ""
            described = release if release and shipped else index
            result = self._exact(name, completed, described, f"the symbol table of {libraries}{of}", index)
            return self._of_another_release(result, index) or result
        return None

    def _of_another_release(self, result: KernelSource, index: SourceIndex) -> KernelSource | None:
        """Return the answer with less certainty where the library is not of the version that ran."""
        version = TorchVersion.parse(index.torch) if index.torch else None
        if version is None or self.version is None:
            return None  # a library that is not PyTorch's, or one that the user named for a trace of no known version
        if (version.release, version.final) == (self.version.release, self.version.final):
            return None
        how = How.LIKELY if result.how is How.VERIFIED else result.how
        return replace(result, how=how, basis=f"{result.basis}, but PyTorch {self._version_text()} ran")

    def _in_same_release(self, name: str) -> KernelSource | None:
        index = self._release_index()
        places = index.exact(name) if index else None
        if index is None or places is None:
            return None
        same = self.version is None or self.version.local in (None, index.torch.partition("+")[2])
        where = f"the index of PyTorch {index.torch}" + ("" if same else ", built from the same commit")
        return self._exact(name, places, index, where, index)

    def _exact(self, name: str, places: KernelPlaces, index: SourceIndex, where: str, of: SourceIndex) -> KernelSource:
        single = len(places.files) == 1
        basis = f"the exact name is in {where}" + (f", but {self.doubt}" if self.doubt else "")
        certain = How.LIKELY if self.doubt else How.VERIFIED
        return KernelSource(
            how=certain if single else How.CANDIDATE,
            basis=basis if single else f"{basis}, but {len(places.files)} files hold a kernel of this name",
            file=places.files[0] if single else None,
            candidates=() if single else places.files,
            definition=_definition(name, places, index),
            launch_sites=places.launch_sites,
            torch=of.torch or None,
            git=of.git,
        )

    def _in_other_releases(self, name: str) -> KernelSource | None:
        results = [(index, places) for index in self._other_indexes() if (places := index.exact(name)) is not None]
        if not results:
            return None
        index, places = results[0]
        agree = sum(other.files == places.files for _, other in results)
        single = len(places.files) == 1
        return KernelSource(
            how=How.LIKELY if single else How.CANDIDATE,
            basis=f"the exact name is in the index of PyTorch {index.torch}; {agree} of the {len(results)} releases "
            f"that have it name the same file{'' if single else 's'}; the version that ran is {self._version_text()}",
            file=places.files[0] if single else None,
            candidates=() if single else places.files,
            definition=_definition(name, places, index),
            launch_sites=places.launch_sites,
            torch=index.torch,
            git=index.git,
        )

    def _similar(self, name: str) -> KernelSource | None:
        release = self._release_index()
        for index in (*((release,) if release else ()), *self._other_indexes()):
            files = index.similar(name)
            if files and len(files) <= _LISTED:
                return KernelSource(
                    how=How.CANDIDATE,
                    basis=f"kernels of the same template and with the same identifiers are in PyTorch {index.torch}",
                    file=files[0] if len(files) == 1 else None,
                    candidates=files if len(files) > 1 else (),
                    definition=index.definition(name),
                    torch=index.torch,
                    git=index.git,
                )
        return None

    def host_source(self, cpp_function: str) -> KernelSource | None:
        """Return the file of a C++ function, ``at::native::layer_norm_cuda``; None where no release tells it."""
        release = self._release_index()
        for index in (*((release,) if release else ()), *self._other_indexes()):
            if (result := index.host_file(cpp_function)) is None:
                continue
            named = "the function's code in PyTorch {} names the file"
            beside = "the functions around it in the libraries of PyTorch {} come from this file"
            basis = (named if result.named else beside).format(index.torch)
            if index is not release:
                basis = f"{basis}, and the version that ran is {self._version_text()}"
            return KernelSource(
                How.VERIFIED if result.named and index is release and not self.doubt else How.LIKELY,
                basis + (f", but {self.doubt}" if self.doubt else ""),
                file=result.file if "/" in result.file else index.path_of(result.file) or result.file,
                torch=index.torch,
                git=index.git,
            )
        return None

    def _release_index(self) -> SourceIndex | None:
        name = same_release(self.version) if self.version else None
        return shipped_index(name) if name else None

    def _other_indexes(self) -> Iterable[SourceIndex]:
        same = same_release(self.version) if self.version else None
        return (shipped_index(name) for name in by_nearness(self.version) if name != same)

    def _version_text(self) -> str:
        if self.version is None:
            return "unknown"
        return ".".join(map(str, self.version.release)) + ("" if self.version.final else " (a development version)")


def _completed(places: KernelPlaces, index: SourceIndex, shipped: KernelPlaces | None) -> KernelPlaces:
    """Add folders and launches that the index of the same release knows of the same files."""
    names = Counter(path.rpartition("/")[2] for path in (shipped.files if shipped else ()))
    known = {name: path for path in (shipped.files if shipped else ()) if names[name := path.rpartition("/")[2]] == 1}
    files = tuple(file if "/" in file else known.get(file) or index.path_of(file) or file for file in places.files)
    same = shipped is not None and {f.rpartition("/")[2] for f in files} == set(known)
    return KernelPlaces(files, shipped.launch_sites if same and shipped else places.launch_sites)


def _definition(name: str, places: KernelPlaces, index: SourceIndex) -> SourceLine | None:
    """Return the header that defines the kernel; else its own file, if the kernel is launched from there."""
    if (header := index.definition(name)) is not None:
        return header
    launched_from = {site.file for site in places.launch_sites}
    return SourceLine(places.files[0], 0) if launched_from == set(places.files) and len(places.files) == 1 else None


def _in_library(name: str) -> KernelSource | None:
    library = library_of(name)
    if library is None:
        return None
    return KernelSource(How.LIBRARY, f"kernels of {library} are named like this", library=library)


def _unknown(name: str) -> KernelSource:
    if not canonical(name):
        return KernelSource(How.UNKNOWN, "the kernel has no name")
    return KernelSource(
        How.UNKNOWN, f"no PyTorch release since 2.6 has a kernel {base_name(name)[:80]}, and no library's rule fits"
    )
