"""Devices and tensors of PyTorch, for the rooms that run something."""
