"""Programs that take memory for a known reason, each with its remedy: recorded as snapshots, with the truth.

    python benchmarks/memory_programs.py OUTPUT_FOLDER [PROGRAM ...]    # on NVIDIA GPUs; each in a process of its own

Writes ``NAME.pickle`` (PyTorch's snapshot), ``NAME.fixed.pickle`` (the same program with its remedy) and
``truth.json``: PyTorch's own statistics at both, in bytes.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20
DEVICE = "cuda"
ALONGSIDE = 6


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual's sum."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Blocks one after the other, checkpointed or not."""

    def __init__(self, width: int, depth: int, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last block's output."""
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


class Tagger(nn.Module):
    """An embedding, blocks and a projection to a large vocabulary."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.body = Stack(width, depth)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return hidden states, without the head."""
        return self.body(self.embedding(tokens))


def activations(fixed: bool) -> dict[str, Any]:
    model = Stack(512, 12, checkpointed=fixed).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(64, 256, 512, device=DEVICE)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def activations_sequential(fixed: bool) -> dict[str, Any]:
    model = nn.Sequential(*[Block(768) for _ in range(10)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(48, 256, 768, device=DEVICE)
    for _ in range(4):
        y = x
        if fixed:
            for block in model:
                y = checkpoint(block, y, use_reentrant=False)
        else:
            y = model(x)
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def foreach_optimizer(fixed: bool) -> dict[str, Any]:
    model = Stack(2048, 8).to(DEVICE)
    arguments = {"fused": True} if fixed else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **arguments)
    for _ in range(4):
        x = torch.randn(2, 64, 2048, device=DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


class Adam8(torch.optim.Optimizer):
    """Adam whose two states are kept in 8 bits with a scale per 256 values, written back one parameter at a time."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                count = (p.numel() + 255) // 256
                if not state:
                    for name in ("exp_avg", "exp_avg_sq"):
                        state[name] = torch.zeros(p.numel(), dtype=torch.uint8, device=p.device)
                        state[name + "_scale"] = torch.zeros(count, device=p.device)
                p.add_(p.grad, alpha=-group["lr"])


def optimizer_states(fixed: bool) -> dict[str, Any]:
    model = Stack(2048, 8).to(DEVICE)
    optimizer = Adam8(model.parameters()) if fixed else torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(4):
        x = torch.randn(2, 64, 2048, device=DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def vocabulary_loss(fixed: bool) -> dict[str, Any]:
    model = Tagger(50304, 256, 2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def part(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model.head(hidden), targets, reduction="sum")

    for _ in range(4):
        tokens = torch.randint(0, 50304, (8, 513), device=DEVICE)
        hidden = model(tokens[:, :-1]).reshape(-1, 256)
        targets = tokens[:, 1:].reshape(-1)
        if fixed:
            parts = zip(hidden.chunk(8), targets.chunk(8), strict=True)
            loss = sum(checkpoint(part, h, t, use_reentrant=True) for h, t in parts) / len(targets)
        else:
            logits = model.head(hidden)
            loss = F.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def zeroed_gradients(fixed: bool) -> dict[str, Any]:
    model = Stack(1024, 12).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(4):
        x = torch.randn(24, 256, 1024, device=DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=fixed)
    return locals()


def kept_outputs(fixed: bool) -> dict[str, Any]:
    model = Stack(512, 4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    outputs = []
    for _ in range(16):
        x = torch.randn(32, 256, 512, device=DEVICE)
        y = model(x)
        outputs.append(y.detach().cpu() if fixed else y.detach())
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def kept_graphs(fixed: bool) -> dict[str, Any]:
    model = Stack(512, 4).to(DEVICE)
    total = torch.zeros((), device=DEVICE)
    for _ in range(12):
        x = torch.randn(32, 128, 512, device=DEVICE)
        loss = model(x).square().mean()
        total = total + (loss.item() if fixed else loss)
    return locals()


def kept_by_hook(fixed: bool) -> dict[str, Any]:
    model = Stack(512, 4).to(DEVICE)
    seen: list[torch.Tensor] = []

    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if fixed:
            seen.clear()
        seen.append(output)

    model.blocks[1].register_forward_hook(hook)
    with torch.no_grad():
        for _ in range(16):
            x = torch.randn(32, 256, 512, device=DEVICE)
            model(x)
    return locals()


def growing_cache(fixed: bool) -> dict[str, Any]:
    width, steps, begin = 4096, 24, 512
    if fixed:
        whole = torch.empty(8, begin + steps, width, device=DEVICE)
        keys = whole[:, :begin]
        keys.zero_()
    else:
        keys = torch.zeros(8, begin, width, device=DEVICE)
    project = nn.Linear(width, width).to(DEVICE)
    with torch.no_grad():
        for step in range(steps):
            key = project(torch.randn(8, 1, width, device=DEVICE))
            if fixed:
                whole[:, begin + step] = key[:, 0]
                keys = whole[:, : begin + step + 1]
            else:
                keys = torch.cat([keys, key], dim=1)
    return locals()


def evaluation_graph(fixed: bool) -> dict[str, Any]:
    model = Stack(768, 8).to(DEVICE).eval()
    for _ in range(4):
        x = torch.randn(48, 256, 768, device=DEVICE)
        with torch.set_grad_enabled(not fixed):
            y = model(x)
        y.mean().item()
        del y
    return locals()


def late_zero_grad(fixed: bool) -> dict[str, Any]:
    model = Stack(2048, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(4):
        if fixed:
            optimizer.zero_grad()
        x = torch.randn(8, 128, 2048, device=DEVICE)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return locals()


def evaluation_after_training(fixed: bool) -> dict[str, Any]:
    model = Stack(1024, 8).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(3):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(2, 64, 1024, device=DEVICE)).square().mean().backward()
            optimizer.step()
        if fixed:
            optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(2):
                model(torch.randn(64, 256, 1024, device=DEVICE)).mean().item()
    return locals()


def previous_output(fixed: bool) -> dict[str, Any]:
    head = nn.Linear(512, 32000).to(DEVICE)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(8, 512, 512, device=DEVICE)
            logits = head(x)
            logits.argmax(-1).cpu()
            if fixed:
                del logits
    return locals()


def fragments(fixed: bool) -> dict[str, Any]:
    live: list[Any] = [torch.empty((7 + 13 * i % 29) * MIB, dtype=torch.uint8, device=DEVICE) for i in range(80)]
    for i in range(0, 80, 2):
        live[i] = None
    big = [torch.empty(size * MIB, dtype=torch.uint8, device=DEVICE) for size in (300, 90, 260)]
    del big
    return locals()


def changing_lengths(fixed: bool) -> dict[str, Any]:
    model = Stack(512, 6).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for length in (96, 130, 171, 205, 222, 260, 300, 341, 377, 420):
        x = torch.randn(32, length, 512, device=DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def graph_pools(fixed: bool) -> dict[str, Any]:
    model = Stack(512, 4).to(DEVICE).eval()
    inputs = [torch.randn(rows, 256, 512, device=DEVICE) for rows in (8, 16, 32, 64)]
    graphs, outputs = [], []
    pool = torch.cuda.graph_pool_handle() if fixed else None
    side = torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(inputs[-1])
        torch.cuda.current_stream().wait_stream(side)
        for x in reversed(inputs):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                outputs.append(model(x))
            graphs.append(graph)
        for _ in range(3):
            for graph in graphs:
                graph.replay()
    return locals()


def several_streams(fixed: bool) -> dict[str, Any]:
    streams = [torch.cuda.current_stream()] * 4 if fixed else [torch.cuda.Stream() for _ in range(4)]
    model = Stack(512, 4).to(DEVICE)
    with torch.no_grad():
        for step in range(12):
            with torch.cuda.stream(streams[step % 4]):
                x = torch.randn(64, 256, 512, device=DEVICE)
                y = model(x)
                y.mean().item()
                del x, y
    return locals()


def recorded_streams(fixed: bool) -> dict[str, Any]:
    side = torch.cuda.Stream()
    weight = torch.randn(2048, 2048, device=DEVICE)
    for _ in range(8):
        x = torch.randn(4096, 2048, device=DEVICE)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(12):
                y = x @ weight
        x.record_stream(side)
        if fixed:
            side.synchronize()
        del x, y
    torch.cuda.synchronize()
    return locals()


def expandable(fixed: bool) -> dict[str, Any]:
    return activations(fixed)


def checkpointed(fixed: bool) -> dict[str, Any]:  # noqa: ARG001 - both are alike
    return activations(fixed=True)


def small_model(fixed: bool) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(6):
        x, y = torch.randn(64, 256, device=DEVICE), torch.randint(0, 10, (64,), device=DEVICE)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def two_devices(fixed: bool) -> dict[str, Any]:
    first = Stack(512, 6, checkpointed=fixed).to("cuda:0")
    second = Stack(512, 3).to("cuda:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
    for _ in range(3):
        x = torch.randn(32, 256, 512, device="cuda:0")
        second(first(x).to("cuda:1")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def _limit(gibibytes: float) -> None:
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(gibibytes * 2**30 / whole)


def oom_forward(fixed: bool) -> dict[str, Any]:
    _limit(3)
    model = Stack(512, 24, checkpointed=fixed).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in (16, 16, 48):
        x = torch.randn(batch, 256, 512, device=DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def oom_backward(fixed: bool) -> dict[str, Any]:
    _limit(1.5)
    model = Tagger(32000, 256, 1).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def part(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model.head(hidden), targets, reduction="sum")

    for batch in (4, 8, 16):
        tokens = torch.randint(0, 32000, (batch, 257), device=DEVICE)
        hidden, targets = model(tokens[:, :-1]).reshape(-1, 256), tokens[:, 1:].reshape(-1)
        if fixed:
            parts = zip(hidden.chunk(8), targets.chunk(8), strict=True)
            loss = sum(checkpoint(part, h, t, use_reentrant=True) for h, t in parts) / len(targets)
        else:
            logits = model.head(hidden)
            loss = F.cross_entropy(logits, targets)
            del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def oom_optimizer(fixed: bool) -> dict[str, Any]:
    _limit(2.62)
    model = Stack(2048, 5).to(DEVICE)
    optimizer = Adam8(model.parameters()) if fixed else torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(3):
        x = torch.randn(2, 64, 2048, device=DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def oom_fragments(fixed: bool) -> dict[str, Any]:
    _limit(2)
    large = [torch.empty(140 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(14)]
    large.clear()
    small, between = [], []
    for _ in range(14):  # a small block in each of the large segments
        small.append(torch.empty(30 * MIB, dtype=torch.uint8, device=DEVICE))
        between.append(torch.empty(105 * MIB, dtype=torch.uint8, device=DEVICE))
    between.clear()
    big = torch.empty(300 * MIB, dtype=torch.uint8, device=DEVICE)
    del big
    return locals()


def second_copy(fixed: bool) -> dict[str, Any]:
    model = Stack(1024, 8).to(DEVICE)
    saved = {name: value.detach().clone().cpu() for name, value in model.state_dict().items()}
    checkpoint_state = {name: value.to("cpu" if fixed else DEVICE) for name, value in saved.items()}
    model.load_state_dict(checkpoint_state)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        x = torch.randn(8, 128, 1024, device=DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def whole_dataset(fixed: bool) -> dict[str, Any]:
    images = torch.randn(6000, 3, 64, 64)
    images = images if fixed else images.to(DEVICE)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(65536, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(4):
        x = images[step * 16 : step * 16 + 16].to(DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def changing_lengths_limited(fixed: bool) -> dict[str, Any]:
    _limit(4)
    return changing_lengths(fixed)


# ---------------------------------------------------------------- written after the rules, and recorded once


class Residual(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways."""
        return torch.relu(x + self.second(self.first(x)))


def images(fixed: bool) -> dict[str, Any]:
    stem, head = nn.Conv2d(3, 64, 3, padding=1).to(DEVICE), nn.Linear(64, 10).to(DEVICE)
    body = nn.ModuleList(Residual(64) for _ in range(8)).to(DEVICE)
    optimizer = torch.optim.Adam([*stem.parameters(), *body.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(4):
        x, y = torch.randn(64, 3, 64, 64, device=DEVICE), torch.randint(0, 10, (64,), device=DEVICE)
        optimizer.zero_grad()
        h = stem(x)
        for block in body:
            h = checkpoint(block, h, use_reentrant=False, early_stop=False) if fixed else block(h)
        F.cross_entropy(head(h.mean((2, 3))), y).backward()
        optimizer.step()
    return locals()


def encoder(fixed: bool) -> dict[str, Any]:
    layers = nn.ModuleList(nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True) for _ in range(6))
    layers, head = layers.to(DEVICE), nn.Linear(512, 1000).to(DEVICE)
    optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-4)
    for _ in range(4):
        x = torch.randn(24, 256, 512, device=DEVICE, requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False, early_stop=False) if fixed else layer(x)
        loss = head(x[:, 0]).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return locals()


def collected_logits(fixed: bool) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 8192)).to(DEVICE).eval()
    predictions = []
    with torch.inference_mode():
        for _ in range(20):
            batch = torch.randn(1024, 256).to(DEVICE)
            logits = model(batch)
            predictions.append(logits.argmax(-1) if fixed else logits)
    return locals()


class Attention(nn.Module):
    """Attention with a cache of keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for the newest tokens."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=1)
        self.values = v if self.values is None else torch.cat([self.values, v], dim=1)
        return self.out(F.scaled_dot_product_attention(q, self.keys, self.values))


def generation(fixed: bool) -> dict[str, Any]:
    layers = nn.ModuleList(Attention(1024) for _ in range(6)).to(DEVICE)
    with torch.no_grad():
        x = torch.randn(32, 256, 1024, device=DEVICE)
        for _ in range(24):
            for layer in layers:
                x = layer(x)
            x = x[:, -1:]
    return locals()


def batches_up_front(fixed: bool) -> dict[str, Any]:
    model = Stack(256, 3).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.randn(64, 128, 256) for _ in range(40)]
    batches = batches if fixed else [batch.to(DEVICE) for batch in batches]
    for batch in batches[:5]:
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def logged_losses(fixed: bool) -> dict[str, Any]:
    model = Stack(256, 3).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        loss = model(torch.randn(8, 32, 256, device=DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return locals()


def accumulated(fixed: bool) -> dict[str, Any]:
    model = Stack(1024, 6, checkpointed=fixed).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(3):
        for _ in range(4):
            x = torch.randn(16, 256, 1024, device=DEVICE)
            (model(x).square().mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    return locals()


def averaged_weights(fixed: bool) -> dict[str, Any]:
    model, average = Stack(1024, 6).to(DEVICE), Stack(1024, 6).to(DEVICE).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    for _ in range(4):
        model(torch.randn(4, 64, 1024, device=DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.01)
    return locals()


# program: (what runs, the finding that is expected or None, which figure its remedy changes, settings as remedy)
PROGRAMS: dict[str, tuple[Callable[[bool], dict[str, Any]], str | None, str, str]] = {
    "activations": (activations, "checkpoint", "peak", ""),
    "activations_sequential": (activations_sequential, "checkpoint", "peak", ""),
    "foreach_optimizer": (foreach_optimizer, "optimizer_temporaries", "peak", ""),
    "optimizer_states": (optimizer_states, "optimizer_states", "peak", ""),
    "vocabulary_loss": (vocabulary_loss, "vocabulary_loss", "peak", ""),
    "zeroed_gradients": (zeroed_gradients, "zeroed_gradients", "peak", ""),
    "kept_outputs": (kept_outputs, "growth", "peak", ""),
    "kept_graphs": (kept_graphs, "growth", "peak", ""),
    "kept_by_hook": (kept_by_hook, "growth", "peak", ""),
    "growing_cache": (growing_cache, "growing_cache", "peak", ""),
    "evaluation_graph": (evaluation_graph, "evaluation_graph", "peak", ""),
    "late_zero_grad": (late_zero_grad, "late_zero_grad", "peak", ""),
    "evaluation_after_training": (evaluation_after_training, "late_zero_grad", "peak", ""),
    "previous_output": (previous_output, "previous_output", "peak", ""),
    "fragments": (fragments, "fragmentation", "reserved", "expandable_segments:True"),
    "changing_lengths": (changing_lengths, "fragmentation", "reserved", "expandable_segments:True"),
    "graph_pools": (graph_pools, "graph_pools", "reserved", ""),
    "several_streams": (several_streams, "several_streams", "reserved", ""),
    "recorded_streams": (recorded_streams, "recorded_streams", "reserved", ""),
    "expandable": (expandable, "checkpoint", "peak", ""),
    "checkpointed": (checkpointed, "fragmentation", "reserved", "expandable_segments:True"),
    "small_model": (small_model, None, "peak", ""),
    "two_devices": (two_devices, "checkpoint", "peak", ""),
    "oom_forward": (oom_forward, "checkpoint", "peak", ""),
    "oom_backward": (oom_backward, "vocabulary_loss", "peak", ""),
    "oom_optimizer": (oom_optimizer, "optimizer_states", "peak", ""),
    "oom_fragments": (oom_fragments, "fragmentation", "reserved", "expandable_segments:True"),
    "changing_lengths_limited": (changing_lengths_limited, "fragmentation", "reserved", "expandable_segments:True"),
    "second_copy": (second_copy, "loaded_copy", "peak", ""),
    "whole_dataset": (whole_dataset, "whole_dataset", "peak", ""),
    "images": (images, "checkpoint", "peak", ""),
    "encoder": (encoder, "checkpoint", "peak", ""),
    "collected_logits": (collected_logits, "growth", "peak", ""),
    "generation": (generation, "fragmentation", "reserved", "expandable_segments:True"),
    "batches_up_front": (batches_up_front, "whole_dataset", "peak", ""),
    "logged_losses": (logged_losses, None, "peak", ""),
    "accumulated": (accumulated, "checkpoint", "peak", ""),
    "averaged_weights": (averaged_weights, None, "peak", ""),
}
# Programs that are run with other settings of the allocator too, to see what a replay says of them.
_TRIED = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "garbage_collection_threshold:0.8",
)
_WITH_SETTINGS = (
    "oom_fragments",
    "activations",
    "kept_outputs",
    "fragments",
    "changing_lengths",
    "changing_lengths_limited",
    "second_copy",
)
_ALL_STACKS = ("activations", "foreach_optimizer", "kept_graphs", "vocabulary_loss", "graph_pools", "oom_backward")


def record(name: str, folder: Path, *, fixed: bool) -> None:
    """Run one program in this process and write its snapshot and PyTorch's statistics."""
    run, _, _, _ = PROGRAMS[name]
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=200000, stacks="all" if name in _ALL_STACKS else "python")
    snapshot = folder / f"{name}{'.fixed' if fixed else ''}.pickle"
    try:
        alive = run(fixed)
        _write(snapshot, None)
        del alive
    except torch.OutOfMemoryError as failed:  # what was alive is, as long as its traceback
        _write(snapshot, str(failed))


