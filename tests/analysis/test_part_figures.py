"""Parts of traces: every figure of a step is the same in a part as in the whole trace."""

import random
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import asdict

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.idle.timeline import DeviceTimeline, busy_parts
from opscope.analysis.part import Part, read_part
from opscope.analysis.structure.arrays import Intervals
from opscope.analysis.structure.step_work import step_table
from opscope.documents.verdict import BoundKind
from opscope.readers import unpacked
from opscope.readers.native import library as native
from opscope.readers.reading import read
from tests.budget import chance, examples
from tests.conftest import DATA
from tests.kineto import KinetoTrace

RECORDED = sorted(
    path.relative_to(DATA)
    for folder in ("traces", "foreign", "causes")
    for path in (DATA / folder).iterdir()
    if path.name.endswith((".json.gz", ".json.xz"))
)


def of_steps(analysis: Analysis) -> dict[tuple[Any, ...], Any]:
    """All figures of each step and device, by when the step began on the host, its thread, and the device."""
    begun = step_table(analysis.trace)["start_ns"].to_list()
    threads = [analysis.trace.threads[thread] for thread in step_table(analysis.trace)["thread"]]
    lines = {line.device: line for line in analysis.devices}
    found = {}
    for step in analysis.steps:
        figures: dict[str, Any] = asdict(step)
        row = figures.pop("index")
        if step.device is not None:
            line = lines[step.device]
            period = Intervals(line.steps.start[row : row + 1], line.steps.end[row : row + 1])
            figures |= {"begin": int(period.start[0]), "kind": line.window.kind}
            figures["causes"] = line.idle.within(period).by_cause()
        found[begun[row], threads[row], step.device] = figures
    return found


def of_device(line: DeviceTimeline) -> dict[str, Any]:
    return {
        "window": line.window.duration_ns,
        "busy": line.busy_in_window_ns,
        "compute": line.compute_ns,
        "communication": line.exposed_communication_ns,
        "memcpy": line.exposed_memcpy_ns,
        "idle": line.idle_ns,
        "causes": line.idle.by_cause(),
    }


def within_steps(whole: Analysis, line: DeviceTimeline, rows: list[int]) -> dict[str, Any]:
    """What `of_device` would say of a whole trace's device if only some steps counted."""
    spans = Intervals.union_of(line.steps.start[rows], line.steps.end[rows])
    parts = busy_parts(whole.trace, line.device)
    busy, without, compute = (
        intervals.within(spans).length for intervals in (parts.busy, parts.without_memcpy, parts.compute)
    )
    return {
        "window": spans.length,
        "busy": busy,
        "compute": compute,
        "communication": without - compute,
        "memcpy": busy - without,
        "idle": spans.length - busy,
        "causes": line.idle.within(spans).by_cause(),
    }


def assert_same(whole: Analysis, path: Path, part: Part) -> None:
    found = analyze(read_part(path, part))
    every, mine = of_steps(whole), of_steps(found)
    if not mine:
        assert part.steps is None  # no step begins in that time
        return
    table = step_table(whole.trace)
    begun = set(step_table(found.trace)["start_ns"])
    if part.steps is not None:
        assert begun == set(table.filter(table["step"].is_between(*part.steps))["start_ns"])
    assert mine == {key: figures for key, figures in every.items() if key[0] in begun}
    rows = [row for row, start in enumerate(table["start_ns"]) if start in begun]
    assert [line.device for line in found.devices] == [line.device for line in whole.devices]
    for line, other in zip(found.devices, whole.devices, strict=True):
        assert of_device(line) == within_steps(whole, other, rows)
    # What names calls and records refers to those of the part.
    assert all(line.idle.call.max(initial=-1) < found.trace.launches.height for line in found.devices)
    assert found.gaps is not None
    assert found.bound.sentence


def parts_of(whole: Analysis, path: Path, some: random.Random) -> list[Part]:
    numbers = step_table(whole.trace)["step"].to_list()
    first = some.choice(numbers)
    chosen = [Part(steps=(first, first)), Part(steps=(first, first + some.randrange(4)))]
    begin = step_table(read(path))["start_ns"].min()
    length = int(step_table(whole.trace)["end_ns"].max()) - int(begin)  # type: ignore[call-overload, arg-type]
    times = sorted(some.randrange(max(length, 2)) for _ in range(2))
    return [*chosen, Part(time_ns=(times[0], times[1] + 1))]


@pytest.mark.parametrize("name", RECORDED, ids=lambda name: name.name.partition(".")[0])
def test_steps_of_recorded_traces_have_the_figures_of_the_whole(name: Path) -> None:
    path = DATA / name
    whole = analyze(read(path), as_marked=True)
    if not whole.steps:
        pytest.skip("it marks no steps")
    for part in parts_of(whole, path, chance(name)):
        assert_same(whole, path, part)


