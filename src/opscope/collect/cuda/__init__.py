"""Collects what any program does with CUDA, without PyTorch: a small library (``native/``) that the driver loads."""
