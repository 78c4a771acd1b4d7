"""PyTorch runs twenty products, and then the same under torch.profiler: recorded as torchlater.cudarec.xz."""

import torch
from torch.profiler import ProfilerActivity, profile


def work(count: int = 20) -> None:
    """Run some products."""
    x = torch.randn(512, 512, device="cuda")
    for _ in range(count):
        x = torch.relu(x @ x) / 600
    torch.cuda.synchronize()


work()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
    work()
