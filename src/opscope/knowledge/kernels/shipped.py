"""The kernel indexes that come with opscope: one per release of PyTorch (built by ``tools/build_source_index.py``)."""

from collections.abc import Collection, Sequence
from functools import cache

from opscope.errors import UsageError
from opscope.knowledge.kernels.index import SourceIndex
from opscope.knowledge.releases import TorchVersion, data_files, nearest_first, version_in

_NOT_CUDA = ("cpu", "rocm", "xpu")  # builds that have other kernels, or none
_FOLDER, _ENDING = "kernels", ".kernels"


@cache
def shipped_names() -> tuple[str, ...]:
    """Return the versions that indexes are shipped for, as their names have them: ``2.11.0+cu130``."""
    return tuple(file.name.removeprefix("torch-").removesuffix(_ENDING) for file in data_files(_FOLDER, _ENDING))


@cache
def shipped_index(name: str) -> SourceIndex:
    """Read the index of a version that `shipped_names` lists."""
    (file,) = (file for file in data_files(_FOLDER, _ENDING) if file.name == f"torch-{name}{_ENDING}")
    return SourceIndex.unpacked(file.read_bytes())


def same_release(version: TorchVersion) -> str | None:
    """Return the shipped version of the same release, whatever CUDA it was built for; None for other builds.

    All builds of a release are made from one commit, so a kernel's source file is the same in all of them.
    """
    if not version.final or (version.local or "").startswith(_NOT_CUDA):
        return None
    return next((name for name in shipped_names() if _version(name).release == version.release), None)


def same_build(build_ids: Collection[str]) -> str | None:
    """Return the shipped version that one of these build ids belongs to; None if it is none of them."""
    return next(
        (name for name in shipped_names() if set(shipped_index(name).build_ids.values()) & set(build_ids)), None
    )


def by_nearness(version: TorchVersion | None) -> Sequence[str]:
    """Return all shipped versions, the nearest first."""
    return nearest_first(shipped_names(), _version, version)


def parse_version(text: str) -> TorchVersion:
    """Read a version that a user gave.

    Raises:
        UsageError: it is none.
    """
    version = TorchVersion.parse(text)
    if version is None:
        raise UsageError(f"{text!r} is no version of PyTorch; write it as 2.11.0 or 2.11.0+cu130")
    return version


def _version(name: str) -> TorchVersion:
    return version_in(f"torch-{name}{_ENDING}")
