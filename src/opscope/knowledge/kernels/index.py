"""Kernel -> source files, for one PyTorch build: as it is shipped per release, and as it is cached per library.

Names are kept as hashes of their canonical spelling (`opscope.knowledge.kernels.names`): 22,000 names of some 500
characters take 110 KB. A chance hit of a name that is not there has a probability of 2e-8.
"""

import functools
import gzip
import hashlib
import itertools
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from typing import Final, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field

from opscope.base.errors import BadInputError, UsageError
from opscope.base.text import lazy_pattern
from opscope.knowledge.kernels.names import base_name, canonical, identifiers
from opscope.knowledge.native_functions import TorchVersion, nearest_first

# ---------------------------------------------------------------- indices


T = TypeVar("T")
_KEY_BYTES = 5
FORMAT = 1  # raise it when keys, or what is kept, change
_ARCHITECTURES = lazy_pattern(r"\b(?:(?:THRUST|CUB)_\d+(?:_SM)?(?:_\d+)+_NS|_V_\d+_SM(?:_\d+)+)\b")
_COMMON_WORD = 60  # an identifier in more files than this tells them apart badly


class SourceLine(Struct, frozen=True, order=True):
    """A line of a source file.

    Attributes:
        file: its path.
        line: its number from 1; 0 where only the file is known.
        function: what the compiler calls the function around it; empty where that is not known.
    """

    file: str
    line: int
    function: str = ""


class KernelPlaces(Struct, frozen=True):
    """What an index holds on one kernel.

    Attributes:
        files: the translation units that compiled it: paths in PyTorch's repository, or file names alone where the
            library does not record the folder.
        launch_sites: lines that launch it.
    """

    files: tuple[str, ...]
    launch_sites: tuple[SourceLine, ...]


