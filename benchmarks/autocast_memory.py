"""How well the finding ``low_precision`` is known: twenty models in float32, and what autocast makes of their peak.

    python benchmarks/autocast_memory.py RESULTS.json [MODEL ...]    # on an NVIDIA GPU, with transformers and timm

Each model trains in a process of its own, once as it is and once under autocast to bfloat16, and PyTorch's peak of the
steps after the third is noted. ``opscope profile --memory`` then records the first one; what its finding says would be
left is compared with what was measured.
"""

import argparse
import concurrent.futures
import contextlib
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

ALONGSIDE = 5
STEPS = 6
PROFILED_STEPS = 400
DEVICE = "cuda"
Model = tuple[nn.Module, Callable[[], tuple[Any, ...]], Callable[..., torch.Tensor]]


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual's sum."""
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Attention(nn.Module):
    """Causal attention with a residual connection, fused or written out."""

    def __init__(self, width: int, heads: int, *, plain: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.plain = heads, plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual's sum."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.plain:
            scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
            later = torch.ones(length, length, device=x.device, dtype=torch.bool).triu(1)
            y = F.dropout(F.softmax(scores.masked_fill(later, float("-inf")), -1), 0.1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(rows, length, width))


class Generative(nn.Module):
    """A small GPT."""

    def __init__(self, vocabulary: int, width: int, depth: int, *, plain: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(512, width))
        blocks = [nn.Sequential(Attention(width, 8, plain=plain), Block(width)) for _ in range(depth)]
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places[: tokens.shape[1]])))


class Convolutions(nn.Module):
    """A residual block of convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual's sum."""
        return F.relu(self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))) + x)


class Unet(nn.Module):
    """A U-Net with group norms."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._pair(3, 32), self._pair(32, 64), self._pair(64, 128)])
        self.up = nn.ModuleList([self._pair(192, 64), self._pair(96, 32)])
        self.out = nn.Conv2d(32, 3, 1)

    @staticmethod
    def _pair(width: int, then: int) -> nn.Module:
        first = [nn.Conv2d(width, then, 3, padding=1), nn.GroupNorm(8, then), nn.SiLU()]
        return nn.Sequential(*first, nn.Conv2d(then, then, 3, padding=1), nn.GroupNorm(8, then), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image."""
        large = self.down[0](x)
        half = self.down[1](F.max_pool2d(large, 2))
        quarter = self.down[2](F.max_pool2d(half, 2))
        half = self.up[0](torch.cat([F.interpolate(quarter, scale_factor=2), half], 1))
        return self.out(self.up[1](torch.cat([F.interpolate(half, scale_factor=2), large], 1)))


class WithLoss(nn.Module):
    """A model of transformers that computes its own loss."""

    def __init__(self, model: nn.Module, **arguments: Any) -> None:
        super().__init__()
        self.model, self.arguments = model, arguments

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.model(tokens, labels=tokens, **self.arguments).loss


def _squares(y: torch.Tensor) -> torch.Tensor:
    return y.float().square().mean()


def _token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def _tokens() -> tuple[Any, ...]:
    tokens = torch.randint(0, 16384, (16, 513), device=DEVICE)
    return tokens[:, :-1], tokens[:, 1:]


def _generative(*, plain: bool) -> Model:
    return Generative(16384, 512, 6, plain=plain), _tokens, _token_loss


def _numbers(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape, device=DEVICE),)


def _images(count: int, size: int, classes: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (
        torch.randn(count, 3, size, size, device=DEVICE),
        torch.randint(0, classes, (count,), device=DEVICE),
    )


def _of_timm(name: str, count: int) -> Model:
    import timm

    return timm.create_model(name), _images(count, 224, 1000), F.cross_entropy


def _of_transformers(model: str, config: str, arguments: dict[str, Any], **settings: Any) -> Model:
    import transformers

    built = getattr(transformers, model)(getattr(transformers, config)(vocab_size=8192, **settings))
    return (
        WithLoss(built, **arguments),
        lambda: (torch.randint(0, 8192, (16, 512), device=DEVICE),),
        lambda loss: loss,
    )


def _convolutional() -> Model:
    blocks = [Convolutions(64) for _ in range(6)]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, *last), _images(64, 96, 10), F.cross_entropy


def _unet() -> Model:
    def pair() -> tuple[Any, ...]:
        x = torch.randn(32, 3, 256, 256, device=DEVICE)
        return x, x * 0.9

    return Unet(), pair, F.mse_loss


