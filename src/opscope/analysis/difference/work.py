"""Which work changed: groups of calls of both sides are matched, and the change of each is taken apart."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import floor
from typing import Final

import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis
from opscope.analysis.costs.sums import UNLINKED
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.base.text import lazy_pattern
from opscope.documents.difference import KernelChange, MatchedBy, WorkChange
from opscope.knowledge.categories import Category
from opscope.knowledge.kernels.kinds import kind_of
from opscope.knowledge.kernels.names import canonical

# ---------------------------------------------------------------- whole numbers that add up exactly


def per_step(ns: int, steps: int) -> Fraction:
    """Return the exact time of one step, in nanoseconds.

    Args:
        ns: the time of all steps.
        steps: how many there are; at least 1.
    """
    return Fraction(int(ns), steps)


def apportioned(parts: Sequence[Fraction], whole: int) -> list[int]:
    """Round parts, each by less than 1, so that they add up to the whole.

    The largest remainders are rounded up; of equal ones, the earliest.

    Args:
        parts: exact values.
        whole: their sum, rounded to an integer.
    """
    lower = [floor(part) for part in parts]
    # Each part lost less than 1, so at most one per part is missing.
    missing = whole - sum(lower)
    by_remainder = sorted(range(len(parts)), key=lambda place: (lower[place] - parts[place], place))
    for place in by_remainder[:missing]:
        lower[place] += 1
    return lower


# ---------------------------------------------------------------- work


_MOST_PAIRS: Final = 250_000  # of groups of one operator that are compared one by one
_LISTED_KERNELS: Final = 10
# Kinds of work whose inputs alone say what is computed, whichever operator does it.
_DEFINITE: Final = frozenset({str(Category.ATTENTION), str(Category.CONVOLUTION)})
_NUMBERED: Final = lazy_pattern(r"_\d+$")
_Key = tuple[str | None, str, str]


class KernelRuns(Struct):
    """One kernel of a group: how often and how long it ran in all."""

    name: str
    count: int = 0
    total_ns: int = 0


class Group(Struct):
    """The calls of an operator with the same inputs, on one side.

    Attributes:
        operator: its name; None for work of no operator.
        dims: the shapes of all inputs as recorded, JSON text; None where not recorded.
        shapes, types: those of its tensors alone, as what else a call records differs between versions of PyTorch.
            For work of no operator ``types`` is the kernel's name.
        category: what kind of work it is.
        product: the sizes of the matrix product that a call is; None for other work.
        calls: how many calls there are, in all steps.
        kernels: by their names in one spelling.
    """

    operator: str | None
    dims: str | None
    shapes: str
    types: str
    category: str
    product: str | None = None
    calls: int = 0
    kernels: dict[str, KernelRuns] = field(default_factory=dict)

    @property
    def key(self) -> _Key:
        """What an exact match has in common."""
        return self.operator, self.shapes, self.types

    @property
    def total_ns(self) -> int:
        """The time of all its kernels in all steps."""
        return sum(ran.total_ns for ran in self.kernels.values())


class DifferenceSide(Struct, frozen=True, dict=True):
    """The work of one side.

    Attributes:
        groups: the calls by operator and inputs.
        steps: how many steps these cover.
        clock_mhz: the lowest, the median and the highest clock of the multiprocessors; None where not known.
        on_host: whether times are the host's; then each operator stands for a kernel of its own name.
    """

    groups: tuple[Group, ...]
    steps: int
    clock_mhz: tuple[int, int, int] | None = None
    on_host: bool = False

    @cached_property
    def total(self) -> Fraction:
        """The time of all groups per step, in nanoseconds."""
        return per_step(self.total_ns, self.steps)

    @cached_property
    def total_ns(self) -> int:
        """The time of all groups in all steps."""
        return sum(group.total_ns for group in self.groups)

    @classmethod
    def of_device(
        cls, analysis: Analysis, device: int, steps: int, clock_mhz: tuple[int, int, int] | None = None
    ) -> "DifferenceSide":
        """Group the activities that the steps launched on a device; all of them where no steps are marked.

        Args:
            analysis: of the trace.
            device: the device's number; `NO_DEVICE` for activities without one.
            steps: how many steps the activities cover.
            clock_mhz: as in the attributes.
        """
        categories = dict(analysis.operators.select("name", "category").iter_rows())
        rows = analysis.launch_shapes_of_steps.filter(pl.col("device").fill_null(NO_DEVICE) == device)
        groups: dict[_Key, Group] = {}
        columns = ("operator", "input_dims", "input_types", "name", "calls", "operator_calls", "total_ns", "kind")
        counted: dict[_Key, dict[tuple[object, ...], int]] = {}
        whole = ("operator", "input_dims", "input_types", "input_strides", "concrete_inputs", "kernel_file")
        for row, call in zip(rows.select(columns).iter_rows(), rows.select(whole).iter_rows(), strict=True):
            operator, dims, types, name, count, operator_calls, total, kind = row
            key = (operator, *_tensors(dims, types)) if operator is not None else (None, "", canonical(name))
            category = categories[operator] if operator is not None else _category(name, kind)
            group = groups.setdefault(key, Group(operator, dims, key[1], key[2], category))
            ran = group.kernels.setdefault(canonical(name), KernelRuns(name))
            ran.count, ran.total_ns = ran.count + count, ran.total_ns + total
            # Calls that differ only in strides or other arguments are counted per combination: add these counts up.
            counted.setdefault(key, {})[call if operator is not None else ()] = operator_calls
        products = {
            (row.operator, *_tensors(row.input_dims, row.input_types)): row.product for row in analysis.limits_of_steps
        }
        for key, group in groups.items():
            group.product = product.text if (product := products.get(key)) is not None else None
            group.calls = sum(counted[key].values()) if group.operator else sum(r.count for r in group.kernels.values())
        return cls(tuple(groups.values()), steps, clock_mhz)

    @classmethod
    def of_host(cls, analysis: Analysis, steps: int) -> "DifferenceSide":
        """Group the operators' own time on the host."""
        categories = dict(analysis.operators.select("name", "category").iter_rows())
        columns = ("name", "input_dims", "input_types", "calls", "self_cpu_ns")
        groups: dict[_Key, Group] = {}
        for name, dims, types, calls, own in analysis.shapes.select(columns).iter_rows():
            key = (name, *_tensors(dims, types))
            group = groups.setdefault(key, Group(name, dims, key[1], key[2], categories[name]))
            ran = group.kernels.setdefault(name, KernelRuns(name))
            ran.count, ran.total_ns, group.calls = ran.count + calls, ran.total_ns + own, group.calls + calls
        return cls(tuple(groups.values()), steps, on_host=True)


