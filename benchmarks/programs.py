"""Small programs with one built-in performance problem each: does a profiler's first finding name it?

``PROGRAMS`` tells per program which rule should find something, and, where one line removes the problem, how it looks
without it (``fixed``: the same work per step). Every ``make`` returns a step without arguments; what it needs is freed
when the step is dropped. The environment's ``DEVICE`` (``cuda``) and ``SCALE`` (1: meant for an H200) shrink it.

Call a step once before measuring it. What ``cold_start`` does first is not first any more later in the same process:
measure the problem before what is fixed, and no more steps than needed (``new_kernels`` has 18, ``new_routines`` 84).
"""

import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch._dynamo  # the first optimizer would import it, and keep its parameters until garbage is collected
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = os.environ.get("DEVICE", "cuda")
SCALE = float(os.environ.get("SCALE", "1"))
BF16, FP32 = torch.bfloat16, torch.float32

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Program:
    """A step, and what should be found of it first."""

    make: Callable[[], Step]
    expected_rule: str
    note: str
    alternatives: tuple[str, ...] = ()
    fixed: Callable[[], Step] | None = None


def run_each(programs: "dict[str, Program]") -> None:
    """Run a step of each program, or of those that the command line names, with its cause and without."""
    for name, program in programs.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            program.make()()
            if program.fixed is not None:
                program.fixed()()
            print(name)


# What several programs are made of.


def scaled(size: int, multiple: int = 8) -> int:
    return max(multiple, round(size * SCALE / multiple) * multiple)


def normal(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*sizes, device=DEVICE, dtype=dtype)


def weight(inputs: int, outputs: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return normal(inputs, outputs, dtype=dtype).mul_(inputs**-0.5)


def products(size: int, times: int, rows: int | None = None, dtype: torch.dtype = BF16) -> Step:
    size = scaled(size)
    x, w = normal(rows or size, size, dtype=dtype), weight(size, size, dtype)

    def step() -> torch.Tensor:
        y = x
        for _ in range(times):
            y = y @ w
        return y

    return step


class Block(torch.nn.Module):
    """A layer of a transformer, attention first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def transformer(width: int, layers: int, dtype: torch.dtype = BF16) -> torch.nn.Sequential:
    return torch.nn.Sequential(*[Block(scaled(width, 64)) for _ in range(layers)]).to(DEVICE, dtype)


def linear_layers(width: int, count: int, dtype: torch.dtype = FP32, bias: bool = False) -> torch.nn.Sequential:
    layers = [torch.nn.Linear(width, width, bias, device=DEVICE, dtype=dtype) for _ in range(count)]
    return torch.nn.Sequential(*layers)


class Residual(torch.nn.Module):
    """Two convolutions and what they are added to."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.second(functional.relu(self.first(x))))


def image_network() -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    channels = 3
    for outputs in (64, 128, 256, 512):
        width = scaled(outputs)
        layers += [torch.nn.Conv2d(channels, width, 3, stride=2, padding=1), torch.nn.BatchNorm2d(width)]
        layers += [torch.nn.ReLU(), Residual(width), Residual(width)]
        channels = width
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return model.to(DEVICE, BF16, memory_format=torch.channels_last).eval()


def inferred(model: torch.nn.Module, data: torch.Tensor) -> Step:
    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(data)

    return step


def trained(model: torch.nn.Module, data: torch.Tensor, optimizer: torch.optim.Optimizer | None = None) -> Step:
    def step() -> None:
        model.zero_grad()
        model(data).square().mean().backward()
        if optimizer is not None:
            optimizer.step()

    return step


def with_tf32(make: Callable[[], Step]) -> Callable[[], Step]:
    def made() -> Step:
        work = make()

        def step() -> None:
            torch.set_float32_matmul_precision("high")
            try:
                work()
            finally:
                torch.set_float32_matmul_precision("highest")

        return step

    return made


def graphed(make: Callable[[], Step]) -> Callable[[], Step]:
    def made() -> Step:
        work = make()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()

        def step() -> Step:
            graph.replay()
            return work  # owns what the graph reads

        return step

    return made


# fp32_products


def fp32_inference() -> Step:
    width = scaled(4096)
    layers: list[torch.nn.Module] = []
    for _ in range(2):
        layers += [torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)]
    return inferred(torch.nn.Sequential(*layers).to(DEVICE), normal(scaled(2048), width, dtype=FP32))


def fp32_training() -> Step:
    model = transformer(1024, 4, FP32)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    return trained(model, normal(8, scaled(512), scaled(1024, 64), dtype=FP32), optimizer)


# unaligned_sizes


def vocabulary(size: int) -> Step:
    width, tokens = scaled(2048), scaled(8192)
    head = torch.nn.Linear(width, size, bias=False).to(DEVICE, BF16)
    x = normal(tokens, width).requires_grad_()
    labels = torch.randint(0, size, (tokens,), device=DEVICE)

    def step() -> None:
        head.zero_grad()
        x.grad = None
        functional.cross_entropy(head(x), labels).backward()

    return step


def one_more_feature(features: int) -> Step:
    return inferred(linear_layers(features, 4, BF16), normal(scaled(16384), features))


# dispatch_bound


def written_out_lstm() -> Step:
    width, batch = 64, 32
    inputs = [normal(batch, width, dtype=FP32) for _ in range(100)]
    w, u = weight(width, 4 * width, FP32), weight(width, 4 * width, FP32)
    zeros = torch.zeros(batch, width, device=DEVICE)

    def step() -> torch.Tensor:
        h, c = zeros, zeros
        for x in inputs:
            i, f, g, o = (x @ w + h @ u).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h

    return step