def _write(snapshot: Path, error: str | None) -> None:
    torch.cuda.synchronize()
    statistics = [
        {
            "max_allocated": torch.cuda.max_memory_allocated(device),
            "allocated": torch.cuda.memory_allocated(device),
            "max_reserved": torch.cuda.max_memory_reserved(device),
            "reserved": torch.cuda.memory_reserved(device),
            "inactive_split": torch.cuda.memory_stats(device).get("inactive_split_bytes.all.current"),
            "retries": torch.cuda.memory_stats(device).get("num_alloc_retries"),
        }
        for device in range(torch.cuda.device_count())
    ]
    torch.cuda.memory._dump_snapshot(str(snapshot))
    print(json.dumps({"devices": statistics, "error": error}))


def _apart(name: str, folder: Path, *, fixed: bool, settings: str = "") -> dict[str, Any]:
    if not settings:
        settings = PROGRAMS[name][3] if fixed else ""
    if name == "expandable":
        settings = "expandable_segments:True"
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
    command = [sys.executable, __file__, str(folder), "--one", name, *(["--fixed"] if fixed else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]), settings=settings)
    except (IndexError, ValueError):
        return {"failed": done.stderr[-1500:]}


def main() -> None:
    """Record the programs that were named, or all that this machine has devices for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--fixed", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        record(asked.one, asked.folder, fixed=asked.fixed)
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    names = asked.names or [name for name in PROGRAMS if name != "two_devices" or torch.cuda.device_count() > 1]
    runs = [(name, fixed) for name in names for fixed in (False, True)]
    with concurrent.futures.ThreadPoolExecutor(ALONGSIDE) as pool:
        results = list(pool.map(lambda run: _apart(run[0], asked.folder, fixed=run[1]), runs))
    truth: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    for (name, fixed), result in zip(runs, results, strict=True):
        truth.setdefault(name, {"cause": PROGRAMS[name][1], "figure": PROGRAMS[name][2]})[
            "fixed" if fixed else "as_is"
        ] = result
        print(name, "fixed" if fixed else "as is", result.get("failed") or result["devices"][0], flush=True)
    with tempfile.TemporaryDirectory() as elsewhere, concurrent.futures.ThreadPoolExecutor(ALONGSIDE) as pool:
        tried = [(name, settings) for name in _WITH_SETTINGS if name in names for settings in _TRIED]
        folders = [Path(elsewhere) / str(number) for number in range(len(tried))]
        for folder in folders:
            folder.mkdir()
        with_settings = list(
            pool.map(
                lambda run: _apart(run[0][0], run[1], fixed=False, settings=run[0][1]), zip(tried, folders, strict=True)
            )
        )
    for (name, settings), result in zip(tried, with_settings, strict=True):
        truth[name].setdefault("settings", {})[settings] = result
    (asked.folder / "truth.json").write_text(json.dumps(truth, indent=1))


if __name__ == "__main__":
    main()
