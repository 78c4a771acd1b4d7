"""Paths of translation units, from what a library's code and constants mention."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from opscope.knowledge.binaries.registrations import CudaLibrary
from opscope.knowledge.kernels.installed import by_file_name, in_repository
from source_index.launch_sites import LaunchSite

# Folders of units that no check names, read off the repository's file lists.
_FOLDERS = (
    (re.compile(r"cutlass[BF]_(f16|bf16|f32)_\w+\.cu"),
     "aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels"),
    (re.compile(r"Distribution\w+\.cu|IndexUtils\.cu|LegacyThrustHelpers\.cu|RecordStream\.cu|Reduce\.cu"),
     "aten/src/ATen/native/cuda"),
    (re.compile(r"(FlattenIndices|ValidateCompressedIndices)Kernel\.cu"), "aten/src/ATen/native/sparse/cuda"),
)  # fmt: skip


def unit_paths(
    library: CudaLibrary, sites: Mapping[str, set[LaunchSite]], paths: Iterable[str], root: str
) -> dict[int, str]:
    """Return the path of every translation unit whose folder the library tells.

    A launch that a unit's own kernels report from a file of the unit's name decides; else the one path that the library
    mentions under that name; else a folder that is known to hold it.
    """
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for kernel in library.kernels:
        for site in sites.get(kernel.name, ()):
            if PurePosixPath(site.file).name == library.units[kernel.unit]:
                votes[kernel.unit][in_repository(site.file, root)] += 1
    by_name = by_file_name(paths, root)
    same_name = Counter(library.units)
    found = {}
    for number, unit in enumerate(library.units):
        mentioned = by_name.get(unit, set())
        if votes[number]:
            found[number] = votes[number].most_common(1)[0][0]
        elif len(mentioned) == 1 and same_name[unit] == 1:
            found[number] = next(iter(mentioned))
        elif folder := _folder(unit):
            found[number] = f"{folder}/{unit}"
    return found


def _folder(unit: str) -> str | None:
    return next((folder for pattern, folder in _FOLDERS if pattern.fullmatch(unit)), None)
