"""Facts about CUDA kernels: what their names say, and which source they come from."""