def tiny_training() -> Step:
    layers: list[torch.nn.Module] = []
    for _ in range(20):
        layers += [torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    return trained(model, normal(256, 64, dtype=FP32), torch.optim.SGD(model.parameters(), 1e-3, fused=True))


# blocking_read


def logged_losses(each: bool) -> Step:
    width = scaled(2048)
    layer, batches = linear_layers(width, 1, BF16), [normal(scaled(4096), width) for _ in range(8)]

    def step() -> list[float]:
        losses = []
        with torch.no_grad():
            for index in range(64):
                loss = layer(batches[index % 8]).square().mean()
                losses.append(loss.item() if each else loss)
        return losses if each else torch.stack(losses).tolist()

    return step


def chosen_rows(compacted: bool) -> Step:
    width = scaled(2048)
    layer, batches = linear_layers(width, 1, BF16), [normal(scaled(4096), width) for _ in range(8)]

    def step() -> torch.Tensor:
        total = torch.zeros(width, device=DEVICE, dtype=BF16)
        with torch.no_grad():
            for index in range(48):
                y = layer(batches[index % 8])
                chosen = y[:, 0] > 0
                total += y[chosen].mean(0) if compacted else (y * chosen[:, None]).sum(0) / chosen.sum()
        return total

    return step


# blocking_copy


def copied_batches(pinned: bool) -> Step:
    host = torch.randn(scaled(128), 3, 224, 224)
    host = host.pin_memory() if pinned else host
    w, work = weight(3 * 224 * 224, 64, FP32), products(8192, 4)

    def step() -> torch.Tensor:
        images = host.to(DEVICE, non_blocking=pinned)
        work()
        return images.flatten(1) @ w

    return step


def copied_table(each: bool) -> Step:
    width, rows = scaled(4096), scaled(8192)
    table, w = torch.randn(rows, width), weight(width, width)
    xs = [normal(rows, width) for _ in range(2)]
    kept = None if each else table.to(DEVICE)

    def step() -> list[torch.Tensor]:
        positions = table.to(DEVICE) if kept is None else kept
        return [(x + positions).bfloat16() @ w for x in xs]

    return step


# input_pipeline


class Compressed(torch.utils.data.Dataset[torch.Tensor]):
    """Images that take time to unpack."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.images = [zlib.compress(bytes(torch.randint(0, 16, (3 * size * size,)).tolist()))] * 8

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = bytearray(zlib.decompress(self.images[index % 8]))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(3, self.size, self.size).float().div_(255)


def unpacked_images(workers: int) -> Step:
    loader = torch.utils.data.DataLoader(Compressed(scaled(224)), batch_size=16, num_workers=workers)
    batches, work = iter(loader), products(8192, 3)

    def step() -> torch.Tensor:
        images = next(batches).to(DEVICE)
        work()
        return images.mean()

    return step


def prepared_images(on_device: bool) -> Step:
    size = scaled(256)
    raw = torch.randint(0, 256, (64, 3, size, size), dtype=torch.uint8)
    mean, deviation = torch.full((3, 1, 1), 0.45), torch.full((3, 1, 1), 0.22)
    place = torch.device(DEVICE if on_device else "cpu")
    mean, deviation, work = mean.to(place), deviation.to(place), products(8192, 3)

    def step() -> torch.Tensor:
        cropped = raw.to(place)[:, :, : size // 8 * 7, : size // 8 * 7].flip(3)
        images = ((cropped.float() / 255 - mean) / deviation).to(DEVICE)
        work()
        return images.mean()

    return step


# allocator_churn


def emptied_cache(emptied: bool) -> Step:
    width, hidden = scaled(512), scaled(16384)
    x = normal(scaled(8192), width)
    layers = [(weight(width, hidden), weight(hidden, width)) for _ in range(8)]

    def step() -> torch.Tensor:
        y = x
        for up, down in layers:
            y = torch.relu(y @ up) @ down
            if emptied:
                torch.cuda.empty_cache()
        return y

    return step


def growing_cache(preallocated: bool) -> Step:
    width, added = scaled(2048), scaled(512)
    x, w = normal(added, width), weight(width, width)
    lengths = itertools.count(64 * added, added)
    cache = normal((1024 if preallocated else 64) * added, width)

    def step() -> None:
        nonlocal cache
        for length in itertools.islice(lengths, 12):
            if preallocated:
                cache[length % (1024 * added) :][:added] = x @ w
            else:
                cache = torch.cat([cache, x @ w])

    return step


# explicit_sync


def synchronized_layers(synchronized: bool) -> Step:
    width = scaled(2048)
    layers, x = linear_layers(width, 64, BF16), normal(scaled(4096), width)

    def step() -> torch.Tensor:
        y = x
        with torch.no_grad():
            for layer in layers:
                y = functional.relu(layer(y))
                if synchronized:
                    torch.cuda.synchronize()
        return y

    return step


def timed_layers(timed: bool) -> Step:
    channels, size = scaled(256), scaled(32)
    blocks = torch.nn.ModuleList([Residual(channels) for _ in range(40)])
    blocks.to(DEVICE, BF16, memory_format=torch.channels_last)
    x = normal(16, channels, size, size).to(memory_format=torch.channels_last)

    def step() -> list[float]:
        y, times = x, []
        with torch.no_grad():
            for block in blocks:
                begin = time.perf_counter()
                y = block(y)
                if timed:
                    event = torch.cuda.Event()
                    event.record()
                    event.synchronize()
                times.append(time.perf_counter() - begin)
        return times

    return step


# host_work


def summed_tokens(summed: bool) -> Step:
    before, after = products(4096, 6), products(4096, 6)
    tokens = torch.randint(0, 5000, (scaled(200_000),)).tolist()

    def step() -> int:
        before()
        checksum = 0
        if summed:
            for token in tokens:
                checksum = (31 * checksum + token) % 1_000_003
        after()
        return checksum

    return step


def written_metrics(written: bool) -> Step:
    before, after = products(4096, 6), products(4096, 6)
    metrics = {f"layer.{index}": torch.rand(64).tolist() for index in range(scaled(400))}

    def step() -> int:
        before()
        size = len(json.dumps(metrics)) if written else 0
        after()
        return size

    return step


# stream_dependency


def buffered_copies(buffers: int) -> Step:
    rows, width = scaled(3584), scaled(8192)
    host = torch.randn(rows, width).to(BF16).pin_memory()
    targets = [normal(rows, width) for _ in range(buffers)]
    free, w, copies = [torch.cuda.Event() for _ in range(buffers)], weight(width, width), torch.cuda.Stream()

    def step() -> torch.Tensor:
        compute = torch.cuda.current_stream()
        for index in range(8):
            target, event = targets[index % buffers], free[index % buffers]
            copies.wait_event(event)
            with torch.cuda.stream(copies):
                target.copy_(host, non_blocking=True)
            compute.wait_stream(copies)
            y = target @ w @ w
            event.record(compute)
        return y

    return step


def offloaded_activations(waiting: bool) -> Step:
    rows, width = scaled(4096), scaled(8192)
    x, w, copies = normal(rows, width), weight(width, width), torch.cuda.Stream()
    targets = [torch.empty(rows, width, dtype=BF16).pin_memory() for _ in range(8)]

    def step() -> torch.Tensor:
        compute, kept = torch.cuda.current_stream(), [x]
        for target in targets:
            kept.append(kept[-1] @ w)
            copies.wait_stream(compute)
            with torch.cuda.stream(copies):
                target.copy_(kept[-1], non_blocking=True)
            if waiting:
                compute.wait_stream(copies)
        compute.wait_stream(copies)
        return kept[-1]

    return step


def two_towers(waiting: bool) -> Step:
    # 32 rows are 32 thread blocks, a quarter of the device: two of them fit at once.
    towers = [normal(32, scaled(1 << 20), dtype=FP32) for _ in range(2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def step() -> list[torch.Tensor]:
        values = list(towers)
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        for _ in range(16):
            for index, stream in enumerate(streams):
                if waiting:
                    stream.wait_stream(streams[1 - index])
                with torch.cuda.stream(stream):
                    values[index] = torch.log_softmax(values[index], -1)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        return values

    return step


# fusible_chain


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x * torch.sigmoid(1.702 * x) + 0.5
    y = y.clamp(-3, 3).abs().add(1e-3).sqrt()
    return torch.tanh(y - 0.25) * x + y


def elementwise_chain(compiled: bool) -> Step:
    x = normal(scaled(256 << 20))
    function = torch.compile(chain) if compiled else chain
    return lambda: function(x)


def written_out_normalization(written_out: bool) -> Step:
    rows, width = scaled(16384), scaled(4096)
    x, weights = normal(rows, width), [weight(width, width) for _ in range(4)]
    gain, bias = normal(width), normal(width)

    def normalized(y: torch.Tensor) -> torch.Tensor:
        if not written_out:
            return functional.gelu(functional.layer_norm(y, [width], gain, bias), approximate="tanh")
        centred = y - y.mean(-1, keepdim=True)
        y = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * gain + bias
        return 0.5 * y * (1 + torch.tanh(0.7978845608 * (y + 0.044715 * y * y * y)))

    def step() -> torch.Tensor:
        y = x
        for w in weights:
            y = normalized(y @ w)
        return y

    return step


# eager_attention


def written_out_attention(written_out: bool) -> Step:
    q, k, v = (normal(4, 16, scaled(4096), 64) for _ in range(3))

    def step() -> torch.Tensor:
        x = v
        for _ in range(2):
            if written_out:
                x = torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ x
            else:
                x = functional.scaled_dot_product_attention(q, k, x)
        return x

    return step


def attention_weights(needed: bool) -> Step:
    width = scaled(1024, 64)
    layer = torch.nn.MultiheadAttention(width, width // 64, batch_first=True).to(DEVICE, BF16)
    x = normal(4, scaled(4096), width).requires_grad_()

    def step() -> None:
        layer.zero_grad()
        x.grad = None
        y, _ = layer(x, x, x, need_weights=needed)
        y.square().mean().backward()

    return step


# unfused_optimizer


def many_parameters(fused: bool) -> Step:
    model = linear_layers(scaled(256), 48, bias=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, **({"fused": True} if fused else {"foreach": False}))
    return trained(model, normal(128, scaled(256), dtype=FP32), optimizer)


def large_parameters(fused: bool) -> Step:
    model = linear_layers(scaled(4096), 16, BF16)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, **({"fused": True} if fused else {"foreach": False}))
    return trained(model, normal(256, scaled(4096)), optimizer)


# layout_conversion


def convolutions(memory_format: torch.memory_format) -> Step:
    layers = [torch.nn.Conv2d(scaled(128), scaled(128), 3, padding=1, bias=False) for _ in range(16)]
    model = torch.nn.Sequential(*layers).to(DEVICE, BF16, memory_format=memory_format)
    return inferred(model, normal(64, scaled(128), scaled(56), scaled(56)).to(memory_format=memory_format))


def convolution_training(memory_format: torch.memory_format) -> Step:
    channels, size = scaled(256), scaled(32)
    model = torch.nn.Sequential(*[Residual(channels) for _ in range(4)]).to(DEVICE, memory_format=memory_format)
    x = normal(64, channels, size, size, dtype=FP32).to(memory_format=memory_format)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(DEVICE, BF16):
            loss = model(x).square().mean()
        loss.backward()

    return step


# repeated_casts


def autocast_inference(dtype: torch.dtype) -> Step:
    model, x = linear_layers(scaled(8192), 16, dtype), normal(256, scaled(8192))

    def step() -> torch.Tensor:
        with torch.no_grad(), torch.autocast(DEVICE, BF16):
            return model(x)

    return step


class LowRank(torch.nn.Module):
    """A frozen layer with a small trainable one beside it."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = torch.nn.Linear(width, width, bias=False, device=DEVICE, dtype=dtype).requires_grad_(False)
        self.down = torch.nn.Linear(width, 16, bias=False, device=DEVICE)
        self.up = torch.nn.Linear(16, width, bias=False, device=DEVICE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def autocast_accumulation(dtype: torch.dtype) -> Step:
    width = scaled(8192)
    model = torch.nn.Sequential(*[LowRank(width, dtype) for _ in range(8)])
    batches = [normal(128, width) for _ in range(4)]

    def step() -> None:
        model.zero_grad()
        for batch in batches:
            with torch.autocast(DEVICE, BF16):
                loss = model(batch).square().mean()
            loss.backward()

    return step


# duplicate_work


def similarity_per_loss(kept: bool) -> Step:
    rows, width = scaled(8192), scaled(4096)
    a, b = normal(rows, width), weight(width, rows)

    def similarity() -> torch.Tensor:
        return a @ b

    def step() -> list[torch.Tensor]:
        shared = similarity() if kept else None
        losses = (torch.Tensor.amax, torch.Tensor.amin, torch.Tensor.mean, torch.Tensor.sum)
        return [loss(similarity() if shared is None else shared) for loss in losses]

    return step


def encoder_per_head(kept: bool) -> Step:
    width = scaled(2048, 64)
    encoder, heads = transformer(2048, 2), [weight(width, 64) for _ in range(4)]
    x = normal(4, scaled(2048), width)

    def step() -> list[torch.Tensor]:
        with torch.no_grad():
            shared = encoder(x) if kept else None
            return [(encoder(x) if shared is None else shared) @ head for head in heads]

    return step


# small_grid


def tall_products(parts: int) -> Step:
    rows = scaled(4 << 20, 1024)
    features = [normal(rows, 64) for _ in range(4)]

    def step() -> list[torch.Tensor]:
        if parts == 1:
            return [x.T @ x for x in features]
        split = [x.view(parts, -1, 64) for x in features]
        return [torch.bmm(x.transpose(1, 2), x).sum(0) for x in split]

    return step


def softmax_of_one_row(parts: int) -> Step:
    scores = normal(1, scaled(16 << 20, 1024), dtype=FP32)
    work = products(4096, 4)

    def step() -> torch.Tensor:
        work()
        if parts == 1:
            return torch.softmax(scores, -1)
        return (scores - scores.view(parts, -1).logsumexp(1).logsumexp(0)).exp()

    return step


def sums_of_few_rows(together: bool) -> Step:
    values, work = normal(16, scaled(1 << 20), dtype=FP32), products(4096, 4)

    def step() -> torch.Tensor:
        work()
        return values.cumsum(-1) if together else torch.stack([row.cumsum(0) for row in values])

    return step


# recomputation


def checkpointed(layers: torch.nn.Sequential, x: torch.Tensor, recomputed: bool) -> Step:
    def step() -> None:
        layers.zero_grad()
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=False) if recomputed else layer(y)
        y.square().mean().backward()

    return step


def checkpointed_transformer(recomputed: bool) -> Step:
    return checkpointed(transformer(2048, 4), normal(4, scaled(2048), scaled(2048, 64)), recomputed)


def checkpointed_convolutions(recomputed: bool) -> Step:
    channels, size = scaled(256), scaled(32)
    layers = torch.nn.Sequential(*[Residual(channels) for _ in range(8)])
    x = normal(128, channels, size, size).to(memory_format=torch.channels_last)
    return checkpointed(layers.to(DEVICE, BF16, memory_format=torch.channels_last), x, recomputed)


# small_batch


def one_by_one(model: torch.nn.Module, data: torch.Tensor, batch: int) -> Step:
    def step() -> list[torch.Tensor]:
        with torch.no_grad():
            return [model(part) for part in data.split(batch)]

    return step


def images_one_by_one(batch: int) -> Step:
    size = scaled(224, 32)
    return one_by_one(image_network(), normal(16, 3, size, size).to(memory_format=torch.channels_last), batch)


def requests_one_by_one(batch: int) -> Step:
    return one_by_one(transformer(512, 8).eval(), normal(16, 64, scaled(512, 64)), batch)


# cold_start. What was used once is not cold any more, so that later calls in the same process go on where others ended.

OPERATIONS: tuple[Callable[[torch.Tensor], object], ...] = (
    lambda x: x.sort(-1),
    lambda x: functional.interpolate(x[None, None], scale_factor=2, mode="bicubic"),
    lambda x: x.cummax(0),
    lambda x: x.kthvalue(3),
    torch.erfinv,
    lambda x: functional.avg_pool2d(x[None], 3),
    lambda x: x.logcumsumexp(0),
    lambda x: torch.histc(x, 50),
    torch.lgamma,
    lambda x: functional.max_pool2d(x[None], 3),
    lambda x: torch.cdist(x[:64], x[64:128]),
    lambda x: x.topk(8),
    torch.fft.rfft,
    lambda x: functional.grid_sample(x[None, None], x.view(1, -1, 64, 2), align_corners=False),
    lambda x: x.median(-1),
    lambda x: torch.igamma(x.abs(), x.abs()),
    lambda x: functional.pad(x[None], (3, 3, 3, 3), "reflect"),
    lambda x: x.renorm(2, 0, 1),
    torch.digamma,
    lambda x: functional.unfold(x[None, None], 3),
    lambda x: torch.searchsorted(x[0].sort()[0], x),
    lambda x: functional.group_norm(x[None], 8),
    lambda x: torch.nextafter(x, -x),
    lambda x: x.cumprod(0),
    lambda x: functional.adaptive_max_pool2d(x[None], 7),
    lambda x: torch.unique(x[:8]),
    lambda x: x.clone().exponential_(),
    functional.softshrink,
    torch.trapezoid,
    lambda x: functional.instance_norm(x[None]),
    lambda x: x.clone().cauchy_(),
    lambda x: torch.logaddexp(x, x),
    lambda x: functional.pad(x[None], (3, 3, 3, 3), "replicate"),
    lambda x: torch.multinomial(x.abs(), 4),
    lambda x: x.index_add(0, torch.arange(8, device=x.device), x[:8]),
    lambda x: functional.pixel_shuffle(x.view(1, 4, -1, 8), 2),
    lambda x: functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    functional.glu,
    lambda x: x.scatter_reduce(0, x.argsort(0), x, "amax"),
    lambda x: functional.huber_loss(x, -x),
    lambda x: functional.interpolate(x[None], scale_factor=2, mode="linear"),
    lambda x: functional.adaptive_avg_pool2d(x[None], 7),
    lambda x: x.clone().geometric_(0.5),
    lambda x: torch.linalg.cross(x.view(-1, 64)[:, :3], x.view(-1, 64)[:, 3:6]),
    functional.logsigmoid,
    lambda x: functional.multilabel_soft_margin_loss(x, x),
    torch.tril,
    lambda x: x.clone().log_normal_(),
    torch.frexp,
    lambda x: functional.rrelu(x, training=True),
    lambda x: x.roll(3, 0),
    lambda x: torch.polar(x, x),
    lambda x: functional.max_unpool2d(*functional.max_pool2d(x[None], 2, return_indices=True), 2),
    lambda x: torch.heaviside(x, x),
)
FIRST_USES = itertools.cycle([(use, dtype) for dtype in (torch.float32, torch.float64) for use in OPERATIONS])


def new_kernels(used_before: bool) -> Step:
    xs = {dtype: normal(128, 128, dtype=dtype) for dtype in (torch.float32, torch.float64)}
    work = products(4096, 6)
    if used_before:
        for dtype, x in xs.items():
            for use in OPERATIONS:
                use(x.to(dtype))

    def step() -> None:
        work()
        for use, dtype in itertools.islice(FIRST_USES, 6):
            use(xs[dtype])

    return step


ROUTINES: tuple[Callable[[torch.Tensor], object], ...] = (
    torch.linalg.cholesky,
    torch.linalg.qr,
    torch.linalg.eigh,
    torch.linalg.svd,
    torch.linalg.lu_factor,
    torch.linalg.inv,
    lambda x: torch.linalg.lstsq(x, x),
    torch.matrix_exp,
    torch.cholesky_inverse,
    lambda x: torch.linalg.solve_triangular(x, x, upper=True),
    torch.linalg.ldl_factor,
    lambda x: torch.linalg.svd(x, driver="gesvd") if x.is_cuda else torch.linalg.svd(x),
    torch.linalg.eigvalsh,
    torch.linalg.pinv,
)
FIRST_ROUTINES = itertools.cycle(
    [
        (routine, dtype, batch)
        for batch, dtype in itertools.product((1, 8), (torch.float32, torch.float64, torch.complex64))
        for routine in ROUTINES
    ]
)


def new_routines(used_before: bool) -> Step:
    work = products(4096, 6)
    known: list[tuple[Callable[[torch.Tensor], object], torch.dtype, int]] = []
    eye = torch.eye(64, device=DEVICE)

    def step() -> None:
        work()
        routine, dtype, batch = known[0] if used_before else next(FIRST_ROUTINES)
        routine((eye + 0.1 * eye.roll(1, 0) + 0.1 * eye.roll(1, 1)).to(dtype).expand(batch, 64, 64).squeeze(0))

    if used_before:
        known.append((torch.linalg.qr, torch.float32, 1))
        step()
    return step


NUMBERS = itertools.count(time.time_ns() % 1_000_000_000)
SOURCE = "template <typename T> T gate(T x{argument}) {{ return x / (T(1) + exp(-x * {factor})); }}"


def compiled_at_first_use(argument: bool) -> Step:
    x, work = normal(scaled(16 << 20), dtype=FP32), products(4096, 6)
    create = torch.cuda.jiterator._create_jit_fn
    known = create(SOURCE.format(argument=", T factor", factor="factor"), factor=1.0) if argument else None

    def step() -> torch.Tensor:
        work()
        factor = next(NUMBERS) * 1e-9
        if known is not None:
            return known(x, factor=factor)
        return create(SOURCE.format(argument="", factor=f"T({factor!r})"))(x)

    return step


# recompilation


def compiled_anew(function: Callable[..., torch.Tensor], dynamic: bool) -> Callable[..., torch.Tensor]:
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = 200
    compiled: Callable[..., torch.Tensor] = torch.compile(function, dynamic=dynamic)
    return compiled


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x @ w) * x


