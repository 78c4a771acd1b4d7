"""The generators that a step may draw from."""

import random

import numpy as np
import torch


def seed(number: int) -> None:
    """Set all generators that a step may draw from."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