def _tensors(dims: str | None, types: str | None) -> tuple[str, str]:
    """Return shapes and data types of the inputs that have a shape, as text; empty where not recorded."""
    shapes = _sizes(dims)
    if shapes is None:
        return dims or "", ""
    named = json.loads(types) if types else []
    chosen = [place for place, shape in enumerate(shapes) if shape]
    return str([shapes[place] for place in chosen]), str([named[place] for place in chosen if place < len(named)])


def _category(name: str, kind: str) -> str:
    """Return the category of work that no operator launched."""
    if kind != "kernel":
        return str(Category.MEMORY)
    result = kind_of(name)
    return UNLINKED if result is None else str(result.category)


class MatchedWork(Struct, frozen=True, dict=True):
    """Two matched groups, one of which may be missing. Times are exact nanoseconds per step.

    Attributes:
        before, after: the groups; None for one that is missing.
        matched: by what they were matched.
        why: the same in words where it is not an exact match; None else.
        sides: where the groups are from.
    """

    before: Group | None
    after: Group | None
    matched: MatchedBy
    why: str | None
    sides: tuple[DifferenceSide, DifferenceSide]

    @cached_property
    def times(self) -> tuple[Fraction, Fraction]:
        """The time of each group per step; 0 for a missing one."""
        first, second = (
            per_step(group.total_ns, side.steps) if group else Fraction()
            for group, side in zip((self.before, self.after), self.sides, strict=True)
        )
        return first, second

    @property
    def change(self) -> Fraction:
        """The time after less the time before."""
        return self.times[1] - self.times[0]

    @cached_property
    def calls(self) -> tuple[Fraction, Fraction]:
        """The calls of each group per step; 0 for a missing one."""
        first, second = (
            Fraction(group.calls, side.steps) if group else Fraction()
            for group, side in zip((self.before, self.after), self.sides, strict=True)
        )
        return first, second

    def _parts(self) -> tuple[Fraction, ...]:
        """Return the change by calls, inputs, launches per call, other kernels, the same kernels, and clocks."""
        none = Fraction()
        if self.before is None or self.after is None or not self.before.calls or not self.after.calls:
            return self.change, none, none, none, none, none
        (first, second), old = self.calls, self.times[0]
        # One factor changes after the other, with the earlier ones at their new values, so that the parts add up.
        by_calls = (second - first) * old / first
        if self.matched is MatchedBy.INPUTS:
            return by_calls, self.change - by_calls, none, none, none, none
        launches = same = expected = none
        for name in self._common:
            (often, mean), (now_often, now_mean) = (self._of_call(name, side) for side in (0, 1))
            launches += second * (now_often - often) * mean
            same += second * now_often * (now_mean - mean)
            expected += second * now_often * mean
        clocks = self._clocks(same, expected)
        return by_calls, none, launches, self.change - by_calls - launches - same, same - clocks, clocks

    @property
    def _common(self) -> list[str]:
        before, after = self.before, self.after
        return [] if before is None or after is None else [name for name in before.kernels if name in after.kernels]

    def _of_call(self, kernel: str, side: int) -> tuple[Fraction, Fraction]:
        """Return how often a kernel runs per call on one side (0 or 1), and how long it takes each time."""
        group = (self.before, self.after)[side]
        assert group is not None
        ran = group.kernels[kernel]
        return Fraction(ran.count, group.calls), Fraction(ran.total_ns, ran.count) if ran.count else Fraction()

    def _clocks(self, same: Fraction, expected: Fraction) -> Fraction:
        """Return how much of the same kernels' change another clock explains at most.

        That is 0 where the ranges of both clocks touch. Kernels that wait for nothing but the multiprocessors take
        longer in proportion as the clock is lower; others do not, so it is an upper bound.

        Args:
            same: how much longer the same kernels took.
            expected: how long they would have taken at their old speed.
        """
        clocks = [side.clock_mhz for side in self.sides]
        if clocks[0] is None or clocks[1] is None:
            return Fraction()
        (low, one, high), (lowest, other, highest) = clocks[0], clocks[1]
        if not other or (low <= highest and lowest <= high):
            return Fraction()
        explained = expected * (Fraction(one, other) - 1)
        # A clock that changed the other way explains nothing.
        if explained * same <= 0:
            return Fraction()
        return min(explained, same) if same > 0 else max(explained, same)

    def document(self, change_ns: int) -> WorkChange:
        """Return the change as documents hold it, in whole nanoseconds.

        Args:
            change_ns: the whole change, rounded already; the parts add up to it.
        """
        before, after = self.before, self.after
        one = before or after
        assert one is not None
        names = [None if group is None else group.operator for group in (before, after)]
        parts = apportioned(self._parts(), change_ns)
        return WorkChange(
            operator=one.operator,
            renamed_to=names[1] if before is not None and names[0] != names[1] else None,
            category=one.category,
            matched=self.matched,
            why=self.why,
            inputs_before=None if before is None else before.dims,
            inputs_after=None if after is None else after.dims,
            calls_before=float(self.calls[0]),
            calls_after=float(self.calls[1]),
            before_ns=float(self.times[0]),
            after_ns=float(self.times[1]),
            change_ns=change_ns,
            **dict(zip(_PARTS, parts, strict=True)),
            kernels=tuple(self._kernels()),
        )

    def _kernels(self) -> Iterator[KernelChange]:
        """Yield the kernels of both sides, the most expensive first; none where times are the host's."""
        if self.sides[0].on_host:
            return
        sides: list[Mapping[str, KernelRuns]] = [group.kernels if group else {} for group in (self.before, self.after)]
        time = {name: sum(side[name].total_ns for side in sides if name in side) for side in sides for name in side}
        for name in sorted(time, key=lambda name: (-time[name], name))[:_LISTED_KERNELS]:
            old, new = (side.get(name) for side in sides)
            yield KernelChange(
                before=None if old is None else old.name,
                after=None if new is None else new.name,
                calls_before=None if old is None else old.count / self.sides[0].steps,
                calls_after=None if new is None else new.count / self.sides[1].steps,
                mean_before_ns=None if old is None else old.total_ns / old.count,
                mean_after_ns=None if new is None else new.total_ns / new.count,
            )


