"""Inference: no optimizer tells where a step ends, and it would go on for ever."""

import itertools

import torch

encoder, decoder = torch.nn.Linear(16, 16).eval(), torch.nn.Linear(16, 4).eval()
with torch.no_grad():
    for _ in itertools.count():
        hidden = encoder(torch.ones(4, 16))
        decoder(hidden)
        decoder(hidden)
