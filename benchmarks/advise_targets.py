"""Targets of many kinds for ``opscope advise``, each a function that returns a step: ``advise_targets.py:KIND``.

They are written as people write them, without regard to what could be changed. ``size`` is 1 on a CPU and larger on a
GPU.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], object]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 4 if DEVICE == "cuda" else 1


class Attention(nn.Module):
    """Attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


def trained(
    model: nn.Module, loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer | None = None
) -> Step:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def vision_transformer() -> Step:
    torch.manual_seed(0)
    width = 64 * SCALE

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 8, 8)
            self.blocks = nn.Sequential(*(Block(width, dropout=0.1) for _ in range(4)))
            self.head = nn.Linear(width, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))

    model = ViT().to(DEVICE)
    images, labels = torch.randn(8, 3, 64, 64, device=DEVICE), torch.randint(0, 10, (8,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(images), labels))


def unet() -> Step:
    torch.manual_seed(0)
    width = 8 * SCALE

    def convolution(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2 = convolution(3, width), convolution(width, 2 * width)
            self.middle = convolution(2 * width, 2 * width)
            self.up, self.out = convolution(4 * width, width), nn.Conv2d(2 * width, 1, 1)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            first = self.down1(images)
            second = self.down2(F.max_pool2d(first, 2))
            middle = F.interpolate(self.middle(F.max_pool2d(second, 2)), scale_factor=2)
            up = F.interpolate(self.up(torch.cat([middle, second], 1)), scale_factor=2)
            return self.out(torch.cat([up, first], 1))

    model = UNet().to(DEVICE)
    images, masks = torch.randn(4, 3, 64, 64, device=DEVICE), torch.rand(4, 1, 64, 64, device=DEVICE).round()
    return trained(model, lambda: F.binary_cross_entropy_with_logits(model(images), masks))


def lstm() -> Step:
    torch.manual_seed(0)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1000, 64 * SCALE)
            self.lstm = nn.LSTM(64 * SCALE, 64 * SCALE, num_layers=2, batch_first=True)
            self.out = nn.Linear(64 * SCALE, 20)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(self.lstm(self.embed(tokens))[0])

    model = Tagger().to(DEVICE)
    tokens, tags = (torch.randint(0, high, (16, 32), device=DEVICE) for high in (1000, 20))
    return trained(model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten()))


def gan() -> Step:
    torch.manual_seed(0)
    width = 64 * SCALE
    generator = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 32))
    critic = nn.Sequential(nn.Linear(32, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))
    generator, critic = generator.to(DEVICE), critic.to(DEVICE)
    first = torch.optim.Adam(generator.parameters(), 1e-4)
    second = torch.optim.Adam(critic.parameters(), 1e-4)
    real = torch.randn(64, 32, device=DEVICE)

    def step() -> torch.Tensor:
        fake = generator(torch.randn(64, 16, device=DEVICE))
        second.zero_grad()
        of_critic = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        of_critic.backward()
        second.step()
        first.zero_grad()
        of_generator = F.softplus(-critic(fake)).mean()
        of_generator.backward()
        first.step()
        return of_generator.detach()

    return step


def mixture_of_experts() -> Step:
    torch.manual_seed(0)
    width = 64 * SCALE

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(width, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(4)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights, chosen = torch.softmax(self.gate(x), -1).topk(2, dim=-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, place = torch.where(chosen == number)
                if rows.numel():
                    out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
            return out

    model = Experts().to(DEVICE)
    x, y = torch.randn(256, width, device=DEVICE), torch.randn(256, width, device=DEVICE)
    return trained(model, lambda: F.mse_loss(model(x), y))


def generation_with_cache() -> Step:
    torch.manual_seed(0)
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2 * SCALE, n_head=4, n_embd=64 * SCALE, vocab_size=1000, n_positions=256)
    model = GPT2LMHeadModel(config).to(DEVICE).eval()
    prompt = torch.randint(0, 1000, (2, 16), device=DEVICE)

    def step() -> torch.Tensor:
        return model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)

    return step


def diffusion() -> Step:
    torch.manual_seed(0)
    width = 64 * SCALE
    model = nn.Sequential(nn.Linear(33, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 32)).to(
        DEVICE
    )
    noise = torch.randn(64, 32, device=DEVICE)

    @torch.no_grad()
    def step() -> torch.Tensor:
        x = noise
        for time in range(10, 0, -1):
            at = torch.full((64, 1), time / 10, device=DEVICE)
            x = x - 0.1 * model(torch.cat([x, at], 1))
        return x

    return step


