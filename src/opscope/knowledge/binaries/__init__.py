"""What compiled libraries say of the CUDA kernels in them: read from their symbol tables, nothing is executed."""
