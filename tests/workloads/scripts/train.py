"""A plain training script with an evaluation first, as users have them: nothing in it knows of a profiler."""

import argparse
import os
import sys

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--fail", action="store_true")
arguments = parser.parse_args()
assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
assert __name__ == "__main__"

net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with torch.no_grad():
    for _ in range(4):
        net(torch.ones(2, 32))
try:
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        for _ in range(2):  # two accumulated micro-batches
            net(torch.ones(8, 32)).square().mean().backward()
        optimizer.step()
    if arguments.fail:
        raise ValueError("the script's own")
    print("the whole script ran")
finally:
    print("its finally block ran")
