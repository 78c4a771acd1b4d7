"""The engine against a slow, obvious reference on random well-formed traces."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import Analysis, analyze
from opscope.readers.reading import read
from tests.budget import examples
from tests.kineto import KinetoTrace


@dataclass
class Slice:
    """An operator with what it contains, in nanoseconds."""

    name: str
    start: int
    end: int
    children: list["Slice"] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)  # durations of what it launched itself

    def device_total(self) -> int:
        return sum(self.kernels) + sum(child.device_total() for child in self.children)


NAMES = st.sampled_from(["aten::a", "aten::b", "aten::c"])
# A tree: (name, durations of its own kernels, children)
TREES = st.recursive(
    st.tuples(NAMES, st.lists(st.integers(1, 5_000), max_size=2), st.just([])),
    lambda inner: st.tuples(NAMES, st.lists(st.integers(1, 5_000), max_size=2), st.lists(inner, max_size=3)),
    max_leaves=8,
)


class Builder:
    """Lays trees out in time, one after the other on their thread, with every launch inside its operator."""

    def __init__(self) -> None:
        self.trace = KinetoTrace()
        self.device_time = 0

    def lay(self, tree: object, time: int, thread: int) -> tuple[Slice, int]:
        name, kernels, children = tree  # type: ignore[misc]
        made = Slice(name, time, 0, kernels=list(kernels))
        time += 10
        for duration in kernels:
            correlation = self.trace.launch(time, 20, tid=thread)
            self.device_time = max(self.device_time, time + 5)
            self.trace.kernel(f"k{duration % 3}", self.device_time, duration, correlation)
            self.device_time += duration
            time += 25
        for child in children:
            inner, time = self.lay(child, time, thread)
            made.children.append(inner)
        made.end = time + 10
        self.trace.operator(name, made.start, made.end - made.start, tid=thread)
        return made, made.end + 5


def expected(roots: list[Slice]) -> dict[str, tuple[int, int, int]]:
    """Return per name: calls, self device time, total device time. Walks every slice with its ancestors."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def walk(current: Slice, ancestors: tuple[str, ...]) -> None:
        row = found[current.name]
        row[0] += not (ancestors and ancestors[-1] == current.name)
        row[1] += sum(current.kernels)
        row[2] += 0 if current.name in ancestors else current.device_total()
        for child in current.children:
            walk(child, (*ancestors, current.name))

    for root in roots:
        walk(root, ())
    return {name: (row[0], row[1], row[2]) for name, row in found.items()}


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(TREES, st.sampled_from([100, 200, 300])), min_size=1, max_size=6), st.randoms())
def test_operator_rows_equal_a_walk_over_the_tree(
    tmp_path_factory: pytest.TempPathFactory, trees: list[tuple[object, int]], chance: object
) -> None:
    builder, clocks, roots = Builder(), dict.fromkeys((100, 200, 300), 0), []
    for tree, thread in trees:
        root, clocks[thread] = builder.lay(tree, clocks[thread], thread)
        roots.append(root)
    chance.shuffle(builder.trace.events)  # type: ignore[attr-defined]  # file order says nothing
    analysis = analyzed(builder.trace, tmp_path_factory)
    rows = analysis.operators.select("name", "calls", "self_device_ns", "total_device_ns").rows()
    assert {name: tuple(row) for name, *row in rows} == expected(roots)
    assert analysis.accounting.unlinked_activities == 0
    durations = [duration for root in roots for duration in all_kernels(root)]
    assert analysis.kernels["total_ns"].sum() == sum(durations)


def all_kernels(root: Slice) -> list[int]:
    return [*root.kernels, *(duration for child in root.children for duration in all_kernels(child))]


def analyzed(trace: KinetoTrace, factory: pytest.TempPathFactory) -> Analysis:
    return analyze(read(trace.write(factory.mktemp("t") / "t.json")), as_marked=True)


def rounded(event: dict[str, Any]) -> dict[str, Any]:
    """Round to whole microseconds, as PyTorch did up to 2.3: start and end each downwards."""
    start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
    return {**event, "ts": start // 1000, "dur": end // 1000 - start // 1000}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(st.integers(0, 1_500), min_size=1, max_size=6), min_size=1, max_size=6), st.integers(1, 900))
def test_rounded_times_lose_no_call(
    tmp_path_factory: pytest.TempPathFactory, trees: list[list[int]], pause: int
) -> None:
    trace, time, number = KinetoTrace(), 0, 0
    for children in trees:
        start, outer, number = time, number + 1, number + 1
        for duration in children:
            number += 1
            trace.operator("aten::empty", time + pause, duration, **{"External id": number})
            time += pause + duration
        time += pause
        trace.operator("aten::outer", start, time - start, **{"External id": outer})
    trace.events = [rounded(event) for event in trace.events]
    rows = analyzed(trace, tmp_path_factory).operators.select("name", "calls").rows()
    assert dict(rows) == {"aten::empty": sum(map(len, trees)), "aten::outer": len(trees)}


ACTIVITIES = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.integers(1, 60),
        st.integers(0, 1),
        st.sampled_from([7, 20]),
        st.sampled_from(["kernel", "ncclDevKernel_AllReduce", "gpu_memcpy", "gpu_memset"]),
    ),
    min_size=1,
    max_size=15,
)


@settings(max_examples=examples(150), deadline=None)
@given(ACTIVITIES, st.lists(st.integers(0, 250), min_size=2, max_size=6, unique=True))
def test_device_times_equal_counting_every_nanosecond(
    tmp_path_factory: pytest.TempPathFactory, activities: list[tuple[int, int, int, int, str]], edges: list[int]
) -> None:
    trace, steps = KinetoTrace(), sorted(edges)
    pairs = list(zip(steps[::2], steps[1::2], strict=False))
    for number, (low, high) in enumerate(pairs):
        trace.step(number, low, high - low)
    for start, duration, device, stream, kind in activities:
        category = kind if kind.startswith("gpu_") else "kernel"
        trace.kernel(kind, start, duration, device=device, stream=stream, category=category)
    analysis = analyzed(trace, tmp_path_factory)
    window = {time for low, high in pairs for time in range(low, high)}
    for timeline in analysis.devices:
        mine = [item for item in activities if item[2] == timeline.device]
        busy = covered(mine, lambda _: True)
        compute = covered(mine, lambda kind: kind in ("kernel", "gpu_memset")) & window
        communication = covered(mine, lambda kind: kind.startswith("nccl")) & window
        assert timeline.sum_ns == sum(duration for _, duration, *_ in mine)
        assert timeline.busy_ns == len(busy)
        assert timeline.outside_window_ns == len(busy - window)
        assert timeline.compute_ns == len(compute)
        assert timeline.exposed_communication_ns == len(communication - compute)
        assert timeline.exposed_memcpy_ns == len(busy & window) - len(compute | communication)
        assert timeline.idle_ns == len(window - busy)
        assert sum(timeline.idle.by_cause().values()) == timeline.idle_ns


def covered(activities: list[tuple[int, int, int, int, str]], wanted: Callable[[str], bool]) -> set[int]:
    """Return every nanosecond in which an activity of a wanted kind ran."""
    return {
        time for start, duration, _, _, kind in activities if wanted(kind) for time in range(start, start + duration)
    }


def test_the_reference_itself_counts_a_known_tree() -> None:
    tree = Slice("a", 0, 9, [Slice("a", 1, 5, [Slice("b", 2, 3, kernels=[7])], [5])], [3])
    assert expected([tree]) == {"a": (1, 8, 15), "b": (1, 7, 7)}
