"""Profiles one call with PyTorch's bare profiler, as the founding guide does, and writes the trace."""

import sys

import torch

x = torch.randn(64, 64)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
    y = torch.mm(x, x)
print(p.key_averages().table(row_limit=3))
if sys.argv[1:] == ["export"]:
    p.export_chrome_trace("trace.json")