_PARTS: Final = ("calls_ns", "inputs_ns", "launches_ns", "kernel_changed_ns", "same_kernel_ns", "clocks_ns")


def work_changes(before: DifferenceSide, after: DifferenceSide) -> list[MatchedWork]:
    """Match the work of two sides: exactly, then by operator, then by what it does; the rest is gone or new."""
    recorded = [_has_inputs(side) for side in (before, after)]
    # Inputs of one side alone match nothing, so operators are compared as wholes.
    if recorded[0] != recorded[1]:
        before, after = _by_operator(before), _by_operator(after)
    sides = (before, after)
    left = {group.key: group for group in before.groups}
    right = {group.key: group for group in after.groups}
    results = [_change(left.pop(key), right.pop(key), recorded, sides) for key in list(left) if key in right]
    for match in (_with_other_inputs, _doing_the_same):
        for one, other, matched, why in match(list(left.values()), list(right.values()), sides):
            del left[one.key], right[other.key]
            results.append(MatchedWork(one, other, matched, why, sides))
    results += [MatchedWork(group, None, MatchedBy.GONE, None, sides) for group in left.values()]
    results += [MatchedWork(None, group, MatchedBy.NEW, None, sides) for group in right.values()]
    return results


def _change(
    one: Group, other: Group, recorded: list[bool], sides: tuple[DifferenceSide, DifferenceSide]
) -> MatchedWork:
    matched, why = _by_key(one.key, recorded)
    return MatchedWork(one, other, matched, why, sides)