def graph_network() -> Step:
    torch.manual_seed(0)
    width, nodes = 32 * SCALE, 500
    edges = torch.randint(0, nodes, (2, 3000), device=DEVICE)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.others = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gathered = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
            return torch.relu(self.own(x) + self.others(gathered))

    model = nn.Sequential(Layer(), Layer(), nn.Linear(width, 5)).to(DEVICE)
    x, labels = torch.randn(nodes, width, device=DEVICE), torch.randint(0, 5, (nodes,), device=DEVICE)
    return trained(model, lambda: F.cross_entropy(model(x), labels))


def rollout() -> Step:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(8, 64 * SCALE), nn.Tanh(), nn.Linear(64 * SCALE, 4)).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-4)

    def step() -> float:
        state, chosen, rewards = torch.zeros(16, 8, device=DEVICE), [], []
        for _ in range(8):
            distribution = torch.distributions.Categorical(logits=policy(state))
            action = distribution.sample()
            chosen.append(distribution.log_prob(action))
            state = torch.tanh(state + F.one_hot(action, 8).float() * 0.1)
            rewards.append(state.sum(1))
        loss = -(torch.stack(chosen) * torch.stack(rewards)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def contrastive() -> Step:
    torch.manual_seed(0)
    width = 64 * SCALE
    images = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, width)
    ).to(DEVICE)
    texts = nn.Sequential(nn.EmbeddingBag(1000, width), nn.Linear(width, width)).to(DEVICE)
    optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters()], 1e-4)
    pictures, words = torch.randn(32, 3, 32, 32, device=DEVICE), torch.randint(0, 1000, (32, 12), device=DEVICE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        a, b = F.normalize(images(pictures), dim=1), F.normalize(texts(words), dim=1)
        logits, labels = a @ b.T / 0.07, torch.arange(32, device=DEVICE)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def speech_encoder() -> Step:
    torch.manual_seed(0)
    width = 64 * SCALE
    front = nn.Sequential(nn.Conv1d(1, width, 10, 5), nn.GELU(), nn.Conv1d(width, width, 8, 4), nn.GELU())

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front, self.blocks = front, nn.Sequential(Block(width), Block(width))

        def forward(self, sound: torch.Tensor) -> torch.Tensor:
            return self.blocks(self.front(sound).transpose(1, 2))

    model, sound = Encoder().to(DEVICE).eval(), torch.randn(4, 1, 4000, device=DEVICE)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(sound)

    return step


def recommender() -> Step:
    torch.manual_seed(0)

    class Ranker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(20_000 * SCALE, 16) for _ in range(8))
            self.top = nn.Sequential(nn.Linear(8 * 16 + 8, 64 * SCALE), nn.ReLU(), nn.Linear(64 * SCALE, 1))

        def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
            found = [table(sparse[:, place]) for place, table in enumerate(self.tables)]
            return self.top(torch.cat([dense, *found], 1)).squeeze(1)

    model = Ranker().to(DEVICE)
    dense, clicks = torch.randn(128, 8, device=DEVICE), torch.rand(128, device=DEVICE).round()
    sparse = torch.randint(0, 20_000, (128, 8), device=DEVICE)
    return trained(
        model,
        lambda: F.binary_cross_entropy_with_logits(model(dense, sparse), clicks),
        torch.optim.Adagrad(model.parameters(), 1e-3),
    )


def accumulated() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(32 * SCALE, dropout=0.1) for _ in range(3))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = torch.randn(4, 4, 32, 32 * SCALE, device=DEVICE)

    def step() -> float:
        optimizer.zero_grad()
        total = 0.0
        for batch in batches:
            loss = model(batch).square().mean() / len(batches)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return step


def checkpointed() -> Step:
    torch.manual_seed(0)

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block(32 * SCALE, dropout=0.1) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    model, x = Saving().to(DEVICE), torch.randn(8, 32, 32 * SCALE, device=DEVICE)
    return trained(model, lambda: model(x).square().mean())


def two_losses() -> Step:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(32, 64 * SCALE), nn.ReLU(), nn.Linear(64 * SCALE, 64 * SCALE), nn.ReLU()).to(DEVICE)
    heads = nn.ModuleList([nn.Linear(64 * SCALE, 10), nn.Linear(64 * SCALE, 1)]).to(DEVICE)
    optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], 1e-3, momentum=0.9)
    x, labels, values = (
        torch.randn(64, 32, device=DEVICE),
        torch.randint(0, 10, (64,), device=DEVICE),
        torch.randn(64, 1, device=DEVICE),
    )

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        hidden = body(x)
        first, second = F.cross_entropy(heads[0](hidden), labels), F.mse_loss(heads[1](hidden), values)
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return (first + second).detach()

    return step


KINDS = (
    vision_transformer, unet, lstm, gan, mixture_of_experts, generation_with_cache, diffusion, graph_network, rollout,
    contrastive, speech_encoder, recommender, accumulated, checkpointed, two_losses,
)  # fmt: skip
