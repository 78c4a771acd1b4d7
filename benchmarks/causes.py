"""Small programs with a built-in cause of idle time: does the analysis of their traces name it?

    python benchmarks/causes.py OUTPUT_FOLDER

Needs an NVIDIA GPU and PyTorch. Profiles five steps of each program, keeps the trace, and writes ``causes.json`` with
the largest cause of idle time, the longest gap, and what was expected. A program that keeps the device busy has none.
"""

import argparse
import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.idle.idle import LAUNCH_BOUND_CAUSES, IdleCause
from opscope.readers.reading import read

STEPS = 5
DEVICE = "cuda"
BUSY = "busy"  # expected of programs that keep the device busy for more than 80 % of the window

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Program:
    """A step, and why the device idles in it."""

    make: Callable[[], Step]
    expected: str
    call: str | None = None
    place: str | None = None


def tensors(size: int, count: int = 4) -> list[torch.Tensor]:
    return [torch.randn(size, size, device=DEVICE) for _ in range(count)]


def products(size: int, times: int) -> Step:
    a, b, *_ = tensors(size)

    def step() -> None:
        for _ in range(times):
            torch.mm(a, b)

    return step


def small_kernels() -> Step:
    a, *_ = tensors(64)

    def step() -> None:
        x = a
        for _ in range(300):
            x = x + 1

    return step


def with_pause(pause: Callable[[], object]) -> Step:
    work = products(2048, 4)

    def step() -> None:
        work()
        torch.cuda.synchronize()
        pause()
        work()

    return step


def sleeping() -> Step:
    return with_pause(lambda: time.sleep(0.02))


def counting() -> Step:
    def count() -> int:
        total = 0
        for number in range(400_000):
            total += number * number
        return total

    return with_pause(count)


def preprocessing() -> Step:
    images = torch.rand(64, 3, 224, 224)
    return with_pause(lambda: [torch.flip(image, [2]).mul_(0.5).add_(0.1).std() for image in images])


def host_sort() -> Step:
    values = torch.rand(2_000_000)
    return with_pause(values.sort)


def reading_items() -> Step:
    a, b, *_ = tensors(1024)

    def step() -> float:
        total = 0.0
        for _ in range(50):
            total += torch.mm(a, b)[0, 0].item()
        return total

    return step


def pageable_copies() -> Step:
    host = torch.rand(16, 1024, 1024)
    a, b, *_ = tensors(1024)

    def step() -> None:
        for _ in range(3):
            torch.mm(host.to(DEVICE)[0], b)
            torch.mm(a, b)

    return step


def allocating() -> Step:
    work = products(1024, 2)

    def step() -> None:
        for _ in range(10):
            work()
            torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
            torch.cuda.empty_cache()

    return step


def pinning() -> Step:
    work = products(1024, 2)
    sizes = iter(range(1, 1_000))

    def step() -> None:
        for _ in range(4):
            work()
            torch.cuda.synchronize()
            torch.empty((64 << 20) + (next(sizes) << 12), dtype=torch.uint8).pin_memory()

    return step


def waiting_for_another_thread() -> Step:
    def wait() -> None:
        thread = threading.Thread(target=time.sleep, args=(0.015,))
        thread.start()
        thread.join()

    return with_pause(wait)


def loading_data() -> Step:
    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.004)
            return torch.zeros(8)

    batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=4))
    work = products(2048, 4)

    def step() -> None:
        next(batches).to(DEVICE)
        work()

    return step


def training() -> Step:
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model, data = torch.nn.Sequential(*layers).to(DEVICE), torch.randn(32, 64, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def large_training() -> Step:
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).to(DEVICE)
    data = torch.randn(4096, 4096, device=DEVICE)

    def step() -> None:
        model(data).square().mean().backward()

    return step


def graph_replays() -> Step:
    a, b, *_ = tensors(2048)
    graph = torch.cuda.CUDAGraph()
    torch.mm(a, b)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(40):
            torch.mm(a, b)
    return graph.replay


PROGRAMS = {
    "large_products": Program(lambda: products(8192, 6), BUSY),
    "large_training": Program(large_training, BUSY),
    "graph_replays": Program(graph_replays, BUSY),
    "small_kernels": Program(small_kernels, IdleCause.DISPATCH),
    "small_training": Program(training, IdleCause.DISPATCH),
    "sleeping": Program(sleeping, IdleCause.HOST_WORK, place="causes.py"),
    "counting": Program(counting, IdleCause.HOST_WORK, place="causes.py"),
    "preprocessing": Program(preprocessing, IdleCause.HOST_WORK, place="causes.py"),
    "host_sort": Program(host_sort, IdleCause.HOST_WORK, place="causes.py"),
    "loading_data": Program(loading_data, IdleCause.HOST_WORK, place="DataLoader"),
    # Every read empties the queue, and then the device waits for the next launches to be issued.
    "reading_items": Program(reading_items, IdleCause.DISPATCH),
    # The record of a copy of pageable memory spans the host's part of it: the device is not idle, but copies.
    "pageable_copies": Program(pageable_copies, BUSY),
    # The profiler records no call that pins, and most of the time is the host's copy into what was pinned.
    "pinning": Program(pinning, IdleCause.HOST_WORK, place="aten::copy_"),
    "waiting_for_another_thread": Program(waiting_for_another_thread, IdleCause.HOST_WORK, place="causes.py"),
    "allocating": Program(allocating, IdleCause.BLOCKING),
}


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of a program."""

    program: str
    expected: str
    found: str
    right: bool
    busy_share: float
    idle_by_cause_ns: dict[str, int]
    longest_gap: dict[str, object] | None


def captured(step: Step, path: Path) -> None:
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=2, active=STEPS),
        with_stack=True,
        record_shapes=True,
    ) as profiler:
        for _ in range(3 + STEPS):
            step()
            torch.cuda.synchronize()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def judged(name: str, program: Program, analysis: Analysis) -> Result:
    (device,) = analysis.devices
    share = device.busy_in_window_ns / device.window.duration_ns
    causes = {str(cause): time for cause, time in device.idle.by_cause().items() if time}
    found = BUSY if share > 0.8 else str(analysis.bound.idle_cause)
    if found in LAUNCH_BOUND_CAUSES:  # how much of it is the one or the other says little
        found = str(IdleCause.DISPATCH)
    gap = analysis.gaps[0] if analysis.gaps else None
    right = found == program.expected
    if gap is not None and right and found != BUSY:
        places = f"{gap.operator} {gap.annotation} {gap.python}"
        right = (program.call or "") in (gap.call or "") and (program.place or "") in places
    return Result(name, program.expected, found, right, share, causes, None if gap is None else asdict(gap))


def results(folder: Path) -> Iterator[Result]:
    for name, program in PROGRAMS.items():
        path = folder / f"{name}.json.gz"
        step = program.make()
        step()
        captured(step, path)
        result = judged(name, program, analyze(read(path)))
        print(f"{'ok ' if result.right else 'BAD'} {name}: {result.found} (expected {result.expected})", flush=True)
        yield result
        del step
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    found = [asdict(result) for result in results(folder)]
    document = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "programs": found,
    }
    (folder / "causes.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
