"""Turns the words of a command line into the cases that are benchmarked."""

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Final, TypeVar

import torch

from opscope.base.errors import UsageError
from opscope.base.text import lazy_pattern
from opscope.base.units import utc_timestamp
from opscope.collect.environment import describe_framework, describe_machine
from opscope.documents.bench import BenchDocument, BenchResult
from opscope.measuring.verdicts import compare, pairs_of
from opscope.record.bench import BenchRequest
from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.gallery.cases import GALLERY, TIMERS, gallery_case
from opscope.workloads.custom import load_function, load_module

# ---------------------------------------------------------------- written files


def bench_document_of(
    results: Sequence[BenchResult], device: torch.device, request: BenchRequest | None = None
) -> BenchDocument:
    """Compare the results of one process, and describe where they were measured.

    Args:
        results: of all cases and parameters.
        device: where they were measured.
        request: what was asked for, so that it can be measured again; None if no command asked.
    """
    # Ways of timing one function are not variants of each other, so they are not compared.
    return BenchDocument(
        created=utc_timestamp(),
        machine=describe_machine(device),
        framework=describe_framework(device),
        processes=1,
        results=tuple(results),
        comparisons=compare(pairs_of([result for result in results if result.case != TIMERS])),
        request=request,
    )


# ---------------------------------------------------------------- targets


T = TypeVar("T")
_DTYPES: Final = {
    **{"fp64": torch.float64, "float64": torch.float64, "fp32": torch.float32, "float32": torch.float32},
    **{"fp16": torch.float16, "float16": torch.float16, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16},
}
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = lazy_pattern(r"(\d+)([kKmMgG]?)")
_RANGE: Final = lazy_pattern(rf"{_SIZE.pattern}\.\.{_SIZE.pattern}")
_STEP: Final = 4  # the factor between the sizes of a range
_OWN: Final = ("inputs", "reference")  # functions of a file that are not variants


# Loads one candidate, whose code runs while it is imported, by its case and name; returns why it is refused, or None.
Guard = Callable[[str, str, Callable[[], Function]], Function | str]


def _unguarded(_case: str, _name: str, load: Callable[[], Function]) -> Function | str:
    return load()


def cases_of(
    request: BenchRequest,
    device: torch.device,
    guard: Guard = _unguarded,
    wanted: Collection[str] | None = None,
) -> list[Case]:
    """Return the cases of a request: one per gallery case and per file, and one for all functions together.

    Args:
        request: with the targets; ``timers`` among them is skipped, as it is not a comparison of functions.
        device: which decides what variants a gallery case has.
        guard: loads each function that is named by itself and is not the baseline, after everything else.
        wanted: the names of such functions that are loaded; None for all.

    Raises:
        UsageError: a target does not exist, cannot be imported, or has no functions.
        EnvironmentLacksError: a gallery case needs a GPU or nvcc.
    """
    cases: list[Case] = []
    functions: list[str] = []
    for target in request.targets:
        if target == TIMERS:
            continue
        if target in GALLERY:
            cases.append(gallery_case(target, device))
        elif ":" in target:
            functions.append(target)
        elif target.endswith(".py"):
            cases.append(_of_file(target, request))
        else:
            raise UsageError(
                f"{target!r} is not a benchmark: file.py, file.py:function, package.module:function, or one of "
                f"{', '.join((*GALLERY, TIMERS))}"
            )
    if functions:
        cases.append(_of_functions(functions, request, guard, wanted))
    return cases


def _of_file(place: str, request: BenchRequest) -> Case:
    module = _loaded(load_module, place)
    # Only functions that the file itself defines: imported ones belong to another module.
    variants = {
        name: value
        for name, value in vars(module).items()
        if (inspect.isfunction(value) or isinstance(value, functools.partial))
        and getattr(value, "__module__", module.__name__) in (module.__name__, "functools")
        and not name.startswith("_") and name not in _OWN
    }  # fmt: skip
    if not variants:
        raise UsageError(f"{place} has no functions to compare")
    return Case(place, variants, _inputs(module, request), _reference(module, request))


def _of_functions(targets: Sequence[str], request: BenchRequest, guard: Guard, wanted: Collection[str] | None) -> Case:
    places = [target.rpartition(":") for target in targets]
    # Functions of the same name, from several files, are told apart by their whole targets.
    names = [name for *_, name in places]
    shown = names if len(set(names)) == len(names) else list(targets)
    if len(set(shown)) < len(shown):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise UsageError(f"{twice} is named twice")
    # The baseline, the inputs and what is right come first: files of the others could change how they are made.
    place, module = places[0][0], _loaded(load_module, places[0][0])
    variants: dict[str, Function] = {shown[0]: _loaded(load_function, targets[0])}
    inputs, reference, refused = _inputs(module, request), _reference(module, request), dict[str, str]()
    for name, target in zip(shown[1:], targets[1:], strict=True):
        if wanted is not None and name not in wanted:
            continue
        match guard(place, name, functools.partial(_loaded, load_function, target)):
            case str() as why:
                refused[name] = why
            case function:
                variants[name] = function
    return Case(place, variants, inputs, reference, refused=refused)


def _loaded(load: Callable[[str], T], target: str) -> T:
    """Load a module or function of the user's.

    Raises:
        UsageError: loading fails, for any reason.
    """
    try:
        return load(target)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{target} cannot be imported: {type(error).__name__}: {error}") from error


def _inputs(module: ModuleType, request: BenchRequest) -> Callable[..., object] | None:
    if request.inputs is not None:
        return _loaded(load_function, request.inputs)
    result: Callable[..., object] | None = getattr(module, "inputs", None)
    return result


def _reference(module: ModuleType, request: BenchRequest) -> Callable[..., object] | None:
    if request.reference is not None:
        return _loaded(load_function, request.reference)
    result: Callable[..., object] | None = getattr(module, "reference", None)
    return result


def points_of(axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, object]]:
    """Yield every combination of the axes' values, by name.

    Args:
        axes: per parameter, the words for its values: ``1024``, ``64M``, ``1k..64M``, ``bf16``, ``true``.

    Raises:
        UsageError: a range is empty.
    """
    values = [[value for word in words for value in _values(word)] for words in axes.values()]
    for point in itertools.product(*values):
        yield dict(zip(axes, point, strict=True))


def _values(word: str) -> list[object]:
    """Return the values that a word stands for; ``1k..64M`` is a range in which each size is four times the last."""
    if (match := _RANGE.fullmatch(word)) is not None:
        first, last = (int(match[at]) * _UNITS[match[at + 1].lower()] for at in (1, 3))
        if first > last or not first:
            raise UsageError(f"the range {word} is empty")
        sizes: list[object] = []
        while first <= last:
            sizes.append(first)
            first *= _STEP
        return sizes
    if word in _DTYPES:
        return [_DTYPES[word]]
    if (match := _SIZE.fullmatch(word)) is not None:
        return [int(match[1]) * _UNITS[match[2].lower()]]
    # What is neither a number nor a truth value stays text.
    try:
        return [float(word)]
    except ValueError:
        return [{"true": True, "false": False}.get(word.lower(), word)]
