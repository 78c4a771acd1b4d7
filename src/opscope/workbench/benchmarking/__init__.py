"""Measures callables without a profiler. Needs PyTorch."""
