"""What commands start: processes that measure benchmarks or list kernels, and the parents that follow them."""
