"""The causes of idle time against a slow, obvious reference that looks at every nanosecond by itself."""

import itertools
from collections import Counter
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.idle import causes, host_time, idle
from opscope.readers.reading import read
from tests.budget import examples
from tests.kineto import KinetoTrace

PAUSE, LULL, QUEUED = 7, 25, 4  # instead of 100 us, 1 ms and 5 us
TIME, LENGTH, THREAD = st.integers(0, 150), st.integers(1, 40), st.sampled_from([100, 200])
CALLS = ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "cudaMemcpyAsync", "cudaEventQuery"]


def rows(table: Any) -> list[dict[str, Any]]:
    """Return a table's rows, each with its end."""
    return [{**row, "end": row["start_ns"] + row["duration_ns"]} for row in table.iter_rows(named=True)]


class Reference:
    """What is known of a trace, looked at again for every question."""

    def __init__(self, analysis: Analysis) -> None:
        trace = analysis.trace
        self.calls, self.operators, self.activities = map(rows, (trace.launches, trace.operators, trace.activities))
        self.launch = analysis.links.activity_launch.tolist()
        self.operator = analysis.links.launch_operator.tolist()
        both = [*self.calls, *self.operators, *self.activities]
        self.begin, self.end = min(row["start_ns"] for row in both), max(row["end"] for row in both)

    def waits(self, number: int) -> bool:
        pageable = any(
            launch == number and "Pageable" in activity["name"]
            for launch, activity in zip(self.launch, self.activities, strict=True)
        )
        return pageable or self.calls[number]["name"] in ("cudaStreamSynchronize", "cudaMalloc")

    def outermost(self, thread: int) -> list[tuple[int, int, int]]:
        """Calls of a thread that begin when no other is under way: start, end, number."""
        found: list[tuple[int, int, int]] = []
        mine = [(row["start_ns"], -row["end"], n) for n, row in enumerate(self.calls) if row["thread"] == thread]
        reach = None
        for start, end, number in sorted(mine):
            if reach is None or start >= reach:
                found.append((start, -end, number))
            reach = max(reach or -end, -end)
        return found

    def works(self, thread: int) -> list[tuple[int, int]]:
        """Stretches in which a thread issued nothing."""
        calls = self.outermost(thread)
        moments = {self.begin, self.end, *(time for start, end, _ in calls for time in (start, end))}
        moments |= {row[key] for row in self.operators if row["thread"] == thread for key in ("start_ns", "end")}
        times = sorted(moments)
        quiet = {t for low, high in itertools.pairwise(times) if high - low > PAUSE for t in range(low, high)}
        issued: set[int] = set()
        for number, call in enumerate(self.calls):
            if call["name"] in ("cudaLaunchKernel", "cudaMemcpyAsync"):
                low, high = call["start_ns"], call["end"]
                if (operator := self.operator[number]) >= 0:
                    low = min(low, self.operators[operator]["start_ns"])
                    high = max(high, self.operators[operator]["end"])
                issued |= set(range(low, high))
        quiet |= {t for low, high in runs(set(range(self.begin, self.end)) - issued) if high - low > LULL
                  for t in range(low, high)}  # fmt: skip
        blocked = {t for start, end, number in calls if self.blocks(number) for t in range(start, end)}
        return runs(quiet - blocked)

    def blocks(self, number: int) -> bool:
        return self.waits(number) or self.calls[number]["end"] - self.calls[number]["start_ns"] > PAUSE

    def cause(self, time: int, gap: tuple[int, int]) -> str:
        low, high = gap
        ended = [n for n, row in enumerate(self.activities) if row["start_ns"] == high]
        if not ended or (number := self.launch[ended[0]]) < 0:
            return "launch not recorded" if ended else "after the last activity"
        call = self.calls[number]
        if call["end"] <= low:
            return "between kernels" if high - low < QUEUED else "dependency"
        if time >= call["start_ns"]:
            inside = self.waits(number) or (self.blocks(number) and time < call["end"])
            return "blocking call" if inside else "launch latency"
        return self.cause_on_host(time, low, call)

    def cause_on_host(self, time: int, low: int, call: dict[str, Any]) -> str:
        """Return the cause before the call that ended a gap from ``low`` on."""
        before = [(row["end"], n) for n, row in enumerate(self.activities) if row["end"] <= low and self.launch[n] >= 0]
        thread, earlier, start = call["thread"], call["thread"], call["start_ns"]
        if before:
            latest = max(end for end, _ in before)
            earlier = self.calls[self.launch[[n for end, n in before if end == latest][-1]]]["thread"]
        begun = [t for t in range(low, start) if self.is_at_something(thread, t)]
        handed = low if thread == earlier else min([*begun, start])
        owner = earlier if time < handed else thread
        sits = [n for begin, end, n in self.outermost(owner) if begin <= time < end and self.blocks(n)]
        if sits:
            return "allocation" if self.calls[sits[0]]["name"] == "cudaMalloc" else "blocking call"
        for begin, end in self.works(owner):
            if begin <= time < end and (min(end, handed) if time < handed else end) - begin > PAUSE:
                # Where no operators were recorded, nothing tells what the host did in a short pause.
                return "host work" if self.operators else "dispatch"
        return "dispatch"

    def is_at_something(self, thread: int, time: int) -> bool:
        under_way = any(row["thread"] == thread and row["start_ns"] <= time < row["end"] for row in self.operators)
        return under_way or any(start <= time < end for start, end, _ in self.outermost(thread))