class HostFile(Struct, frozen=True):
    """The file of a C++ function. ``named`` tells whether the function's own code names the file (in a check)."""

    file: str
    named: bool


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The form on disk. Numbers are positions in ``files``, ``sites``, ``file_sets`` and ``site_sets``.

    ``keys`` holds `_KEY_BYTES` for each kernel, one after the other. Kernels with the same file set and site set are
    neighbours, and ``runs`` says how many there are of each: ``(file set, site set, count)``.
    """

    format: int
    torch: str
    git: str | None
    build_ids: dict[str, str]
    files: list[str]
    file_sets: list[list[int]]
    sites: list[tuple[int, int, str]]  # file, line, function around it
    site_sets: list[list[int]]
    runs: list[tuple[int, int, int]]
    keys: bytes
    bases: dict[str, list[int]]  # base name of a kernel -> files
    words: dict[str, list[int]]  # identifier in kernels' names -> files
    definitions: dict[str, tuple[int, int]]  # kernel function without namespaces -> file, line
    functions: dict[str, tuple[int, bool]]  # C++ function -> file, whether its own code names that


@functools.lru_cache(maxsize=8)  # one name is looked up in the indexes of all releases
def _key_of(name: str) -> bytes:
    return _key(canonical(name))


def _key(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


class SourceIndex:
    """The kernels of one PyTorch build and where their source is."""

    def __init__(self, stored: _Stored) -> None:
        self._stored = stored
        self.torch, self.git = stored.torch, stored.git
        self.build_ids: Mapping[str, str] = stored.build_ids

    @classmethod
    def unpacked(cls, content: bytes) -> "SourceIndex":
        """Read an index.

        Raises:
            BadInputError: it is damaged or of another format.
        """
        try:
            stored = msgspec.msgpack.decode(gzip.decompress(content), type=_Stored)
        except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
            raise BadInputError(f"the kernel index is damaged: {error}") from error
        if stored.format != FORMAT:
            raise BadInputError(f"the kernel index has format {stored.format}, not {FORMAT}")
        return cls(stored)

    def packed(self) -> bytes:
        """Return the index as bytes, the same for the same index."""
        return gzip.compress(msgspec.msgpack.encode(self._stored), mtime=0)

    def described(self, *, torch: str, git: str | None, library: str) -> "SourceIndex":
        """Return the index of one library under another description: its kernels are the same for every caller.

        Args:
            torch: the PyTorch that it belongs to.
            git: the commit of that; None if unknown.
            library: the library's file name.
        """
        (build_id,) = self.build_ids.values()
        return self.of_build(torch=torch, git=git, build_ids={library: build_id})

    def of_build(self, *, torch: str, git: str | None, build_ids: Mapping[str, str]) -> "SourceIndex":
        """Return the same kernels as those of a build."""
        changed = msgspec.structs.replace(self._stored, torch=torch, git=git, build_ids=dict(build_ids))
        return SourceIndex(changed)

    @property
    def kernel_count(self) -> int:
        """How many kernels it holds."""
        return len(self._stored.keys) // _KEY_BYTES

    def exact(self, name: str) -> KernelPlaces | None:
        """Return what is known of the kernel with exactly this (readable) name; None if the index does not hold it.

        CUB and Thrust put the architectures that a build is made for into a namespace: builds for another platform or
        CUDA differ in that alone.
        """
        return self._exact(name) or next(filter(None, map(self._exact, self._as_built_here(name))), None)

    def _as_built_here(self, name: str) -> Iterator[str]:
        for own in self._architecture_names:
            renamed = _ARCHITECTURES.sub(own, name)
            if renamed != name:
                yield renamed

    @cached_property
    def _architecture_names(self) -> Sequence[str]:
        return [word for word in self._stored.words if _ARCHITECTURES.fullmatch(word)]

    def _exact(self, name: str) -> KernelPlaces | None:
        key = _key_of(name)
        # Keys stand side by side: a hit that does not begin at a multiple of their length is made of two of them.
        place = self._stored.keys.find(key)
        while place >= 0 and place % _KEY_BYTES:
            place = self._stored.keys.find(key, place + 1)
        if place < 0:
            return None
        # The run of the key is the first one that ends after it.
        run = int(np.searchsorted(self._run_ends, place // _KEY_BYTES, side="right"))
        file_set, site_set, _ = self._stored.runs[run]
        return KernelPlaces(
            files=tuple(self._stored.files[number] for number in self._stored.file_sets[file_set]),
            launch_sites=tuple(self._place(number) for number in self._stored.site_sets[site_set]),
        )

    def similar(self, name: str) -> tuple[str, ...]:
        """Return the files that instantiate the same kernel template, as few as the name's identifiers leave."""
        files = set(self._stored.bases.get(base_name(name), ()))
        words = sorted(
            (word for word in identifiers(canonical(name)) if word in self._stored.words),
            key=lambda word: (len(self._stored.words[word]), word),
        )
        for word in words:  # the rarest first; one that would leave no file at all is passed over
            if len(files) > 1 and (left := files & set(self._stored.words[word])):
                files = left
        return tuple(sorted(self._stored.files[number] for number in files))

    def definition(self, name: str) -> SourceLine | None:
        """Return where the kernel is defined, if one header that comes with PyTorch defines a kernel of its name."""
        result = self._stored.definitions.get(base_name(name).rpartition("::")[2])
        return None if result is None else SourceLine(self._stored.files[result[0]], result[1])

    def host_file(self, cpp_function: str) -> HostFile | None:
        """Return the file of a C++ function, ``at::native::layer_norm_cuda``; None if the index does not hold it."""
        result = self._stored.functions.get(cpp_function)
        return None if result is None else HostFile(self._stored.files[result[0]], result[1])

    @cached_property
    def kernel_files(self) -> Sequence[str]:
        """The files that hold kernels, sorted."""
        numbers = {number for file_set in self._stored.file_sets for number in file_set}
        return sorted(self._stored.files[number] for number in numbers)

    @cached_property
    def identifiers(self) -> Mapping[str, Sequence[str]]:
        """The identifiers in kernels' names, common ones left out -> the files whose kernels have them."""
        return self._named(self._stored.words)

    @cached_property
    def kernels(self) -> Mapping[str, Sequence[str]]:
        """The kernels' base names -> the files that instantiate them."""
        return self._named(self._stored.bases)

    def _named(self, numbers: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[str]]:
        return {name: [self._stored.files[number] for number in result] for name, result in numbers.items()}

    def path_of(self, file_name: str) -> str | None:
        """Return the one path that ends in a file name; None if there is none, or more than one."""
        return self._paths.get(file_name)

    @cached_property
    def _paths(self) -> Mapping[str, str | None]:
        results: dict[str, str | None] = {}
        for path in self._stored.files:
            if "/" in path:
                name = path.rpartition("/")[2]
                results[name] = None if name in results else path
        return results

    @cached_property
    def _run_ends(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.cumsum([count for _, _, count in self._stored.runs], dtype=np.int64)

    def _place(self, number: int) -> SourceLine:
        file, line, function = self._stored.sites[number]
        return SourceLine(self._stored.files[file], line, function)


class IndexedKernel(Struct, frozen=True):
    """One kernel as a builder hands it over.

    Attributes:
        name: its readable name, in any spelling.
        files: the translation units that compiled it.
        launch_sites: lines that launch it.
    """

    name: str
    files: frozenset[str]
    launch_sites: frozenset[SourceLine] = frozenset()


class _Numbering(Struct, frozen=True):
    """What an index is made of, numbered from 0 in the order in which it comes."""

    files: dict[str, int] = field(default_factory=dict)
    sites: dict[SourceLine, int] = field(default_factory=dict)
    file_sets: dict[tuple[int, ...], int] = field(default_factory=dict)
    site_sets: dict[tuple[int, ...], int] = field(default_factory=dict)
    bases: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    words: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, kernel: IndexedKernel) -> tuple[int, int, bytes]:
        """Number a kernel's files and launches; return its file set, site set and key."""
        files = tuple(_number(self.files, file) for file in sorted(kernel.files))
        sites = tuple(_number(self.sites, site) for site in sorted(kernel.launch_sites))
        spelling = canonical(kernel.name)
        self.bases[base_name(kernel.name)].update(files)
        for word in identifiers(spelling):
            self.words[word].update(files)
        return _number(self.file_sets, files), _number(self.site_sets, sites), _key(spelling)


