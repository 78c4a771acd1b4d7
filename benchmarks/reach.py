"""What well-chosen kernels reach on this GPU: shares of the datasheet's limit by size, gaps of graphs, copies, Adam.

    python benchmarks/reach.py OUTPUT.json    # on an NVIDIA GPU, about two minutes

These are the replays' assumptions: how long work takes once a finding's change is made. `tools/build_reach.py` makes
src/opscope/knowledge/data/reach.toml of such files. A size is given by the time that the limit allows (``ideal_ns``),
which compares between devices. Every time is a median of launches in one CUDA graph, over inputs that take turns, so
that no launch finds its inputs in the cache because the one before had the same.
"""

import argparse
import datetime
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn import functional

from opscope.knowledge.devices import datasheet_peaks, device_called

Call = Callable[[], object]
BF16, FP32 = torch.bfloat16, torch.float32
CACHE = 200 << 20  # bytes: more than any cache, so that inputs that take turns are read from memory


def graph_ns(calls: list[Call]) -> float:
    """Return the time of one call in nanoseconds: the median of replays of all of them, divided by their number."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e6)
    return statistics.median(times) / len(calls)


def repeated(make: Callable[[], Call], size: int) -> list[Call]:
    """Return calls over inputs that together exceed the cache, at least eight."""
    made = [make() for _ in range(max(1, min(8, CACHE // max(size, 1) + 1)))]
    return [made[index % len(made)] for index in range(max(8, len(made)))]


class Reach:
    """Measures calls against the limits of a device's datasheet."""

    def __init__(self) -> None:
        name = torch.cuda.get_device_name()
        device = device_called(name, torch.cuda.get_device_properties(0).multi_processor_count)
        assert device is not None, f"no datasheet of {name}"
        self.peaks = datasheet_peaks(device)
        self.rows: list[dict[str, object]] = []

    def add(
        self,
        kind: str,
        what: str,
        precision: str | None,
        flop: float,
        moved: float,
        make: Callable[[], Call],
        *,
        memory: bool = True,
    ) -> None:
        """Measure one kind of call, and keep which share of its limit it reaches."""
        rate = self.peaks.rates[precision] if precision else None
        compute = flop / rate * 1e9 if rate else 0.0
        limit = max(compute, moved / self.peaks.memory_bytes_per_s * 1e9 if memory else 0.0)
        took = graph_ns(repeated(make, int(moved)))
        self.rows.append({"kind": kind, "what": what, "ideal_ns": limit, "took_ns": took, "share": limit / took})
        gc.collect()
        torch.cuda.empty_cache()


SHAPES = (
    *((size, size, size) for size in (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)),
    *((rows, 1024, 4096) for rows in (16, 128, 512, 2048, 8192)),
    *((rows, 4096, 4096) for rows in (1, 16, 64, 256, 1024, 4096)),
    *((rows, 4096, 1024) for rows in (32, 128, 512, 2048)),
    *((8192, 2048, 50304), (4096, 768, 3072), (4096, 3072, 768), (1024, 768, 768), (256, 256, 256), (16384, 512, 512)),
)


def products(reach: Reach) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    for kind, dtype, precision, width in (("product_tf32", FP32, "tf32", 4), ("product_16", BF16, "bf16", 2)):
        for rows, depth, columns in SHAPES:

            def make(rows: int = rows, depth: int = depth, columns: int = columns, dtype: torch.dtype = dtype) -> Call:
                x, w = (torch.randn(*size, device="cuda", dtype=dtype) for size in ((rows, depth), (depth, columns)))
                out = torch.empty(rows, columns, device="cuda", dtype=dtype)
                return lambda: torch.mm(x, w, out=out)

            moved = width * (rows * depth + depth * columns + rows * columns)
            reach.add(kind, f"{rows}x{depth}x{columns}", precision, 2 * rows * depth * columns, moved, make)