def changing_lengths(dynamic: bool) -> Step:
    rows, width = scaled(16384), scaled(2048)
    x, w, lengths = normal(rows, width), weight(width, width), itertools.count(rows, -8)
    function = compiled_anew(gated, dynamic)
    return lambda: function(x[: next(lengths)], w)


def noised(x: torch.Tensor, noise: torch.Tensor, number: int | torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * (1 - number * 1e-4) + noise * (number * 1e-4))


def changing_number(tensor: bool) -> Step:
    x, noise, numbers = normal(scaled(64 << 20)), normal(scaled(64 << 20)), itertools.count(2)
    function = compiled_anew(noised, dynamic=False)
    return lambda: function(x, noise, torch.full((), next(numbers), device=DEVICE) if tensor else next(numbers))


# slow_product_kernel


def accidental_doubles(dtype: torch.dtype) -> Step:
    size = scaled(4096)
    loaded = weight(size, size, torch.float64).to(dtype)  # was saved in double precision
    x = normal(size, size)

    def step() -> torch.Tensor:
        y = x.to(loaded.dtype)
        for _ in range(4):
            y = y @ loaded
        return y

    return step


def small_batched_products(folded: bool) -> Step:
    batch, size = scaled(131072), 32
    x, weights = normal(batch, size, size), [weight(size, size) for _ in range(8)]

    def step() -> torch.Tensor:
        y = x
        for w in weights:
            y = (y.view(-1, size) @ w).view_as(x) if folded else torch.bmm(y, w.expand(batch, size, size))
        return y

    return step