_GENERATES: dict[str, Any] = {"use_cache": False}
_LLAMA = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8}
MODELS: dict[str, Callable[[], Model]] = {
    "feed_forward": lambda: (nn.Sequential(*[Block(1024) for _ in range(8)]), _numbers(16, 512, 1024), _squares),
    "gpt": lambda: _generative(plain=False),
    "gpt_plain_attention": lambda: _generative(plain=True),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6),
        _numbers(32, 256, 512),
        _squares,
    ),
    "convolutions": _convolutional,
    "unet": _unet,
    "resnet50": lambda: _of_timm("resnet50", 64),
    "vit_small": lambda: _of_timm("vit_small_patch16_224", 64),
    "convnext_tiny": lambda: _of_timm("convnext_tiny", 48),
    "swin_tiny": lambda: _of_timm("swin_tiny_patch4_window7_224", 48),
    "efficientnet_b0": lambda: _of_timm("efficientnet_b0", 48),
    "mixer_s16": lambda: _of_timm("mixer_s16_224", 48),
    "regnety_016": lambda: _of_timm("regnety_016", 48),
    "bert": lambda: _of_transformers(
        "BertForMaskedLM", "BertConfig", {}, hidden_size=512, num_hidden_layers=6, num_attention_heads=8,
        intermediate_size=2048,
    ),
    "t5": lambda: _of_transformers(
        "T5ForConditionalGeneration", "T5Config", {}, d_model=512, d_ff=2048, num_layers=4, decoder_start_token_id=0
    ),
    "gpt2": lambda: _of_transformers("GPT2LMHeadModel", "GPT2Config", _GENERATES, n_embd=512, n_layer=6, n_head=8),
    "opt": lambda: _of_transformers(
        "OPTForCausalLM", "OPTConfig", _GENERATES, hidden_size=512, ffn_dim=2048, num_hidden_layers=6,
        num_attention_heads=8, word_embed_proj_dim=512,
    ),
    "llama": lambda: _of_transformers(
        "LlamaForCausalLM", "LlamaConfig", _GENERATES, **_LLAMA, num_hidden_layers=8, num_key_value_heads=8
    ),
    "qwen2": lambda: _of_transformers(
        "Qwen2ForCausalLM", "Qwen2Config", _GENERATES, **_LLAMA, num_hidden_layers=6, num_key_value_heads=2
    ),
    "mistral": lambda: _of_transformers(
        "MistralForCausalLM", "MistralConfig", _GENERATES, **_LLAMA, num_hidden_layers=6, num_key_value_heads=4,
        sliding_window=None,
    ),
}  # fmt: skip


def train(name: str, steps: int, *, autocast: bool) -> None:
    """Train a model, and print PyTorch's peak in bytes."""
    torch.manual_seed(0)
    model, data, loss = MODELS[name]()
    model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        x, *target = data()
        with torch.autocast(DEVICE, torch.bfloat16) if autocast else contextlib.nullcontext():
            value = loss(model(x), *target)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:  # workspaces are there, and the optimizer's states
            torch.cuda.reset_peak_memory_stats()
    print("most", torch.cuda.max_memory_allocated())


def compare(name: str) -> dict[str, Any]:
    """Measure a model both ways, and ask opscope."""
    program = [str(Path(__file__).resolve()), "-", "--one", name]

    def most(*more: str) -> int:
        done = subprocess.run([sys.executable, *program, *more], capture_output=True, text=True, check=True)
        return int(done.stdout.rpartition("most")[2])

    as_is, then = most(), most("--autocast")
    with tempfile.TemporaryDirectory() as folder:
        options = ["--memory", "--quick", "--output-dir", folder]
        steps = ["--steps", str(PROFILED_STEPS)]
        subprocess.run(
            [sys.executable, "-m", "opscope", "profile", *options, *program, *steps], capture_output=True, check=True,
            env=os.environ,
        )  # fmt: skip
        document = json.loads(next(Path(folder).glob("profiling_stats_*.json")).read_text())["device_memory"]
    found = next((one for one in document["findings"] if one["rule"] == "low_precision"), None)
    peak = document["devices"][0]["peak_bytes"]
    said = None if found is None else found["then_bytes"]
    off = None if said is None else round(said / then - 1, 4)
    return {"measured": as_is, "recorded": peak, "autocast": then, "said": said, "off": off}


def main() -> None:
    """Compare the models that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--autocast", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        train(asked.one, asked.steps, autocast=asked.autocast)
        return
    names = asked.names or list(MODELS)
    with concurrent.futures.ThreadPoolExecutor(ALONGSIDE) as pool:
        compared = dict(zip(names, pool.map(compare, names), strict=True))
    for name, result in compared.items():
        print(name, result)
    versions = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    asked.results.write_text(json.dumps({**versions, "models": compared}, indent=1) + "\n")


if __name__ == "__main__":
    main()