def test_a_part_of_a_replayed_graph_has_the_verdict_of_its_steps() -> None:
    path = DATA / "traces" / "cudagraph_replay.json.gz"
    assert analyze(read(path)).bound.kind is BoundKind.DEVICE
    (step,) = analyze(read_part(path, Part(steps=(3, 3)))).steps
    assert step.span_ns == 84_895
    assert analyze(read_part(path, Part(steps=(3, 3)))).bound.kind is BoundKind.DEVICE


CALLS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMalloc", "cudaDeviceSynchronize", "cudaStreamSynchronize")
KERNELS = ("gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "elementwise", "Memcpy HtoD (Pageable -> Device)")


def made(some: random.Random) -> KinetoTrace:
    """Steps whose host waits for devices, or runs ahead of them, with pauses, loading and other threads."""
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    devices, threads = some.choice(((0,), (0,), (0, 1))), some.choice(((100,), (100, 200)))
    free = {(device, stream): 0 for device in devices for stream in (7, 20)}
    now, number = some.randrange(5_000_000), some.randrange(3)
    ahead = some.random() < 0.6
    for _ in range(some.randrange(1, 9)):
        begin = now
        for _ in range(some.randrange(6)):
            now += some.choice((3_000, 20_000, 200_000, 600_000, 1_500_000))
            work_on(trace, some, now, free, threads)
        if some.random() < 0.2:
            trace.annotation("enumerate(DataLoader)#_next", now, some.randrange(2_000_000))
        if not ahead:
            done = max(free.values())
            if done > now:
                trace.launch(now, done - now, name="cudaDeviceSynchronize")
                now = done + 5_000
        now += 10_000
        trace.annotation(f"ProfilerStep#{number}", begin, now - begin, tid=some.choice(threads))
        now += some.choice((0, 1_000, 100_000, 8_000_000))
        number = 0 if some.random() < 0.1 else number + 1
    if some.random() < 0.5:
        trace.operator("aten::whole", some.randrange(1_000_000), now, tid=some.choice(threads))
    for _ in range(some.randrange(4)):
        kind = some.choice((("overhead", "Activity Buffer Request"), ("overhead", "Lazy Function Loading"),
                            ("python_function", "torch/utils/data/dataloader.py(1): __next__"),
                            ("cuda_runtime", "cudaMalloc"), ("cpu_op", "aten::odd")))  # fmt: skip
        duration = some.choice((-5, 10_000, 3_000_000, 1 << 60 if kind[0] == "cpu_op" else 500_000))
        trace.slice(*kind, some.randrange(now + 1), duration, tid=some.choice(threads), correlation=10_000)
    return trace


def work_on(
    trace: KinetoTrace, some: random.Random, now: int, free: dict[tuple[int, int], int], threads: tuple[int, ...]
) -> None:
    thread, (device, stream) = some.choice(threads), some.choice(list(free))
    trace.operator("aten::mm", now - 2_000, some.choice((8_000, 400_000)), tid=thread)
    call = trace.launch(now, some.choice((2_000, 2_000, 500_000)), name=some.choice(CALLS), tid=thread)
    begins = max(free[device, stream], now + some.choice((1_000, 30_000, 900_000)))
    duration = some.choice((1_000, 50_000, 700_000, 3_000_000))
    name = some.choice(KERNELS)
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    known = None if some.random() < 0.05 else call
    trace.kernel(name, begins, duration, known, device=device, stream=stream, category=category)
    free[device, stream] = begins + duration + some.choice((0, 2_000))


@pytest.mark.parametrize("compiled", [True, False])
def test_steps_of_any_trace_have_the_figures_of_the_whole(tmp_path: Path, compiled: bool) -> None:
    if compiled and native.load_kineto() is None:
        pytest.skip("the compiled reader is not there")
    for number in range(examples(10)):
        some = chance("parts", compiled, number)
        path = made(some).write(tmp_path / f"{number}.json")
        with mock.patch.object(unpacked, "NEAR_NS", some.choice((3_000_000, 200_000_000))):
            whole = analyze(read(path), as_marked=True)
            for part in parts_of(whole, path, some):
                if compiled:
                    assert_same(whole, path, part)
                else:
                    with mock.patch.object(native, "load_kineto", return_value=None):
                        assert_same(whole, path, part)


def test_time_that_cuts_a_step_has_the_figures_of_all_of_it(tmp_path: Path) -> None:
    built = KinetoTrace()
    for number in range(4):
        begin = number * 1_000_000
        built.step(number, begin, 1_000_000)
        built.launched_kernel("early", (begin + 100_000, 10_000), (begin + 150_000, 50_000))
        built.launched_kernel("late", (begin + 800_000, 10_000), (begin + 850_000, 100_000))
    path = built.write(tmp_path / "t.json")
    found = analyze(read_part(path, Part(time_ns=(900_000, 1_500_000))))
    (step,) = found.steps
    assert (step.number, step.span_ns, step.busy_ns, step.activities) == (1, 1_000_000, 150_000, 2)
    assert found.trace.activities["name"].to_list() == ["early"]
    assert np.array_equal(found.devices[0].steps.start, [1_000_000])
