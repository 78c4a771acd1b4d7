"""Which work changed: groups of calls of both sides matched with each other, and the change of each taken apart."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final

import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.analysis.difference.exact import apportioned, per_step
from opscope.analysis.tables import UNLINKED
from opscope.analysis.timeline import NO_DEVICE
from opscope.documents.difference import KernelChange, Matched, WorkChange
from opscope.knowledge.categories import Category
from opscope.knowledge.kernels.kinds import kind_of
from opscope.knowledge.kernels.names import canonical

_MOST_PAIRS: Final = 250_000  # of groups of one operator that are looked at one by one
_LISTED_KERNELS: Final = 10
_ON_HOST: Final = "(host)"  # stands for the kernel where time is the host's
Key = tuple[str | None, str, str]


@dataclass(slots=True)
class Ran:
    """One kernel of a group: how often and how long it ran in all."""

    name: str
    count: int = 0
    total_ns: int = 0


@dataclass(slots=True)
class Group:
    """The calls of an operator with the same inputs, on one side.

    ``shapes`` and ``types`` are those of its tensors: what else a call records differs between versions of PyTorch.
    ``dims`` is as recorded, ``product`` has the sizes of the matrix product that a call is, ``kernels`` are by their
    names in one spelling.
    """

    operator: str | None
    dims: str | None
    shapes: str
    types: str
    category: str
    product: str | None = None
    calls: int = 0
    kernels: dict[str, Ran] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What an exact match has in common."""
        return self.operator, self.shapes, self.types

    @property
    def total_ns(self) -> int:
        """All its time."""
        return sum(ran.total_ns for ran in self.kernels.values())


@dataclass(frozen=True)
class Side:
    """The work of one side.

    Attributes:
        groups: the calls by operator and inputs.
        steps: how many steps they are of.
        clock_mhz: the lowest, the median and the highest clock of the multiprocessors; None where it is not known.
    """

    groups: tuple[Group, ...]
    steps: int
    clock_mhz: tuple[int, int, int] | None = None

    @cached_property
    def total(self) -> Fraction:
        """All their time, a step."""
        return per_step(sum(group.total_ns for group in self.groups), self.steps)

    @classmethod
    def of_device(
        cls, analysis: Analysis, device: int, steps: int, clock_mhz: tuple[int, int, int] | None = None
    ) -> "Side":
        """Group the activities of a device."""
        categories = dict(analysis.operators.select("name", "category").iter_rows())
        rows = analysis.launch_shapes.filter(pl.col("device").fill_null(NO_DEVICE) == device)
        groups: dict[Key, Group] = {}
        columns = ("operator", "input_dims", "input_types", "name", "calls", "operator_calls", "total_ns", "kind")
        counted: dict[Key, dict[tuple[object, ...], int]] = {}
        whole = ("operator", "input_dims", "input_types", "input_strides", "concrete_inputs", "kernel_file")
        for row, call in zip(rows.select(columns).iter_rows(), rows.select(whole).iter_rows(), strict=True):
            operator, dims, types, name, count, operator_calls, total, kind = row
            key = (operator, *_tensors(dims, types)) if operator is not None else (None, "", canonical(name))
            category = categories[operator] if operator is not None else _category(name, kind)
            group = groups.setdefault(key, Group(operator, dims, key[1], key[2], category))
            ran = group.kernels.setdefault(canonical(name), Ran(name))
            ran.count, ran.total_ns = ran.count + count, ran.total_ns + total
            # Of calls that differ in strides or other arguments only, each combination has a number of its own.
            counted.setdefault(key, {})[call if operator is not None else ()] = operator_calls
        products = {(row.operator, *_tensors(row.input_dims, row.input_types)): row.product for row in analysis.limits}
        for key, group in groups.items():
            group.product = product.text if (product := products.get(key)) is not None else None
            group.calls = sum(counted[key].values()) if group.operator else sum(r.count for r in group.kernels.values())
        return cls(tuple(groups.values()), steps, clock_mhz)

    @classmethod
    def of_host(cls, analysis: Analysis, steps: int) -> "Side":
        """Group the operators' own time on the host."""
        categories = dict(analysis.operators.select("name", "category").iter_rows())
        columns = ("name", "input_dims", "input_types", "calls", "self_cpu_ns")
        groups: dict[Key, Group] = {}
        for name, dims, types, calls, own in analysis.shapes.select(columns).iter_rows():
            key = (name, *_tensors(dims, types))
            group = groups.setdefault(key, Group(name, dims, key[1], key[2], categories[name]))
            ran = group.kernels.setdefault(_ON_HOST, Ran(_ON_HOST))
            ran.count, ran.total_ns, group.calls = ran.count + calls, ran.total_ns + own, group.calls + calls
        return cls(tuple(groups.values()), steps)