def strided_products(contiguous: bool) -> Step:
    size = scaled(4096)
    weights = [weight(size, 2 * size).view(size, size, 2)[:, :, 0] for _ in range(8)]  # as the real part of complex
    weights = [w.contiguous() for w in weights] if contiguous else weights
    batches = [normal(512, size) for _ in range(5)]

    def step() -> list[torch.Tensor]:
        results = []
        for y in batches:
            for w in weights:
                y = y @ w  # noqa: PLW2901
            results.append(y)
        return results

    return step


# memcpy_heavy


def restored_parameters(copied: bool) -> Step:
    width = scaled(8192)
    weights, batches = [weight(width, width) for _ in range(6)], [normal(512, width) for _ in range(4)]

    def step() -> None:
        for x in batches:
            kept = [w.clone() for w in weights] if copied else []
            for w in weights:
                x = x @ w  # noqa: PLW2901
            for w, before in zip(weights, kept, strict=False):
                w.copy_(before)

    return step


def copied_logits(all_of_them: bool) -> Step:
    width, words = scaled(4096), scaled(50304)
    x, head = normal(scaled(1024), width), weight(width, words)
    work = products(8192, 3)

    def step() -> torch.Tensor:
        work()
        logits = x @ head
        return logits.cpu() if all_of_them else logits.argmax(-1).cpu()

    return step