def runs(times: set[int]) -> list[tuple[int, int]]:
    """Return the stretches that some nanoseconds make up."""
    found: list[tuple[int, int]] = []
    for time in sorted(times):
        if found and found[-1][1] == time:
            found[-1] = (found[-1][0], time + 1)
        else:
            found.append((time, time + 1))
    return found


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(st.tuples(TIME, LENGTH, THREAD), max_size=6),
    st.lists(st.tuples(TIME, LENGTH, THREAD, st.sampled_from(CALLS)), max_size=6),
    st.lists(st.tuples(TIME, LENGTH, THREAD, TIME, st.integers(1, 15), st.booleans()), min_size=1, max_size=5),
)
def test_causes_equal_looking_at_every_nanosecond(
    tmp_path_factory: pytest.TempPathFactory,
    operators: list[tuple[int, int, int]],
    calls: list[tuple[int, int, int, str]],
    launches: list[tuple[int, int, int, int, int, bool]],
) -> None:
    trace = KinetoTrace()
    for start, length, thread in operators:
        trace.operator("aten::a", start, length, tid=thread)
    for start, length, thread, name in calls:
        trace.slice("cuda_runtime", name, start, length, tid=thread)
    for start, length, thread, delay, duration, pageable in launches:
        number = trace.launch(start, length, name="cudaMemcpyAsync" if pageable else "cudaLaunchKernel", tid=thread)
        name = "Memcpy HtoD (Pageable -> Device)" if pageable else "k"
        trace.kernel(name, start + 1 + delay % 60, duration, number, category="gpu_memcpy" if pageable else "kernel")
    with (
        mock.patch.multiple(host_time, PAUSE_NS=PAUSE, LULL_NS=LULL),
        mock.patch.object(idle, "PAUSE_NS", PAUSE),
        mock.patch.object(causes, "BETWEEN_KERNELS_NS", QUEUED),
    ):
        analysis = analyze(read(trace.write(tmp_path_factory.mktemp("t") / "t.json")))
    reference = Reference(analysis)
    (device,) = analysis.devices
    found = Counter({str(cause): time for cause, time in device.idle.by_cause().items() if time})
    busy = {t for row in reference.activities for t in range(row["start_ns"], row["end"])}
    gaps = runs(set(range(device.window.start_ns, device.window.end_ns)) - busy)
    assert found == Counter(reference.cause(time, gap) for gap in gaps for time in range(*gap))
