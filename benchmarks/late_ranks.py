"""Jobs on two GPUs with a built-in late rank, recorded by torch.profiler: one trace per rank and job.

torchrun --nproc-per-node 2 benchmarks/late_ranks.py FOLDER [JOB...]
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

Step = Callable[[], None]
RANK = int(os.environ.get("RANK", "0"))
LATE = RANK == 1
DEVICE = torch.device("cuda", RANK)
WIDTH, LENGTH = 512, 128
CYCLES = 40_000_000  # of a kernel that only spins: 20.5 ms on an H100
MULTIPLIES = """
import torch
a = torch.randn(4096, 4096, device="cuda:1")
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


class Rows(Dataset[torch.Tensor]):
    """Rows that are there already; getting one takes as long as asked."""

    def __init__(self, late_s: float) -> None:
        self.late_s, self.rows = late_s, torch.randn(64, LENGTH, WIDTH)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.late_s:
            time.sleep(self.late_s)
        return self.rows[index % 64]


class Block(nn.Module):
    """A block of a transformer without attention, which may read numbers back."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.norm, self.reads = nn.LayerNorm(WIDTH), reads
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block."""
        y = x + self.down(F.gelu(self.up(self.norm(x))))
        for _ in range(4 if self.reads else 0):
            if y.square().mean().item() < 0:
                y = y * 2
        return y


def late_in_backward(block: nn.Module, sleep_s: float, cycles: int) -> None:
    """Let the backward pass of a block take longer: on the host, on the device."""

    def hook(*_: object) -> None:
        if sleep_s:
            time.sleep(sleep_s)
        if cycles:
            torch.cuda._sleep(cycles)

    if sleep_s or cycles:
        block.register_full_backward_hook(hook)


