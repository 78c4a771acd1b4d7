"""Uses PyTorch's profiler itself: it goes first."""

import torch

net = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with torch.profiler.profile() as profiler:
    for _ in range(8):
        net(torch.ones(4, 16)).sum().backward()
        optimizer.step()
assert any(row.key == "aten::addmm" for row in profiler.key_averages())
print("its own profile was whole")
for _ in range(60):
    net(torch.ones(4, 16)).sum().backward()
    optimizer.step()
