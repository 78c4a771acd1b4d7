"""The processes that commands start to benchmark or to list kernels, and the code that starts and follows them."""
