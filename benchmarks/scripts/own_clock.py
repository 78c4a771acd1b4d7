"""Eight kinds of programs, each with a clock of its own, as users write them: ``own_clock.py KIND [SECONDS]``.

The last line is the median of what that clock said, in milliseconds.
"""

import json
import statistics
import sys
import time

import torch
from torch import nn

KIND, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE = torch.cuda.is_available()
WIDTH, LAYERS, LENGTH, BATCH = (512, 8, 256, 16) if LARGE else (128, 2, 64, 4)
_WARM = 10  # steps that do not count
torch.manual_seed(0)


class Clock:
    """Tells when a program has run for long enough, and keeps the times between its ticks."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.count, self.last, self.began = 0, time.perf_counter(), 0.0

    def tick(self, steps: int = 1) -> None:
        """So many steps have ended."""
        now = time.perf_counter()
        self.count += steps
        if self.count > _WARM:
            self.began = self.began or now
            self.times.append(1e3 * (now - self.last) / steps)
        self.last = now

    def goes_on(self) -> bool:
        """Whether the program is to go on."""
        return not self.began or time.perf_counter() - self.began < SECONDS


class Model(nn.Module):
    """A small GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


clock = Clock()
model = Model().to(DEVICE)


def tokens(batch: int = BATCH) -> torch.Tensor:
    return torch.randint(0, 1000, (batch, LENGTH), device=DEVICE)


def loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(net(batch).flatten(0, 1), batch.flatten())


def train(net: nn.Module = model) -> None:
    """Evaluates first, then trains; the loss is printed, and so waited for, every ten steps."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    net.eval()
    with torch.no_grad():
        for _ in range(20):
            loss(net, tokens()).item()
    net.train()
    step = 0
    clock.last = time.perf_counter()
    while clock.goes_on():
        optimizer.zero_grad(set_to_none=True)
        value = loss(net, tokens())
        value.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            value.item()
            clock.tick(10)


def eager() -> None:
    train()


def compiled() -> None:
    train(torch.compile(model))


def accumulation() -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    while clock.goes_on():
        for _ in range(4):
            value = loss(model, tokens(max(1, BATCH // 4))) / 4
            value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value.item()
        clock.tick()


def loader() -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randint(0, 1000, (100_000, LENGTH)))
    batches = torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=1, pin_memory=LARGE)
    for (batch,) in batches:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch.to(DEVICE, non_blocking=True))
        value.backward()
        optimizer.step()
        value.item()
        clock.tick()
        if not clock.goes_on():
            break


def two_optimizers() -> None:
    critic = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).to(DEVICE)
    maker = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(DEVICE)
    first, second = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
    while clock.goes_on():
        noise, real = torch.randn(4096, 64, device=DEVICE), torch.randn(4096, WIDTH, device=DEVICE)
        first.zero_grad()
        (critic(maker(noise).detach()).mean() - critic(real).mean()).backward()
        first.step()
        second.zero_grad()
        value = -critic(maker(noise)).mean()
        value.backward()
        second.step()
        value.item()
        clock.tick()


def inference() -> None:
    model.eval()
    with torch.inference_mode():
        while clock.goes_on():
            model(tokens()).argmax(-1).cpu()
            clock.tick()


def generate() -> None:
    """A recurrent network that makes text, token by token, each of which is looked at."""
    embed, cell, head = nn.Embedding(1000, WIDTH), nn.GRU(WIDTH, WIDTH, LAYERS), nn.Linear(WIDTH, 1000)
    net = nn.ModuleList([embed, cell, head]).to(DEVICE).eval()

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, token: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            out, state = cell(embed(token), state)
            return head(out[-1]).argmax(-1), state

    step = Step().eval()
    with torch.no_grad():
        while clock.goes_on():
            token, state = step(torch.randint(0, 1000, (LENGTH, BATCH), device=DEVICE), None)
            clock.last = time.perf_counter()
            for _ in range(200):
                token, state = step(token[None], state)
                token[0].item()
                clock.tick()


def lbfgs() -> None:
    net = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(DEVICE)
    x = torch.randn(2048, 64, device=DEVICE)
    y = x.square().mean(1, keepdim=True)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1e-3, max_iter=4, tolerance_grad=0, tolerance_change=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = nn.functional.mse_loss(net(x), y)
        value.backward()
        return value

    while clock.goes_on():
        optimizer.step(closure).item()
        clock.tick()


if __name__ == "__main__":
    globals()[KIND]()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    print(json.dumps({"median_ms": statistics.median(clock.times), "ticks": len(clock.times)}))