# near_limit and none


def flash_attention() -> Step:
    q, k, v = (normal(4, 16, scaled(8192), 128) for _ in range(3))

    def step() -> torch.Tensor:
        x = v
        for _ in range(3):
            x = functional.scaled_dot_product_attention(q, k, x, is_causal=True)
        return x

    return step


def compiled_training() -> Step:
    model = transformer(2048, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    return trained(torch.compile(model), normal(8, scaled(2048), scaled(2048, 64)), optimizer)


def device_copies() -> Step:
    sources = [normal(scaled(1 << 30)) for _ in range(4)]
    target = torch.empty_like(sources[0])

    def step() -> None:
        for source in sources:
            target.copy_(source)

    return step


def fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x) * y + z


def fused_elementwise() -> Step:
    x, y, z = (normal(scaled(512 << 20)) for _ in range(3))
    function = torch.compile(fused)
    return lambda: (function(x, y, z), function(y, z, x), function(z, x, y))


def large_convolutions() -> Step:
    channels, size = scaled(512), scaled(28)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False), torch.nn.ReLU(inplace=True)]
    model = torch.nn.Sequential(*layers).to(DEVICE, BF16, memory_format=torch.channels_last)
    return inferred(model, normal(256, channels, size, size).to(memory_format=torch.channels_last))


