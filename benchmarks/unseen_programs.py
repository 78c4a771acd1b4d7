"""More programs with a built-in performance problem each, for which no rule was ever tuned: do savings hold there too?

The same as ``programs.py`` with other workloads, sizes and data types; whoever wrote them had read what rules fire on,
but not the code that computes savings. What is ``fixed`` returns the same up to precision. Three at the end have a
second problem, which stays.
"""

import itertools
import json
import math
import zlib
from collections.abc import Callable

import torch
from programs import (
    BF16,
    DEVICE,
    FP32,
    NCHW,
    NHWC,
    Block,
    Program,
    Residual,
    Step,
    graphed,
    inferred,
    linear_layers,
    normal,
    products,
    scaled,
    transformer,
    weight,
    with_tf32,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

FP16, FP64 = torch.float16, torch.float64


# What several programs are made of.


def learned(loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def with_convolutions(make: Callable[[], Step], tf32: bool) -> Callable[[], Step]:
    def made() -> Step:
        work = make()

        def step() -> object:
            torch.backends.cudnn.allow_tf32 = tf32
            try:
                return work()
            finally:
                torch.backends.cudnn.allow_tf32 = True

        return step

    return made


def convolution(inputs: int, outputs: int, stride: int = 1) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        torch.nn.BatchNorm2d(outputs),
        torch.nn.ReLU(),
    )


class SelfAttention(torch.nn.Module):
    """Attention among positions, written out or not."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.written_out = width // 64, written_out
        self.norm = torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if self.written_out:
            y = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).flatten(2))


# fp32_products


def tabular_training() -> Step:
    rows, features, width = scaled(16384), scaled(512), scaled(1024)
    sizes = [features, width, width, width]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.SiLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 16)).to(DEVICE)
    x, labels = normal(rows, features, dtype=FP32), torch.randint(0, 16, (rows,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, fused=True)
    return learned(lambda: functional.cross_entropy(model(x), labels), optimizer)


def nearest_documents() -> Step:
    width = scaled(768)
    queries = functional.normalize(normal(scaled(4096), width, dtype=FP32), dim=-1)
    documents = [functional.normalize(normal(scaled(32768), width, dtype=FP32), dim=-1) for _ in range(4)]

    def step() -> torch.Tensor:
        best = [(queries @ part.T).amax(-1, keepdim=True) for part in documents]
        return torch.cat(best, -1)

    return step


def encoder_training() -> Step:
    width = scaled(512, 64)
    layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(DEVICE)
    x = normal(32, scaled(256), width, dtype=FP32)
    return learned(lambda: model(x).square().mean(), torch.optim.AdamW(model.parameters(), 1e-4, fused=True))


def residual_training() -> Step:
    channels, size = scaled(128), scaled(56)
    model = torch.nn.Sequential(*[Residual(channels) for _ in range(4)]).to(DEVICE)
    x = normal(32, channels, size, size, dtype=FP32)
    return learned(lambda: model(x).square().mean(), torch.optim.SGD(model.parameters(), 1e-3, fused=True))


def audio_convolutions() -> Step:
    channels = scaled(256)
    layers = [
        part
        for _ in range(8)
        for part in (torch.nn.Conv1d(channels, channels, 5, padding=2), torch.nn.LeakyReLU(0.1, inplace=True))
    ]
    return inferred(torch.nn.Sequential(*layers).to(DEVICE), normal(16, channels, scaled(4096), dtype=FP32))


# unaligned_sizes


def added_words(padded: bool) -> Step:
    width, tokens, words = scaled(1024), scaled(4096), scaled(32000) + 3
    more = scaled(32000) + 64 - words if padded else 0
    x, head = normal(tokens, width).requires_grad_(), functional.pad(weight(width, words).T, (0, 0, 0, more))
    head = head.contiguous().requires_grad_()
    bias = functional.pad(torch.zeros(words, device=DEVICE, dtype=BF16), (0, more), value=-1e4)  # none of these words
    labels = torch.randint(0, words, (tokens,), device=DEVICE)

    def step() -> torch.Tensor:
        x.grad = head.grad = None
        loss = functional.cross_entropy(functional.linear(x, head, bias), labels)
        loss.backward()
        return loss.detach()

    return step


def gated_layers(padded: bool) -> Step:
    width, hidden = scaled(1024), scaled(2728) + 2
    more = 6 if padded else 0
    x, layers = normal(scaled(16384), width), []
    for _ in range(4):
        gate, up, down = weight(width, hidden), weight(width, hidden), weight(hidden, width)
        layers.append((*(functional.pad(w, (0, more)) for w in (gate, up)), functional.pad(down, (0, 0, 0, more))))

    def step() -> torch.Tensor:
        y = x
        for gate, up, down in layers:
            y = (functional.silu(y @ gate) * (y @ up)) @ down
        return y

    return step


def odd_columns(padded: bool) -> Step:
    columns, hidden, more = scaled(1016) + 5, scaled(4096), 3 if padded else 0
    table = functional.pad(normal(scaled(65536), columns, dtype=FP16), (0, more))
    first = functional.pad(weight(columns, hidden, FP16), (0, 0, 0, more))
    second = weight(hidden, scaled(1024), FP16)
    return lambda: torch.relu(table @ first) @ second


# eager_attention


def encoder_attention(written_out: bool) -> Step:
    width = scaled(768, 64)
    model = torch.nn.Sequential(*[SelfAttention(width, written_out) for _ in range(3)]).to(DEVICE, BF16)
    x = normal(32, scaled(512), width)
    return learned(lambda: model(x).square().mean(), torch.optim.SGD(model.parameters(), 1e-3, fused=True))


def causal_attention(written_out: bool) -> Step:
    length = scaled(2048)
    q, k, v = (normal(4, 16, length, 128) for _ in range(3))
    later = torch.full((length, length), -torch.inf, device=DEVICE, dtype=BF16).triu(1)

    def step() -> torch.Tensor:
        x = v
        for _ in range(3):
            if written_out:
                scores = q @ k.transpose(2, 3) * 128**-0.5 + later
                x = torch.softmax(scores, -1, dtype=FP32).to(BF16) @ x
            else:
                x = functional.scaled_dot_product_attention(q, k, x, is_causal=True)
        return x

    return step


def cross_attention(written_out: bool) -> Step:
    width, context_width = scaled(640, 64), scaled(1024)
    x, context = normal(8, scaled(4096), width, dtype=FP16), normal(8, scaled(512), context_width, dtype=FP16)
    layers = [
        (weight(width, width, FP16), weight(context_width, width, FP16), weight(context_width, width, FP16))
        for _ in range(3)
    ]

    def heads(y: torch.Tensor) -> torch.Tensor:
        return y.unflatten(-1, (-1, 64)).transpose(1, 2)

    def step() -> torch.Tensor:
        y = x
        for query, key, value in layers:
            q, k, v = heads(y @ query), heads(context @ key), heads(context @ value)
            if written_out:
                q, k, v = (t.flatten(0, 1) for t in (q, k, v))
                scores = torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0, alpha=0.125)
                seen = (scores.softmax(-1) @ v).unflatten(0, (8, -1))
            else:
                seen = functional.scaled_dot_product_attention(q, k, v)
            y = y + seen.transpose(1, 2).flatten(2)
        return y

    return step


def biased_attention(written_out: bool) -> Step:
    length = scaled(1024)
    q, k, v = (normal(16, 8, length, 32) for _ in range(3))
    bias = normal(1, 8, length, length)

    def step() -> torch.Tensor:
        x = v
        for _ in range(4):
            if written_out:
                x = torch.softmax(q @ k.transpose(2, 3) * 32**-0.5 + bias, -1) @ x
            else:
                x = functional.scaled_dot_product_attention(q, k, x, attn_mask=bias)
        return x

    return step


# dispatch_bound


def next_token() -> Step:
    width, batch = 256, 4
    blocks = [block.eval() for block in torch.nn.ModuleList([Block(width) for _ in range(16)]).to(DEVICE, BF16)]
    caches = [(normal(batch, 4, 128, 64), normal(batch, 4, 128, 64)) for _ in blocks]
    x, position = normal(batch, 1, width), torch.tensor([100], device=DEVICE)
    seen = (torch.arange(128, device=DEVICE) <= 100)[None, None, None]

    def step() -> torch.Tensor:
        y = x
        with torch.no_grad():
            for block, (keys, values) in zip(blocks, caches, strict=True):
                q, k, v = (t.unflatten(-1, (4, 64)).transpose(1, 2) for t in block.qkv(block.norm1(y)).chunk(3, -1))
                keys.index_copy_(2, position, k)
                values.index_copy_(2, position, v)
                z = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
                y = y + block.out(z.transpose(1, 2).flatten(2))
                y = y + block.down(functional.gelu(block.up(block.norm2(y))))
        return y

    return step


def policy_updates() -> Step:
    def network(outputs: int) -> torch.nn.Sequential:
        layers = [torch.nn.Linear(32, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(128, outputs)).to(DEVICE)

    actor, critic = network(8), network(1)
    spread = torch.nn.Parameter(torch.zeros(8, device=DEVICE))
    seen, actions = normal(4, 256, 32, dtype=FP32), normal(4, 256, 8, dtype=FP32)
    chances, advantages, returns = (normal(4, 256, dtype=FP32) for _ in range(3))
    parameters = [*actor.parameters(), *critic.parameters(), spread]
    optimizer = torch.optim.Adam(parameters, 3e-4, fused=True, capturable=DEVICE == "cuda")

    def loss(part: int) -> torch.Tensor:
        distance = (actions[part] - actor(seen[part])) * torch.exp(-spread)
        ratio = torch.exp((-0.5 * distance.square() - spread).sum(-1) * 0.1 - chances[part] * 0.1)
        gain = torch.minimum(ratio * advantages[part], ratio.clamp(0.8, 1.2) * advantages[part]).mean()
        return 0.5 * functional.mse_loss(critic(seen[part]).squeeze(-1), returns[part]) - gain - 0.01 * spread.sum()

    def step() -> torch.Tensor:
        losses = []
        for part in range(4):
            optimizer.zero_grad()
            losses.append(loss(part))
            losses[-1].backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        return torch.stack(losses).detach()

    return step


def simulated_waves() -> Step:
    height, speed = normal(256, 256, dtype=FP32), torch.zeros(256, 256, device=DEVICE)

    def step() -> torch.Tensor:
        u, v = height, speed
        for _ in range(60):
            around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u
            v = 0.999 * v + 0.1 * around
            u = u + 0.1 * v
        return u

    return step


# blocking_read


def asked_whether_finished(each: bool) -> Step:
    rows, width = scaled(2048), scaled(2048)
    x, up, down = normal(rows, width), weight(width, 4 * width), weight(4 * width, width)

    def step() -> torch.Tensor:
        y = x
        for _ in range(32):
            y = functional.layer_norm(y + torch.relu(y @ up) @ down, [width])
            finished = (y[:, 0] > 100).all()
            if each and finished:
                break
        return y

    return step


def losses_of_parts(each: bool) -> Step:
    width = scaled(1024, 64)
    model, parts = transformer(1024, 3), [normal(16, scaled(512), width) for _ in range(6)]

    def step() -> list[float]:
        model.zero_grad()
        losses = []
        for part in parts:
            loss = model(part).square().mean()
            losses.append(loss.detach().cpu() if each else loss.detach())
            if each and not math.isfinite(losses[-1]):
                break
            loss.backward()
        return torch.stack(losses).tolist()

    return step


def chosen_experts(one_by_one: bool) -> Step:
    tokens, width, count = scaled(32768), scaled(1024), 16
    x, numbers = normal(tokens, width), torch.arange(count, device=DEVICE)
    layers = [
        (weight(width, count), [(weight(width, 4 * width), weight(4 * width, width)) for _ in numbers])
        for _ in range(2)
    ]

    def step() -> torch.Tensor:
        y = x
        for router, experts in layers:
            choice, z = (y @ router).argmax(-1), torch.empty_like(y)
            if one_by_one:
                for number, (up, down) in enumerate(experts):
                    rows = (choice == number).nonzero().squeeze(1)
                    z[rows] = torch.relu(y[rows] @ up) @ down
            else:
                order = choice.argsort()
                parts = y[order].split((choice[:, None] == numbers).sum(0).tolist())
                pairs = zip(parts, experts, strict=True)
                z[order] = torch.cat([torch.relu(part @ up) @ down for part, (up, down) in pairs])
            y = z
        return y

    return step


# explicit_sync


def timed_training(timed: bool) -> Step:
    width = scaled(2048)
    model, parts = linear_layers(width, 6, BF16), [normal(scaled(4096), width) for _ in range(6)]
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, fused=True)

    def waited() -> None:
        if timed:
            torch.cuda.synchronize()

    def step() -> torch.Tensor:
        losses = []
        for part in parts:
            optimizer.zero_grad()
            loss = model(part).square().mean()
            waited()
            loss.backward()
            waited()
            optimizer.step()
            waited()
            losses.append(loss.detach())
        return torch.stack(losses)

    return step


def awaited_requests(awaited: bool) -> Step:
    model, width = transformer(512, 2).eval(), scaled(512, 64)
    requests = [normal(64, scaled(128), width) for _ in range(24)]

    def step() -> list[torch.Tensor]:
        answers = []
        with torch.no_grad():
            for request in requests:
                answers.append(model(request)[:, -1])
                if awaited:
                    event = torch.cuda.Event()
                    event.record()
                    event.synchronize()
        return answers

    return step


# blocking_copy


def copied_photographs(pinned: bool) -> Step:
    channels, size = scaled(128), scaled(256)
    host = torch.randn(48, 3, size, size)
    host = host.pin_memory() if pinned else host
    layers = [torch.nn.Conv2d(3, channels, 3, 2, padding=1), *[Residual(channels) for _ in range(3)]]
    model = torch.nn.Sequential(*layers).to(DEVICE, BF16, memory_format=NHWC)

    def step() -> torch.Tensor:
        images = host.to(DEVICE, non_blocking=pinned)
        with torch.no_grad():
            return model(images.to(BF16, memory_format=NHWC)).mean((2, 3))

    return step


def copied_columns(pinned: bool) -> Step:
    rows, width, hidden = scaled(8192), scaled(512), scaled(4096)
    hosts = [torch.randn(rows, width) for _ in range(8)]
    hosts = [host.pin_memory() for host in hosts] if pinned else hosts
    towers = [(weight(width, hidden), weight(hidden, scaled(1024))) for _ in hosts]

    def step() -> list[torch.Tensor]:
        values = []
        for host, (up, down) in zip(hosts, towers, strict=True):
            column = host.to(DEVICE, non_blocking=pinned).to(BF16)
            values.append(torch.relu(column @ up) @ down)
        return values

    return step


def scales_of_layers(each: bool) -> Step:
    rows, width = scaled(4096), scaled(2048)
    x, w = normal(rows, width), weight(width, width)
    numbers = [1 + 0.01 * index for index in range(48)]
    kept = torch.tensor(numbers, device=DEVICE, dtype=BF16).unbind()

    def step() -> torch.Tensor:
        y = x
        for number, scale in zip(numbers, kept, strict=True):
            y = (y @ w) * (torch.tensor(number, device=DEVICE, dtype=BF16) if each else scale)
        return y

    return step


def listed_rows(each: bool) -> Step:
    rows, width, hidden = scaled(8192), scaled(2048), scaled(8192)
    x, w = normal(rows, width), weight(width, hidden)
    lists = [torch.randint(0, rows, (scaled(1024),)).tolist() for _ in range(32)]
    kept = [torch.tensor(numbers, device=DEVICE) for numbers in lists]

    def step() -> torch.Tensor:
        total = torch.zeros(hidden, device=DEVICE)
        for numbers, indices in zip(lists, kept, strict=True):
            total += (x[torch.tensor(numbers, device=DEVICE) if each else indices] @ w).sum(0)
        return total

    return step


# input_pipeline


class Lines(torch.utils.data.Dataset[torch.Tensor]):
    """Token numbers in lines of JSON."""

    def __init__(self, length: int) -> None:
        self.lines = [json.dumps({"tokens": torch.randint(0, 50000, (length,)).tolist()}) for _ in range(32)]

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(json.loads(self.lines[index % 32])["tokens"])


def decoded_lines(workers: int) -> Step:
    loader = torch.utils.data.DataLoader(Lines(scaled(8192)), batch_size=16, num_workers=workers)
    batches, table, work = iter(loader), normal(50000, 64), products(8192, 4)

    def step() -> torch.Tensor:
        tokens = next(batches).to(DEVICE)
        work()
        return functional.embedding(tokens, table).mean(1)

    return step


# allocator_churn


def emptied_between_batches(emptied: bool) -> Step:
    width = scaled(1024, 64)
    model, batches = transformer(1024, 3).eval(), [normal(16, scaled(512), width) for _ in range(6)]

    def step() -> torch.Tensor:
        losses = []
        with torch.no_grad():
            for batch in batches:
                losses.append(model(batch).square().mean())
                if emptied:
                    torch.cuda.empty_cache()
        return torch.stack(losses)

    return step


# host_work


def sorted_candidates(each: bool) -> Step:
    parts = [products(4096, 5) for _ in range(4)]
    candidates = list(enumerate(torch.rand(scaled(12000)).tolist()))

    def best() -> list[int]:
        chosen = sorted(candidates, key=lambda candidate: candidate[1] / (1 + candidate[0]) ** 0.6, reverse=True)
        return [index for index, _ in chosen[:8]]

    kept = best()

    def step() -> list[list[int]]:
        chosen = []
        for part in parts:
            part()
            chosen.append(best() if each else kept)
        return chosen

    return step


def hashed_words(each: bool) -> Step:
    words = [f"user:{index % 977}/item:{index}" for index in range(scaled(12000))]
    width = scaled(4096)
    table, w = normal(100_003, width), weight(width, width)

    def hashed() -> torch.Tensor:
        return torch.tensor([zlib.crc32(word.encode()) % 100_003 for word in words])

    kept = hashed()

    def step() -> torch.Tensor:
        y = functional.embedding((hashed() if each else kept).to(DEVICE), table)
        for _ in range(4):
            y = y @ w
        return y

    return step


# stream_dependency


def prefetched_batches(awaited_at_once: bool) -> Step:
    rows, width, count = scaled(4096), scaled(4096), 6
    hosts = [torch.randn(rows, width).to(BF16).pin_memory() for _ in range(count)]
    targets, w, copies = [normal(rows, width) for _ in range(2)], weight(width, width), torch.cuda.Stream()
    arrived, free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def fetched(index: int) -> None:
        copies.wait_event(free[index % 2])
        with torch.cuda.stream(copies):
            targets[index % 2].copy_(hosts[index], non_blocking=True)
        arrived[index % 2].record(copies)

    def step() -> list[torch.Tensor]:
        compute, values = torch.cuda.current_stream(), []
        fetched(0)
        for index in range(count):
            compute.wait_event(arrived[index % 2])
            if index + 1 < count:
                fetched(index + 1)
            if awaited_at_once:
                compute.wait_stream(copies)
            y = targets[index % 2]
            for _ in range(4):
                y = y @ w
            values.append(y[0])
            free[index % 2].record(compute)
        return values

    return step


def saved_predictions(waiting: bool) -> Step:
    rows, width = scaled(8192), scaled(4096)
    batches, layers = [normal(rows, width) for _ in range(5)], [weight(width, width) for _ in range(4)]
    targets = [torch.empty(rows, width, dtype=BF16).pin_memory() for _ in batches]
    copies = torch.cuda.Stream()

    def step() -> list[torch.Tensor]:
        compute, predictions = torch.cuda.current_stream(), []
        for batch, target in zip(batches, targets, strict=True):
            y = batch
            for w in layers:
                y = y @ w
            predictions.append(y)
            copies.wait_stream(compute)
            with torch.cuda.stream(copies):
                target.copy_(y, non_blocking=True)
            if waiting:
                compute.wait_stream(copies)
        compute.wait_stream(copies)
        return predictions

    return step


# fusible_chain. Each function is compiled for one program alone.


def shifted(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * scale + shift)


def short_chain(compiled: bool) -> Step:
    width = scaled(2048)
    x, scale, shift = normal(scaled(65536), width, dtype=FP32), normal(width, dtype=FP32), normal(width, dtype=FP32)
    function = torch.compile(shifted) if compiled else shifted
    return lambda: function(x, scale, shift)


def added_and_normalized(x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    y = (x + residual).float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(BF16) * gain


def root_mean_squares(compiled: bool) -> Step:
    rows, width = scaled(16384), scaled(4096)
    x, residual, gain, w = normal(rows, width), normal(rows, width), normal(width), weight(width, width)
    function = torch.compile(added_and_normalized) if compiled else added_and_normalized

    def step() -> torch.Tensor:
        y = x
        for _ in range(3):
            y = function(y, residual, gain) @ w
        return y

    return step


def entropies(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    logits = (logits / 0.7).clamp(-50, 50).masked_fill(~allowed, -1e4)
    chances = torch.softmax(logits, -1)
    return -(chances * torch.log(chances + 1e-4)).sum(-1)


def masked_softmax(compiled: bool) -> Step:
    rows, words = scaled(8192), scaled(16384)
    logits, allowed = normal(rows, words, dtype=FP16), torch.rand(rows, words, device=DEVICE) > 0.2
    function = torch.compile(entropies) if compiled else entropies
    return lambda: function(logits, allowed)


def focal_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    chance = torch.sigmoid(scores)
    entropy = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    right = chance * labels + (1 - chance) * (1 - labels)
    weights = 0.25 * labels + 0.75 * (1 - labels)
    return (weights * (1 - right) ** 2 * entropy).mean()


def detection_loss(compiled: bool) -> Step:
    sizes = (scaled(32768), scaled(1024))
    scores, labels = normal(*sizes, dtype=FP32).requires_grad_(), (torch.rand(*sizes, device=DEVICE) > 0.9).float()
    function = torch.compile(focal_loss) if compiled else focal_loss

    def step() -> torch.Tensor:
        scores.grad = None
        loss = function(scores, labels)
        loss.backward()
        return loss.detach()

    return step


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def rotary_positions(compiled: bool) -> Step:
    length = scaled(2048)
    q, k, v = (normal(8, 16, length, 128) for _ in range(3))
    angles = torch.arange(length, device=DEVICE)[:, None] * 10000 ** (-torch.arange(64, device=DEVICE) / 64)
    angles = torch.cat((angles, angles), -1)
    cosine, sine = angles.cos().to(BF16), angles.sin().to(BF16)
    function = torch.compile(rotated) if compiled else rotated

    def step() -> torch.Tensor:
        x = v
        for _ in range(2):
            turned = function(q, cosine, sine), function(k, cosine, sine)
            x = functional.scaled_dot_product_attention(*turned, x, is_causal=True)
        return x

    return step


def gate(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return functional.silu(left) * right


def gates_between_products(compiled: bool) -> Step:
    width, hidden = scaled(2048), scaled(5632)
    x, layers = normal(scaled(16384), width), [(weight(width, 2 * hidden), weight(hidden, width)) for _ in range(3)]
    function = torch.compile(gate) if compiled else gate

    def step() -> torch.Tensor:
        y = x
        for up, down in layers:
            y = function(y @ up) @ down
        return y

    return step


def stretched(images: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    x = (images.float() / 255 - mean) / deviation
    x = torch.where(x > 0, x, x * 0.5).clamp(-2, 2)
    return (1.2 * x + 0.1).pow(2).mul(torch.sign(x)).to(FP16)


def prepared_photographs(compiled: bool) -> Step:
    size = scaled(512)
    images = torch.randint(0, 256, (64, 3, size, size), device=DEVICE, dtype=torch.uint8)
    mean, deviation = (torch.full((3, 1, 1), value, device=DEVICE) for value in (0.45, 0.22))
    function = torch.compile(stretched) if compiled else stretched
    return lambda: function(images, mean, deviation)


# unfused_optimizer


def pretraining(fused: bool) -> Step:
    model, x = transformer(1024, 6, FP32), normal(8, scaled(512), scaled(1024, 64), dtype=FP32)

    def loss() -> torch.Tensor:
        with torch.autocast(DEVICE, BF16):
            return model(x).float().square().mean()

    return learned(loss, torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1, fused=fused or None))


def image_training(fused: bool) -> Step:
    channels, size = scaled(64), scaled(28)
    model = torch.nn.Sequential(*[convolution(channels, channels) for _ in range(24)])
    model.to(DEVICE, memory_format=NHWC)
    x = normal(64, channels, size, size, dtype=FP32).to(memory_format=NHWC)
    how = {"fused": True} if fused else {"foreach": False}
    return learned(lambda: model(x).square().mean(), torch.optim.Adam(model.parameters(), 1e-4, **how))


def momentum(fused: bool) -> Step:
    model, x = linear_layers(scaled(8192), 6, BF16), normal(scaled(1024), scaled(8192))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9, weight_decay=1e-4, nesterov=True, fused=fused or None)
    return learned(lambda: model(x).square().mean(), optimizer)


def recommendation_training(fused: bool) -> Step:
    table = torch.nn.Embedding(scaled(2_000_000), 64, device=DEVICE)
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(DEVICE)
    items = torch.randint(0, table.num_embeddings, (scaled(16384), 8), device=DEVICE)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], 1e-3, fused=fused or None)
    return learned(lambda: head(table(items).mean(1)).square().mean(), optimizer)


# layout_conversion


class Halves(torch.nn.Module):
    """Convolutions at half the size within convolutions at the full size, as in a U-Net."""

    def __init__(self, channels: int, inner: torch.nn.Module) -> None:
        super().__init__()
        self.before, self.down = convolution(channels, channels), convolution(channels, 2 * channels, 2)
        self.inner, self.after = inner, convolution(3 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        larger = functional.interpolate(self.inner(self.down(x)), scale_factor=2.0, mode="nearest")
        return self.after(torch.cat((x, larger), 1))


def segmentation(memory_format: torch.memory_format) -> Step:
    channels, size = scaled(64), scaled(128)
    model = Halves(channels, Halves(2 * channels, convolution(4 * channels, 4 * channels)))
    model = model.to(DEVICE, FP16, memory_format=memory_format).eval()
    return inferred(model, normal(32, channels, size, size, dtype=FP16).to(memory_format=memory_format))


def classification_training(memory_format: torch.memory_format) -> Step:
    channels, size = scaled(64), scaled(112)
    layers = [convolution(channels, channels) for _ in range(2)]
    layers += [convolution(channels, 2 * channels, 2), *[convolution(2 * channels, 2 * channels) for _ in range(2)]]
    layers += [convolution(2 * channels, 4 * channels, 2), *[convolution(4 * channels, 4 * channels) for _ in range(2)]]
    model = torch.nn.Sequential(*layers).to(DEVICE, FP16, memory_format=memory_format)
    x = normal(64, channels, size, size, dtype=FP16).to(memory_format=memory_format)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = model(x).float().square().mean()
        (1024 * loss).backward()
        return loss.detach()

    return step


# repeated_casts


def autocast_layers(cast: bool) -> Step:
    model, x = transformer(4096, 4, FP32), normal(2, scaled(256), scaled(4096, 64), dtype=FP32)
    model, x = (model, x) if cast else (model.to(BF16), x.to(BF16))

    def step() -> torch.Tensor:
        with torch.no_grad(), torch.autocast(DEVICE, BF16, enabled=cast):
            return model(x)

    return step


def autocast_tokens(dtype: torch.dtype) -> Step:
    width, hidden, x = scaled(2048), scaled(8192), normal(64, scaled(2048))
    pairs = [(torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)) for _ in range(2)]
    model = torch.nn.Sequential(*[part for up, down in pairs for part in (up, torch.nn.ReLU(), down)])
    model.to(DEVICE, dtype)

    def step() -> torch.Tensor:
        y = x
        for _ in range(24):
            with torch.no_grad(), torch.autocast(DEVICE, BF16):
                y = functional.layer_norm(y + model(y), [width]).to(BF16)
        return y

    return step


# recomputation


def checkpointed_blocks(recomputed: bool) -> Step:
    layers, x = transformer(1024, 8), normal(8, scaled(1024), scaled(1024, 64)).requires_grad_()

    def step() -> torch.Tensor:
        layers.zero_grad()
        x.grad = None
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=True) if recomputed else layer(y)
        loss = y.square().mean()
        loss.backward()
        return loss.detach()

    return step


def checkpointed_segments(recomputed: bool) -> Step:
    width = scaled(4096)
    parts = [part for _ in range(8) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model, x = torch.nn.Sequential(*parts).to(DEVICE, BF16), normal(scaled(8192), width)

    def step() -> torch.Tensor:
        model.zero_grad()
        y = checkpoint_sequential(model, 4, x, use_reentrant=False) if recomputed else model(x)
        loss = y.square().mean()
        loss.backward()
        return loss.detach()

    return step


# device_copies, contiguous_copies, grown_copy


def cloned_activations(cloned: bool) -> Step:
    width = scaled(2048)
    x, layers = normal(scaled(32768), width), [weight(width, width) for _ in range(8)]

    def step() -> torch.Tensor:
        y = x
        for w in layers:
            kept = y.clone() if cloned else y
            y = kept @ w
        return y

    return step


def contiguous_heads(copied: bool) -> Step:
    width = scaled(2048, 64)
    x, layers = normal(8, scaled(2048), width), [(weight(width, 3 * width), weight(width, width)) for _ in range(4)]

    def heads(y: torch.Tensor) -> torch.Tensor:
        y = y.unflatten(-1, (-1, 64)).transpose(1, 2)
        return y.contiguous() if copied else y

    def step() -> torch.Tensor:
        y = x
        for qkv, out in layers:
            q, k, v = (heads(part) for part in (y @ qkv).chunk(3, -1))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ out
        return y

    return step


def transposed_weights(copied: bool) -> Step:
    width = scaled(8192)
    x, weights = normal(scaled(1024), width), [weight(width, width) for _ in range(8)]

    def step() -> torch.Tensor:
        y = x
        for w in weights:
            y = y @ (w.T.contiguous() if copied else w.T)
        return y

    return step


def grown_keys(grown: bool) -> Step:
    batch, heads, prompt, added = 32, 16, scaled(2048), 24
    prompts = [normal(batch, heads, prompt, 64) for _ in range(2)]
    news = [[normal(batch, heads, 1, 64) for _ in range(2)] for _ in range(added)]
    query = normal(batch, heads, 1, 64)
    caches = [functional.pad(values, (0, 0, 0, added)) for values in prompts]

    def step() -> torch.Tensor:
        q, (keys, values) = query, prompts
        for index, (key, value) in enumerate(news):
            if grown:
                keys, values = torch.cat((keys, key), 2), torch.cat((values, value), 2)
            else:
                end = prompt + index + 1
                caches[0][:, :, end - 1 : end], caches[1][:, :, end - 1 : end] = key, value
                keys, values = caches[0][:, :, :end], caches[1][:, :, :end]
            q = query + functional.scaled_dot_product_attention(q, keys, values)
        return q

    return step


def collected_outputs(grown: bool) -> Step:
    rows, width = scaled(512), scaled(4096)
    batches, w = [normal(rows, width) for _ in range(8)], weight(width, width)

    def step() -> torch.Tensor:
        collected, outputs = torch.empty(0, width, device=DEVICE, dtype=BF16), []
        for index in range(48):
            y = batches[index % 8] @ w
            if grown:
                collected = torch.cat((collected, y))
            else:
                outputs.append(y)
        return collected if grown else torch.cat(outputs)

    return step


# slow_product_kernel


def double_regression(dtype: torch.dtype) -> Step:
    rows, columns, targets = scaled(65536), scaled(1024), scaled(512)
    table, wanted = normal(rows, columns, dtype=FP32).to(dtype), normal(rows, targets, dtype=FP32).to(dtype)
    start = torch.zeros(columns, targets, device=DEVICE, dtype=dtype)

    def step() -> torch.Tensor:
        w = start
        for _ in range(2):
            w = w - 0.1 / rows * (table.T @ (table @ w - wanted))
        return w

    return step


def double_head(dtype: torch.dtype) -> Step:
    width, classes = scaled(2048, 64), scaled(1000)
    backbone, x = transformer(2048, 2).eval(), normal(8, scaled(1024), width)
    head = weight(width, classes, FP32).to(dtype)

    def step() -> torch.Tensor:
        with torch.no_grad():
            features = backbone(x).flatten(0, 1)
            return features.to(dtype) @ head

    return step


# near_limit and none


def half_products() -> Step:
    width = scaled(4096)
    x, weights = normal(scaled(16384), width, dtype=FP16), [weight(width, width, FP16) for _ in range(8)]

    def step() -> torch.Tensor:
        y = x
        for w in weights:
            y = y @ w
        return y

    return step


def softmax_of_rows() -> Step:
    scores = [normal(scaled(65536), scaled(8192)) for _ in range(3)]
    return lambda: [torch.softmax(rows, -1) for rows in scores]


def sums_of_rows() -> Step:
    tables = [normal(scaled(262144), scaled(2048), dtype=FP32) for _ in range(3)]
    return lambda: [table.sum(-1) for table in tables]


def half_attention() -> Step:
    q, k, v = (normal(8, 16, scaled(4096), 64, dtype=FP16) for _ in range(3))

    def step() -> torch.Tensor:
        x = v
        for _ in range(3):
            x = functional.scaled_dot_product_attention(q, k, x)
        return x

    return step


# Two causes each, of which ``fixed`` removes one.


def evaluated_in_fp32() -> Step:
    width = scaled(2048)
    model = linear_layers(width, 3, bias=True)
    batches = [normal(scaled(2048), width, dtype=FP32) for _ in range(12)]

    def step() -> list[float]:
        with torch.no_grad():
            return [model(batch).square().mean().item() for batch in batches]

    return step


def attention_and_loops(written_out: bool) -> Step:
    width = scaled(1024, 64)
    model = torch.nn.Sequential(*[SelfAttention(width, written_out) for _ in range(6)]).to(DEVICE, BF16)
    x = normal(4, scaled(1024), width)
    return learned(lambda: model(x).square().mean(), torch.optim.AdamW(model.parameters(), 1e-4, foreach=False))


def copied_and_chained(pinned: bool) -> Step:
    size = scaled(384)
    host = torch.randint(0, 256, (64, 3, size, size), dtype=torch.uint8)
    host = host.pin_memory() if pinned else host
    mean, deviation = (torch.full((3, 1, 1), value, device=DEVICE) for value in (0.45, 0.22))
    work = products(8192, 2)

    def step() -> torch.Tensor:
        images = host.to(DEVICE, non_blocking=pinned)
        prepared = stretched(images, mean, deviation)
        work()
        return prepared.mean((2, 3))

    return step


def of_two(function: Callable[[bool], Step], wrong: bool, rule: str, note: str, *alternatives: str) -> Program:
    """A program whose argument tells whether the problem is there."""
    return Program(lambda: function(wrong), rule, note, alternatives, lambda: function(not wrong))


def layout(function: Callable[[torch.memory_format], Step], note: str) -> Program:
    return Program(
        lambda: function(NCHW), "layout_conversion", note, ("fusible_chain", "far_from_limit"), lambda: function(NHWC)
    )


PROGRAMS = {
    "tabular_training": Program(
        tabular_training,
        "fp32_products",
        "FP32 training of a perceptron of 1024, 16384 rows",
        ("dispatch_bound",),
        with_tf32(tabular_training),
    ),
    "nearest_documents": Program(
        nearest_documents,
        "fp32_products",
        "FP32 scores of 4096 queries against 131072 documents of 768 values",
        ("near_limit",),
        with_tf32(nearest_documents),
    ),
    "encoder_training": Program(
        encoder_training,
        "fp32_products",
        "FP32 nn.TransformerEncoder of width 512, 8192 tokens",
        ("dispatch_bound",),
        with_tf32(encoder_training),
    ),
    "residual_training": Program(
        with_convolutions(residual_training, tf32=False),
        "fp32_products",
        "FP32 convolutions in NCHW, forward and backward, cudnn.allow_tf32 off",
        ("layout_conversion", "near_limit"),
        with_convolutions(residual_training, tf32=True),
    ),
    "audio_convolutions": Program(
        with_convolutions(audio_convolutions, tf32=False),
        "fp32_products",
        "FP32 one-dimensional convolutions, cudnn.allow_tf32 off",
        ("layout_conversion", "near_limit"),
        with_convolutions(audio_convolutions, tf32=True),
    ),
    "added_words": of_two(
        added_words, False, "unaligned_sizes", "a vocabulary of 32000 and 3 added words", "slow_product_kernel"
    ),
    "gated_layers": of_two(
        gated_layers, False, "unaligned_sizes", "SwiGLU with 8/3 of 1024 hidden features: 2730", "slow_product_kernel"
    ),
    "odd_columns": of_two(
        odd_columns, False, "unaligned_sizes", "FP16 table of 1021 columns in its first layer", "slow_product_kernel"
    ),
    "encoder_attention": of_two(
        encoder_attention,
        True,
        "eager_attention",
        "training of self-attention by hand, 32 sequences of 512 positions",
        "fusible_chain",
    ),
    "causal_attention": of_two(
        causal_attention,
        True,
        "eager_attention",
        "added causal mask, softmax in FP32, 2048 positions, heads of 128",
        "fusible_chain",
    ),
    "cross_attention": of_two(
        cross_attention,
        True,
        "eager_attention",
        "FP16 baddbmm and softmax of 4096 positions over 512 of a context",
        "fusible_chain",
    ),
    "biased_attention": of_two(
        biased_attention,
        True,
        "eager_attention",
        "attention by hand with a bias per pair of 1024 positions, heads of 32",
        "fusible_chain",
    ),
    "next_token": Program(
        next_token,
        "dispatch_bound",
        "one token of 4 sequences through 16 layers of width 256",
        ("small_batch", "fusible_chain"),
        graphed(next_token),
    ),
    "policy_updates": Program(
        policy_updates,
        "dispatch_bound",
        "4 updates of a small actor and critic with clipped gradients",
        ("small_batch", "fusible_chain"),
        graphed(policy_updates),
    ),
    "simulated_waves": Program(
        simulated_waves,
        "dispatch_bound",
        "60 time steps of a wave on 256 x 256 points, 14 kernels each",
        ("fusible_chain",),
        graphed(simulated_waves),
    ),
    "asked_whether_finished": of_two(
        asked_whether_finished,
        True,
        "blocking_read",
        "if finished.all() after each of 32 rounds",
        "dispatch_bound",
    ),
    "losses_of_parts": of_two(
        losses_of_parts,
        True,
        "blocking_read",
        "the loss of each of 6 micro-batches is read before its backward pass",
        "dispatch_bound",
        "fusible_chain",
        "near_limit",
    ),
    "chosen_experts": of_two(
        chosen_experts,
        True,
        "blocking_read",
        "nonzero for each of 16 experts in 2 layers (fixed: one read a layer)",
        "dispatch_bound",
    ),
    "timed_training": of_two(
        timed_training,
        True,
        "explicit_sync",
        "torch.cuda.synchronize() after forward, backward and optimizer of 6 micro-batches",
        "dispatch_bound",
    ),
    "awaited_requests": of_two(
        awaited_requests, True, "explicit_sync", "event.synchronize() after each of 24 requests", "dispatch_bound"
    ),
    "copied_photographs": of_two(
        copied_photographs, False, "blocking_copy", "38 MB of pageable images before convolutions", "input_pipeline"
    ),
    "copied_columns": of_two(
        copied_columns, False, "blocking_copy", "8 pageable columns of 17 MB, each before its tower", "input_pipeline"
    ),
    "scales_of_layers": of_two(
        scales_of_layers, True, "blocking_copy", "48 times torch.tensor(number, device=...) a step", "dispatch_bound"
    ),
    "listed_rows": of_two(
        listed_rows,
        True,
        "blocking_copy",
        "32 lists of 1024 row numbers become tensors on the device in every step",
        "host_work",
        "dispatch_bound",
    ),
    "decoded_lines": Program(
        lambda: decoded_lines(0),
        "input_pipeline",
        "DataLoader without workers that parses JSON (fixed: 4 workers)",
        ("host_work",),
        lambda: decoded_lines(4),
    ),
    "emptied_between_batches": of_two(
        emptied_between_batches,
        True,
        "allocator_churn",
        "torch.cuda.empty_cache() after each of 6 batches of an evaluation",
        "explicit_sync",
    ),
    "sorted_candidates": of_two(
        sorted_candidates, True, "host_work", "12000 candidates are sorted in Python between products, 4 times"
    ),
    "hashed_words": of_two(
        hashed_words, True, "host_work", "12000 words are hashed in Python before each step", "input_pipeline"
    ),
    "prefetched_batches": of_two(
        prefetched_batches,
        True,
        "stream_dependency",
        "the copy of the next batch is waited for at once, not when it is needed",
        "exposed_copy",
    ),
    "saved_predictions": of_two(
        saved_predictions,
        True,
        "stream_dependency",
        "each batch waits until the predictions before it were copied to the host",
        "exposed_copy",
    ),
    "short_chain": of_two(short_chain, False, "fusible_chain", "3 FP32 operators on 512 MB"),
    "root_mean_squares": of_two(
        root_mean_squares, False, "fusible_chain", "addition and RMSNorm by hand between products"
    ),
    "masked_softmax": of_two(
        masked_softmax, False, "fusible_chain", "FP16 temperature, limits, mask, softmax and entropy of 8192 rows"
    ),
    "detection_loss": of_two(
        detection_loss, False, "fusible_chain", "FP32 focal loss of 32 M scores, forward and backward"
    ),
    "rotary_positions": of_two(
        rotary_positions, False, "fusible_chain", "rotary positions by hand, with torch.cat, before attention"
    ),
    "gates_between_products": of_two(
        gates_between_products, False, "fusible_chain", "silu and multiplication between products", "near_limit"
    ),
    "prepared_photographs": of_two(
        prepared_photographs, False, "fusible_chain", "14 operators from 8 bits by FP32 to FP16 on 50 M pixels"
    ),
    "pretraining": of_two(
        pretraining,
        False,
        "unfused_optimizer",
        "AdamW as it comes (foreach), 76 M parameters under autocast",
        "fusible_chain",
    ),
    "image_training": of_two(
        image_training,
        False,
        "unfused_optimizer",
        "Adam with foreach=False, 72 small parameters of convolutions",
        "dispatch_bound",
    ),
    "momentum": of_two(
        momentum,
        False,
        "unfused_optimizer",
        "SGD with Nesterov momentum as it comes (foreach), 403 M BF16 parameters",
    ),
    "recommendation_training": of_two(
        recommendation_training,
        False,
        "unfused_optimizer",
        "Adam as it comes (foreach) on one embedding of 128 M parameters",
    ),
    "segmentation": layout(segmentation, "FP16 inference of a U-Net in NCHW"),
    "classification_training": layout(classification_training, "FP16 training of convolutions and BatchNorm in NCHW"),
    "autocast_layers": of_two(
        autocast_layers, True, "repeated_casts", "autocast casts 805 M FP32 weights for 512 tokens", "fusible_chain"
    ),
    "autocast_tokens": Program(
        lambda: autocast_tokens(FP32),
        "repeated_casts",
        "autocast is entered anew for each of 24 tokens and casts 67 M weights each time",
        ("dispatch_bound",),
        lambda: autocast_tokens(BF16),
    ),
    "checkpointed_blocks": of_two(
        checkpointed_blocks,
        True,
        "recomputation",
        "checkpoint(use_reentrant=True) around 8 layers, memory suffices",
        "near_limit",
        "fusible_chain",
    ),
    "checkpointed_segments": of_two(
        checkpointed_segments,
        True,
        "recomputation",
        "checkpoint_sequential in 4 segments of a perceptron",
        "near_limit",
    ),
    "cloned_activations": of_two(cloned_activations, True, "device_copies", "x.clone() before each of 8 products"),
    "contiguous_heads": of_two(
        contiguous_heads, True, "contiguous_copies", "queries, keys and values are made contiguous before SDPA"
    ),
    "transposed_weights": of_two(
        transposed_weights, True, "contiguous_copies", "x @ w.T.contiguous() with 8 weights of 8192", "device_copies"
    ),
    "grown_keys": of_two(
        grown_keys,
        True,
        "grown_copy",
        "torch.cat of a cache of 2048 keys and values for each of 24 tokens",
        "device_copies",
    ),
    "collected_outputs": of_two(
        collected_outputs,
        True,
        "grown_copy",
        "torch.cat of all outputs so far after each of 48 batches",
        "device_copies",
    ),
    "double_regression": Program(
        lambda: double_regression(FP64),
        "slow_product_kernel",
        "gradient descent of a linear model in double precision, as NumPy made its table (fixed: FP32 with TF32)",
        ("fp32_products", "near_limit"),
        with_tf32(lambda: double_regression(FP32)),
    ),
    "double_head": Program(
        lambda: double_head(FP64),
        "slow_product_kernel",
        "a classifier in double precision behind a BF16 transformer",
        ("fusible_chain",),
        lambda: double_head(BF16),
    ),
    "half_products": Program(half_products, "near_limit", "FP16 products of 16384 rows with 4096 squared", ("none",)),
    "softmax_of_rows": Program(softmax_of_rows, "near_limit", "softmax of 3 x 1 GB of BF16 rows", ("none",)),
    "sums_of_rows": Program(sums_of_rows, "near_limit", "sums of the rows of 3 x 2 GB of FP32", ("none",)),
    "half_attention": Program(half_attention, "none", "FP16 SDPA, 4096 positions, heads of 64", ("near_limit",)),
    "evaluated_in_fp32": Program(
        evaluated_in_fp32,
        "fp32_products",
        "FP32 products, TF32 off; .item() after each of 12 batches stays",
        ("blocking_read",),
        with_tf32(evaluated_in_fp32),
    ),
    "attention_and_loops": of_two(
        attention_and_loops,
        True,
        "eager_attention",
        "training of attention by hand; AdamW with foreach=False stays",
        "unfused_optimizer",
        "dispatch_bound",
        "fusible_chain",
    ),
    "copied_and_chained": of_two(
        copied_and_chained,
        False,
        "blocking_copy",
        "28 MB of pageable images per step; their chain of 14 operators stays",
        "fusible_chain",
        "input_pipeline",
    ),
}