def replicas(
    batch: int = 64,
    *,
    loader_s: float = 0.0,
    sleep_s: float = 0.0,
    cycles: int = 0,
    reads: bool = False,
    blocks: int = 4,
) -> Step:
    """Return a training step of replicas."""
    torch.manual_seed(0)
    inner = nn.Sequential(*(Block(reads) for _ in range(blocks))).to(DEVICE)
    late_in_backward(inner[1], sleep_s, cycles)
    model = DistributedDataParallel(inner, device_ids=[RANK], bucket_cap_mb=8)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(Rows(loader_s / batch), batch_size=batch))

    def step() -> None:
        model(next(batches).to(DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Expert(nn.Module):
    """An expert a rank: tokens go to the rank of their expert and back.

    Args:
        share: of the tokens that go to rank 1.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.expert = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Send tokens, let the expert work, send results back."""
        x = x.reshape(-1, WIDTH)
        to_one = int(len(x) * self.share)
        sent = [len(x) - to_one, to_one]
        got = [sent[RANK]] * 2
        mine = all_to_all_single(x.new_empty(sum(got), WIDTH), x.contiguous(), got, sent)
        return all_to_all_single(torch.empty_like(x), self.expert(mine), sent, got)


def experts(share: float) -> Step:
    """Return a training step with an expert a rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to(DEVICE), device_ids=[RANK])
    expert = Expert(share).to(DEVICE)
    optimizer = torch.optim.SGD([*model.parameters(), *expert.parameters()], lr=1e-3)
    x = torch.randn(64, 256, WIDTH, device=DEVICE)

    def step() -> None:
        y = model(x)
        for _ in range(3):
            y = y + expert(y).reshape(y.shape)
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sharded(sleep_s: float = 0.0, cycles: int = 0) -> Step:
    """Return a training step with sharded parameters."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4))).to(DEVICE)
    late_in_backward(model[1], sleep_s, cycles)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(96, LENGTH, WIDTH, device=DEVICE)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def followed(work: Step, cycles: int) -> Step:
    """Return a step behind which the device works for longer, as of an optimizer that does more on one rank."""

    def step() -> None:
        work()
        if cycles:
            torch.cuda._sleep(cycles)

    return step


def in_turn(work: Step, sleep_s: float) -> Step:
    """Return a step before which one rank sleeps and then the other one."""
    counts = itertools.count()

    def step() -> None:
        if next(counts) % 2 == RANK:
            time.sleep(sleep_s)
        work()

    return step


def pausing(work: Step, model_hooks: int, sleep_s: float) -> Step:
    """Return a step in whose modules the host pauses many times."""
    left = [0]

    def pause(*_: object) -> None:
        if left[0] > 0:
            left[0] -= 1
            time.sleep(sleep_s)

    torch.nn.modules.module.register_module_forward_pre_hook(pause)

    def step() -> None:
        left[0] = model_hooks
        work()

    return step


def pipeline(cycles: int = 0) -> Step:
    """Return a training step of two stages and four micro-batches."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(2))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(48, LENGTH, WIDTH, device=DEVICE)

    def first() -> None:
        outputs = []
        for _ in range(4):
            outputs.append(model(x))
            dist.send(outputs[-1].detach(), 1)
        for output in outputs:
            gradient = torch.empty_like(output)
            dist.recv(gradient, 1)
            output.backward(gradient)

    def second() -> None:
        kept = []
        for _ in range(4):
            got = torch.empty_like(x)
            dist.recv(got, 0)
            loss = model(got.requires_grad_()).square().mean()
            if cycles:
                torch.cuda._sleep(cycles)
            kept.append((got, loss))
        for got, loss in kept:
            loss.backward()
            assert got.grad is not None
            dist.send(got.grad, 0)

    def step() -> None:
        (second if LATE else first)()
        optimizer.step()
        optimizer.zero_grad()

    return step


JOBS: dict[str, Callable[[], Step]] = {
    "healthy_ddp": replicas,
    "late_backward_host": lambda: replicas(sleep_s=0.2 * LATE),
    "late_backward_kernels": lambda: replicas(cycles=CYCLES * LATE),
    "late_loader": lambda: replicas(loader_s=0.06 * LATE),
    "smaller_batch": lambda: replicas(batch=64 if LATE else 32),
    "reads": lambda: replicas(reads=LATE, blocks=6),
    "busy_device": replicas,
    "experts_even": lambda: experts(0.5),
    "experts_uneven": lambda: experts(0.9),
    "healthy_fsdp": sharded,
    "fsdp_late_host": lambda: sharded(sleep_s=0.1 * LATE),
    "fsdp_late_kernels": lambda: sharded(cycles=CYCLES // 4 * LATE),
    "late_optimizer": lambda: followed(replicas(), CYCLES // 5 * LATE),
    "fsdp_late_optimizer": lambda: followed(sharded(), CYCLES // 5 * LATE),
    "in_turn": lambda: in_turn(replicas(), 0.006),
    "many_pauses": lambda: pausing(replicas(), 16 * LATE, 0.0005),
    "healthy_pipeline": pipeline,
    "pipeline_late_kernels": lambda: pipeline(cycles=CYCLES * LATE),
}


def recorded(name: str, folder: Path) -> float:
    """Record three steps of a job, and return how long one takes without a profiler, in seconds."""
    step = JOBS[name]()
    other = None
    if name == "busy_device":
        other = subprocess.Popen([sys.executable, "-c", MULTIPLIES]) if RANK == 0 else None
        time.sleep(12)  # until it multiplies
    together()
    for _ in range(5):
        step()
    together()
    timed = []
    for _ in range(5):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        timed.append(time.perf_counter() - began)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=2, active=3, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda one: one.export_chrome_trace(str(folder / f"rank{RANK}.json.gz")),
    ) as profiler:
        for _ in range(6):
            step()
            profiler.step()
    together()
    if other is not None:
        other.kill()
        other.wait()
    return sorted(timed)[2]


def together() -> None:
    """Wait for the device and for the other rank."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def main(folder: Path, names: Iterable[str]) -> None:
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    steps = {name: recorded(name, folder / name) for name in names}
    (folder / f"steps{RANK}.json").write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or JOBS)
