"""The kernel indexes that come with opscope, for every release of PyTorch (built by ``tools/build_source_index.py``).

``builds.json`` says which builds there are, and which index each has: releases that differ in no kernel share one.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from opscope.base.errors import UsageError
from opscope.knowledge.kernels.index import SourceIndex
from opscope.knowledge.releases import TorchVersion, nearest_first

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