def _by_key(key: _Key, recorded: list[bool]) -> tuple[MatchedBy, str | None]:
    """Return by what two groups of one key are matched, and why. Work of no operator has no inputs to compare."""
    if key[0] is None or all(recorded):
        return MatchedBy.SAME, None
    return MatchedBy.OPERATOR, f"inputs were recorded on {'one side only' if any(recorded) else 'neither side'}"


def _has_inputs(side: DifferenceSide) -> bool:
    return any(group.dims is not None for group in side.groups)


def _by_operator(side: DifferenceSide) -> DifferenceSide:
    """Join the groups of each operator, whatever their inputs."""
    merged: dict[_Key, Group] = {}
    for group in side.groups:
        # Work of no operator has its kernel's name in `types`, which must stay.
        key = (group.operator, "", group.types if group.operator is None else "")
        into = merged.setdefault(key, Group(group.operator, None, key[1], key[2], group.category))
        into.calls += group.calls
        for name, ran in group.kernels.items():
            sum_ = into.kernels.setdefault(name, KernelRuns(ran.name))
            sum_.count, sum_.total_ns = sum_.count + ran.count, sum_.total_ns + ran.total_ns
    return replace(side, groups=tuple(merged.values()))


_Match = tuple[Group, Group, MatchedBy, str]


def _by(groups: Iterable[Group], key: Callable[[Group], object]) -> dict[object, list[Group]]:
    results: dict[object, list[Group]] = {}
    for group in groups:
        results.setdefault(key(group), []).append(group)
    return results


