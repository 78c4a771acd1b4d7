"""Paths of source files among a library's constants: checks pass ``__FILE__``."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from opscope.base.patterns import lazy_pattern
from opscope.knowledge.binaries.elf import Elf

_ENDINGS = (b".cu\0", b".cuh\0", b".cpp\0", b".cc\0", b".h\0", b".hpp\0")
_PATH = lazy_pattern(rb"[\w./+-]+")
_LONGEST = 1024
_REPOSITORY = "/aten/src/ATen/native/"


def source_paths(elf: Elf) -> list[str]:
    """Return the paths of source files that a library's code mentions."""
    constants = elf.section(".rodata")
    first, last = constants.offset, constants.offset + constants.size
    results = set()
    for ending in _ENDINGS:  # far faster than one expression over some hundred megabytes
        place = elf.data.find(ending, first, last)
        while place >= 0:
            begin = elf.data.rfind(b"\0", max(first, place - _LONGEST), place) + 1
            path = elf.data[begin : place + len(ending) - 1]
            if begin and _PATH.fullmatch(path):  # 0: no text begins so near
                results.add(path.decode("latin-1"))
            place = elf.data.find(ending, place + 1, last)
    return sorted(results)


def repository_root(paths: Iterable[str]) -> str:
    """Return the folder that PyTorch was built in, with a slash (``/pytorch/``); empty where no path is of PyTorch."""
    roots = Counter(path.split(_REPOSITORY)[0] for path in paths if _REPOSITORY in path)
    return f"{roots.most_common(1)[0][0]}/" if roots else ""


def in_repository(path: str, root: str) -> str:
    """Return a path relative to the repository; generated files lie in ``build/``."""
    return str(PurePosixPath(path.removeprefix(root)))


def by_file_name(paths: Iterable[str], root: str) -> Mapping[str, set[str]]:
    """Return file name -> paths below the root, relative to it."""
    results: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        if path.startswith(root):
            results[PurePosixPath(path).name].add(in_repository(path, root))
    return results