def build_index(
    kernels: Iterable[IndexedKernel],
    *,
    torch: str,
    git: str | None,
    build_ids: Mapping[str, str],
    definitions: Mapping[str, SourceLine] | None = None,
    functions: Mapping[str, HostFile] | None = None,
) -> SourceIndex:
    """Build an index.

    Args:
        kernels: every kernel once.
        torch: the version of PyTorch, with its local part (``2.11.0+cu130``).
        git: the commit it was built from.
        build_ids: the build id of each library that the kernels come from.
        definitions: kernel function (without namespaces) -> the header line that defines it.
        functions: C++ function -> its file.
    """
    numbering = _Numbering()
    # Sorted, so that the same kernels give the same bytes, and those with the same files and launches are neighbours.
    rows = sorted(numbering.add(kernel) for kernel in sorted(kernels, key=lambda kernel: kernel.name))
    files, words = numbering.files, numbering.words
    sites = [(_number(files, site.file), site.line, site.function) for site in numbering.sites]
    defined = {name: (_number(files, place.file), place.line) for name, place in sorted((definitions or {}).items())}
    hosts = {name: (_number(files, host.file), host.named) for name, host in sorted((functions or {}).items())}
    stored = _Stored(
        format=FORMAT,
        torch=torch,
        git=git,
        build_ids=dict(sorted(build_ids.items())),
        files=list(files),
        file_sets=[list(numbers) for numbers in numbering.file_sets],
        sites=sites,
        site_sets=[list(numbers) for numbers in numbering.site_sets],
        runs=[(*group, len(list(members))) for group, members in itertools.groupby(rows, lambda row: row[:2])],
        keys=b"".join(key for _, _, key in rows),
        bases={name: sorted(numbers) for name, numbers in sorted(numbering.bases.items())},
        words={word: sorted(result) for word, result in sorted(words.items()) if len(result) <= _COMMON_WORD},
        definitions=defined,
        functions=hosts,
    )
    return SourceIndex(stored)


