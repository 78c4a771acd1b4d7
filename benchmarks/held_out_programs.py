"""Held-out programs with one built-in performance problem each: does the first finding name it, does its saving hold?

The same as ``unseen_programs.py`` with yet other workloads, sizes and data types: retrieval, graphs, speech, diffusion,
robots, genes, images, serving. Whoever wrote them had read what rules fire on, but not the code that computes savings.
What is ``fixed`` does the same work, with the same result up to precision, and differs in the one thing that is wrong.
Every step returns a tensor, so that the two can be compared.
"""

import bisect
import itertools
import math
import time
from collections.abc import Callable, Iterator

import torch
from programs import (
    BF16,
    DEVICE,
    FP32,
    NHWC,
    Program,
    Residual,
    Step,
    graphed,
    inferred,
    linear_layers,
    normal,
    scaled,
    transformer,
    weight,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from unseen_programs import FP16, SelfAttention, layout, learned, of_two

ON_GPU = DEVICE == "cuda"


# What several programs are made of.


def in_tf32(make: Callable[[], Step]) -> Callable[[], Step]:
    def made() -> Step:
        work = make()

        def step() -> object:
            torch.set_float32_matmul_precision("high")
            try:
                return work()
            finally:
                torch.set_float32_matmul_precision("highest")

        return step

    return made


def captured(make: Callable[[], Step]) -> Callable[[], Step]:
    """The same as one CUDA graph, which returns what was computed."""

    def made() -> Step:
        kept: list[object] = []

        def recorded() -> Step:
            work = make()

            def step() -> None:
                kept[:] = [work()]

            return step

        replayed = graphed(recorded)() if ON_GPU else recorded()

        def step() -> object:
            replayed()
            return kept[0]

        return step

    return made


def pinned_if(pinned: bool, host: torch.Tensor) -> torch.Tensor:
    return host.pin_memory() if pinned and ON_GPU else host


class Layer(torch.nn.Module):
    """A layer of a vision transformer or another encoder; activations of its perceptron are kept or recomputed."""

    def __init__(self, width: int, recomputed: bool = False) -> None:
        super().__init__()
        self.attention, self.norm = SelfAttention(width, written_out=False), torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.recomputed = recomputed

    def perceptron(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(self.norm(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention(x)
        added = checkpoint(self.perceptron, x, use_reentrant=False) if self.recomputed else self.perceptron(x)
        return x + added


def encoder(width: int, count: int, dtype: torch.dtype, recomputed: bool = False) -> torch.nn.Sequential:
    with torch.device(DEVICE):
        layers = [Layer(width, recomputed) for _ in range(count)]
    return torch.nn.Sequential(*layers).to(dtype)


# fp32_products


def retrieval_training() -> Step:
    rows, features, width, shared = scaled(8192), scaled(512), scaled(1024), scaled(256)

    def tower() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(features, width), torch.nn.GELU(), torch.nn.Linear(width, shared))

    users, items = tower().to(DEVICE), tower().to(DEVICE)
    seen, bought = normal(rows, features, dtype=FP32), normal(rows, features, dtype=FP32)
    labels = torch.arange(rows, device=DEVICE)

    def loss() -> torch.Tensor:
        a, b = functional.normalize(users(seen), dim=-1), functional.normalize(items(bought), dim=-1)
        return functional.cross_entropy(20 * a @ b.T, labels)

    return learned(loss, torch.optim.AdamW([*users.parameters(), *items.parameters()], 1e-4, fused=True))


class Neighbourhood(torch.nn.Module):
    """A layer of GraphSAGE: a node and the mean of its neighbours."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2 * inputs, outputs)

    def forward(self, x: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        around = x.index_select(0, neighbours).unflatten(0, (len(x), -1)).mean(1)
        return self.linear(torch.cat((x, around), -1))


def graph_training() -> Step:
    nodes, features, width = scaled(49152), scaled(384), scaled(768)
    sizes = [features, width, width]
    layers = torch.nn.ModuleList([Neighbourhood(a, b) for a, b in itertools.pairwise(sizes)]).to(DEVICE)
    head = torch.nn.Linear(width, 40, device=DEVICE)
    x, labels = normal(nodes, features, dtype=FP32), torch.randint(0, 40, (nodes,), device=DEVICE)
    neighbours = torch.randint(0, nodes, (4 * nodes,), device=DEVICE)

    def loss() -> torch.Tensor:
        y = x
        for layer in layers:
            y = functional.relu(layer(y, neighbours))
        return functional.cross_entropy(head(y), labels)

    return learned(loss, torch.optim.Adam([*layers.parameters(), *head.parameters()], 1e-4, fused=True))


def orthogonalized_updates() -> Step:
    gradients = [normal(scaled(1536), scaled(4096), dtype=FP32) for _ in range(3)]

    def orthogonalized(gradient: torch.Tensor) -> torch.Tensor:
        x = gradient / gradient.norm()
        for _ in range(5):  # Newton-Schulz, as in Muon
            a = x @ x.T
            b = torch.addmm(a, a, a, beta=-4.775, alpha=2.0315)
            x = torch.addmm(x, b, x, beta=3.4445)
        return x

    return lambda: torch.stack([orthogonalized(gradient).diagonal() for gradient in gradients])


# unaligned_sizes


def transducer_joint(padded: bool) -> Step:
    width, words = scaled(640), scaled(1024) + 1
    more = 7 if padded else 0
    frames, states = normal(8, scaled(248), 1, width), normal(8, 1, scaled(32), width)
    head = functional.pad(weight(width, words).T, (0, 0, 0, more)).contiguous()
    bias = functional.pad(torch.zeros(words, device=DEVICE, dtype=BF16), (0, more), value=-1e4)  # none of these words
    labels = torch.randint(0, words, (8 * scaled(248) * scaled(32),), device=DEVICE)
    learnt = [t.requires_grad_() for t in (frames, states, head)]

    def step() -> torch.Tensor:
        for t in learnt:
            t.grad = None
        logits = functional.linear(torch.tanh(frames + states), head, bias)
        loss = functional.cross_entropy(logits.flatten(0, 2), labels)  # stands for the loss over all alignments
        loss.backward()
        return loss.detach()

    return step


def expression_autoencoder(padded: bool) -> Step:
    cells, genes, width = scaled(16384), scaled(3000) - 1, scaled(1024)
    more = 1 if padded else 0
    counts = functional.pad(normal(cells, genes), (0, more))
    down = functional.pad(weight(genes, width), (0, 0, 0, more)).requires_grad_()
    up = functional.pad(weight(width, genes), (0, more)).requires_grad_()

    def step() -> torch.Tensor:
        down.grad = up.grad = None
        loss = functional.mse_loss(torch.relu(counts @ down) @ up, counts)
        loss.backward()
        return loss.detach()

    return step


# dispatch_bound


def diffusion_policy() -> Step:
    batch, horizon, width = 32, 128, 512
    seen, noise = normal(batch, 64, dtype=FP16), normal(batch, horizon, dtype=FP16)
    first, second = weight(horizon + 64, width, FP16), weight(width, width, FP16)
    third, times = weight(width, horizon, FP16), normal(50, width, dtype=FP16)
    alphas = [math.cos(0.5 * math.pi * (0.98 - 0.0196 * index)) for index in range(51)]

    def step() -> torch.Tensor:
        x = noise
        with torch.no_grad():
            for index in range(50):
                now, later = alphas[index], alphas[index + 1]
                y = functional.silu(torch.cat((x, seen), -1) @ first + times[index])
                predicted = functional.silu(y @ second) @ third
                clean = ((x - math.sqrt(1 - now**2) * predicted) / now).clamp(-3, 3)
                x = later * clean + math.sqrt(1 - later**2) * predicted
        return x

    return step


def molecule_training() -> Step:
    atoms, bonds, width, graphs = 2048, 4608, 64, 64
    layers = torch.nn.ModuleList(
        torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Linear(width, width)
        )
        for _ in range(5)
    ).to(DEVICE)
    head = torch.nn.Linear(width, 1, device=DEVICE)
    x, wanted = normal(atoms, width, dtype=FP32), normal(graphs, dtype=FP32)
    start, end = (torch.randint(0, atoms, (bonds,), device=DEVICE) for _ in range(2))
    graph = torch.arange(graphs, device=DEVICE).repeat_interleave(atoms // graphs)

    def loss() -> torch.Tensor:
        y = x
        for layer in layers:
            around = torch.zeros_like(y).index_add(0, end, y.index_select(0, start))
            y = functional.relu(layer(y + 0.5 * around))
        pooled = torch.zeros(graphs, width, device=DEVICE).index_add(0, graph, y)
        return functional.mse_loss(head(pooled / (atoms // graphs)).squeeze(-1), wanted)

    parameters = [*layers.parameters(), *head.parameters()]
    return learned(loss, torch.optim.Adam(parameters, 1e-5, fused=True, capturable=ON_GPU))


def critics(stacked: bool) -> Step:
    count, rows, sizes = 16, 256, (48, 256, 256, 1)
    seen, wanted = normal(rows, sizes[0], dtype=FP32), normal(count, rows, dtype=FP32)
    stacks = [
        (normal(count, a, b, dtype=FP32).mul_(a**-0.5), torch.zeros(count, 1, b, device=DEVICE))
        for a, b in itertools.pairwise(sizes)
    ]
    pairs = [stacks] if stacked else [[(w[i].clone(), b[i].clone()) for w, b in stacks] for i in range(count)]
    parameters = [t.requires_grad_() for layers in pairs for pair in layers for t in pair]

    def value(layers: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        y = seen.expand(count, -1, -1) if stacked else seen
        for index, (w, b) in enumerate(layers):
            y = torch.baddbmm(b, y, w) if stacked else torch.addmm(b, y, w)
            y = y if index == len(sizes) - 2 else functional.relu(y)
        return y.squeeze(-1)

    def loss() -> torch.Tensor:
        if stacked:
            return (value(pairs[0]) - wanted).square().mean(-1).sum()
        losses = [(value(layers) - wanted[index]).square().mean() for index, layers in enumerate(pairs)]
        return torch.stack(losses).sum()

    return learned(loss, torch.optim.Adam(parameters, 3e-4, fused=True))


# blocking_read


def trimmed_batches(read: bool) -> Step:
    length, width = scaled(256), scaled(768, 64)
    model, host = encoder(width, 1, FP16).eval(), torch.randint(length // 2, length + 1, (20, 32))
    batches = [(normal(32, length, width, dtype=FP16), lengths.to(DEVICE)) for lengths in host]
    longest = host.amax(1).tolist()

    def step() -> torch.Tensor:
        pooled = []
        with torch.no_grad():
            for (x, lengths), known in zip(batches, longest, strict=True):
                size = int(lengths.max()) if read else known
                pooled.append(model(x[:, :size]).mean(1))
        return torch.stack(pooled)

    return step


def generated_tokens(read: bool) -> Step:
    batch, width, words = 64, scaled(2048), scaled(32000)
    table, head = normal(words, width), weight(width, words)
    layers = [(weight(width, 4 * width), weight(4 * width, width)) for _ in range(2)]
    prompt = normal(batch, width)

    def step() -> torch.Tensor:
        state, tokens, answer = prompt, [], []
        for _ in range(48):
            for up, down in layers:
                state = functional.layer_norm(state + functional.silu(state @ up) @ down, [width])
            token = (state @ head).argmax(-1)
            state = state + functional.embedding(token, table)
            tokens.append(token)
            if read:
                answer.append(token.tolist())
                if not any(answer[-1]):  # all of them ended
                    break
        return torch.stack(tokens).cpu()

    return step


def checked_layers(read: bool) -> Step:
    width = scaled(640, 64)
    model, x = encoder(width, 10, FP16).eval(), normal(64, scaled(196), width, dtype=FP16)

    def step() -> torch.Tensor:
        y = x
        with torch.no_grad():
            for layer in model:
                y = layer(y)
                if not read:
                    torch._assert_async(~y.isnan().any())
                elif y.isnan().any():
                    raise FloatingPointError(layer)
        return y

    return step


# explicit_sync


def ranked_requests(timed: bool) -> Step:
    candidates, fields, size, width = scaled(16384), 26, 64, scaled(1024)
    table = normal(200_000, size, dtype=FP16)
    first, second, third = weight(fields * size, width, FP16), weight(width, width, FP16), weight(width, 8, FP16)
    requests = [torch.randint(0, len(table), (candidates, fields), device=DEVICE) for _ in range(20)]
    times = {"lookup": 0.0, "score": 0.0}

    def lap(stage: str, begin: float) -> float:
        if timed and ON_GPU:
            torch.cuda.current_stream().synchronize()
        end = time.perf_counter()
        times[stage] += end - begin
        return end

    def step() -> torch.Tensor:
        scores, begin = [], time.perf_counter()
        for request in requests:
            features = functional.embedding(request, table).flatten(1)
            begin = lap("lookup", begin)
            scores.append(torch.relu(torch.relu(features @ first) @ second) @ third)
            begin = lap("score", begin)
        return torch.stack(scores)

    return step


# blocking_copy


def copied_waveforms(pinned: bool) -> Step:
    window, width = 400, scaled(2048)
    host = pinned_if(pinned, torch.randn(48, window * scaled(400)))
    basis, layers = weight(window, width), linear_layers(width, 6, BF16)

    def step() -> torch.Tensor:
        frames = host.to(DEVICE, non_blocking=pinned).to(BF16).unflatten(1, (-1, window))
        with torch.no_grad():
            y = frames @ basis
            for layer in layers:
                y = functional.silu(layer(y))
            return y.mean(1)

    return step


def exported_embeddings(pinned: bool) -> Step:
    rows, width, size = scaled(8192), scaled(2048), scaled(512)
    batches, last = [normal(rows, width) for _ in range(4)], weight(width, size)
    layers = [weight(width, width) for _ in range(4)]
    table = pinned_if(pinned, torch.empty(4, rows, size))

    def step() -> torch.Tensor:
        for part, batch in zip(table, batches, strict=True):
            y = batch
            for w in layers:
                y = torch.relu(y @ w)
            part.copy_(functional.normalize((y @ last).float(), dim=-1), non_blocking=pinned)
        if pinned and ON_GPU:
            torch.cuda.synchronize()
        return table

    return step


def copied_timesteps(each: bool) -> Step:
    batch, channels, size = 64, scaled(128), scaled(32)
    blocks = [Residual(channels).to(DEVICE, BF16, memory_format=NHWC) for _ in range(2)]
    noise, w = normal(batch, channels, size, size).to(memory_format=NHWC), weight(64, channels)
    frequencies = torch.exp(-math.log(10000) * torch.arange(32, device=DEVICE) / 32)

    def step() -> torch.Tensor:
        x = noise
        with torch.no_grad():
            for time_step in range(980, 0, -49):
                if each:
                    times = torch.tensor([time_step] * batch, device=DEVICE)
                else:
                    times = torch.full((batch,), time_step, device=DEVICE)
                angles = times[:, None] * frequencies
                added = torch.cat((angles.sin(), angles.cos()), -1).to(BF16) @ w
                y = x + added[:, :, None, None]
                for block in blocks:
                    y = block(y)
                x = x - 0.05 * y
        return x

    return step


# host_work


def sampled_transitions(looped: bool) -> Step:
    width, features = scaled(4096), scaled(512)
    memory, first, second = normal(200_000, features), weight(features, width), weight(width, width)
    priorities = torch.rand(200_000, dtype=torch.float64).cumsum(0)
    limits, draws = priorities.tolist(), torch.rand(2, scaled(4096), dtype=torch.float64) * priorities[-1]

    def sampled(part: int) -> torch.Tensor:
        if looped:
            return torch.tensor([bisect.bisect_left(limits, draw) for draw in draws[part].tolist()])
        return torch.searchsorted(priorities, draws[part])

    def step() -> torch.Tensor:
        values = []
        for part in range(2):
            y = torch.relu(memory[sampled(part).to(DEVICE)] @ first)
            for _ in range(4):
                y = torch.relu(y @ second)
            values.append(y.amax(-1))
        return torch.stack(values)

    return step


def masked_spans(looped: bool) -> Step:
    batch, length, width, span = 32, scaled(1024, 16), scaled(768, 64), 10
    model, x, hidden = encoder(width, 2, FP16).eval(), normal(batch, length, width, dtype=FP16), normal(width)
    starts = torch.randint(0, length - span, (batch, max(1, length // 12)))
    listed, hidden = starts.tolist(), hidden.to(FP16)

    def mask() -> torch.Tensor:
        if not looped:
            places = (starts[:, :, None] + torch.arange(span)).flatten(1)
            return torch.zeros(batch, length, dtype=torch.bool).scatter_(1, places, value=True)
        rows = []
        for utterance in listed:
            row = [False] * length
            for start in utterance:
                for place in range(start, start + span):
                    row[place] = True
            rows.append(row)
        return torch.tensor(rows)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(torch.where(mask().to(DEVICE)[:, :, None], hidden, x)).mean(1)

    return step


# input_pipeline


def rows_one_by_one(batched: bool) -> Step:
    batch, features, width = scaled(2048), 128, scaled(4096)
    rows = TensorDataset(torch.randn(64 * batch, features), torch.randn(64 * batch))
    if batched:
        loader = DataLoader(rows, batch_size=None, sampler=BatchSampler(SequentialSampler(rows), batch, drop_last=True))
    else:
        loader = DataLoader(rows, batch_size=batch)

    def epochs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from loader

    batches = epochs()
    sizes = (features, width, width, width)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 8)).to(DEVICE, BF16)

    def loss() -> torch.Tensor:
        x, wanted = next(batches)
        return functional.mse_loss(model(x.to(DEVICE).to(BF16)).float().mean(-1), wanted.to(DEVICE))

    return learned(loss, torch.optim.SGD(model.parameters(), 1e-3, fused=True))


# allocator_churn


def decoded_tiles(emptied: bool) -> Step:
    channels, size = scaled(128), scaled(128)
    layers = [Residual(channels), torch.nn.Upsample(scale_factor=2.0), Residual(channels)]
    model = torch.nn.Sequential(*layers, torch.nn.Conv2d(channels, 8, 3, padding=1))
    model = model.to(DEVICE, BF16, memory_format=NHWC)
    tiles = [normal(2, channels, size, size).to(memory_format=NHWC) for _ in range(12)]

    def step() -> torch.Tensor:
        images = []
        with torch.no_grad():
            for tile in tiles:
                images.append(model(tile))
                if emptied:
                    torch.cuda.empty_cache()
        return torch.stack(images)

    return step


# fusible_chain. Each function is compiled for one program alone.


def denoised(x: torch.Tensor, seen: torch.Tensor, unseen: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    predicted = unseen + 7.5 * (seen - unseen)
    clean = ((x - 0.6 * predicted) / 0.8).clamp(-1, 1)
    return 0.55 * clean + 0.43 * x + 0.12 * noise


def denoised_images(compiled: bool) -> Step:
    size = scaled(448)
    images = [normal(96, 3, size, size, dtype=FP32) for _ in range(4)]
    function = torch.compile(denoised) if compiled else denoised
    return lambda: function(*images)


def companded(waveform: torch.Tensor) -> torch.Tensor:
    x = waveform.clamp(-1, 1)
    x = torch.sign(x) * torch.log1p(255 * x.abs()) / math.log1p(255)
    return ((x + 1) / 2 * 255 + 0.5).to(torch.int64)


def companded_audio(compiled: bool) -> Step:
    waveform = 0.3 * normal(96, scaled(480_000), dtype=FP32)
    function = torch.compile(companded) if compiled else companded
    return lambda: function(waveform)


def distilled(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    wanted = torch.log_softmax(teacher.float() / 2, -1)
    found = torch.log_softmax(student.float() / 2, -1)
    return 4 * (wanted.exp() * (wanted - found)).sum(-1).mean()


def distillation_loss(compiled: bool) -> Step:
    student, teacher = (normal(scaled(12288), scaled(8192)) for _ in range(2))
    student.requires_grad_()
    function = torch.compile(distilled) if compiled else distilled

    def step() -> torch.Tensor:
        student.grad = None
        loss = function(student, teacher)
        loss.backward()
        return loss.detach()

    return step


# eager_attention


def window_attention(written_out: bool) -> Step:
    windows, positions, width = scaled(2048), scaled(256, 16), scaled(192, 32)
    heads, x = width // 32, normal(windows, positions, width, dtype=FP16)
    bias = normal(1, heads, positions, positions, dtype=FP16)
    layers = [(weight(width, 3 * width, FP16), weight(width, width, FP16)) for _ in range(2)]

    def step() -> torch.Tensor:
        y = x
        for qkv, out in layers:
            q, k, v = (t.unflatten(-1, (heads, 32)).transpose(1, 2) for t in (y @ qkv).chunk(3, -1))
            if written_out:
                z = torch.softmax((q * 32**-0.5) @ k.transpose(-2, -1) + bias, -1) @ v
            else:
                z = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            y = y + z.transpose(1, 2).flatten(2) @ out
        return y

    return step


def speech_attention(written_out: bool) -> Step:
    batch, frames, width = 32, scaled(752), scaled(512, 64)
    x, lengths = normal(batch, frames, width), torch.randint(frames // 2, frames + 1, (batch,), device=DEVICE)
    spoken = (torch.arange(frames, device=DEVICE) < lengths[:, None])[:, None, None]
    silent = ~spoken
    layers = [(weight(width, 3 * width), weight(width, width)) for _ in range(3)]
    parameters = [w.requires_grad_() for pair in layers for w in pair]

    def step() -> torch.Tensor:
        for w in parameters:
            w.grad = None
        y = x
        for qkv, out in layers:
            q, k, v = (t.unflatten(-1, (-1, 64)).transpose(1, 2) for t in (y @ qkv).chunk(3, -1))
            if written_out:
                scores = (q @ k.transpose(-2, -1) / 8).masked_fill(silent, -torch.inf)
                z = torch.softmax(scores, -1) @ v
            else:
                z = functional.scaled_dot_product_attention(q, k, v, attn_mask=spoken)
            y = y + z.transpose(1, 2).flatten(2) @ out
        loss = y.square().mean()
        loss.backward()
        return loss.detach()

    return step


# unfused_optimizer


def adapter_training(fused: bool) -> Step:
    rows, width, rank = scaled(512), scaled(2048), 16
    x = normal(rows, width)
    layers = [
        (weight(width, width), weight(width, rank).requires_grad_(), weight(rank, width).requires_grad_())
        for _ in range(32)
    ]
    optimizer = torch.optim.AdamW([w for _, *pair in layers for w in pair], 1e-5, fused=fused or None)

    def loss() -> torch.Tensor:
        y = x
        for frozen, down, up in layers:
            y = functional.relu(torch.addmm(y @ frozen, y @ down, up))
        return y.square().mean()

    return learned(loss, optimizer)


def expert_training(fused: bool) -> Step:
    experts, tokens, width, hidden = 16, scaled(512), scaled(1024), scaled(2816)
    x, parameters = normal(experts, tokens, width), []
    for _ in range(2):
        for inputs, outputs in ((width, hidden), (hidden, width)):
            w = normal(experts, inputs, outputs, dtype=FP32).mul_(inputs**-0.5)
            parameters.append(w.requires_grad_())
    how = {"fused": True} if fused else {"foreach": False}

    def loss() -> torch.Tensor:
        y = x
        with torch.autocast(DEVICE, BF16):
            for up, down in zip(parameters[::2], parameters[1::2], strict=True):
                y = y + torch.bmm(functional.silu(torch.bmm(y, up)), down)
        return y.float().square().mean()

    return learned(loss, torch.optim.Adam(parameters, 1e-5, amsgrad=True, **how))


# layout_conversion


def super_resolution(memory_format: torch.memory_format) -> Step:
    channels, size = scaled(96), scaled(96)
    layers = [torch.nn.Conv2d(3, channels, 3, padding=1), *[Residual(channels) for _ in range(10)]]
    layers += [torch.nn.Conv2d(channels, 48, 3, padding=1), torch.nn.PixelShuffle(4)]
    model = torch.nn.Sequential(*layers).to(DEVICE, FP16, memory_format=memory_format).eval()
    return inferred(model, normal(32, 3, size, size, dtype=FP16).to(memory_format=memory_format))


# repeated_casts


def prompt_encoder(dtype: torch.dtype) -> Step:
    width = scaled(3072, 64)
    with torch.device(DEVICE):
        model = transformer(3072, 4, FP32).eval()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.to(dtype)
    prompts = [normal(4, scaled(128), width, dtype=FP32) for _ in range(2)]

    def step() -> torch.Tensor:
        encoded = []
        for prompt in prompts:
            with torch.no_grad(), torch.autocast(DEVICE, FP16):
                encoded.append(model(prompt))
        return torch.stack(encoded)

    return step


# recomputation


def checkpointed_perceptrons(recomputed: bool) -> Step:
    width = scaled(1280, 64)
    model, x = encoder(width, 8, BF16, recomputed), normal(16, scaled(256), width)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


# contiguous_copies, device_copies, grown_copy


def gram_matrices(copied: bool) -> Step:
    features = [
        normal(128, places, channels, dtype=FP16)
        for places, channels in ((scaled(16384), 128), (scaled(4096), 256), (scaled(1024), 512))
    ]

    def step() -> torch.Tensor:
        sums = []
        for x in features:
            turned = x.transpose(1, 2)
            sums.append((turned.contiguous() if copied else turned) @ x / x.shape[1])
        return torch.cat([gram.flatten(1) for gram in sums], 1)

    return step


def kept_features(cloned: bool) -> Step:
    rows, width = scaled(32768), scaled(1536)
    x, layers = normal(rows, width, dtype=FP16), linear_layers(width, 12, FP16)

    def step() -> torch.Tensor:
        y, features = x, []
        with torch.no_grad():
            for layer in layers:
                y = layer(y)
                features.append(y.detach().clone() if cloned else y.detach())
            return torch.stack([feature[::64] for feature in features])

    return step


def accumulated_scans(grown: bool) -> Step:
    points, features = scaled(32768), 32
    scans = [normal(points, features, dtype=FP32) for _ in range(64)]
    gain, offset = normal(features, dtype=FP32), normal(features, dtype=FP32)

    def step() -> torch.Tensor:
        cloud, parts = torch.empty(0, features, device=DEVICE), []
        for scan in scans:
            placed = torch.addcmul(offset, scan, gain)
            if grown:
                cloud = torch.cat((cloud, placed))
            else:
                parts.append(placed)
        return cloud if grown else torch.cat(parts)

    return step


# near_limit


def expert_products() -> Step:
    experts, tokens, width, hidden = 16, scaled(2048), scaled(2048), scaled(4096)
    x = normal(experts, tokens, width)
    pairs = [
        tuple(normal(experts, a, b).mul_(a**-0.5) for a, b in ((width, hidden), (hidden, width))) for _ in range(3)
    ]

    def step() -> torch.Tensor:
        y = x
        for up, down in pairs:
            y = torch.bmm(torch.bmm(y, up), down)
        return y

    return step


def normalized_rows() -> Step:
    width = scaled(2048)
    parts = [normal(scaled(131072), width, dtype=FP16) for _ in range(4)]
    gain, offset = normal(width, dtype=FP16), normal(width, dtype=FP16)

    def step() -> torch.Tensor:
        for part in parts:
            y = functional.layer_norm(part, [width], gain, offset)
        return y

    return step


PROGRAMS = {
    "retrieval_training": Program(
        retrieval_training,
        "fp32_products",
        "FP32 training of two towers with 8192 negatives in the batch",
        ("fusible_chain",),
        in_tf32(retrieval_training),
    ),
    "graph_training": Program(
        graph_training,
        "fp32_products",
        "FP32 GraphSAGE of 49152 nodes with 4 neighbours each, width 768",
        ("fusible_chain",),
        in_tf32(graph_training),
    ),
    "orthogonalized_updates": Program(
        orthogonalized_updates,
        "fp32_products",
        "FP32 Newton-Schulz iterations of 3 gradients of 1536 x 4096, as in Muon",
        ("near_limit",),
        in_tf32(orthogonalized_updates),
    ),
    "transducer_joint": of_two(
        transducer_joint,
        False,
        "unaligned_sizes",
        "joint network of a transducer: 1024 pieces of words and a blank",
        "slow_product_kernel",
        "fusible_chain",
    ),
    "expression_autoencoder": of_two(
        expression_autoencoder,
        False,
        "unaligned_sizes",
        "autoencoder of the expression of 2999 genes",
        "slow_product_kernel",
    ),
    "diffusion_policy": Program(
        diffusion_policy,
        "dispatch_bound",
        "50 steps of a small network that denoises actions of a robot",
        ("small_batch", "fusible_chain"),
        captured(diffusion_policy),
    ),
    "molecule_training": Program(
        molecule_training,
        "dispatch_bound",
        "training of 5 layers of width 64 on graphs of 2048 atoms",
        ("small_batch", "fusible_chain"),
        captured(molecule_training),
    ),
    "critics": of_two(
        critics,
        False,
        "dispatch_bound",
        "16 small critics one after the other, forward and backward (fixed: batched products)",
        "small_batch",
        "fusible_chain",
    ),
    "trimmed_batches": of_two(
        trimmed_batches, True, "blocking_read", "int(lengths.max()) before each of 20 batches", "dispatch_bound"
    ),
    "generated_tokens": of_two(
        generated_tokens, True, "blocking_read", ".tolist() of each of 48 tokens of 64 sequences", "dispatch_bound"
    ),
    "checked_layers": of_two(
        checked_layers,
        True,
        "blocking_read",
        "if y.isnan().any() after each of 10 layers (fixed: torch._assert_async)",
        "dispatch_bound",
    ),
    "ranked_requests": of_two(
        ranked_requests,
        True,
        "explicit_sync",
        "the stream is synchronized after both stages of 20 requests, to time them",
        "dispatch_bound",
    ),
    "copied_waveforms": of_two(
        copied_waveforms, False, "blocking_copy", "31 MB of pageable waveforms per step", "input_pipeline"
    ),
    "exported_embeddings": of_two(
        exported_embeddings,
        False,
        "blocking_copy",
        "4 batches of embeddings of 17 MB each to pageable host memory",
        "blocking_read",
    ),
    "copied_timesteps": of_two(
        copied_timesteps,
        True,
        "blocking_copy",
        "torch.tensor([t] * 64, device=...) in each of 20 denoising steps (fixed: torch.full)",
        "dispatch_bound",
        "fusible_chain",
    ),
    "sampled_transitions": of_two(
        sampled_transitions,
        True,
        "host_work",
        "4096 transitions are sampled by priority in a Python loop, twice (fixed: torch.searchsorted)",
        "input_pipeline",
    ),
    "masked_spans": of_two(
        masked_spans,
        True,
        "host_work",
        "masks of spans of speech are filled in Python loops (fixed: scatter_)",
        "input_pipeline",
    ),
    "rows_one_by_one": of_two(
        rows_one_by_one,
        False,
        "input_pipeline",
        "DataLoader that fetches and collates 2048 rows of a TensorDataset one by one (fixed: a batch at once)",
        "host_work",
    ),
    "decoded_tiles": of_two(
        decoded_tiles,
        True,
        "allocator_churn",
        "torch.cuda.empty_cache() after each of 12 tiles of a decoder",
        "explicit_sync",
    ),
    "denoised_images": of_two(
        denoised_images, False, "fusible_chain", "guidance and one step of a sampler on 58 M FP32 pixels"
    ),
    "companded_audio": of_two(
        companded_audio, False, "fusible_chain", "mu-law encoding of 46 M FP32 samples to integers"
    ),
    "distillation_loss": of_two(
        distillation_loss, False, "fusible_chain", "divergence of 12288 rows of BF16 logits in FP32, with backward"
    ),
    "window_attention": of_two(
        window_attention,
        True,
        "eager_attention",
        "FP16 attention by hand within 2048 windows of 256 positions, with a bias",
        "fusible_chain",
    ),
    "speech_attention": of_two(
        speech_attention,
        True,
        "eager_attention",
        "training of attention by hand over 752 frames, padding masked",
        "fusible_chain",
    ),
    "adapter_training": of_two(
        adapter_training,
        False,
        "unfused_optimizer",
        "AdamW as it comes (foreach), 64 matrices of LoRA: launches",
        "dispatch_bound",
    ),
    "expert_training": of_two(
        expert_training,
        False,
        "unfused_optimizer",
        "Adam with amsgrad and foreach=False, 185 M parameters of experts in 4 tensors: memory traffic",
        "fusible_chain",
    ),
    "super_resolution": layout(super_resolution, "FP16 super-resolution by residual convolutions in NCHW"),
    "prompt_encoder": Program(
        lambda: prompt_encoder(FP32),
        "repeated_casts",
        "FP16 autocast casts 453 M FP32 weights for each of 2 requests",
        ("fusible_chain", "duplicate_work"),
        lambda: prompt_encoder(FP16),
    ),
    "checkpointed_perceptrons": of_two(
        checkpointed_perceptrons,
        True,
        "recomputation",
        "checkpoint around the perceptron of 8 layers of a vision transformer, memory suffices",
        "near_limit",
        "fusible_chain",
    ),
    "gram_matrices": of_two(
        gram_matrices, True, "contiguous_copies", "x.transpose(1, 2).contiguous() @ x of 3 FP16 feature maps"
    ),
    "kept_features": of_two(
        kept_features, True, "device_copies", "y.detach().clone() of the output of each of 12 layers"
    ),
    "accumulated_scans": of_two(
        accumulated_scans, True, "grown_copy", "torch.cat of all points so far after each of 64 scans", "device_copies"
    ),
    "expert_products": Program(
        expert_products, "near_limit", "BF16 batched products of 16 experts, 2048 tokens each", ("none",)
    ),
    "normalized_rows": Program(normalized_rows, "near_limit", "LayerNorm of 4 x 0.5 GB of FP16 rows", ("none",)),
}
