"""Steps whose best changes are known, for ``opscope advise``: each a function that returns one.

They are those of the first probe of this idea, on one H200. What it found is what `advise.py` is held to.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import nn

Step = Callable[[], object]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = DEVICE == "cpu"


def bert(batch_size: int = 8) -> Step:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(attn_implementation="eager")).to(DEVICE).eval()
    tokens = torch.randint(0, 30_000, (batch_size, 128), device=DEVICE)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(tokens).last_hidden_state

    return step


def gpt2_training(batch_size: int = 4) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=6)).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 50_000, (batch_size, 512), device=DEVICE)

    def step() -> None:
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def encoder_training(batch_size: int = 8) -> Step:
    torch.manual_seed(0)
    width = 64 if SMALL else 512
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layer, 2 if SMALL else 6).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(batch_size, 16 if SMALL else 256, width, device=DEVICE)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def resnet_training(batch_size: int = 32) -> Step:
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50().to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch_size, 3, 224, 224, device=DEVICE)
    labels = torch.randint(0, 1_000, (batch_size,), device=DEVICE)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tiny_mlp_training(batch_size: int = 16) -> Step:
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(64, 10)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, labels = torch.randn(batch_size, 64, device=DEVICE), torch.randint(0, 10, (batch_size,), device=DEVICE)

    def step() -> torch.Tensor:
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def products_in_bf16() -> Step:
    """Matrix products at the device's rate: nothing should help."""
    torch.manual_seed(0)
    width, rows = (128, 16) if SMALL else (8_192, 4_096)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4))).to(DEVICE).bfloat16().eval()
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return model(x)

    return step


def branches() -> Step:
    """Leaves early, and works on a number of rows that depends on the data: nothing should help."""
    torch.manual_seed(0)

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = (nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(12))
            self.layers, self.head = nn.ModuleList(parts), nn.Linear(256, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + layer(x)
                if x.abs().mean().item() > 4.0:
                    break
            return torch.cat([self.head(x[x[:, 0] > 0]).sum(0), x.mean(0)])

    model = Branches().to(DEVICE).eval()
    x = torch.randn(64, 256, device=DEVICE)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return step


COUNT = 0


def counter() -> Step:
    """Counts its steps, for a learning rate that warms up and batches in turn: one graph of it would be wrong."""
    global COUNT  # noqa: PLW0603 (state that a graph would keep is what this one is for)
    COUNT = 0
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [torch.randn(64, 256, device=DEVICE) for _ in range(3)]
    labels = torch.randint(0, 10, (64,), device=DEVICE)

    def step() -> torch.Tensor:
        global COUNT  # noqa: PLW0603
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (COUNT + 1) / 20)
        loss = F.cross_entropy(model(batches[COUNT % 3]), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        COUNT += 1
        return loss.detach()

    return step


def own_loader() -> Step:
    """Takes new data each step, through a generator: one graph of it would be wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(256, 256), nn.GELU()))).to(DEVICE).eval()
    generator = torch.Generator().manual_seed(1)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            batch = torch.randn(64, 256, generator=generator)
            yield batch if SMALL else batch.pin_memory()

    taken = batches()

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(next(taken).to(DEVICE, non_blocking=True))

    return step


KINDS = (
    bert, gpt2_training, encoder_training, resnet_training, tiny_mlp_training, products_in_bf16, branches, counter,
    own_loader,
)  # fmt: skip
