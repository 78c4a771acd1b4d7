"""Which changes are tried together, and when: known combinations, each alone, then what lies around the best."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from opscope.advise.changes.listed import BY_NAME, class_of, fit_together, in_order, lower_than
from opscope.documents.advise import ChangeName, ErrorClass

ChangeNames = tuple[str, ...]

_Name = ChangeName
_ATTENTION: Final = (_Name.SDPA, _Name.FUSED_ATTENTION)  # whichever of them a model lets be made

# What takes seconds to start, as nothing is compiled: the best of these is proven while there is time for anything.
_QUICK_RECIPES: Final[tuple[ChangeNames, ...]] = (
    (*_ATTENTION, _Name.AUTOCAST_BF16, _Name.CHANNELS_LAST, _Name.DEFERRED_ITEMS, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.WEIGHTS_BF16, _Name.CHANNELS_LAST),
    (*_ATTENTION, _Name.TF32, _Name.CHANNELS_LAST, _Name.DEFERRED_ITEMS, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.CHANNELS_LAST, _Name.DEFERRED_ITEMS, _Name.FUSED_OPTIMIZER),
)
# Combinations that were the best of many workloads: what each part saves shows only with the others. They come before
# what is tried alone, as time may be up before all is tried.
_RECIPES: Final[tuple[ChangeNames, ...]] = (
    (*_ATTENTION, _Name.TF32, _Name.COMPILE_REDUCE_OVERHEAD, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.AUTOCAST_BF16, _Name.COMPILE_REDUCE_OVERHEAD, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.WEIGHTS_FP16, _Name.COMPILE_REDUCE_OVERHEAD),
    (_Name.FUSED_OPTIMIZER, _Name.DEFERRED_ITEMS, _Name.CUDA_GRAPH),
    (*_ATTENTION, _Name.TF32, _Name.COMPILE, _Name.DEFERRED_ITEMS, _Name.CUDA_GRAPH, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.AUTOCAST_BF16, _Name.COMPILE, _Name.DEFERRED_ITEMS, _Name.CUDA_GRAPH, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.WEIGHTS_FP16, _Name.COMPILE, _Name.CUDA_GRAPH),
    (_Name.AUTOCAST_BF16, _Name.CHANNELS_LAST, _Name.COMPILE),
)
# What is only for finding mistakes: where it is on, it is taken out of everything that is tried.
_WITHOUT_A_DOUBT: Final = (_Name.NO_ANOMALY_DETECTION,)
# Alone they take seconds, and tell whether these recipes run.
_IN_MANY_RECIPES: Final = _ATTENTION
# Those that are the best where captured graphs are not to be had, or fail.
_LATER_RECIPES: Final[tuple[ChangeNames, ...]] = (
    (*_ATTENTION, _Name.COMPILE),
    (_Name.TF32, _Name.COMPILE, _Name.FUSED_OPTIMIZER),
    (_Name.AUTOCAST_BF16, _Name.COMPILE, _Name.FUSED_OPTIMIZER),
    (_Name.WEIGHTS_BF16, _Name.COMPILE),
    (_Name.COMPILE, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.AUTOCAST_BF16, _Name.PADDED_PRODUCTS, _Name.COMPILE_REDUCE_OVERHEAD, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.WEIGHTS_BF16, _Name.COMPILE_REDUCE_OVERHEAD),
    (*_ATTENTION, _Name.COMPILE_REDUCE_OVERHEAD),
    (_Name.CHANNELS_LAST, _Name.COMPILE),
    (*_ATTENTION, _Name.WEIGHTS_BF16, _Name.INT8_WEIGHTS, _Name.COMPILE),
)
_NEARLY: Final = 0.98  # of the best: the shortest combination of those is taken


# Where the device waits for launches, captured graphs save most, and arithmetic next to nothing.
_GRAPH_RECIPES: Final[tuple[ChangeNames, ...]] = (
    (*_ATTENTION, _Name.TF32, _Name.COMPILE_REDUCE_OVERHEAD, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.AUTOCAST_BF16, _Name.COMPILE_REDUCE_OVERHEAD, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.TF32, _Name.DEFERRED_ITEMS, _Name.FUSED_OPTIMIZER),
    (*_ATTENTION, _Name.COMPILE_REDUCE_OVERHEAD, _Name.FUSED_OPTIMIZER),
)


def compiles(names: ChangeNames) -> bool:
    """Tell whether a combination compiles, which takes much longer than all else."""
    return any(BY_NAME[name].compiles for name in names)


def first_tries(possible: Sequence[str], *, launch_bound: bool = False) -> list[ChangeNames]:
    """Return what is tried first: recipes as far as their changes are possible, and each possible change alone.

    Args:
        possible: the changes.
        launch_bound: whether the device is known to wait for launches for most of a step.
    """
    plain = [name for name in _WITHOUT_A_DOUBT if name in possible]

    def of(recipes: Sequence[ChangeNames]) -> list[ChangeNames]:
        return [in_order([*(name for name in recipe if name in possible), *plain]) for recipe in recipes]

    quick, first, later = of(_QUICK_RECIPES), of(_RECIPES), of(_LATER_RECIPES)
    alone = [(name,) for name in possible if BY_NAME[name].alone or not _has_place(name, possible)]
    several = [names for names in first if len(names) > 1]
    graphs = of(_GRAPH_RECIPES)
    graphs = [names for names in graphs if len(names) > 1] if launch_bound else []
    in_many = [(name,) for name in (*_WITHOUT_A_DOUBT, *_IN_MANY_RECIPES) if name in possible]
    at_once = [names for names in quick if names]
    return list(
        dict.fromkeys([*graphs, *in_many, *at_once, *several, *alone, *(names for names in later if len(names) > 1)])
    )


def likeliest(possible: Sequence[str], *, launch_bound: bool) -> ChangeNames | None:
    """Return the combination that most likely helps; None where there is none.

    Where the device waits for launches, that is a captured graph. Elsewhere it is a combination that starts in seconds,
    or, where there is none, one that compiles. Precision below TF32 is left out: a proof often cannot decide it.

    Args:
        possible: the changes.
        launch_bound: whether the device is known to wait for launches for most of a step.
    """
    tries = [
        names
        for names in first_tries(possible, launch_bound=launch_bound)
        if len(names) > 1 and not lower_than(class_of(names), ErrorClass.TF32)
    ]
    compiled = [names for names in tries if compiles(names)]
    quick = [names for names in tries if not compiles(names)]
    order = [*compiled, *quick] if launch_bound else [*quick, *compiled]
    return next(iter(order), None)


def _has_place(name: str, possible: Sequence[str]) -> bool:
    """Tell whether a change can be tried in the place of another one."""
    return any(BY_NAME[other].alone and not fit_together((name, other)) for other in possible if other != name)


def without_broken(tries: Sequence[ChangeNames], broken: Collection[str]) -> list[ChangeNames]:
    """Return what is to be tried with changes left out that fail alone, or change nothing.

    Args:
        tries: combinations, those that were tried before too: what failed for one of its changes is worth another try.
        broken: the changes.
    """
    kept = (tuple(name for name in names if name not in broken) if len(names) > 1 else names for names in tries)
    return list(dict.fromkeys(names for names in kept if names))


def best_of(gains: Mapping[ChangeNames, float], least: float) -> dict[ErrorClass, ChangeNames]:
    """Return per class the combination to go on from: the shortest of those that are nearly as fast as the fastest.

    Args:
        gains: how many times as fast the step is with each combination.
        least: gains up to this are none.
    """
    results: dict[ErrorClass, ChangeNames] = {}
    for error_class in ErrorClass:
        own = {names: gain for names, gain in gains.items() if class_of(names) is error_class and gain > least}
        if own:
            fastest = max(own.values())
            near = [names for names, gain in own.items() if gain >= _NEARLY * fastest]
            results[error_class] = min(near, key=lambda names: (len(names), -own[names]))
    return results


def to_prove_first(gains: Mapping[ChangeNames, float], clearly: float) -> ChangeNames | None:
    """Return the combination to prove first: the most precise of those that are nearly as fast as the fastest.

    A proof takes as long as several measurements, and the less precise a combination computes, the more often it ends
    with nothing decided.

    Args:
        gains: how many times as fast the step is with each combination.
        clearly: so many times as fast as another one is clearly faster.
    """
    near = [names for names, gain in gains.items() if gain * clearly > max(gains.values())]
    order = list(ErrorClass)
    return min(near, key=lambda names: (order.index(class_of(names)), -gains[names]), default=None)


def neighbours(
    best: ChangeNames, possible: Sequence[str], gains: Mapping[ChangeNames, float], least: float
) -> Iterator[ChangeNames]:
    """Yield combinations that differ from the best one by one change: left out, added, or put in another's place.

    Args:
        best: the combination.
        possible: the changes.
        gains: what was measured; changes that alone make the step slower are not added.
        least: gains up to this are none.
    """
    for name in best:
        if len(best) > 1:
            yield in_order([other for other in best if other != name])
    for name in possible:
        if name in best:
            continue
        more = in_order((*best, name))
        if fit_together(more) and gains.get((name,), 0.0) > 1 / least:
            yield more
        swapped = in_order((*(other for other in best if fit_together((other, name))), name))
        if len(swapped) == len(best) and (not BY_NAME[name].alone or gains.get((name,), 0.0) > least):
            yield swapped


def second_tries(
    best: Iterable[ChangeNames], possible: Sequence[str], gains: Mapping[ChangeNames, float], least: float, most: int
) -> list[ChangeNames]:
    """Return the neighbours of the best combinations that were not tried, in turns, at most so many."""
    around = [
        [names for names in neighbours(one, possible, gains, least) if names and names not in gains] for one in best
    ]
    results: list[ChangeNames] = []
    while any(around) and len(results) < most:
        for names in around:
            if names and (one := names.pop(0)) not in results:
                results.append(one)
    return results[:most]
