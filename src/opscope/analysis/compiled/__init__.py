"""What ``torch.compile`` did, joined with the steps of a trace: breaks, recompilations, graphs, and kernels' lines."""
