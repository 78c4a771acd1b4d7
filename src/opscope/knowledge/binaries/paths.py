"""Paths of source files among a library's constants: checks pass ``__FILE__``."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from opscope.knowledge.binaries.elf import Elf

_SOURCE = re.compile(rb"(?<=\0)([\w./+-]*[\w.+-]+\.(?:cu|cuh|cpp|cc|h|hpp))(?=\0)")
_REPOSITORY = "/aten/src/ATen/native/"


def source_paths(elf: Elf) -> list[str]:
    """Return the paths of source files that a library's code mentions."""
    constants = elf.section(".rodata")
    content = elf.data[constants.offset : constants.offset + constants.size]
    return sorted({match[1].decode("latin-1") for match in _SOURCE.finditer(content)})


def repository_root(paths: Iterable[str]) -> str:
    """Return the folder that PyTorch was built in, with a slash (``/pytorch/``); empty where no path is of PyTorch."""
    roots = Counter(path.split(_REPOSITORY)[0] for path in paths if _REPOSITORY in path)
    return f"{roots.most_common(1)[0][0]}/" if roots else ""


def in_repository(path: str, root: str) -> str:
    """Return a path relative to the repository; generated files lie in ``build/``."""
    return str(PurePosixPath(path.removeprefix(root)))


def by_file_name(paths: Iterable[str], root: str) -> Mapping[str, set[str]]:
    """Return file name -> paths below the root, relative to it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        if path.startswith(root):
            found[PurePosixPath(path).name].add(in_repository(path, root))
    return found