def _with_other_inputs(
    left: list[Group], right: list[Group], sides: tuple[DifferenceSide, DifferenceSide]
) -> Iterator[_Match]:
    """Pair groups of the same operator that are left, the most alike first."""
    ours, theirs = (_by((g for g in groups if g.operator), lambda g: g.operator) for groups in (left, right))
    for operator in ours:
        if operator not in theirs:
            continue
        own, others = ours[operator], theirs[operator]
        if len(own) * len(others) > _MOST_PAIRS:
            continue
        # Each group is taken once, by the most alike pair that is still free.
        alike = [(_likeness(one, other, sides), x, y) for x, one in enumerate(own) for y, other in enumerate(others)]
        taken: tuple[set[int], set[int]] = (set(), set())
        for likeness, x, y in sorted(alike, key=lambda pair: pair[0], reverse=True):
            if x in taken[0] or y in taken[1] or likeness[0] < 0:
                continue
            taken[0].add(x)
            taken[1].add(y)
            one, other = own[x], others[y]
            yield one, other, MatchedBy.INPUTS, _other_inputs(one, other)


def _likeness(one: Group, other: Group, sides: tuple[DifferenceSide, DifferenceSide]) -> tuple[int, bool, int]:
    """Return how alike two groups are: equal types, as many calls per step, equal sizes; more is more alike.

    The first figure is below 0 where numbers of dimensions differ: then nothing says that they belong together.
    """
    ours, theirs = (_sizes(group.dims) for group in (one, other))
    if ours is None or theirs is None:
        return 0, one.calls * sides[1].steps == other.calls * sides[0].steps, 0
    ours, theirs = ([shape for shape in shapes if shape] for shapes in (ours, theirs))
    if [len(shape) for shape in ours] != [len(shape) for shape in theirs]:
        return -1, False, 0
    equal = sum(a == b for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))
    # Calls per step are compared without dividing, so exactly.
    return int(one.types == other.types), one.calls * sides[1].steps == other.calls * sides[0].steps, equal


def _sizes(dims: str | None) -> list[list[object]] | None:
    """Return the shapes of the inputs; None where they were not recorded, or are not a list of lists."""
    try:
        result = json.loads(dims) if dims else None
    except ValueError:
        return None
    if not isinstance(result, list) or not all(isinstance(shape, list) for shape in result):
        return None
    return result


def _other_inputs(one: Group, other: Group) -> str:
    if one.shapes == other.shapes:
        return "the same shapes with other data types"
    return "the inputs have other sizes" if one.types == other.types else "the inputs have other sizes and data types"


def _doing_the_same(
    left: list[Group], right: list[Group], sides: tuple[DifferenceSide, DifferenceSide]
) -> Iterator[_Match]:
    """Pair work under other names that must be the same: no other group of either side, matched or not, does it."""
    keys = [_Does(side) for side in sides]
    every = [Counter(key for group in does.side.groups for key in does.of(group)) for does in keys]
    theirs = {key: group for group in right for key in keys[1].of(group)}
    taken: set[_Key] = set()
    for one in left:
        for key, why in keys[0].of(one).items():
            other = theirs.get(key)
            if other is not None and other.key not in taken and every[0][key] == every[1][key] == 1:
                taken.add(other.key)
                yield one, other, MatchedBy.DOES, why
                break


class _Does(Struct, frozen=True):
    """Keys by which work of another name counts as the same, the surest first, with words for each.

    A category alone is not such a key.
    """

    side: DifferenceSide

    def of(self, group: Group) -> dict[object, str]:
        # Part of every key: work that is done more or less often is not taken for the same.
        calls = Fraction(group.calls, self.side.steps)
        results: dict[object, str] = {}
        if group.product is not None:
            results["product", group.product, calls] = (
                f"both multiply {group.product}, equally often, and nothing else does"
            )
        if group.operator is not None:
            # "aten::add_" and "custom::add_1" are both "add".
            plain = _NUMBERED.sub("", group.operator.rpartition("::")[2].strip("_"))
            results["name", plain, group.shapes, calls] = "their names differ in underscores or a number only"
            for name in group.kernels if not self.side.on_host and len(group.kernels) == 1 else ():
                results["kernel", name, group.shapes, calls] = "both launch the same kernel with the same inputs"
        if group.category in _DEFINITE and group.shapes:
            words = f"both are {group.category} of the same inputs, equally often, and nothing else is"
            results["category", group.category, group.shapes, calls] = words
        return results
