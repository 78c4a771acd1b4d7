"""Builds the kernel-to-source indexes that opscope ships, from PyTorch's wheels. Needs capstone."""