def convolutions(reach: Reach) -> None:
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False
    for kind, dtype, precision, width in (("convolution_tf32", FP32, "tf32", 4), ("convolution_16", BF16, "bf16", 2)):
        for batch, channels, side, kernel in (
            *(
                (32, 64, 56, 3),
                (32, 128, 28, 3),
                (32, 256, 14, 3),
                (32, 512, 7, 3),
                (64, 128, 56, 3),
                (128, 256, 32, 3),
            ),
            *((32, 256, 56, 1), (64, 512, 28, 3), (8, 128, 28, 3), (256, 512, 28, 3), (64, 1024, 14, 1)),
        ):

            def make(
                batch: int = batch,
                channels: int = channels,
                side: int = side,
                kernel: int = kernel,
                dtype: torch.dtype = dtype,
            ) -> Call:
                x = torch.randn(batch, channels, side, side, device="cuda", dtype=dtype)
                w = torch.randn(channels, channels, kernel, kernel, device="cuda", dtype=dtype)
                x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
                return lambda: functional.conv2d(x, w, padding=kernel // 2)

            pixels = batch * side * side
            flop = 2 * pixels * channels * channels * kernel**2
            moved = width * (2 * pixels * channels + channels * channels * kernel**2)
            reach.add(kind, f"{batch}x{channels}x{side} k{kernel}", precision, flop, moved, make)


def attention(reach: Reach) -> None:
    for batch, heads, length, depth in (
        *(
            (4, 16, 512, 64),
            (8, 12, 128, 64),
            (8, 12, 512, 64),
            (4, 16, 1024, 64),
            (4, 16, 2048, 64),
            (4, 16, 4096, 64),
        ),
        *(
            (2, 8, 1024, 128),
            (4, 16, 2048, 128),
            (2, 32, 4096, 128),
            (16, 8, 256, 64),
            (1, 8, 1024, 64),
            (32, 16, 197, 64),
        ),
    ):
        for backward in (False, True):

            def make(
                batch: int = batch,
                heads: int = heads,
                length: int = length,
                depth: int = depth,
                backward: bool = backward,
            ) -> Call:
                q, k, v = (
                    torch.randn(batch, heads, length, depth, device="cuda", dtype=BF16, requires_grad=backward)
                    for _ in range(3)
                )
                given = torch.randn_like(q)

                def call() -> object:
                    out = functional.scaled_dot_product_attention(q, k, v)
                    return torch.autograd.grad(out, (q, k, v), given) if backward else out

                return call

            # The written-out form has two products forward and four backward; fused kernels make one of them again.
            flop = 4 * batch * heads * length * length * depth * (3 if backward else 1)
            kind = "attention_training" if backward else "attention"
            moved = 2 * batch * heads * length * depth * (12 if backward else 4)
            reach.add(kind, f"{batch}x{heads}x{length}x{depth}", "bf16", flop, moved, make, memory=False)


def passes(reach: Reach) -> None:
    @torch.compile
    def one_pass(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh") * y + 0.5

    @torch.compile
    def normalized(x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return functional.gelu(centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5))

    for exponent in range(16, 30):
        size = 1 << exponent
        for dtype, width in ((BF16, 2), (FP32, 4)):
            if size * width > 1 << 30:
                continue

            def flat(size: int = size, dtype: torch.dtype = dtype) -> Call:
                x, y = (torch.randn(size, device="cuda", dtype=dtype) for _ in range(2))
                return lambda: one_pass(x, y)

            def rows(size: int = size, dtype: torch.dtype = dtype) -> Call:
                x = torch.randn(size // 1024, 1024, device="cuda", dtype=dtype)
                return lambda: normalized(x)

            reach.add("one_pass", f"flat {size} {dtype}", None, 0, 3 * width * size, flat)
            reach.add("one_pass", f"rows {size} {dtype}", None, 0, 2 * width * size, rows)


def optimizers(reach: Reach) -> list[dict[str, object]]:
    """Measure fused Adam: its share of the limit (seven passes over the parameters), and the host's time in a step."""
    found: list[dict[str, object]] = []
    for count, size in ((16, 1 << 24), (48, 1 << 16), (150, 1 << 20), (400, 1 << 18), (64, 1 << 22), (10, 1 << 26)):
        for name, kind in (("AdamW", torch.optim.AdamW), ("SGD", torch.optim.SGD)):
            parameters = [torch.randn(size, device="cuda", requires_grad=True) for _ in range(count)]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer = kind(parameters, 1e-4, fused=True)
            for _ in range(3):
                optimizer.step()
            torch.cuda.synchronize()
            host, device = [], []
            for _ in range(9):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(40_000_000)  # the host is done before the device begins
                begun = time.perf_counter_ns()
                begin.record()
                optimizer.step()
                end.record()
                host.append(time.perf_counter_ns() - begun)
                torch.cuda.synchronize()
                device.append(begin.elapsed_time(end) * 1e6)
            moved = 4 * count * size * (7 if name == "AdamW" else 3)
            limit, took = moved / reach.peaks.memory_bytes_per_s * 1e9, statistics.median(device)
            reach.rows.append(
                {
                    "kind": "fused_optimizer",
                    "what": f"{name} {count}x{size}",
                    "ideal_ns": limit,
                    "took_ns": took,
                    "share": limit / took,
                }
            )
            found.append({"what": f"{name} {count}x{size}", "tensors": count, "host_ns": statistics.median(host)})
            del optimizer, parameters
            gc.collect()
            torch.cuda.empty_cache()
    return found


def graphs() -> Iterator[dict[str, object]]:
    """Measure pauses between the kernels of a replayed graph, and how long the host needs to launch it."""
    from torch.profiler import ProfilerActivity, profile

    for nodes in (10, 30, 100, 300, 1000, 3000):
        for size in (1 << 10, 1 << 18):
            x = torch.randn(size, device="cuda")
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(nodes):
                    x.add_(1)
            for _ in range(3):
                graph.replay()
            torch.cuda.synchronize()
            host = []
            for _ in range(9):
                begun = time.perf_counter_ns()
                graph.replay()
                host.append(time.perf_counter_ns() - begun)
                torch.cuda.synchronize()
            starts = []
            for _ in range(9):
                begun = time.perf_counter_ns()
                graph.replay()
                torch.cuda.synchronize()
                starts.append(time.perf_counter_ns() - begun)
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                graph.replay()
                torch.cuda.synchronize()
            kernels = sorted(
                (e.time_range.start, e.time_range.end) for e in profiler.events() if "elementwise" in e.name
            )
            gaps = [1e3 * (after[0] - before[1]) for before, after in itertools.pairwise(kernels)]
            busy = 1e3 * sum(end - start for start, end in kernels)
            yield {
                "nodes": nodes,
                "elements": size,
                "gap_ns": statistics.median(gaps) if gaps else None,
                "launch_ns": statistics.median(host),
                "whole_ns": statistics.median(starts),
                "busy_ns": busy,
            }


def copies() -> Iterator[dict[str, object]]:
    """Measure copies between pinned memory and the device, in bytes a nanosecond (GB/s)."""
    for exponent in (16, 20, 23, 26, 28, 30):
        size = 1 << exponent
        host, device = (
            torch.empty(size, dtype=torch.uint8).pin_memory(),
            torch.empty(size, dtype=torch.uint8, device="cuda"),
        )
        for direction, target, source in (("to_device", device, host), ("to_host", host, device)):
            times = []
            for _ in range(9):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                target.copy_(source, non_blocking=True)
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end) * 1e6)
            yield {"direction": direction, "bytes": size, "bytes_per_ns": size / statistics.median(times)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    reach = Reach()
    for measure in (products, convolutions, attention, passes):
        begun = time.monotonic()
        measure(reach)
        print(measure.__name__, f"{time.monotonic() - begun:.0f} s", flush=True)
    document = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "optimizers": optimizers(reach),
        "graphs": list(graphs()),
        "copies": list(copies()),
        "shares": reach.rows,
    }
    output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
