"""A step whose parameters are settings and ones of its own, a function that is the step, and one that never ends."""

import time

import torch


def sized(hidden_size=8, dtype=torch.float32, width=4):
    left = torch.randn(width, hidden_size, dtype=dtype)
    return lambda: left @ left.T


def work():
    return torch.relu(torch.ones(64, 64))


def slow():
    def step():
        time.sleep(120)

    return step
