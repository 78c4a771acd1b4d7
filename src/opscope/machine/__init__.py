"""What is installed on this machine: the driver, CUPTI, CUDA's programs. Needs no PyTorch."""
