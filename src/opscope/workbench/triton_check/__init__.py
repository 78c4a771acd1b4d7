"""Whether a Triton kernel is right: its interpreter with hooks, and agreement with the GPU."""