def additions_in_place() -> Step:
    values = [normal(scaled(1 << 30)) for _ in range(4)]

    def step() -> None:
        for value in values:
            value.add_(1)

    return step


def fp8_products() -> Step:
    size = scaled(8192, 16)
    one = torch.ones((), device=DEVICE)
    x = normal(size, size).to(torch.float8_e4m3fn)
    weights = [normal(size, size).to(torch.float8_e4m3fn).t() for _ in range(8)]

    def step() -> torch.Tensor:
        for w in weights:
            y = torch._scaled_mm(x, w, scale_a=one, scale_b=one, out_dtype=BF16, use_fast_accum=True)
        return y

    return step


NCHW, NHWC = torch.contiguous_format, torch.channels_last

PROGRAMS = {
    "fp32_inference": Program(
        fp32_inference, "fp32_products", "FP32 products, TF32 off", (), with_tf32(fp32_inference)
    ),
    "fp32_training": Program(
        fp32_training, "fp32_products", "FP32 transformer, TF32 off", (), with_tf32(fp32_training)
    ),
    "vocabulary": Program(
        lambda: vocabulary(scaled(50256) + 1),
        "unaligned_sizes",
        "50257 words: every product of the head has a row of an odd number of BF16 values",
        ("slow_product_kernel",),
        lambda: vocabulary(scaled(50304)),
    ),
    "one_more_feature": Program(
        lambda: one_more_feature(scaled(4096) + 1),
        "unaligned_sizes",
        "4097 features in and out",
        ("slow_product_kernel",),
        lambda: one_more_feature(scaled(4096) + 8),
    ),
    "written_out_lstm": Program(
        written_out_lstm,
        "dispatch_bound",
        "1200 tiny kernels",
        ("fusible_chain", "small_batch"),
        graphed(written_out_lstm),
    ),
    "tiny_training": Program(
        tiny_training, "dispatch_bound", "layers of 64 features", ("small_batch",), graphed(tiny_training)
    ),
    "logged_losses": Program(
        lambda: logged_losses(True),
        "blocking_read",
        ".item() after every 80 us of device work",
        ("dispatch_bound",),
        lambda: logged_losses(False),
    ),
    "chosen_rows": Program(
        lambda: chosen_rows(True),
        "blocking_read",
        "indexing by a boolean mask after every product",
        ("dispatch_bound",),
        lambda: chosen_rows(False),
    ),
    "copied_batches": Program(
        lambda: copied_batches(False),
        "blocking_copy",
        "77 MB of pageable memory to the device per step",
        ("input_pipeline",),
        lambda: copied_batches(True),
    ),
    "copied_table": Program(
        lambda: copied_table(True),
        "blocking_copy",
        "the same 134 MB to the device in every step",
        ("duplicate_work",),
        lambda: copied_table(False),
    ),
    "unpacked_images": Program(
        lambda: unpacked_images(0),
        "input_pipeline",
        "DataLoader without workers, slow __getitem__",
        ("host_work",),
        lambda: unpacked_images(6),
    ),
    "prepared_images": Program(
        lambda: prepared_images(False),
        "input_pipeline",
        "images are cropped and normalized on the host",
        ("host_work", "blocking_copy"),
        lambda: prepared_images(True),
    ),
    "emptied_cache": Program(
        lambda: emptied_cache(True),
        "allocator_churn",
        "torch.cuda.empty_cache() after every layer",
        ("explicit_sync",),
        lambda: emptied_cache(False),
    ),
    "growing_cache": Program(
        lambda: growing_cache(False),
        "allocator_churn",
        "torch.cat to a size that was never allocated before: cudaMalloc each time",
        ("duplicate_work", "memcpy_heavy"),
        lambda: growing_cache(True),
    ),
    "synchronized_layers": Program(
        lambda: synchronized_layers(True),
        "explicit_sync",
        "torch.cuda.synchronize() after every layer",
        ("dispatch_bound",),
        lambda: synchronized_layers(False),
    ),
    "timed_layers": Program(
        lambda: timed_layers(True),
        "explicit_sync",
        "an event is waited for after every layer to time it",
        ("dispatch_bound",),
        lambda: timed_layers(False),
    ),
    "summed_tokens": Program(
        lambda: summed_tokens(True),
        "host_work",
        "a Python loop in the middle of a step",
        (),
        lambda: summed_tokens(False),
    ),
    "written_metrics": Program(
        lambda: written_metrics(True),
        "host_work",
        "json.dumps in the middle of a step",
        (),
        lambda: written_metrics(False),
    ),
    "one_buffer": Program(
        lambda: buffered_copies(1),
        "stream_dependency",
        "copies to the device wait for the products that read the one buffer, and these for the copies",
        ("blocking_copy",),
        lambda: buffered_copies(2),
    ),
    "offloaded_activations": Program(
        lambda: offloaded_activations(True),
        "stream_dependency",
        "each product waits until the one before was copied to the host",
        ("blocking_copy", "memcpy_heavy"),
        lambda: offloaded_activations(False),
    ),
    "two_towers": Program(
        lambda: two_towers(True),
        "stream_dependency",
        "two streams take turns, though both would fit on the device at once",
        ("small_grid",),
        lambda: two_towers(False),
    ),
    "elementwise_chain": Program(
        lambda: elementwise_chain(False),
        "fusible_chain",
        "12 elementwise operators on 512 MB",
        (),
        lambda: elementwise_chain(True),
    ),
    "written_out_normalization": Program(
        lambda: written_out_normalization(True),
        "fusible_chain",
        "LayerNorm and GELU by hand between products",
        (),
        lambda: written_out_normalization(False),
    ),
    "written_out_attention": Program(
        lambda: written_out_attention(True),
        "eager_attention",
        "softmax(q @ k.T) @ v, 4096 positions",
        ("fusible_chain",),
        lambda: written_out_attention(False),
    ),
    "attention_weights": Program(
        lambda: attention_weights(True),
        "eager_attention",
        "nn.MultiheadAttention with need_weights=True, forward and backward",
        ("fusible_chain",),
        lambda: attention_weights(False),
    ),
    "many_parameters": Program(
        lambda: many_parameters(False),
        "unfused_optimizer",
        "AdamW with foreach=False, 96 small parameters: launches",
        ("dispatch_bound", "small_batch"),
        lambda: many_parameters(True),
    ),
    "large_parameters": Program(
        lambda: large_parameters(False),
        "unfused_optimizer",
        "Adam with foreach=False, 268 M parameters: memory traffic",
        ("fusible_chain",),
        lambda: large_parameters(True),
    ),
    "convolutions": Program(
        lambda: convolutions(NCHW),
        "layout_conversion",
        "BF16 convolutions in NCHW",
        (),
        lambda: convolutions(NHWC),
    ),
    "convolution_training": Program(
        lambda: convolution_training(NCHW),
        "layout_conversion",
        "training of convolutions in NCHW under autocast",
        ("fusible_chain", "repeated_casts"),
        lambda: convolution_training(NHWC),
    ),
    "autocast_inference": Program(
        lambda: autocast_inference(FP32),
        "repeated_casts",
        "autocast casts 1 G FP32 weights in every forward pass",
        (),
        lambda: autocast_inference(BF16),
    ),
    "autocast_accumulation": Program(
        lambda: autocast_accumulation(FP32),
        "repeated_casts",
        "autocast casts frozen FP32 weights for each of 4 micro-batches",
        ("duplicate_work",),
        lambda: autocast_accumulation(BF16),
    ),
    "similarity_per_loss": Program(
        lambda: similarity_per_loss(False),
        "duplicate_work",
        "the same product for each of 4 losses",
        ("near_limit", "none"),
        lambda: similarity_per_loss(True),
    ),
    "encoder_per_head": Program(
        lambda: encoder_per_head(False),
        "duplicate_work",
        "the same encoder pass for each of 4 heads",
        ("near_limit", "none"),
        lambda: encoder_per_head(True),
    ),
    "tall_products": Program(
        lambda: tall_products(1),
        "small_grid",
        "x.T @ x with 64 columns and 4 million rows",
        ("slow_product_kernel",),
        lambda: tall_products(512),
    ),
    "softmax_of_one_row": Program(
        lambda: softmax_of_one_row(1),
        "small_grid",
        "softmax over one row of 16 M values: one thread block",
        (),
        lambda: softmax_of_one_row(1024),
    ),
    "sums_of_few_rows": Program(
        lambda: sums_of_few_rows(True),
        "small_grid",
        "cumsum along 16 rows of a million values: 16 thread blocks",
        (),
        lambda: sums_of_few_rows(False),
    ),
    "checkpointed_transformer": Program(
        lambda: checkpointed_transformer(True),
        "recomputation",
        "torch.utils.checkpoint around every layer, memory suffices",
        ("near_limit",),
        lambda: checkpointed_transformer(False),
    ),
    "checkpointed_convolutions": Program(
        lambda: checkpointed_convolutions(True),
        "recomputation",
        "torch.utils.checkpoint around every residual block",
        ("near_limit", "fusible_chain"),
        lambda: checkpointed_convolutions(False),
    ),
    "images_one_by_one": Program(
        lambda: images_one_by_one(1),
        "small_batch",
        "16 images through a small network, one at a time",
        ("dispatch_bound",),
        lambda: images_one_by_one(16),
    ),
    "requests_one_by_one": Program(
        lambda: requests_one_by_one(1),
        "small_batch",
        "16 sequences of 64 tokens, one at a time",
        ("dispatch_bound",),
        lambda: requests_one_by_one(16),
    ),
    "new_kernels": Program(
        lambda: new_kernels(False),
        "cold_start",
        "6 kernels per step that were not used before: modules are loaded",
        ("blocking_read", "dispatch_bound"),
        lambda: new_kernels(True),
    ),
    "new_routines": Program(
        lambda: new_routines(False),
        "cold_start",
        "one routine of linear algebra per step that was not used before (the fixed one uses a known one)",
        ("blocking_read", "host_work", "dispatch_bound"),
        lambda: new_routines(True),
    ),
    "compiled_at_first_use": Program(
        lambda: compiled_at_first_use(False),
        "cold_start",
        "a kernel with a constant in its source: NVRTC in every step",
        ("host_work", "recompilation"),
        lambda: compiled_at_first_use(True),
    ),
    "changing_lengths": Program(
        lambda: changing_lengths(False),
        "recompilation",
        "torch.compile(dynamic=False) with a new length per step; a second or so per step",
        ("host_work", "cold_start"),
        lambda: changing_lengths(True),
    ),
    "changing_number": Program(
        lambda: changing_number(False),
        "recompilation",
        "torch.compile with a new int argument per step; a second or so per step",
        ("host_work", "cold_start"),
        lambda: changing_number(True),
    ),
    "accidental_doubles": Program(
        lambda: accidental_doubles(torch.float64),
        "slow_product_kernel",
        "weights that were saved as float64",
        ("fp32_products",),
        lambda: accidental_doubles(BF16),
    ),
    "small_batched_products": Program(
        lambda: small_batched_products(False),
        "slow_product_kernel",
        "131072 products of 32 x 32 where one product of 4 M x 32 would do",
        (),
        lambda: small_batched_products(True),
    ),
    "strided_products": Program(
        lambda: strided_products(False),
        "slow_product_kernel",
        "weights with a stride of 2: a copy before every product",
        ("layout_conversion", "duplicate_work", "repeated_casts", "memcpy_heavy"),
        lambda: strided_products(True),
    ),
    "restored_parameters": Program(
        lambda: restored_parameters(True),
        "memcpy_heavy",
        "all parameters are cloned and restored around every batch",
        ("duplicate_work",),
        lambda: restored_parameters(False),
    ),
    "copied_logits": Program(
        lambda: copied_logits(True),
        "memcpy_heavy",
        "103 MB of logits to pageable host memory per step",
        ("blocking_copy", "blocking_read"),
        lambda: copied_logits(False),
    ),
    "large_products": Program(lambda: products(8192, 8), "near_limit", "BF16 products of 8192", ("none",)),
    "large_tf32_products": Program(
        with_tf32(lambda: products(8192, 5, dtype=FP32)), "near_limit", "TF32 products of 8192", ("none",)
    ),
    "flash_attention": Program(flash_attention, "none", "causal SDPA, 8192 positions", ("near_limit",)),
    "compiled_training": Program(
        compiled_training, "none", "compiled BF16 transformer, fused AdamW, 16384 tokens", ("near_limit",)
    ),
    "device_copies": Program(device_copies, "near_limit", "4 copies of 2 GB on the device", ("none", "memcpy_heavy")),
    "fused_elementwise": Program(
        fused_elementwise, "near_limit", "3 times a compiled elementwise function of 4 x 1 GB", ("none",)
    ),
    "graph_of_products": Program(
        graphed(lambda: products(8192, 8)), "near_limit", "CUDA graph of large products", ("none",)
    ),
    "large_convolutions": Program(
        large_convolutions, "none", "BF16 channels_last convolutions, batch of 256", ("near_limit", "fusible_chain")
    ),
    "additions_in_place": Program(additions_in_place, "near_limit", "4 times add_ on 2 GB", ("none",)),
    "fp8_products": Program(fp8_products, "near_limit", "FP8 products of 8192", ("none",)),
}
