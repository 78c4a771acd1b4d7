"""Pure functions from a `Trace` to typed results. No PyTorch, no GPU, no files: every figure follows from the trace."""
