"""Data-parallel training on GPUs, one per rank; rank 1 sleeps for 40 ms in each step: ``two_gpus.py STEPS``."""

import os
import sys
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).cuda()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(2048, 4096, device="cuda")
for step in range(int(sys.argv[1])):
    with torch.profiler.record_function(f"number {step}"):
        if dist.get_rank() == 1:
            with torch.profiler.record_function("tokenize"):
                time.sleep(0.04)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
