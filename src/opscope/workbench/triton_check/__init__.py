"""Checks whether a Triton kernel is right: in Triton's interpreter with hooks, and by comparison with the GPU."""