def _tensors(dims: str | None, types: str | None) -> tuple[str, str]:
    """Return the shapes and the data types of those inputs that have a shape, as text; empty where not recorded."""
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
    found = kind_of(name)
    return UNLINKED if found is None else str(found.category)


@dataclass(frozen=True)
class Change:
    """Two groups that were matched with each other; one of them may be missing. Exact times of a step."""

    before: Group | None
    after: Group | None
    matched: Matched
    why: str | None
    sides: tuple[Side, Side]

    @cached_property
    def times(self) -> tuple[Fraction, Fraction]:
        """How long they took."""
        first, second = (
            per_step(group.total_ns, side.steps) if group else Fraction()
            for group, side in zip((self.before, self.after), self.sides, strict=True)
        )
        return first, second

    @property
    def change(self) -> Fraction:
        """The difference."""
        return self.times[1] - self.times[0]

    @cached_property
    def calls(self) -> tuple[Fraction, Fraction]:
        """How many calls there are."""
        first, second = (
            Fraction(group.calls, side.steps) if group else Fraction()
            for group, side in zip((self.before, self.after), self.sides, strict=True)
        )
        return first, second

    def _parts(self) -> tuple[Fraction, Fraction, Fraction, Fraction, Fraction]:
        """Return the change by calls, inputs, other kernels, the same kernels, and clocks."""
        none = Fraction()
        if self.before is None or self.after is None or not self.before.calls or not self.after.calls:
            return self.change, none, none, none, none
        (first, second), old = self.calls, self.times[0]
        by_calls = (second - first) * old / first
        if self.matched is Matched.INPUTS:
            return by_calls, self.change - by_calls, none, none, none
        same = sum((second * (self._of_call(name, 1) - self._of_call(name, 0)) for name in self._common), Fraction())
        clocks = self._clocks(same, first, second)
        return by_calls, none, self.change - by_calls - same, same - clocks, clocks

    @property
    def _common(self) -> list[str]:
        return (
            []
            if self.before is None or self.after is None
            else [k for k in self.before.kernels if k in self.after.kernels]
        )

    def _of_call(self, kernel: str, side: int) -> Fraction:
        """Return how long a kernel takes in one call."""
        group = (self.before, self.after)[side]
        assert group is not None
        return Fraction(group.kernels[kernel].total_ns, group.calls)

    def _clocks(self, same: Fraction, first: Fraction, second: Fraction) -> Fraction:
        """Return how much of the same kernels' change another clock explains at most.

        Only where the ranges of both clocks do not touch: kernels that wait for nothing but the multiprocessors take as
        much longer as the clock is lower. Others do not, so it is an upper bound.
        """
        clocks = [side.clock_mhz for side in self.sides]
        if clocks[0] is None or clocks[1] is None or not first:
            return Fraction()
        (low, one, high), (lowest, other, highest) = clocks[0], clocks[1]
        if not other or (low <= highest and lowest <= high):
            return Fraction()
        took = second * sum((self._of_call(name, 0) for name in self._common), Fraction())
        explained = took * (Fraction(one, other) - 1)
        if explained * same <= 0:
            return Fraction()
        return min(explained, same) if same > 0 else max(explained, same)

    def document(self, change_ns: int) -> WorkChange:
        """Return it in whole nanoseconds that add up to the change, which is rounded already."""
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
        """Yield the kernels of both sides, the most expensive first; none of time on the host."""
        sides: list[Mapping[str, Ran]] = [group.kernels if group else {} for group in (self.before, self.after)]
        time = {name: sum(side[name].total_ns for side in sides if name in side) for side in sides for name in side}
        for name in sorted(time, key=lambda name: (-time[name], name))[:_LISTED_KERNELS]:
            if name == _ON_HOST:
                return
            old, new = (side.get(name) for side in sides)
            yield KernelChange(
                before=None if old is None else old.name,
                after=None if new is None else new.name,
                calls_before=None if old is None else old.count / self.sides[0].steps,
                calls_after=None if new is None else new.count / self.sides[1].steps,
                mean_before_ns=None if old is None else old.total_ns / old.count,
                mean_after_ns=None if new is None else new.total_ns / new.count,
            )


_PARTS: Final = ("calls_ns", "inputs_ns", "kernel_changed_ns", "same_kernel_ns", "clocks_ns")


