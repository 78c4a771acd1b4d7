"""Data-parallel training on the CPU: ``ranks.py STEPS [DIES_AT]``; rank 1 is slower, and dies at a step."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    if rank == 1:
        time.sleep(0.002)
        if len(sys.argv) > 2 and step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    with torch.profiler.record_function(f"number {step}"):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
