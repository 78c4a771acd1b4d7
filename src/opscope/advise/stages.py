"""Which stage of loading a function belongs to: by what it is, by its name, or by who calls it. Needs no PyTorch."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from opscope.base.files import is_users
from opscope.base.text import lazy_pattern


class LoadingStage(StrEnum):
    """What loading a batch is made of, in the order in which it happens."""

    READ = "read"
    DECODE = "decode"
    TRANSFORM = "transform"
    SAMPLE = "sample"  # the dataset's own code, where its name does not tell what it does
    COLLATE = "collate"
    SEND = "send"  # from a worker to the process that trains
    START = "start"  # of workers
    COPY = "copy"  # to the GPU


class RunningFunction(Struct, frozen=True):
    """A function that ran while a sample was made.

    Attributes:
        name: its name.
        file: of Python functions; empty for built-in ones.
        line: where it begins; 0 for built-in ones.
    """

    name: str
    file: str = ""
    line: int = 0


class ProfiledFunction(Struct, frozen=True):
    """What a profile says of a function.

    Attributes:
        function: the function.
        own_s: seconds in itself.
        callers: seconds in itself by the function that called it; empty where that is not known.
    """

    function: RunningFunction
    own_s: float
    callers: dict[RunningFunction, float] = field(default_factory=dict)


class StageTime(Struct, frozen=True):
    """Time in one function that decides a stage.

    Attributes:
        stage: the stage.
        function: the function.
        seconds: in one profiled batch.
    """

    stage: LoadingStage
    function: RunningFunction
    seconds: float


class Fetched(Struct, frozen=True):
    """A batch that was fetched.

    Attributes:
        worker: the number of the worker that fetched it; None for the process itself.
        ended_ns: when, by the system's clock.
        wall_ns: how long it took, collating included.
        cpu_ns: for how much of it the thread worked.
        collate_ns: how much of it went into collating.
        collate: what collates.
        stages: where the rest went; empty for batches that were not profiled.
    """

    worker: int | None
    ended_ns: int
    wall_ns: int
    cpu_ns: int
    collate_ns: int
    collate: RunningFunction
    stages: tuple[StageTime, ...] = ()


# Built-in functions, as profiles of Python name them: "<built-in method posix.read>", "<method 'read' of ...>".
_READS: Final = lazy_pattern(
    r"\b(open|fopen|read|readinto|readline|readlines|readall|seek|stat|mmap|recv|recv_into|fromfile|memmap|get_object)\b"
)
_DECODES: Final = lazy_pattern(
    r"\b(decompress|decode|loads|imdecode|frombuffer|decode_jpeg|decode_image|c_scanner|raw_decode)\b"
)
# Modules by a part of their path.
_MODULES: Final = (
    (
        LoadingStage.DECODE,
        ("PIL/ImageFile", "PIL/Jpeg", "PIL/Png", "PIL/Webp", "/json/", "/gzip", "/zlib", "/soundfile", "/av/"),
    ),
    (LoadingStage.DECODE, ("/pickle", "torchvision/io", "torchaudio/", "/csv", "/lzma", "/bz2", "/xml/")),
    (
        LoadingStage.READ,
        ("/h5py/", "/lmdb/", "/tarfile", "/zipfile", "/fsspec/", "/urllib/", "/requests/", "/socket", "/ssl"),
    ),
    (
        LoadingStage.READ,
        ("/pyarrow/", "/sqlite3/", "/boto", "torch/serialization", "numpy/lib/npyio", "numpy/lib/_npyio"),
    ),
    (LoadingStage.TRANSFORM, ("torchvision/transforms", "albumentations", "/tokenizers", "transformers/tokenization")),
    (LoadingStage.TRANSFORM, ("PIL/ImageOps", "PIL/ImageEnhance", "PIL/ImageFilter", "/scipy/", "/skimage/")),
)
# Names of the user's functions say what they do.
_NAMES: Final = (
    (LoadingStage.DECODE, lazy_pattern(r"decod|decompress|unpack|pars|deserial|unzip|from_?(json|bytes|jpeg|png)")),
    (LoadingStage.READ, lazy_pattern(r"read|load|fetch|download|open|disk|storage|query")),
    (
        LoadingStage.TRANSFORM,
        lazy_pattern(r"transform|augment|crop|flip|resiz|normali|rotat|jitter|blur|tokeni|preproc|mask|pad\b"),
    ),
)
_DEEPEST: Final = 30  # callers that are followed


def stage_of_each(entries: Sequence[ProfiledFunction]) -> dict[tuple[LoadingStage, RunningFunction], float]:
    """Return seconds by stage and by the function that decides the stage.

    A function's own time belongs to the stage that the function names; where it names none, to that of its callers, in
    the proportion in which they call it; where none of them names one, to `LoadingStage.SAMPLE`, and to the user's
    function that is nearest.
    """
    known = {entry.function: entry for entry in entries}
    results: dict[tuple[LoadingStage, RunningFunction], float] = {}
    for entry in entries:
        for key, share in _shares(entry.function, known, ()).items():
            results[key] = results.get(key, 0.0) + share * entry.own_s
    return results


def _shares(
    function: RunningFunction, known: Mapping[RunningFunction, ProfiledFunction], seen: tuple[RunningFunction, ...]
) -> dict[tuple[LoadingStage, RunningFunction], float]:
    stage, entry = named_stage(function), known.get(function)
    if stage is not None:
        return {(stage, _shown(function, known)): 1.0}
    values = {} if entry is None or len(seen) > _DEEPEST else entry.callers
    callers = {caller: took for caller, took in values.items() if caller not in (*seen, function)}
    whole = sum(callers.values())
    results: dict[tuple[LoadingStage, RunningFunction], float] = {}
    for caller, took in callers.items() if whole > 0 else ():
        for (of_caller, shown), share in _shares(caller, known, (*seen, function)).items():
            nearest = function if of_caller is LoadingStage.SAMPLE and is_users(function.file) else shown
            results[of_caller, nearest] = results.get((of_caller, nearest), 0.0) + share * took / whole
    return results or {(LoadingStage.SAMPLE, function): 1.0}


def _shown(function: RunningFunction, known: Mapping[RunningFunction, ProfiledFunction]) -> RunningFunction:
    """Return the function to show for one: the user's that is nearest among those that call it most, else itself."""
    shown, seen = function, set[RunningFunction]()
    while not is_users(shown.file) and shown not in seen:
        seen.add(shown)
        entry = known.get(shown)
        if entry is None or not entry.callers:
            return function
        shown = max(entry.callers, key=lambda one, of=entry.callers: of[one])  # type: ignore[misc]
    return shown if is_users(shown.file) else function


def named_stage(function: RunningFunction) -> LoadingStage | None:
    """Return the stage that a function itself names; None where it names none."""
    if not function.file:
        if _DECODES.search(function.name):
            return LoadingStage.DECODE
        return LoadingStage.READ if _READS.search(function.name) else None
    if is_users(function.file):
        return next((stage for stage, names in _NAMES if names.search(function.name.lower())), None)
    path = function.file.replace("\\", "/")
    return next((stage for stage, parts in _MODULES if any(part in path for part in parts)), None)
