"""Tools for authors of kernels: benchmarks, a gallery, builds and listings, checks of kernels and of this machine."""