def work_changes(before: Side, after: Side) -> list[Change]:
    """Match the work of two sides: exactly, then by operator, then by what it does; the rest is on one side only."""
    sides = (before, after)
    left = {group.key: group for group in before.groups}
    right = {group.key: group for group in after.groups}
    found = [Change(left.pop(key), right.pop(key), Matched.SAME, None, sides) for key in list(left) if key in right]
    for match in (_with_other_inputs, _doing_the_same):
        for one, other, matched, why in match(list(left.values()), list(right.values()), sides):
            del left[one.key], right[other.key]
            found.append(Change(one, other, matched, why, sides))
    found += [Change(group, None, Matched.GONE, None, sides) for group in left.values()]
    found += [Change(None, group, Matched.NEW, None, sides) for group in right.values()]
    return found


_Match = tuple[Group, Group, Matched, str]


def _by(groups: Iterable[Group], key: Callable[[Group], object]) -> dict[object, list[Group]]:
    found: dict[object, list[Group]] = {}
    for group in groups:
        found.setdefault(key(group), []).append(group)
    return found


def _with_other_inputs(left: list[Group], right: list[Group], sides: tuple[Side, Side]) -> Iterator[_Match]:
    """Pair what is left of the same operator, the most alike first: as many calls, and as many equal sizes."""
    ours, theirs = (_by((g for g in groups if g.operator), lambda g: g.operator) for groups in (left, right))
    for operator in ours.keys() & theirs.keys():
        mine, others = ours[operator], theirs[operator]
        if len(mine) * len(others) > _MOST_PAIRS:
            continue
        alike = [(_likeness(one, other, sides), x, y) for x, one in enumerate(mine) for y, other in enumerate(others)]
        taken: tuple[set[int], set[int]] = (set(), set())
        for likeness, x, y in sorted(alike, key=lambda pair: pair[0], reverse=True):
            if x in taken[0] or y in taken[1] or likeness[0] < 0:
                continue
            taken[0].add(x)
            taken[1].add(y)
            one, other = mine[x], others[y]
            yield one, other, Matched.INPUTS, _other_inputs(one, other)


def _likeness(one: Group, other: Group, sides: tuple[Side, Side]) -> tuple[int, bool, int]:
    """Return how alike inputs are; below 0 where their numbers of dimensions differ: then nothing says they belong."""
    ours, theirs = (_sizes(group.dims) for group in (one, other))
    if ours is None or theirs is None:
        return 0, one.calls * sides[1].steps == other.calls * sides[0].steps, 0
    ours, theirs = ([shape for shape in shapes if shape] for shapes in (ours, theirs))
    if [len(shape) for shape in ours] != [len(shape) for shape in theirs]:
        return -1, False, 0
    equal = sum(a == b for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))
    return int(one.types == other.types), one.calls * sides[1].steps == other.calls * sides[0].steps, equal


def _sizes(dims: str | None) -> list[list[object]] | None:
    """Return the shapes of the inputs; None where they were not recorded, or are lists of lists."""
    try:
        found = json.loads(dims) if dims else None
    except ValueError:
        return None
    if not isinstance(found, list) or not all(isinstance(shape, list) for shape in found):
        return None
    return found


def _other_inputs(one: Group, other: Group) -> str:
    if one.shapes == other.shapes:
        return "the same shapes with other data types"
    return "the inputs have other sizes" if one.types == other.types else "the inputs have other sizes and data types"


def _doing_the_same(left: list[Group], right: list[Group], sides: tuple[Side, Side]) -> Iterator[_Match]:
    """Pair work under other names where one on each side alone does that: category, inputs and calls are the same."""

    def does(side: Side) -> Callable[[Group], object]:
        def key(group: Group) -> object:
            calls = Fraction(group.calls, side.steps)
            if group.product is not None:
                return group.product, calls
            return group.operator is None, group.category, group.shapes if group.operator else None, calls

        return key

    ours, theirs = _by(left, does(sides[0])), _by(right, does(sides[1]))
    for key in ours.keys() & theirs.keys():
        if len(ours[key]) == 1 and len(theirs[key]) == 1:
            one, other = ours[key][0], theirs[key][0]
            if (why := _why_the_same(one, other)) is not None:
                yield one, other, Matched.DOES, why


def _why_the_same(one: Group, other: Group) -> str | None:
    """Say what makes two groups the same work, being the only ones of their kind; None where too little does."""
    if one.product is not None:
        return f"both multiply {one.product}, equally often, and no others do"
    if one.category in (str(Category.OTHER), UNLINKED) or (one.operator is None and not _alike(one, other)):
        return None
    shared = "calls" if one.operator is None or _sizes(one.dims) is None else "inputs and calls"
    return f"both are {one.category} with the same {shared}, and no others are"


def _alike(one: Group, other: Group) -> bool:
    """Tell of kernels without operators whether their names say that they do the same."""
    kinds = Counter(
        kind.words
        for group in (one, other)
        for ran in group.kernels.values()
        if (kind := kind_of(ran.name)) is not None
    )
    return any(count > 1 for count in kinds.values())
