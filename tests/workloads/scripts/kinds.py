"""Training and inference of many kinds, each a plain loop: ``kinds.py KIND [STEPS]``."""

import sys
import time

import torch
from torch import nn

KIND, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
x = torch.randn(32, 64)


def loss():
    return net(x).square().mean()


def accumulation():
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(STEPS):
        for _ in range(4):
            loss().backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluation_first():
    """Two hundred evaluations before each thousand steps, as nanoGPT has them."""
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(STEPS):
        if step % 1000 == 0:
            net.eval()
            with torch.no_grad():
                for _ in range(200):
                    net(x)
            net.train()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluation_only():
    torch.optim.AdamW(net.parameters())
    optimizer = torch.optim.AdamW(net.parameters())
    net.eval()
    with torch.no_grad():
        for _ in range(min(STEPS, 3000)):
            net(x)
    del optimizer


def gan():
    other = nn.Linear(64, 1)
    generator, critic = torch.optim.Adam(net.parameters()), torch.optim.Adam(other.parameters())
    for _ in range(STEPS):
        critic.zero_grad()
        (other(x) - other(net(x).detach())).mean().backward()
        critic.step()
        generator.zero_grad()
        (-other(net(x))).mean().backward()
        generator.step()


def lbfgs():
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(STEPS):
        optimizer.step(closure)


def scaler():
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            value = loss()
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


def by_hand():
    """No optimizer of PyTorch's: the parameters are updated by hand."""
    for _ in range(STEPS):
        loss().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(1e-3 * parameter.grad)
                parameter.grad = None


def unheard():
    """An optimizer whose step no one hears, as one that was compiled."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    step = type(optimizer).step.__wrapped__.__wrapped__
    for _ in range(STEPS):
        for _ in range(2):
            loss().backward()
        step(optimizer)
        optimizer.zero_grad()


def tokens():
    """A prompt, then tokens one by one, again and again."""
    embed = nn.Linear(64, 64).eval()
    with torch.no_grad():
        for _ in range(STEPS):
            embed(torch.randn(100, 64))
            for _ in range(60):
                embed(torch.randn(1, 64))


def workers():
    data = torch.utils.data.TensorDataset(torch.randn(256, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(STEPS):
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=1):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()


class Task(nn.Module):
    """A module whose `to` knows devices and types alone, as timm's tasks."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def to(self, *args, **kwargs):
        self.device = torch.empty(0).to(*args, **kwargs).device
        return super().to(*args, **kwargs)

    def forward(self, images):
        return self.model(images).square().mean()


def own_to():
    task, images = Task(nn.Conv2d(3, 8, 3)), torch.randn(2, 3, 16, 16)
    optimizer = torch.optim.SGD(task.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        task(images).backward()
        optimizer.step()


def functional():
    """No module, no optimizer: nothing that bounds a step."""
    weight = torch.randn(64, 64)
    for _ in range(STEPS):
        torch.relu(x @ weight).sum()


def annotated():
    weight = torch.randn(64, 64)
    for _ in range(STEPS):
        with torch.profiler.record_function("my_step"):
            torch.relu(x @ weight).sum()


def bursts():
    """Steps that take longer and longer: no clock of them is steady."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss().backward()
        optimizer.step()
        time.sleep(0.002 + step * 0.0001)


if __name__ == "__main__":
    globals()[KIND]()