def _number(numbers: dict[T, int], thing: T) -> int:
    """Number things from 0 in the order in which they come."""
    return numbers.setdefault(thing, len(numbers))


# ---------------------------------------------------------------- the shipped index
# ``builds.json`` says which builds there are, and which index each has: releases that differ in no kernel share one.


_NOT_CUDA = ("cpu", "rocm", "xpu")  # builds that have other kernels, or none
BUILDS: Final = "builds.json"


class OtherWheel(msgspec.Struct, frozen=True):
    """The wheel of a build for another platform, whose kernels come from the same files.

    Attributes:
        platform: ``aarch64``.
        build_ids: of its libraries.
        sha256: the wheel's digest, as PyPI lists it.
    """

    platform: str
    build_ids: dict[str, str]
    sha256: str


class ShippedBuild(msgspec.Struct, frozen=True, omit_defaults=True):
    """A build of PyTorch that there is an index for.

    Attributes:
        torch: its version: ``2.11.0+cu130``.
        git: the commit that it was made from.
        build_ids: of its libraries.
        index: the file with its kernels, beside ``builds.json``.
        wheel: its wheel on PyPI, for Python 3.11 on x86-64 Linux.
        sha256: that wheel's digest, as PyPI lists it.
        others: its wheels for other platforms that were compared with it, kernel by kernel.
    """

    torch: str
    git: str | None
    build_ids: dict[str, str]
    index: str
    wheel: str
    sha256: str
    others: tuple[OtherWheel, ...] = ()

    @property
    def all_build_ids(self) -> frozenset[str]:
        """The build ids of its libraries on all platforms."""
        return frozenset(self.build_ids.values()).union(*(other.build_ids.values() for other in self.others))


@cache
def shipped_builds() -> Mapping[str, ShippedBuild]:
    """Return the builds that indexes are shipped for, by version."""
    content = _folder().joinpath(BUILDS).read_bytes()
    return {build.torch: build for build in msgspec.json.decode(content, type=list[ShippedBuild])}


@cache
def shipped_names() -> tuple[str, ...]:
    """Return the versions that indexes are shipped for, as their names have them: ``2.11.0+cu130``."""
    return tuple(shipped_builds())


@cache
def shipped_index(name: str) -> SourceIndex:
    """Read the index of a version that `shipped_names` lists."""
    build = shipped_builds()[name]
    index = _kernels_of(build.index)
    return index.of_build(torch=build.torch, git=build.git, build_ids=build.build_ids)


@cache
def _kernels_of(file: str) -> SourceIndex:
    return SourceIndex.unpacked(_folder().joinpath(file).read_bytes())


def _folder() -> resources.abc.Traversable:
    return resources.files("opscope.knowledge").joinpath("data").joinpath("kernels")


def same_release(version: TorchVersion) -> str | None:
    """Return the shipped version of the same release, whatever CUDA it was built for; None for other builds.

    All builds of a release are made from one commit, so a kernel's source file is the same in all of them.
    """
    if not version.final or (version.local or "").startswith(_NOT_CUDA):
        return None
    return next((name for name in shipped_names() if _version(name).release == version.release), None)


def same_build(build_ids: Collection[str]) -> str | None:
    """Return the shipped version that most of these build ids belong to; None if none of them does."""
    wanted = set(build_ids)
    shared = {name: len(wanted & build.all_build_ids) for name, build in shipped_builds().items()}
    best = max(shared, key=lambda name: shared[name])
    return best if shared[best] else None


def by_nearness(version: TorchVersion | None) -> Sequence[str]:
    """Return all shipped versions, the nearest first."""
    return nearest_first(shipped_names(), _version, version)


def parse_version(text: str) -> TorchVersion:
    """Read a version that a user gave.

    Raises:
        UsageError: the text is not a version of PyTorch.
    """
    version = TorchVersion.parse(text)
    if version is None:
        raise UsageError(f"{text!r} is not a version of PyTorch; write it as 2.11.0 or 2.11.0+cu130")
    return version


def _version(name: str) -> TorchVersion:
    version = TorchVersion.parse(name)
    if version is None:
        raise ValueError(f"{name} is not a version of PyTorch")
    return version
