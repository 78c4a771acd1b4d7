"""Releases of PyTorch, and which of the shipped files describes one best."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TypeVar

from msgspec import Struct

from opscope.base.text import lazy_pattern

T = TypeVar("T")
_VERSION = lazy_pattern(r"(?P<release>\d+(?:\.\d+)*)(?P<rest>[^+]*)(?:\+(?P<local>.*))?")


class TorchVersion(Struct, frozen=True):
    """A version of PyTorch: ``2.11.0+cu130``.

    Attributes:
        release: its numbers, (2, 11, 0).
        local: what stands after the plus sign, ``cu130``; None where nothing does.
        final: whether it is a release and no development version (``2.12.0a0``, ``2.12.0.dev2026``).
    """

    release: tuple[int, ...]
    local: str | None
    final: bool

    @classmethod
    def parse(cls, text: str) -> "TorchVersion | None":
        """Read a version; None if the text is none."""
        match = _VERSION.fullmatch(text.strip().removeprefix("v"))
        if match is None:
            return None
        numbers = tuple(int(part) for part in match["release"].split("."))
        # Builds from source carry the commit: 2.11.0a0+git70d99e9.
        built = (match["local"] or "").startswith("git")
        return cls((*numbers, 0, 0)[:3], match["local"], final=not match["rest"] and not built)


# Stands for traces that do not tell which PyTorch wrote them.
DEFAULT = TorchVersion((2, 13, 0), None, final=True)


def data_files(ending: str) -> list[Traversable]:
    """Return the shipped data files whose names have an ending, sorted by name."""
    folder = resources.files("opscope.knowledge").joinpath("data")
    return sorted((file for file in folder.iterdir() if file.name.endswith(ending)), key=lambda file: file.name)


def nearest_first(
    candidates: Iterable[T], version_of: Callable[[T], TorchVersion], wanted: TorchVersion | None
) -> list[T]:
    """Sort things by how near their version is to a wanted one; of two that are equally near, the newer is first.

    Args:
        candidates: the things.
        version_of: returns the version of one.
        wanted: the wanted version; None stands for `DEFAULT`.
    """

    def distance(candidate: T) -> tuple[int, ...]:
        release = version_of(candidate).release
        return (abs(_position(release) - _position((wanted or DEFAULT).release)), *(-number for number in release))

    return sorted(candidates, key=distance)


def _position(release: tuple[int, ...]) -> int:
    major, minor, patch = release
    return (major * 1000 + minor) * 1000 + patch


@cache
def version_in(name: str) -> TorchVersion:
    """Return the version in a shipped file's name: ``native_functions-2.11.0.json.gz``.

    Raises:
        ValueError: the name has none.
    """
    match = re.search(r"-(\d[^-]*?)\.json\.gz$", name)
    version = TorchVersion.parse(match[1]) if match else None
    if version is None:
        raise ValueError(f"{name} names no version of PyTorch")
    return version
