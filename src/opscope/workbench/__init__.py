"""Tools for authors of kernels: benchmarks, a gallery, builds, listings, and checks of kernels and of this machine."""
